//! Tests of plans as users write them, good and bad.

use super::*;
use proptest::prelude::*;

fn spoilt(from: &str, to: &str) -> String {
    assert!(INFINIBAND.contains(from), "{from}");
    INFINIBAND.replacen(from, to, 1)
}

fn problem(text: &str) -> Problem {
    plan(text, Format::Text).expect_err(text)
}

#[test]
fn the_examples_are_plans() {
    for example in [INFINIBAND, DTABLE] {
        let text = plan(example, Format::Text).expect("a plan");
        assert!(text.contains("control"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&plan(example, Format::Json).expect("a plan")).expect("JSON");
        assert_eq!(json["classes"][0]["name"], "control");
    }
}

#[test]
fn what_is_planned_is_what_analysis_finds_in_its_export() {
    let options = planned_options(INFINIBAND).expect("a plan");
    let text = export(&options, opensm::Ports::All).expect("it can be read");
    let traffic = Traffic { rate: 10_000_000_000, mtu: 2048, packet: 2048, low_turn: LowTurn::Packet };
    let of_export = analyse(&text, opensm::Ports::All, traffic, Format::Json).expect("it can be read");
    let of_plan = plan(INFINIBAND, Format::Json).expect("a plan");
    let lanes = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON")["lanes"].clone();
    assert_eq!(lanes(&of_export), lanes(&of_plan));
    let waits: Vec<_> = lanes(&of_plan)
        .as_array()
        .expect("a list")
        .iter()
        .map(|lane| lane["longest_wait_ns"].as_u64())
        .collect();
    assert!(waits[0] <= Some(150_000) && waits[1] <= Some(1_000_000), "{waits:?}");
}

#[test]
fn a_plan_that_cannot_be_says_which_class_what_is_missing_and_what_would_fit() {
    let problem = problem(&spoilt("bandwidth = \"2 Gb/s\"", "bandwidth = \"9 Gb/s\""));
    assert!(problem.cannot_be && problem.line == Some(30), "{problem:?}");
    assert_eq!(
        problem.reason,
        "class \"checkpoints\": it needs 9 Gb/s, and 6.980 Gb/s of the 8 Gb/s that may be promised are left"
    );
    let problem = super::tests::problem(&spoilt("latency = \"150 us\"", "latency = \"1 us\""));
    assert!(
        problem
            .reason
            .starts_with("class \"control\", connection 1 of 20: a latency of 1µs cannot be promised: even"),
        "{problem:?}"
    );
    let problem = super::tests::problem(&spoilt("vls = 8", "vls = 4"));
    assert!(problem.reason.contains("6 classes need 6 lanes, and the link has 4"), "{problem:?}");
}

#[test]
fn a_promise_that_others_can_break_is_noted() {
    let json = |text: &str| {
        serde_json::from_str::<serde_json::Value>(&plan(text, Format::Json).expect("a plan")).expect("JSON")
    };
    assert_eq!(json(INFINIBAND)["notes"], serde_json::json!([]));
    // With a high limit of 0 the low table has half of the link.
    let text = "[link]\nrate = \"10 Gb/s\"\nmtu = 2048\nvls = 2\nhigh_limit = 0\n[[class]]\nname = \"checkpoints\"\nsl = 1\nkind = \"db\"\n\
                bandwidth = \"6 Gb/s\"\n[[class]]\nname = \"default\"\nsl = 0\nkind = \"be\"\n";
    let notes = json(text)["notes"].clone();
    assert!(
        notes[0].as_str().is_some_and(
            |note| note.starts_with("class \"checkpoints\" gets 5 Gb/s and not the promised 6 Gb/s")
        ),
        "{notes}"
    );
    assert!(plan(text, Format::Text).expect("a plan").contains("note: class \"checkpoints\" gets "));
}

/// Each error has the line and a part of the reason.
#[test]
fn what_is_wrong_has_its_line_and_a_reason() {
    let cases = [
        ("rate = \"10 Gb/s\"", "rate = \"0 Gb/s\"", 5, "less than 1 b/s"),
        ("rate = \"10 Gb/s\"", "rate = 10", 5, "expected a string"),
        ("rate = \"10 Gb/s\"", "rate = \"nan Gb/s\"", 5, "is not a number with a unit"),
        ("rate = \"10 Gb/s\"", "rate = \"-1 Gb/s\"", 5, "is not a number with a unit"),
        ("rate = \"10 Gb/s\"", "rate = \"99999999999999999999 Gb/s\"", 5, "more than any link"),
        ("mtu = 2048", "mtu = 0", 6, "InfiniBand has 256"),
        ("mtu = 2048", "mtu = 99999999999999999999", 6, ""),
        ("vls = 8", "vls = 0", 7, "1, 2, 4, 8 and 15"),
        ("vls = 8", "vls = 300", 7, "expected u8"),
        ("high_limit = 10", "high_limit = -1", 8, "expected u8"),
        ("cap = 80", "cap = 0", 9, "percentage"),
        ("cap = 80", "cap = nan", 9, "expected u8"),
        ("cap = 80", "cap = 80\ncap = 80", 10, "duplicate key"),
        ("sl = 1\n", "sl = 16\n", 13, "levels are 0 to 15"),
        ("sl = 2\n", "sl = 1\n", 21, "level 1 is that of line 13"),
        ("name = \"video\"", "name = \"control\"", 21, "line 13 has it"),
        ("name = \"video\"", "name = \"\\u0007\"", 21, "can be printed"),
        ("kind = \"db\"", "kind = \"fast\"", 32, "unknown variant"),
        ("kind = \"db\"", "kind = \"dbts\"", 30, "kind dbts needs a latency"),
        ("kind = \"pbe\"", "kind = \"pbe\"\nbandwidth = \"1 Mb/s\"", 37, "kind pbe has no bandwidth"),
        ("kind = \"pbe\"", "kind = \"pbe\"\nshare = 0.1", 37, "share is for plans with [dtable]"),
        ("connections = 20", "connections = 0", 13, "take 1 to 1000000"),
        ("connections = 20", "connections = 4294967295", 13, "take 1 to 1000000"),
        ("connections = 20", "conections = 20", 18, "unknown field `conections`"),
        ("sl = 3", "sl = 3\nvl = 8", 30, "data lanes 0 to 7"),
        ("sl = 3", "", 29, "missing field `sl`"),
        ("latency = \"150 us\"", "latency = \"150\"", 17, "is not a number with a unit"),
        ("[link]", "[link", 4, ""),
        ("[link]", "[lynk]", 4, "unknown field `lynk`"),
    ];
    for (from, to, line, reason) in cases {
        let problem = problem(&spoilt(from, to));
        assert_eq!(problem.line, Some(line), "{to}: {problem:?}");
        assert!(
            problem.reason.contains(reason) && !problem.cannot_be && !problem.reason.contains('\n'),
            "{to}: {problem:?}"
        );
    }
    let many: String = (0..20).map(|at| format!("[[class]]\nname = \"{at}\"\nsl = {at}\n")).collect();
    assert_eq!(problem(&many), Problem::wrong(16 * 3 + 2, "20 classes, and there are 16 levels"));
    for (text, reason) in [("", "no [[class]]"), ("[[class]]\nname = \"a\"\nsl = 0\n", "neither [link]")] {
        assert!(problem(text).reason.contains(reason), "{text}");
    }
    assert!(problem(&format!("{INFINIBAND}\n[dtable]\nentries = 64\ngmtu = 64\n")).reason.contains("both"));
}

#[test]
fn shares_that_cannot_be_are_refused() {
    // The line, and whether the file is wrong: else each value may be, but not all of them together.
    let cases = [
        ("share = 0.30", "share = nan", Some(25), true, "the share is NaN"),
        ("share = 0.30", "share = -0.3", Some(25), true, "the share is -0.3"),
        ("share = 0.30", "share = 1.5", Some(25), true, "the share is 1.5"),
        ("share = 0.30", "share = 0.9", None, false, "add up to 1.6"),
        ("share = 0.30", "share = 1e-300", Some(25), false, "not above"),
        ("distance = 8", "distance = 2", Some(18), false, "all classes together need 86"),
        ("distance = 8", "distance = 0", Some(25), true, "the distance is 0"),
        ("distance = 8", "distance = 3", Some(25), true, "the distance is 3: take a power of two"),
        ("entries = 64", "entries = 0", Some(5), true, "a table of 0 entries"),
        ("entries = 64", "entries = 100", Some(5), true, "a table of 100 entries"),
        ("entries = 64", "entries = 1073741824", Some(5), true, "a table of 1073741824 entries"),
        ("gmtu = 2048", "gmtu = 100", Some(6), true, "a multiple of 64"),
        ("gmtu = 2048", "gmtu = 0", Some(6), true, "a multiple of 64"),
        ("gmtu = 2048", "gmtu = 4294967232", Some(6), true, "take 1 to 65535"),
        ("# k = 0.5 ", "k = 0.5 #", Some(7), true, "one of k and w"),
        ("# w = 2.9", "w = 2.9", Some(8), true, "one of k and w"),
        ("# k = 0.5 ", "k = inf\nw = inf #", Some(7), true, "both are above 0"),
        ("# k = 0.5 ", "k = 0.5\nw = 1.0 #", Some(26), false, "is above 0.25"),
        ("mtu = 192 ", "mtu = 4096 #", Some(11), true, "the largest of all"),
    ];
    for (from, to, line, is_wrong, reason) in cases {
        assert!(DTABLE.contains(from), "{from}");
        let problem = problem(&DTABLE.replacen(from, to, 1));
        assert!(problem.reason.contains(reason), "{to}: {problem:?}");
        assert_eq!((problem.line, problem.cannot_be), (line, !is_wrong), "{to}: {problem:?}");
    }
    assert!(planned_options(DTABLE).expect_err("no such options").reason.contains("OpenSM has no options"));
}

/// Table 6.1 and formula (6.2): shares and mean distances of the levels 0 to 3.
#[test]
fn published_arbitration_tables_have_their_shares_and_distances() {
    let traffic = Traffic { rate: 100_000_000_000, mtu: 4096, packet: 64, low_turn: LowTurn::Entry };
    let columns = |text: &str| {
        let text = analyse(text, opensm::Ports::All, traffic, Format::Json).expect("tables");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let column = |name: &str, factor: f64| {
            let lanes = value["lanes"].as_array().expect("lanes").iter();
            lanes.map(|lane| (lane[name].as_f64().expect(name) * factor).round() / 100.0).collect::<Vec<_>>()
        };
        [column("high_weight", 100.0), column("saturated_share", 10_000.0), column("mean_distance", 100.0)]
    };
    let first = columns(include_str!("published/table-6.1-a.conf"));
    assert_eq!(first[0], [264.0, 158.0, 106.0, 0.0]);
    assert_eq!(first[1], [45.71, 27.36, 18.35, 8.57]);
    assert_eq!(first[2], [2.26, 4.52, 4.52, 8.76]);
    let second = columns(include_str!("published/table-6.1-b.conf"));
    assert_eq!(second[0], [704.0, 432.0, 288.0, 0.0]);
    assert_eq!(second[1], [47.94, 29.42, 19.61, 3.03]);
    assert_eq!(second[2], [2.7, 5.39, 5.39, 3.88]);
}

#[test]
fn published_tables_are_plans() {
    let cases = [
        (include_str!("published/table-4.4.toml"), "a cycle has 1215 credits"),
        (include_str!("published/table-4.8.toml"), "a cycle has 4160 credits"),
        (include_str!("published/table-5.4.toml"), "a cycle has 1073 credits"),
    ];
    for (file, cycle) in cases {
        let text = plan(file, Format::Text).expect("a plan");
        assert!(text.contains(cycle), "{text}");
    }
}

proptest! {
    /// A good file with any part replaced, and numbers of any size, give an answer in bounded time, and never a panic.
    #[test]
    fn proptest_any_file_is_a_plan_or_a_problem(
        at in 0usize..2000,
        cut in 0usize..60,
        text in ".{0,40}",
        dtable: bool,
    ) {
        let good: Vec<_> = if dtable { DTABLE } else { INFINIBAND }.chars().collect();
        let (from, to) = (at.min(good.len()), (at + cut).min(good.len()));
        let spoilt = good[..from].iter().copied().chain(text.chars()).chain(good[to..].iter().copied());
        let spoilt: String = spoilt.collect();
        let _ = plan(&spoilt, Format::Text);
        let _ = planned_options(&spoilt);
    }

    #[test]
    fn proptest_any_numbers_are_a_plan_or_a_problem(
        (rate, bandwidth) in (0u64..=u64::MAX / 2, 0u64..=u64::MAX / 2),
        (latency, connections) in (0u64..=u64::MAX / 2, 0u32..3000),
        shift in 0u32..64,
        high_limit: u8,
    ) {
        let (rate, bandwidth, latency) = (rate >> shift, bandwidth >> shift, latency >> shift);
        let text = format!(
            "[link]\nrate = \"{rate} b/s\"\nmtu = 4096\nvls = 15\nhigh_limit = {high_limit}\n[[class]]\nname = \"a\"\nsl = 0\nkind = \"dbts\"\n\
             bandwidth = \"{bandwidth} b/s\"\nlatency = \"{latency} ns\"\nconnections = {connections}\n"
        );
        if let Ok(options) = planned_options(&text) {
            prop_assert_eq!(options.tables.check(), Ok(()));
        }
        let _ = plan(&text, Format::Text);
    }
}

fn admitted(text: &str, format: options::AdmitFormat) -> String {
    admit::admit(text, Path::new(""), format).expect("answers")
}

#[test]
fn connections_along_a_route_have_entries_at_each_hop_or_the_one_that_refuses_and_an_offer() {
    let text = admitted(CONNECTIONS, options::AdmitFormat::Text);
    for part in [
        "3 of 5 connections are admitted",
        "1: h0 to h17, 20 Mb/s within 20ms: level 0, at most 5.1ms from its host's buffer on",
        "  s8 → h17  16 entries from 0, 4 apart  844.6µs",
        "REFUSED at s1 → s4: it needs 4.500 Gb/s, and 3.900 Gb/s of the 8 Gb/s that may be promised are left\n  would be admitted: up to 2.500 Gb/s\n",
        "REFUSED at h4 → s2: its share of the deadline is 15.821µs, and a packet may take 162.202µs at the distance 4\n  would be admitted: within 6.999402ms or more\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let json: serde_json::Value =
        serde_json::from_str(&admitted(CONNECTIONS, options::AdmitFormat::Json)).expect("JSON");
    assert_eq!(json["connections"][0]["hops"][5]["entries"][1], 4);
    assert_eq!(json["connections"][3]["refused_at"], "s1 → s4");
    // The offers are admitted.
    let offers = CONNECTIONS.replace("4.5 Gb/s", "2.5 Gb/s").replace("100 us", "6.999402 ms");
    assert!(admitted(&offers, options::AdmitFormat::Text).contains("5 of 5 connections are admitted"));
}

#[test]
fn the_answer_is_a_file_of_the_admitted_connections() {
    let answer = admitted(CONNECTIONS, options::AdmitFormat::Toml);
    assert!(
        admitted(&answer, options::AdmitFormat::Text).contains("3 of 3 connections are admitted"),
        "{answer}"
    );
    assert_eq!(admitted(&answer, options::AdmitFormat::Toml), answer);
}
