use serde_json::{Value, json};

use super::*;

/// JSON text of a run: the rounds of each figure, by size.
pub fn run(command: &str, figures: &[(u64, Vec<Value>)]) -> String {
    let mut series = Vec::new();
    for (size, rounds) in figures {
        series.push(json!({"test": "latency", "library": "udeck", "transport": "shm", "protocol": "auto",
            "payload": "untouched", "size": size, "unit": "us", "better": "lower", "rounds": rounds}));
        series.push(json!({"test": "latency", "library": "limit", "protocol": "line", "size": size,
            "unit": "us", "better": "lower", "rounds": vec![0.1; rounds.len()]}));
    }
    json!({"deckperf": 1, "command": command, "udeck": "1.2.3", "date": "2026-01-02 03:04 UTC",
        "machine": {"cpu": "Some CPU", "cores": 2, "build": "rustc, optimised", "pinning": "pinned",
            "transport": "shm0"},
        "method": [], "window": 64, "series": series})
    .to_string()
}

/// Forty rounds of times near `micros`.
fn rounds(micros: f64) -> Vec<Value> {
    (0..40).map(|round| json!(micros * (1.0 + f64::from(round * 7 % 10) / 500.0))).collect()
}

fn args(line: &str) -> CompareArgs {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: CompareArgs,
    }
    use clap::Parser;
    Line::try_parse_from(format!("compare {line}").trim().split(' ')).expect(line).args
}

fn source(name: &str, text: &str) -> Source {
    Source::parse(name.to_owned(), text).expect(name)
}

fn judged(base: &str, new: &str, line: &str) -> Comparison {
    let sides = (vec![source("a.json", base)], vec![source("b.json", new)]);
    judge(sides.0, sides.1, &args(line)).expect("comparable")
}

fn verdict_of(comparison: &Comparison, size: Option<u64>) -> Verdict {
    comparison.rows.iter().find(|row| row.cell.key.size == size).expect("a row").verdict
}

#[test]
fn a_slowdown_of_one_figure_is_found_and_comes_first() {
    let base = run("messages", &[(8, rounds(0.1)), (4096, rounds(1.0)), (65536, rounds(9.0))]);
    let new = run("messages", &[(8, rounds(0.1)), (4096, rounds(1.1)), (65536, rounds(9.0))]);
    let comparison = judged(&base, &new, "a b");
    assert_eq!(comparison.rows[0].cell.key.size, Some(4096));
    assert_eq!(verdict_of(&comparison, Some(4096)), Verdict::Slower);
    assert_eq!(verdict_of(&comparison, Some(8)), Verdict::Same);
    assert_eq!(comparison.rows.len(), 4, "three figures, and all of them together");
    let text = show::render(&comparison, Format::Table);
    let shown = text.lines().find(|line| line.starts_with("4K ")).expect("a row");
    assert!(shown.contains("1.01 us  1.11 us  1.100") && shown.ends_with("slower"), "{text}");
    assert!(!text.contains("\n8 "), "{text}");
    assert!(
        text.contains("Of 3 figures 1 got slower, 0 got faster, 2 are the same within 5 %, 0 are"),
        "{text}"
    );
    let back = judged(&new, &base, "a b --all");
    assert_eq!(verdict_of(&back, Some(4096)), Verdict::Faster);
    assert!(show::render(&back, Format::Table).contains("\n8 "));
    // The threshold is now larger than the change.
    assert_eq!(verdict_of(&judged(&base, &new, "a b --threshold 15%"), Some(4096)), Verdict::Same);
}

#[test]
fn rates_are_slower_when_they_sink() {
    let of = |rate| run("messages", &[(8, rounds(rate))]).replacen("\"lower\"", "\"higher\"", 1);
    // The first series is µDECK's or the limit's, as serde_json orders them; the checks below go by name.
    let base = of(1000.0);
    assert_eq!(source("a", &base).run.series[0].better, crate::report::data::Better::Higher);
    assert_eq!(verdict_of(&judged(&base, &of(900.0), "a b"), Some(8)), Verdict::Slower);
    assert_eq!(verdict_of(&judged(&base, &of(1100.0), "a b"), Some(8)), Verdict::Faster);
}

