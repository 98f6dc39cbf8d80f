//! What is asked of a measurement, and how it stands: each target with what was measured at every
//! point, the worst of them, and whether it is met at all.

use serde::Serialize;

use crate::stats::median;

/// The heading under which a table ends with its targets.
pub const HEADING: &str = "targets";

/// What was measured, by point.
pub(crate) type Points = Vec<(String, f64)>;

/// One target and how it stands.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// What it was measured with.
    pub of: String,
    /// What is held against what.
    pub what: String,
    /// The bound.
    pub asked: f64,
    /// Whether the bound is from above.
    pub at_most: bool,
    /// What was measured, by point.
    pub points: Points,
}

impl Verdict {
    pub(crate) fn at_most(of: &str, what: &str, asked: f64, points: Points) -> Verdict {
        Verdict { of: of.to_owned(), what: what.to_owned(), asked, at_most: true, points }
    }

    pub(crate) fn at_least(of: &str, what: &str, asked: f64, points: Points) -> Verdict {
        Verdict { at_most: false, ..Verdict::at_most(of, what, asked, points) }
    }

    fn holds(&self, value: f64) -> bool {
        if self.at_most { value <= self.asked } else { value >= self.asked }
    }

    /// Points at which it is met.
    #[must_use]
    pub fn met(&self) -> usize {
        self.points.iter().filter(|(_, value)| self.holds(*value)).count()
    }

    /// The point furthest from what is asked.
    #[must_use]
    pub fn worst(&self) -> Option<&(String, f64)> {
        let by_value = |a: &&(String, f64), b: &&(String, f64)| a.1.total_cmp(&b.1);
        let points = self.points.iter();
        if self.at_most { points.max_by(by_value) } else { points.min_by(by_value) }
    }

    /// One line: met, missed with the worst ratio, or not measured.
    #[must_use]
    pub fn line(&self) -> String {
        let bound = if self.at_most { "at most" } else { "at least" };
        let head = format!("{}: {}: asked {bound} {}", self.of, self.what, self.asked);
        let Some((at, worst)) = self.worst() else {
            return format!("{head}; NOT MEASURED, the rival is not installed");
        };
        let middle = median(&self.points.iter().map(|(_, value)| *value).collect::<Vec<_>>());
        let (met, all) = (self.met(), self.points.len());
        if all == 1 {
            let verdict = if met == all { "MET" } else { "MISSED" };
            return format!("{head}; is {worst:.3} ({at}): {verdict}");
        }
        let verdict =
            if met == all { "MET".to_owned() } else { format!("MISSED ({met} of {all})") };
        format!("{head}; is {worst:.3} at worst ({at}), {middle:.3} in the middle: {verdict}")
    }
}

/// The lines of some verdicts, under a heading.
#[must_use]
pub fn lines(verdicts: &[Verdict]) -> String {
    let lines: String = verdicts.iter().map(|verdict| verdict.line() + "\n").collect();
    if lines.is_empty() { lines } else { format!("\n{HEADING}\n{lines}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_point_decides() {
        let points = || vec![("a".to_owned(), 0.9), ("b".to_owned(), 1.3), ("c".to_owned(), 1.0)];
        let most = Verdict::at_most("figure 19", "x", 1.2, points());
        assert_eq!(most.met(), 2);
        assert!(
            most.line().ends_with("is 1.300 at worst (b), 1.000 in the middle: MISSED (2 of 3)")
        );
        let least = Verdict::at_least("figure 14", "x", 0.5, points());
        assert!(least.line().ends_with("is 0.900 at worst (a), 1.000 in the middle: MET"));
        assert!(
            Verdict::at_most("figure 19", "x", 1.2, Vec::new()).line().contains("NOT MEASURED")
        );
        let one = Verdict::at_most("link", "x", 2.0, vec![("asleep".to_owned(), 2.79)]);
        assert!(one.line().ends_with("asked at most 2; is 2.790 (asleep): MISSED"));
        assert_eq!(lines(&[]), "");
    }
}
