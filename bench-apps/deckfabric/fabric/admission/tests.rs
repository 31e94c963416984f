//! Tests of files of admissions, good and bad.

use super::*;
use std::path::Path;

const SMALL: &str = "\
[topology]
kind = \"mesh\"
dims = [2, 2]
hosts = 1
[link]
rate = \"10 Gb/s\"
mtu = 1024
vls = 8
[network]
crossbar = \"by-lane\"
[[level]]
sl = 0
distance = 4
[[level]]
sl = 2
distance = 64
mbps = [1, 4000]
[[connection]]
from = \"h0\"
to = \"h3\"
bandwidth = \"20 Mb/s\"
deadline = \"60 ms\"
[[connection]]
from = \"h1\"
to = \"h3\"
sl = 2
[[connection]]
from = \"h2\"
to = \"h3\"
sl = 2
bandwidth = \"4.5 Gb/s\"
";

fn plan(text: &str) -> Plan {
    read(text, Path::new("")).expect(text)
}

#[test]
fn connections_are_admitted_or_refused_with_a_hop_and_an_offer() {
    let plan = plan(SMALL);
    let answers = plan.admit();
    let [first, second, third] = &answers.answers[..] else { panic!("three") };
    assert_eq!(
        first.result.as_ref().unwrap().vl,
        2,
        "the level with the largest distance keeps the deadline"
    );
    assert_eq!(second.request.demand.bandwidth, 4_000_000_000, "the most of its level");
    let (refused, offer) = third.result.as_ref().unwrap_err();
    assert_eq!(third.route[refused.hop].port.0, plan.network.attachment(3).node, "the port to h3");
    assert_eq!(
        refused.reason.to_string(),
        "it needs 4.500 Gb/s, and 3.980 Gb/s of the 8 Gb/s that may be promised are left"
    );
    // 3.98 Gb/s would need 27 entries, and so 32, which are not free.
    assert!(offer.bandwidth.is_some_and(|bits| (2_000_000_000..3_980_000_000).contains(&bits)), "{offer:?}");
    assert_eq!(offer.deadline, None, "there was none");
}

/// The answer as a file gives the same tables, without the refused connection.
#[test]
fn the_admitted_connections_are_a_file_with_the_same_tables() {
    let fill = "[fill]\ntries = 3\nseed = 1\n[[connection]]\nfrom = \"h0\"";
    let full = SMALL
        .replacen("[[connection]]\nfrom = \"h0\"", fill, 1)
        .replace("distance = 4\n", "distance = 4\nmbps = [1, 9]\n");
    for text in [SMALL, &full] {
        let first = plan(text);
        let answers = first.admit();
        let again = plan(&first.admitted_file(&answers)).admit();
        assert_eq!(again.answers.len(), answers.admitted().count());
        let tables = |answers: &Answers| {
            let tables = answers.admission.planners().map(|(port, planner)| (port, planner.table()));
            tables.collect::<Vec<_>>()
        };
        assert_eq!(tables(&again), tables(&answers));
        assert!(again.answers.len() >= 2 && again.answers.iter().all(|answer| answer.result.is_ok()));
    }
}

