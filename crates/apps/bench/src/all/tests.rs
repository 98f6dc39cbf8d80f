//! The list and the run, with a runner that measures nothing.

use super::*;

/// Says what it was told; fails or stops at the measurements of these commands.
#[derive(Default)]
struct Fake {
    told: Vec<String>,
    fails: &'static str,
    stops: &'static str,
}

impl Runner for Fake {
    fn run(&mut self, arguments: &[String]) -> io::Result<Ran> {
        let line = arguments.join(" ");
        let is = |what: &str| !what.is_empty() && line.starts_with(what);
        let end = match () {
            () if is(self.fails) => End::Badly("no such device".to_owned()),
            () if is(self.stops) => End::Stopped,
            () => End::Well,
        };
        let table = match &end {
            End::Well => {
                format!(
                    "rate 7\n\ntargets\nnumber {}: rate: asked at least 1: MISSED\n",
                    self.told.len()
                )
            }
            _ => String::new(),
        };
        if let Some(at) = arguments.iter().position(|word| word == "--svg") {
            let path = Path::new(&arguments[at + 1]);
            let names = if path.is_dir() { vec!["figure-14.svg", "figure-15.svg"] } else { vec![] };
            names.iter().for_each(|name| fs::write(path.join(name), "<svg/>").unwrap());
        }
        self.told.push(line);
        Ok(Ran { table, took: Duration::from_secs(60), busy: 0.25, end })
    }
}

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn run(&self, program: &str, choice: &Choice, fake: &mut Fake) -> Summary {
        let (program, machine) = (program.to_owned(), "a machine".to_owned());
        run(&Sitting { out: self.0.path(), program, machine }, choice, fake, |_| ()).unwrap()
    }

    fn page(&self) -> String {
        fs::read_to_string(self.0.path().join("README.md")).unwrap()
    }
}

fn only(names: &[&str]) -> Choice {
    Choice { only: names.iter().map(|name| (*name).to_owned()).collect(), ..Choice::default() }
}

/// Figures were carried into FIGURES by hand, of three programs and two days. One run writes them
/// all, and says of which program they are.
#[test]
fn the_page_shows_every_measurement_with_command_table_and_targets() {
    let (place, mut fake) = (Place::new(), Fake::default());
    let summary = place.run("outboard 1.0 (commit abc)", &Choice::default(), &mut fake);
    assert_eq!((summary.measured, summary.stopped), (LIST.len() - 1, false));
    assert_eq!(summary.left_out.len(), 1, "no pool was named: {summary:?}");
    let page = place.page();
    assert!(page.contains("Program: outboard 1.0 (commit abc)\n- Machine: a machine\n"), "{page}");
    assert!(page.contains("- At work right before each: 25 % of all cores in the middle, 25 %"));
    assert!(page.contains("- rados (") && page.contains("left out: no pool was named"), "{page}");
    for one in LIST.iter().filter(|one| one.name != "rados") {
        assert!(page.contains(&format!("\n## {}\n\n{}. `outboard bench ", one.name, one.title)));
        assert!(place.0.path().join(format!("{}.txt", one.name)).is_file());
    }
    assert!(page.contains("![figure-14.svg](figure-14.svg)\n\n![figure-15.svg]"), "{page}");
    assert_eq!(page.matches(": asked at least 1: **MISSED**\n").count(), LIST.len() - 1);
    assert!(page.contains("- [figure-19-net](#figure-19-net): rate"), "{page}");
    assert!(!page.contains("Not of one program"), "{page}");
}

#[test]
fn one_that_fails_is_named_and_ends_no_other() {
    let place = Place::new();
    place.run("old", &only(&["compress", "link"]), &mut Fake::default());
    let mut fake = Fake { fails: "compress", ..Fake::default() };
    let summary = place.run("new", &only(&["compress", "stores"]), &mut fake);
    assert_eq!(summary.failed, [("compress", "no such device".to_owned())]);
    assert_eq!((summary.measured, fake.told.len()), (1, 2));
    let page = place.page();
    assert!(page.contains("- compress (Compression, by kind of data): **failed**: no such device"));
    assert!(page.contains("**Not of one program on one machine**"), "{page}");
    assert!(page.contains("Program: old; a machine."), "the one not asked for stays: {page}");
    assert_eq!(page.matches("rate 7").count(), 2, "no table of an older success: {page}");
}

#[test]
fn a_run_that_is_stopped_keeps_what_is_done_and_the_rest_goes_on_from_there() {
    let place = Place::new();
    let three = only(&["link", "compress", "figure-22"]);
    let mut fake = Fake { stops: "compress", ..Fake::default() };
    assert!(place.run("p", &three, &mut fake).stopped);
    assert_eq!(fake.told.len(), 2);
    assert!(place.page().contains("\n## link\n") && !place.page().contains("\n## compress\n"));
    let mut fake = Fake::default();
    let rest = Choice { rest: true, ..three.clone() };
    assert_eq!(place.run("p", &rest, &mut fake).measured, 2);
    assert!(fake.told[0].starts_with("compress") && fake.told[1].starts_with("dds --figure 22"));
    // Few points are another command, and another program measures anew.
    let quick = Choice { quick: true, ..rest.clone() };
    assert_eq!(place.run("p", &quick, &mut Fake::default()).measured, 3);
    assert_eq!(place.run("q", &rest, &mut Fake::default()).measured, 3);
}

#[test]
fn time_rounds_and_points_reach_every_command_that_has_them() {
    let choice = Choice { quick: true, rounds: Some(2), ..Choice::default() };
    let of = |name: &str, choice: &Choice| {
        LIST.iter().find(|one| one.name == name).unwrap().arguments(choice).join(" ")
    };
    assert_eq!(of("figure-7", &choice), "fs --figure 7 --threads 1,8 --seconds 0.13 --rounds 2");
    assert_eq!(of("compress", &choice), "compress --size 8 --rounds 2");
    assert_eq!(of("scale", &Choice::default()), "scale --files 1000,1000000");
    let half = Choice { seconds: Some(0.5), ..Choice::default() };
    assert_eq!(of("figure-14", &half), "dds --figure 14 --seconds 0.5 --rounds 3");
}

#[test]
fn names_are_whole_or_parts_and_unknown_ones_are_refused() {
    let names = |only: &Choice| only.list().unwrap().iter().map(|one| one.name).collect::<Vec<_>>();
    assert_eq!(names(&only(&["figure-19"])), ["figure-19"]);
    assert_eq!(names(&only(&["figure-8", "19-net"])), ["figure-8", "figure-19-net"]);
    assert_eq!(names(&only(&["figure-2"])).len(), 5);
    assert_eq!(names(&only(&["dds", "link"])).len(), 11);
    assert!(only(&["figure-99"]).list().unwrap_err().contains("there are: link, figure-6"));
}
