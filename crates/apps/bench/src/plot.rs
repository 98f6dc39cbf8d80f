//! Figures as SVG: panels side by side, lines with markers, logarithmic or linear axes, one legend.
//! A small writer of our own: what is drawn is text, and a test can read it.

use std::fmt::Write;

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// In proportion, from zero.
    Linear,
    /// A doubling is as long everywhere.
    Log2,
    /// A tenfold is as long everywhere.
    Log10,
    /// A place for each name, by its number; points are not joined.
    Names(&'static [&'static str]),
}

/// One axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it says, with the unit.
    pub label: String,
    /// How values become places.
    pub scale: Scale,
}

/// A line: one name in the legend, in every panel.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend; series of one name have one colour.
    pub name: String,
    /// Points from left to right. Those an axis cannot show (not finite, or not above zero on a
    /// logarithmic one) are left out.
    pub points: Vec<(f64, f64)>,
}

/// One coordinate system.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Above it.
    pub title: String,
    /// Left to right.
    pub x: Axis,
    /// Bottom to top.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// A whole figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// At the top.
    pub title: String,
    /// Below it: how, where and when it was measured.
    pub note: String,
    /// Side by side, this many in a row.
    pub columns: usize,
    /// Row by row.
    pub panels: Vec<Panel>,
}

const PANEL_W: f64 = 430.0;
const PANEL_H: f64 = 300.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 48.0;
const HEAD: f64 = 86.0;
/// Colours that stay apart for those who do not see red and green apart.
const COLOURS: [&str; 6] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"];

/// An axis with its ends.
struct Ruler {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Ruler {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Ruler {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| shows(scale, *value)) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 1.0);
        }
        match scale {
            Scale::Linear => Ruler::linear(high),
            Scale::Log2 => Ruler::powers(scale, 2.0, low, high),
            Scale::Log10 => Ruler::powers(scale, 10.0, low, high),
            Scale::Names(names) => {
                let ticks: Vec<f64> = (0..names.len()).map(|n| n as f64).collect();
                Ruler { scale, low: -0.5, high: ticks.len() as f64 - 0.5, ticks }
            }
        }
    }

    fn linear(high: f64) -> Ruler {
        let rough = high.max(f64::MIN_POSITIVE) / 5.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|s| s * unit >= rough).unwrap_or(10.0);
        let count = (high / (step * unit)).ceil().clamp(1.0, 10.0);
        let ticks = (0..=10).map(f64::from).take_while(|n| *n <= count);
        let ticks: Vec<f64> = ticks.map(|n| n * step * unit).collect();
        Ruler { scale: Scale::Linear, low: 0.0, high: count * step * unit, ticks }
    }

    fn powers(scale: Scale, base: f64, low: f64, high: f64) -> Ruler {
        let first = low.log(base).floor();
        let last = high.log(base).ceil().max(first + 1.0);
        let exponents = (0..=64).map(|n| first + f64::from(n)).take_while(|e| *e <= last);
        let ticks: Vec<f64> = exponents.map(|exponent| base.powf(exponent)).collect();
        Ruler { scale, low: base.powf(first), high: base.powf(last), ticks }
    }

    /// Where a value lies, from 0 to 1.
    fn at(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear | Scale::Names(_) => (value - self.low) / (self.high - self.low),
            Scale::Log2 | Scale::Log10 => {
                (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln())
            }
        }
    }
}

fn shows(scale: Scale, value: f64) -> bool {
    let from_zero = matches!(scale, Scale::Linear | Scale::Names(_));
    value.is_finite() && (value > 0.0 || (from_zero && value >= 0.0))
}

/// A number as short as a tick can say it.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let digits = format!("{scaled:.2}");
    format!("{}{unit}", digits.trim_end_matches('0').trim_end_matches('.'))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Text at a place.
fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, what: &str) {
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        escaped(what)
    );
}

impl Figure {
    /// The figure as an SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        let columns = self.columns.max(1);
        let rows = self.panels.len().div_ceil(columns).max(1);
        let (width, height) = (columns as f64 * PANEL_W, HEAD + rows as f64 * PANEL_H);
        let names = self.names();
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        text(&mut out, (14.0, 24.0), "start", 16, &self.title);
        text(&mut out, (14.0, 44.0), "start", 11, &self.note);
        self.legend(&mut out, &names);
        for (i, panel) in self.panels.iter().enumerate() {
            let origin = ((i % columns) as f64 * PANEL_W, HEAD + (i / columns) as f64 * PANEL_H);
            panel.draw(&mut out, origin, &names);
        }
        out.push_str("</svg>\n");
        out
    }

    /// Every name once, in the order it first appears.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        names
    }

    fn legend(&self, out: &mut String, names: &[&str]) {
        let mut x = 14.0;
        for (i, name) in names.iter().enumerate() {
            let colour = colour(i);
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} 64h26\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <circle cx=\"{:.1}\" cy=\"64\" r=\"3.5\" fill=\"{colour}\"/>",
                x + 13.0
            );
            text(out, (x + 32.0, 68.0), "start", 12, name);
            x += 52.0 + 7.0 * name.chars().count() as f64;
        }
    }
}

fn colour(index: usize) -> &'static str {
    COLOURS.get(index % COLOURS.len()).copied().unwrap_or("black")
}