#[test]
fn nothing_changed_between_a_run_and_itself() {
    let text = run("messages", &[(8, rounds(0.1)), (64, rounds(0.2))]);
    let comparison = judged(&text, &text, "a b");
    assert!(comparison.rows.iter().all(|row| row.verdict == Verdict::Same));
}

#[test]
fn figures_that_are_missing_or_nothing_are_no_figures() {
    let mut gaps = rounds(1.0);
    gaps[3] = Value::Null;
    gaps[4] = json!(0.0);
    let base = run("messages", &[(8, gaps), (64, vec![json!(1.0)]), (512, rounds(1.0))]);
    let new = run("messages", &[(8, rounds(1.0)), (64, vec![json!(2.0)]), (4096, rounds(1.0))]);
    let comparison = judged(&base, &new, "a b --all");
    assert_eq!(verdict_of(&comparison, Some(8)), Verdict::Same);
    assert_eq!(verdict_of(&comparison, Some(64)), Verdict::TooNoisy);
    assert_eq!(
        comparison.missing,
        ["latency auto untouched 512 (not in b.json)", "latency auto untouched 4K (not in a.json)"]
    );
    let text = show::render(&comparison, Format::Table).replace("\n# ", " ");
    assert!(text.contains("too few") && text.contains("2 more are not in all runs: latency auto"), "{text}");
}

#[test]
fn what_is_not_comparable_is_refused_or_marked() {
    let base = run("messages", &[(8, rounds(1.0))]);
    for (from, to, words) in [
        ("Some CPU", "Other CPU", "processor: Some CPU in a.json, Other CPU in b.json"),
        ("\"cores\":2", "\"cores\":4", "number of cores: 2"),
        ("\"pinned\"", "\"not pinned\"", "pinning"),
        ("shm0", "tcp0", "transport"),
        ("\"window\":64", "\"window\":16", "messages in a window: 64 in a.json, 16"),
        (
            "\"cores\":2",
            "\"cores\":2,\"memory\":\"off-cache\"",
            "memory: not recorded in a.json, off-cache in b.json",
        ),
        ("\"command\":\"messages\"", "\"command\":\"vi\"", "what was measured"),
        ("rustc, optimised", "rustc, NOT optimised: use --release", "b.json is of a build that is not"),
    ] {
        let new = base.replace(from, to);
        assert_ne!(new, base, "{from}");
        let sides = || (vec![source("a.json", &base)], vec![source("b.json", &new)]);
        let (a, b) = sides();
        let said = judge(a, b, &args("a b")).expect_err(from);
        assert!(said.contains(words) && said.contains("--force"), "{said}");
        let (a, b) = sides();
        let forced = judge(a, b, &args("a b --force")).expect("forced");
        assert!(forced.remarks[0].contains(words), "{:?}", forced.remarks);
    }
    let (a, b) = (source("a", &base), source("b", &base.replace("\"size\":8", "\"size\":9")));
    let said = judge(vec![a], vec![b], &args("a b")).expect_err("nothing in common");
    assert!(said.contains("no figure in common"), "{said}");
}

#[test]
fn a_file_that_has_a_figure_twice_is_no_panic() {
    let twice = run("messages", &[(8, rounds(1.0)), (8, rounds(1.0))]);
    assert!(judged(&twice, &twice, "a b").missing.is_empty());
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let said = compare(&args("/nonexistent/a.json b.json"), Format::Table).expect_err("no such file");
    assert!(said.starts_with("/nonexistent/a.json cannot be read:"), "{said}");
    let said = compare(&args("one.json"), Format::Table).expect_err("one file");
    assert!(said.contains("takes two files") && said.contains("--base"), "{said}");
}

#[test]
fn several_runs_are_compared_by_pairs() {
    let sides = |micros: f64| -> Vec<Source> {
        let text = |line_variation: f64| run("messages", &[(8, rounds(micros * line_variation))]);
        [1.0, 1.5, 0.8, 1.2, 1.1]
            .iter()
            .map(|&line_variation| source("x.json", &text(line_variation)))
            .collect()
    };
    // The machine varies much more from pair to pair than the message does.
    let comparison = judge(sides(1.0), sides(1.1), &args("a b")).expect("comparable");
    assert_eq!(verdict_of(&comparison, Some(8)), Verdict::Slower);
    let text = show::render(&comparison, Format::Table);
    assert!(text.contains("# a (base): 5 runs") && text.contains("By 5 pairs of runs"), "{text}");
}