#[test]
fn names_of_a_file_are_those_of_its_hosts() {
    let folder = std::env::temp_dir().join(format!("deckfabric-admission-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("star.txt"), "switch s\nhost a\nhost b\nlink a s\nlink b s\n").unwrap();
    let text = "topology = { kind = \"file\", path = \"star.txt\" }\nlink = { rate = \"1 Gb/s\", mtu = 256, vls = 1 }\n\
                connection = [{ from = \"a\", to = \"b\", sl = 0, bandwidth = \"1 Mb/s\", deadline = \"1 s\" }]\n";
    let plan = read(text, &folder).unwrap();
    // The answer is read elsewhere, as `deckfabric play -` does.
    let again = read(&plan.admitted_file(&plan.admit()), Path::new("")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(again.host_name(1), "b");
    assert_eq!([plan.host_name(0), plan.host_name(1), plan.network.node_name(0)], ["a", "b", "s"]);
    assert_eq!(plan.admit().admitted().count(), 1);
}

#[test]
fn what_is_wrong_has_its_line_and_what_would_do() {
    let cases = [
        ("kind = \"mesh\"", "kind = \"mash\"", Some(2), "unknown variant `mash`"),
        ("dims = [2, 2]", "dims = [2, 1]", Some(1), "a dimension is 1: take 2 to 1024"),
        ("kind = \"mesh\"", "kind = \"torus\"\ntrunk = 2", Some(1), "no single route"),
        ("kind = \"mesh\"", "kind = \"torus\"", Some(1), "need 2 lanes of each level"),
        ("mtu = 1024", "mtu = 1000", Some(7), "mtu is 1000: InfiniBand has"),
        ("vls = 8", "vls = 8\nhigh_limit = 0", Some(9), "take 1 to 255"),
        ("mtu = 1024", "mtu = 4096\nhigh_limit = 1\ncap = 51", Some(9), "high_limit 1 leaves 50 %"),
        ("mtu = 1024", "mtu = 2048\nhigh_limit = 1", Some(8), "take a cap of at most 66"),
        ("vls = 8", "vls = 2", Some(15), "level 2: it has the lane of its number, and the lanes are 0 to 1"),
        ("crossbar = \"by-lane\"", "buffer = 0", Some(9), "buffer is 0 packets: take 1 to 1024"),
        ("sl = 0\n", "sl = 2\n", Some(15), "level 2: it is there already"),
        ("distance = 4", "distance = 65", Some(12), "level 0: distance is 65: take 1 to 64"),
        ("mbps = [1, 4000]", "mbps = [5, 1]", Some(15), "level 2: mbps is not the least and the most"),
        (
            "mbps = [1, 4000]",
            "mbps = [5, 1e3]\n[fill]\ntries = 1\nseed = 1",
            Some(12),
            "level 0: [fill] draws bandwidths",
        ),
        (
            "distance = 4\n",
            "distance = 4\nmbps = [1, 9]\n[fill]\ntries = 0\nseed = 1\n",
            Some(15),
            "[fill]: tries is 0: take 1 or more",
        ),
        ("from = \"h0\"", "from = \"h4\"", Some(19), "there is no host \"h4\": the last one is \"h3\""),
        ("from = \"h0\"", "from = \"h3\"", Some(19), "\"h3\" would send to itself"),
        ("bandwidth = \"20 Mb/s\"", "", Some(19), "there is no bandwidth: give"),
        ("bandwidth = \"20 Mb/s\"", "bandwidth = \"20\"", Some(21), "is not a number with a unit"),
        ("bandwidth = \"20 Mb/s\"", "bandwidth = \"11 Gb/s\"", Some(19), "11 Gb/s is more than the link has"),
        ("deadline = \"60 ms\"", "", Some(19), "neither an sl nor a deadline"),
        ("to = \"h3\"\nsl = 2", "to = \"h3\"\nsl = 1", Some(24), "sl is 1, and no [[level]] has it"),
    ];
    let mut wrong = Vec::new();
    for (from, to, line, reason) in cases {
        assert!(SMALL.contains(from), "{from}");
        let problem = read(&SMALL.replacen(from, to, 1), Path::new("")).expect_err(to);
        if problem.line != line || !problem.reason.contains(reason) || problem.cannot_be {
            wrong.push(format!("{to}: {problem:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for promised in
        ["mtu = 4096\nhigh_limit = 1\ncap = 50", "mtu = 1024\nhigh_limit = 1", "mtu = 256\ncap = 99"]
    {
        plan(&SMALL.replacen("mtu = 1024", promised, 1));
    }
    let none = SMALL.split("[[connection]]").next().unwrap();
    assert!(read(none, Path::new("")).unwrap_err().reason.contains("nothing to admit"));
}