impl Panel {
    fn draw(&self, out: &mut String, (left, top): (f64, f64), names: &[&str]) {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Ruler::new(self.x.scale, points().map(|point| point.0));
        let y = Ruler::new(self.y.scale, points().map(|point| point.1));
        let (w, h) = (PANEL_W - LEFT - RIGHT, PANEL_H - TOP - BOTTOM);
        let (x0, y0) = (left + LEFT, top + TOP + h);
        let place = |a: f64, b: f64| (x0 + x.at(a) * w, y0 - y.at(b) * h);
        text(out, (x0 + w / 2.0, top + TOP - 10.0), "middle", 13, &self.title);
        for (n, &tick) in x.ticks.iter().enumerate() {
            let (at, _) = place(tick, y.low);
            let _ = writeln!(out, "<path d=\"M{at:.1} {y0:.1}v-{h:.1}\" stroke=\"#ddd\"/>");
            let label = match self.x.scale {
                Scale::Names(names) => names.get(n).map_or_else(String::new, ToString::to_string),
                _ => short(tick),
            };
            text(out, (at, y0 + 15.0), "middle", 10, &label);
        }
        for &tick in &y.ticks {
            let (_, at) = place(x.low, tick);
            let _ = writeln!(out, "<path d=\"M{x0:.1} {at:.1}h{w:.1}\" stroke=\"#ddd\"/>");
            text(out, (x0 - 6.0, at + 3.5), "end", 10, &short(tick));
        }
        let _ = writeln!(
            out,
            "<path d=\"M{x0:.1} {:.1}V{y0:.1}h{w:.1}\" fill=\"none\" stroke=\"black\"/>",
            y0 - h
        );
        text(out, (x0 + w / 2.0, y0 + 34.0), "middle", 11, &self.x.label);
        let (lx, ly) = (left + 16.0, y0 - h / 2.0);
        let _ = writeln!(
            out,
            "<text x=\"{lx:.1}\" y=\"{ly:.1}\" text-anchor=\"middle\" font-size=\"11\" \
             transform=\"rotate(-90 {lx:.1} {ly:.1})\">{}</text>",
            escaped(&self.y.label)
        );
        for series in &self.series {
            let index = names.iter().position(|name| *name == series.name).unwrap_or(0);
            let shown = series
                .points
                .iter()
                .filter(|(a, b)| shows(self.x.scale, *a) && shows(self.y.scale, *b));
            let places: Vec<(f64, f64)> = shown.map(|(a, b)| place(*a, *b)).collect();
            if !matches!(self.x.scale, Scale::Names(_)) {
                line(out, &places, colour(index));
            }
            markers(out, &places, colour(index));
        }
    }
}

fn line(out: &mut String, places: &[(f64, f64)], colour: &str) {
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        out,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
}

fn markers(out: &mut String, places: &[(f64, f64)], colour: &str) {
    for (x, y) in places {
        let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(scale: Scale, points: Vec<(f64, f64)>) -> Panel {
        let axis = |label: &str| Axis { label: label.to_owned(), scale };
        Panel {
            title: "read".to_owned(),
            x: axis("threads"),
            y: axis("operations/s"),
            series: vec![Series { name: "a<b".to_owned(), points }],
        }
    }

    fn figure(panels: Vec<Panel>) -> String {
        let (title, note) = ("Figure".to_owned(), "measured".to_owned());
        Figure { title, note, columns: 2, panels }.svg()
    }

    /// The places of the markers inside the panels, in the order drawn.
    fn markers(svg: &str) -> Vec<(f64, f64)> {
        let number = |line: &str, name: &str| -> f64 {
            let rest = line.split(&format!("{name}=\"")).nth(1).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        svg.lines()
            .filter(|line| line.starts_with("<circle"))
            .map(|line| (number(line, "cx"), number(line, "cy")))
            .collect()
    }

    #[test]
    fn doublings_are_equally_long_on_a_logarithmic_axis() {
        let svg = figure(vec![panel(Scale::Log2, vec![(1.0, 1.0), (2.0, 4.0), (8.0, 16.0)])]);
        let at = markers(&svg);
        let (dx, dy) = (at[1].0 - at[0].0, at[0].1 - at[1].1);
        assert!((at[2].0 - at[1].0 - 2.0 * dx).abs() < 0.3, "{at:?}");
        assert!((at[1].1 - at[2].1 - dy).abs() < 0.3, "{at:?}");
        assert!(dx > 0.0 && dy > 0.0, "right is more, up is more");
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_holds_every_point() {
        let svg =
            figure(vec![panel(Scale::Linear, vec![(0.0, 0.0), (50.0, 130.0), (97.0, 260.0)])]);
        let at = markers(&svg);
        assert!((at[0].0 - LEFT).abs() < 0.1 && (at[0].1 - (HEAD + PANEL_H - BOTTOM)).abs() < 0.1);
        assert!(at.iter().all(|(x, y)| *x <= PANEL_W - RIGHT && *y >= HEAD + TOP));
        let middle = f64::midpoint(at[0].1, at[2].1);
        assert!((at[1].1 - middle).abs() < 0.2, "in proportion");
    }

    #[test]
    fn words_are_there_and_escaped_and_nothing_is_not_a_number() {
        let odd = vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (0.0, 1.0), (1.0, -1.0), (4.0, 9.0)];
        for panels in [vec![], vec![panel(Scale::Log10, vec![])], vec![panel(Scale::Log2, odd)]] {
            let (has, shown) =
                (!panels.is_empty(), panels.iter().any(|p| p.series[0].points.len() > 1));
            let svg = figure(panels);
            assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
            assert_eq!(svg.contains("a&lt;b") && svg.contains("threads"), has);
            assert!(!svg.contains("a<b"));
            assert_eq!(markers(&svg).len(), usize::from(shown));
        }
    }

    #[test]
    fn ticks_are_short() {
        let cases = [(0.5, "0.5"), (128.0, "128"), (12_500.0, "12.5k"), (2e6, "2M"), (0.0, "0")];
        for (value, said) in cases {
            assert_eq!(short(value), said);
        }
    }
}