#[test]
fn programs_get_every_row() {
    let (base, new) = (run("messages", &[(8, rounds(1.0))]), run("messages", &[(8, rounds(1.25))]));
    let comparison = judged(&base, &new, "a b");
    let csv = show::render(&comparison, Format::Csv);
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((rows.len(), rows[0].len(), rows[1].len()), (2, 16, 16), "{csv}");
    assert_eq!((rows[1][8], rows[1][15]), ("1.250000", "slower"), "{csv}");
    let json: Value = serde_json::from_str(&show::render(&comparison, Format::Json)).expect("valid JSON");
    assert_eq!((&json["slower"], &json["rows"][0]["verdict"]), (&json!(1), &json!("slower")));
    assert_eq!(json["rows"][0]["key"]["size"], 8);
}

/// A file of `deckperf report --json` is compared subject by subject, also beside a file of one run.
#[test]
fn files_of_several_runs_are_compared_by_subject() {
    let folder = std::env::temp_dir().join(format!("deckperf-several-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("a file");
        folder.join(name).display().to_string()
    };
    let several = |micros: f64| {
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let messages = parse(&run("messages", &[(8, rounds(micros))]));
        json!({ "runs": [messages, parse(&run("peers", &[(8, rounds(0.2))]))] }).to_string()
    };
    let (base, new) = (file("a.json", &several(0.1)), file("b.json", &several(0.2)));
    let printed = compare(&args(&format!("{base} {new}")), Format::Table).expect("comparable");
    assert!(printed.slower && printed.text.matches("# a (base): ").count() == 2, "{}", printed.text);
    let json = compare(&args(&format!("{base} {new}")), Format::Json).expect("comparable").text;
    assert_eq!(serde_json::from_str::<Vec<Value>>(&json).expect("an array").len(), 2);
    let csv = compare(&args(&format!("{base} {new}")), Format::Csv).expect("comparable").text;
    let head = csv.lines().next().expect("a head");
    assert_eq!(csv.lines().filter(|line| *line == head).count(), 1, "{csv}");
    let single = file("c.json", &run("messages", &[(8, rounds(0.1))]));
    let printed = compare(&args(&format!("{base} {single}")), Format::Table).expect("comparable");
    assert!(!printed.slower, "{}", printed.text);
    // A run that only some of the files have is named, in every format, whichever side lacks it.
    let left_out = format!("not compared: peers over shm, which is not in {single}");
    for line in
        [format!("{base} {single}"), format!("{single} {base}"), format!("--base {base} {base} {single}")]
    {
        let printed = compare(&args(&line), Format::Json).expect("comparable").text;
        let notes = serde_json::from_str::<Value>(&printed).expect("JSON")["notes"].clone();
        assert_eq!(notes, json!([left_out]), "{line}");
        let printed = compare(&args(&line), Format::Csv).expect("comparable");
        assert_eq!(printed.notes, std::slice::from_ref(&left_out), "{line}");
    }
    // Two runs of the same subject are compared one by one.
    let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let twice = |second: f64| {
        let run = |micros| parse(&run("messages", &[(8, rounds(micros))]));
        json!({ "runs": [run(0.1), run(second)] }).to_string()
    };
    let (twice, slower) = (file("e.json", &twice(0.1)), file("f.json", &twice(0.2)));
    let printed = compare(&args(&format!("{twice} {slower}")), Format::Table).expect("comparable");
    assert!(printed.slower, "{}", printed.text);
    let printed = compare(&args(&format!("{twice} {base}")), Format::Json).expect("comparable").text;
    assert!(printed.contains("not compared: messages over shm, number 2, which is not in"), "{printed}");
    let other = file("d.json", &run("costs", &[(8, rounds(0.1))]));
    let why = compare(&args(&format!("{base} {other}")), Format::Table).expect_err("nothing in common");
    assert!(why.contains("no run is in all of these files"), "{why}");
    std::fs::remove_dir_all(&folder).expect("the folder");
}
