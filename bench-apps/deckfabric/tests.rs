//! Tests of scenarios as users write them, good and bad.

use super::*;
use clap::ValueEnum;
use options::Format;
use proptest::prelude::*;

const SMALL: &str = "\
seed = 1
warm-up = 500
measured = 2000
loads = [0.5, 1.0]
[topology]
kind = \"tree\"
k = 3
n = 2
[network]
buffer = 32
[congestion]
schemes = [\"none\", \"lhrp\"]
[[traffic]]
name = \"all\"
pattern = \"uniform\"
load = 0.3
flits = [1, 9]
[[traffic]]
name = \"hot\"
pattern = \"hot-spot\"
senders = 5
receivers = 2
load = 0.9
flits = 4
arrivals = \"bursts\"
burst = 3
";

fn printed(text: &str, seed: Option<u64>, format: Format) -> Result<String, Problem> {
    let scenario = input::read(text, seed)?;
    let outcome = run::all(&scenario, Path::new(""))?;
    Ok(report::print(&scenario, &outcome, format))
}

fn problem(text: &str) -> Problem {
    printed(text, None, Format::Text).expect_err(text)
}

fn spoilt(from: &str, to: &str) -> String {
    assert!(SMALL.contains(from), "{from}");
    SMALL.replacen(from, to, 1)
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    for format in Format::value_variants() {
        // One scenario has a hot spot, whose hosts follow from the seed, and one has none.
        for text in [SMALL, SMALL.split("[[traffic]]\nname = \"hot\"").next().expect("its beginning")] {
            let run = |seed| printed(text, seed, *format).expect("figures");
            assert_eq!(run(None), run(Some(1)));
            let other = |seed: u64| {
                run(Some(seed)).replace(&format!("seed {seed}"), "").replace(&format!("\"seed\": {seed}"), "")
            };
            assert_ne!(other(1), other(2));
        }
    }
}

/// The examples run, with fewer cycles. Their figures are not checked here.
#[test]
fn the_examples_run() {
    for example in Example::value_variants() {
        if matches!(example, Example::Transpose | Example::Incast | Example::Trace | Example::Vef) {
            continue;
        }
        let text = example.text();
        let short = |text: &str, key: &str, cycles: u64| {
            let lines = text.lines().map(|line| match line.starts_with(&format!("{key} =")) {
                true => format!("{key} = {cycles}\n"),
                false => format!("{line}\n"),
            });
            lines.collect::<String>()
        };
        let text = short(&short(text, "warm-up", 50), "measured", 500);
        let text = printed(&text, None, Format::Csv).expect("figures");
        assert!(text.lines().count() > 2, "{text}");
        input::read(example.text(), None).expect("a scenario");
    }
}

/// Destinations of a pattern of the hosts' numbers in a tree of 8 hosts, by sender.
#[test]
fn patterns_of_numbers_send_where_they_say() {
    let destinations = |pattern: &str| {
        let text = spoilt("k = 3\nn = 2", "k = 2\nn = 3");
        let text = text.replacen("pattern = \"uniform\"", &format!("pattern = \"{pattern}\""), 1);
        let scenario = input::read(&text, None).expect(pattern);
        let stream = network::streams(&scenario, 8, 1.0).expect(pattern).swap_remove(0);
        let udeck_fabric::traffic::Pattern::Fixed(to) = stream.to else { panic!("{pattern}") };
        let run = run::all(&scenario, Path::new("")).expect(pattern);
        assert!(run.points.iter().all(|point| point.classes[0].messages > 0), "{pattern}");
        stream.from.into_iter().zip(to).collect::<Vec<_>>()
    };
    // 000, 010, 101 and 111 are the same in reverse.
    assert_eq!(destinations("bit-reversal"), [(1, 4), (3, 6), (4, 1), (6, 3)]);
    let all = |to: [u32; 8]| (0..8).zip(to).collect::<Vec<_>>();
    assert_eq!(destinations("bit-complement"), all([7, 6, 5, 4, 3, 2, 1, 0]));
    assert_eq!(destinations("next-neighbour"), all([1, 2, 3, 4, 5, 6, 7, 0]));
}

#[test]
fn what_is_offered_below_saturation_is_accepted_and_named() {
    let json: serde_json::Value =
        serde_json::from_str(&printed(SMALL, None, Format::Json).expect("figures")).expect("JSON");
    let points = json["points"].as_array().expect("runs");
    let names: Vec<_> =
        points.iter().map(|point| (point["scheme"].as_str(), point["load"].as_f64())).collect();
    let expected = [("none", 0.5), ("none", 1.0), ("lhrp", 0.5), ("lhrp", 1.0)];
    assert_eq!(names, expected.map(|(scheme, load)| (Some(scheme), Some(load))));
    for point in points {
        for (class, load) in [(0, 0.3), (1, 0.9 * 2.0 / 5.0)] {
            let class = &point["classes"][class];
            let [offered, accepted] = ["offered_flits_per_cycle", "accepted_flits_per_cycle"]
                .map(|key| class[key].as_f64().expect(key));
            let factor = point["load"].as_f64().expect("a load");
            assert!((offered / load / factor - 1.0).abs() < 0.3, "{class}");
            // At factor 1.0 both classes together want more of the receivers' links than there is.
            assert!(factor == 1.0 || (accepted / offered - 1.0).abs() < 0.1, "{class}");
        }
    }
}

/// Acknowledgements without control take a part of the links, as they do under a scheme.
#[test]
fn no_control_with_acknowledgements_has_control_packets() {
    let text = spoilt("\"none\", \"lhrp\"", "\"none\", \"none-acknowledged\"");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&text, None, Format::Json).expect("figures")).expect("JSON");
    let points = json["points"].as_array().expect("runs");
    let control = |nth: usize| points[nth]["control_share"].as_f64().expect("a part");
    assert_eq!(points[2]["scheme"].as_str(), Some("none-acknowledged"));
    assert_eq!(control(0), 0.0);
    assert!((0.1..0.4).contains(&control(2)), "{}", control(2));
}

/// A switch that cannot be is refused with the line of its part.
#[test]
fn stages_that_cannot_be_have_their_line_and_a_reason() {
    let text = Example::OmniPath.text();
    let cases = [
        ("speed = 3 ", "speed = 0 ", "[switch]", "speed is 0: take 1 to 1024"),
        ("routing = 32 ", "routing = 257 ", "[switch]", "routing is 257: take 0 to 256"),
        ("store = 50 ", "store = 4294967295 ", "[switch]", "store is 4294967295: take 0 to 256"),
        (
            "pause = 0 ",
            "allocator = { one-lane = { every = 0 } } ",
            "[switch]",
            "between allocations is 0: take 1 to 1024",
        ),
        ("least = 128 ", "least = 1200 ", "[switch]", "a buffer for all lanes is 8192: take 9600"),
        ("link = 8 ", "switch = 8 ", "[network]", "[switch] has those of each stage"),
        ("link = 8 ", "queues = \"fifo\" ", "[switch]", "neither congestion control nor `queues`"),
        ("sc2vl = [0, 1,", "sc2vl = [0, 0,", "[lanes]", "packets could wait in a circle"),
        ("sl2sc = [[8, 9], ", "sl2sc = [", "[lanes]", "each level has a list of service channels"),
        ("sl2sc = [[8, 9], ", "sl2sc = [[8], ", "[lanes]", "level 0 has 1 of the service channels"),
        ("trunk = 10 ", "trunk = 16 ", "[topology]", "a switch has 72 ports"),
        (
            "kind = \"sbt\"\nweights = [5, 5, 50, 30, 10]",
            "kind = \"vl\"\nlow = [[0, 5], [1, 5], [2, 50], [3, 30], [4, 10]]",
            "[lanes]",
            "level 0 has the lanes [6, 7], and InfiniBand's tables (`vl`) need a lane of its own for each level",
        ),
    ];
    for (from, to, part, reason) in cases {
        assert!(text.contains(from), "{from}");
        let found = problem(&text.replacen(from, to, 1));
        let expected = text.lines().position(|line| line.starts_with(part)).map(|line| line + 1);
        assert!(found.line == expected && found.reason.contains(reason), "{to}: {found:?}");
    }
}

/// A head needs 160 cycles from one link to the next (§2.2.2).
#[test]
fn the_published_switch_takes_the_published_cycles() {
    let scenario = input::read(Example::OmniPath.text(), None).unwrap();
    let config = network::config(&scenario, input::Scheme::None).unwrap();
    let stages = config.stages.unwrap();
    assert_eq!(config.switch + stages.centre.unwrap().cross + stages.store + config.link, 160);
}

/// Each error has the line and a part of the reason.
#[test]
fn what_is_wrong_has_its_line_and_a_reason() {
    let cases = [
        ("seed = 1", "seed = -1", 1, "expected u64"),
        ("warm-up = 500", "warm-up = 1000000001", 2, "take 0 to 1000000000"),
        ("measured = 2000", "measured = 0", 3, "take 1 to"),
        ("measured = 2000", "", 1, "missing field `measured`"),
        ("[0.5, 1.0]", "[]", 4, "0 factors"),
        ("[0.5, 1.0]", "[0.5, nan]", 4, "factors are above 0"),
        (
            "kind = \"tree\"\nk = 3\nn = 2",
            "kind = \"dragonfly\"\nhosts = 2\ngroup = 2\nglobal = 1\nroutes = \"valiant\"",
            5,
            "take \"fixed\" or \"adaptive\" in a dragonfly",
        ),
        (
            "[network]\nbuffer = 32",
            "routes = \"adaptive\"\n[network]\nbuffer = 64\n[switch]\nrouting = 1\nstore = 1\nallocation = 1\ncrossing = 1\n\
             speed = 2\noutput = 64\nleast = 4\n",
            5,
            "adaptive routes are chosen by queues at outputs",
        ),
        ("kind = \"tree\"", "kind = \"bush\"", 6, "unknown variant `bush`"),
        ("k = 3", "k = 99", 5, "k is 99: take 2 to 31"),
        ("kind = \"tree\"\nk = 3\nn = 2", "kind = \"file\"\npath = \"none\"", 5, "none cannot be read"),
        ("buffer = 32", "buffer = 3", 9, "buffer is 3: take 4 to"),
        ("buffer = 32", "bufer = 32", 10, "unknown field `bufer`"),
        ("buffer = 32", "queues = \"fifo\"", 9, "congestion control needs switches with queues by output"),
        (
            "buffer = 32\n[congestion]\nschemes = [\"none\"",
            "acks = false\n[congestion]\nschemes = [\"none-acknowledged\"",
            9,
            "leave `acks` out, or take \"none\"",
        ),
        (
            "schemes = [\"none\", \"lhrp\"]",
            "schemes = [\"lhrp\"]\nlhrp-patience = 0",
            11,
            "the patience is 0: take 1 to 1048576",
        ),
        ("buffer = 32", "queues = \"lifo\"", 10, "unknown variant `lifo`"),
        ("[\"none\", \"lhrp\"]", "[\"all\"]", 12, "unknown variant `all`"),
        ("name = \"all\"", "name = \"\"", 14, "a name has 1 to 32"),
        ("pattern = \"uniform\"", "pattern = \"round\"", 15, "unknown variant `round`"),
        ("pattern = \"uniform\"", "pattern = \"hot-spot\"", 14, "needs senders"),
        (
            "pattern = \"uniform\"",
            "pattern = \"bit-reversal\"",
            14,
            "needs a power of two of hosts: there are 9. Take a network of 8 or 16, or \"permutation\"",
        ),
        ("pattern = \"uniform\"", "pattern = \"bit-complement\"", 14, "there are 9"),
        ("load = 0.3", "load = -0.3", 14, "the load is -0.15"),
        ("flits = [1, 9]", "flits = [9, 1]", 14, "the shorter first"),
        ("flits = [1, 9]", "flits = 4\nlevel = 16", 9, "levels is 17"),
        ("senders = 5", "senders = 8", 19, "8 senders and 2 receivers of 9 hosts"),
        (
            "receivers = 2",
            "receivers = 9223372036854775807",
            19,
            "5 senders and 9223372036854775807 receivers",
        ),
        ("burst = 3", "", 19, "bursts have a number of messages"),
        ("burst = 3", "burst = 3\nfrom = 5\nuntil = 5", 19, "it ends before it begins"),
        ("[topology]", "[topology", 5, ""),
    ];
    let mut wrong = Vec::new();
    for (from, to, line, reason) in cases {
        let problem = problem(&spoilt(from, to));
        if problem.line != Some(line) || !problem.reason.contains(reason) || problem.cannot_be {
            wrong.push(format!("{to}: {problem:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let none = SMALL.split("[[traffic]]").next().expect("its beginning");
    assert!(problem(none).reason.contains("no [[traffic]], [trace]"));
    let table = "[arbitration]\nkind = \"dtable\"\ntable = [[1, 4]]\n[congestion]";
    let alone = problem(&spoilt("[congestion]", table));
    assert_eq!((alone.line, &*alone.reason), (Some(11), "level 0 is in no table: it could never send"));
}

/// One of the scenario's two runs has congestion control, with levels of its own.
#[test]
fn lanes_beside_congestion_control_have_lists_for_its_levels() {
    let with = |lanes: &str| spoilt("[congestion]", &format!("[lanes]\n{lanes}\n[congestion]"));
    let one = problem(&with("sl2sc = [[0]]\nsc2vl = [0]"));
    let reason =
        "there are 1 levels and 1 lists; congestion control and acknowledgements need 2 lists behind those";
    assert!(
        one.line == Some(11) && one.reason.contains(reason) && one.reason.ends_with("3 in all"),
        "{one:?}"
    );
    let lists = with("sl2sc = [[0], [1], [2]]\nsc2vl = [0, 1, 2]");
    assert_eq!(
        printed(&lists, None, Format::Csv).expect("figures"),
        printed(SMALL, None, Format::Csv).expect("figures")
    );
}

/// The scenario has the level 0 only. Turns of others would change what SBT does.
#[test]
fn turns_of_levels_that_are_not_there_are_refused() {
    let zeros = "0, ".repeat(15);
    let cases = [
        ("kind = \"sbt\"\nweights = [4, 0, 1]".to_owned(), 2),
        (format!("kind = \"wrr\"\nweights = [4, {zeros}1]"), 16),
        ("kind = \"dtable\"\ntable = [[0, 4], [1, 4]]".to_owned(), 1),
        ("kind = \"dtable\"\ntable = [[0, 4], [200, 0]]".to_owned(), 200),
        ("kind = \"vl\"\nhigh = [[0, 4]]\nlow = [[0, 4], [3, 1]]".to_owned(), 3),
    ];
    for (keys, level) in cases {
        let found = problem(&spoilt("[congestion]", &format!("[arbitration]\n{keys}\n[congestion]")));
        let reason = format!("the arbitration has turns for level {level}, and there are 1 levels");
        assert!(found.line == Some(11) && found.reason.starts_with(&reason), "{keys}: {found:?}");
    }
    let none = spoilt("[congestion]", "[arbitration]\nkind = \"sbt\"\nweights = [4, 0, 0]\n[congestion]");
    printed(&none, None, Format::Text).expect("a weight of 0 is no turn");
}

#[test]
fn a_network_from_a_file_is_beside_the_scenario() {
    let folder = std::env::temp_dir().join(format!("deckfabric-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let text = "switch s\nhost a\nhost b\nhost c\nlink a s\nlink b s\nlink c s\n";
    fs::write(folder.join("star.txt"), text).expect("a file");
    let scenario = spoilt("kind = \"tree\"\nk = 3\nn = 2", "kind = \"file\"\npath = \"star.txt\"");
    let scenario = scenario.replace("senders = 5\nreceivers = 2", "senders = 2\nreceivers = 1");
    let file = folder.join("scenario.toml");
    fs::write(&file, scenario).expect("a file");
    let facts = perform(&Command::Topologies { file: Some(file.clone()) }).expect("facts");
    assert!(
        facts.lines().nth(1).is_some_and(|line| line.starts_with("star.txt      3         1")),
        "{facts}"
    );
    let run = Command::Run { file: Some(file), example: None, format: Format::Text, seed: None };
    assert!(perform(&run).expect("figures").starts_with("star.txt, 3 hosts"));
    fs::write(folder.join("star.txt"), "switch s\nhosts a\n").expect("a file");
    let bad = perform(&run).expect_err("no network").to_string();
    assert!(bad.contains("scenario.toml:5: ") && bad.contains("star.txt: line 2: a line is"), "{bad}");
    fs::remove_dir_all(folder).expect("the folder");
}

/// Runs a scenario in the folder that has the sample trace.
fn dependent(text: &str, format: Format) -> Result<String, Problem> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    dependent::run(&input::read(text, None)?, folder, format)
}

fn small_transpose() -> String {
    include_str!("transpose.toml")
        .replace("hosts = 4\ngroup = 8\nglobal = 4", "hosts = 2\ngroup = 4\nglobal = 2")
        .replace("ranks = 1024 ", "ranks = 64 ")
}

/// The example with fewer ranks and messages: the schedule's last message arrives when the link of the first host
/// has carried all.
#[test]
fn an_incast_takes_what_its_receivers_link_takes() {
    let text = include_str!("incast.toml")
        .replace("ranks = 256 ", "ranks = 16 ")
        .replace("times = 100 ", "times = 5 ");
    let answer: serde_json::Value =
        serde_json::from_str(&dependent(&text, Format::Json).expect("an answer")).expect("JSON");
    let run = &answer["runs"][0];
    let cycles = |key: &str| run[key].as_u64().expect(key);
    let flits = 15 * 5 * 16384 / 64;
    for key in ["last_end_cycles", "library_last_end_cycles"] {
        assert!((flits..flits + flits / 50).contains(&cycles(key)), "{key}: {}", cycles(key));
    }
}

#[test]
fn a_trace_and_collective_operations_come_to_their_ends() {
    let json = |text: &str| -> serde_json::Value {
        serde_json::from_str(&dependent(text, Format::Json).expect(text)).expect("JSON")
    };
    // The trace has ten messages, and one of a node to itself, which takes no link.
    let trace = json(include_str!("trace.toml"));
    assert_eq!(trace["runs"][0]["messages"], 10, "{trace}");
    let transpose = small_transpose();
    let of = |text: &str| {
        let run = json(text)["runs"][0].clone();
        let cycles = run["last_end_cycles"].as_u64().expect("a time");
        (run["messages"].as_u64().expect("a count"), cycles)
    };
    let (messages, in_order) = of(&transpose);
    assert_eq!(messages, 64 * 63);
    let (messages, at_once) = of(&transpose.replace("\"transpose\"", "\"all-to-all\""));
    assert!(messages == 64 * 63 && at_once < in_order, "{at_once} and {in_order}");
    for order in ["hypercube", "triangle"] {
        let order = transpose.replace("\"tournament\"", &format!("\"{order}\""));
        assert_eq!(of(&order).0, 64 * 63);
    }
    // The barrier is by dissemination: 6 rounds, each at least as long as a message of a flit over the longest links.
    let (messages, barrier) = of(&transpose.replace("\"transpose\"", "\"barrier\""));
    assert!(messages == 6 * 64 && (6 * 40..2000).contains(&barrier), "{messages}, {barrier}");
    let twice = of(&transpose.replace("\"transpose\"", "\"barrier\"").replace("times = 1 ", "times = 2 "));
    assert!(twice.0 == 2 * messages && twice.1 > barrier, "{twice:?}");
    assert_eq!(dependent(&transpose, Format::Csv), dependent(&transpose, Format::Csv));
}

/// The example's trace beside traffic of a higher level, which goes first: the more of it, the later the trace ends.
#[test]
fn a_trace_beside_traffic_has_a_run_for_each_load() {
    let background = "loads = [0.01, 1.0]\n[network]\nlevels = 2\n[arbitration]\nkind = \"priority\"\n\
                      [[traffic]]\nname = \"background\"\npattern = \"uniform\"\nlevel = 1\nload = 0.9\nflits = 4\n[topology]";
    let text = include_str!("trace.toml").replacen("[topology]", background, 1);
    let json: serde_json::Value =
        serde_json::from_str(&dependent(&text, Format::Json).expect("an answer")).expect("JSON");
    let of = |nth: usize, key: &str| json["runs"][nth][key].as_f64().expect(key);
    assert_eq!([of(0, "load"), of(1, "load")], [0.01, 1.0]);
    assert_eq!([of(0, "messages"), of(1, "messages")], [10.0, 10.0]);
    assert!(of(1, "last_end_cycles") > 1.5 * of(0, "last_end_cycles"), "{json}");
    let lines = dependent(&text, Format::Text).expect("an answer");
    assert!(lines.lines().any(|line| line.starts_with("none    1.00 ")), "{lines}");
    for (wrong, reason) in [
        (text.replace("level = 1", "level = 2"), "`levels` is 2, and traffic or the trace has the level 2"),
        (text.replacen("path =", "flit = 0\npath =", 1), "nonzero"),
    ] {
        let problem = dependent(&wrong, Format::Text).expect_err(reason);
        assert!(problem.line.is_some() && problem.reason.contains(reason), "{problem:?}");
    }
}

/// A trace without congestion beside a hot spot whose packets are dropped: the drops are not the trace's.
#[test]
fn a_traces_drops_are_not_those_of_the_traffic_beside_it() {
    let hot = "[congestion]\nschemes = [\"lhrp\"]\nthreshold = 16\n\
               [[traffic]]\nname = \"hot\"\npattern = \"hot-spot\"\nsenders = 4\nreceivers = 1\nload = 3.0\nflits = 4\n[topology]";
    let text = include_str!("trace.toml").replacen("[topology]", hot, 1).replacen("n = 2", "n = 3", 1);
    let dropped = |answer: &str, key: &str| {
        let json: serde_json::Value = serde_json::from_str(answer).expect("JSON");
        json[key][0]["dropped_packets"].as_u64().expect("a count")
    };
    let beside = format!("seed = 6\n{text}");
    assert_eq!(dropped(&dependent(&beside, Format::Json).expect("an answer"), "runs"), 0);
    let (alone, _) = beside.split_once("[trace]").expect("a trace");
    let alone = alone.replacen("measured = 1000000", "measured = 2000", 1);
    assert!(dropped(&printed(&alone, None, Format::Json).expect("an answer"), "points") > 100);
}

#[test]
fn names_put_the_nodes_of_a_tile_on_one_host() {
    let folder = std::env::temp_dir().join(format!("deckfabric-names-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("sample.vef"), include_str!("sample.vef")).expect("a trace");
    let text = include_str!("trace.toml").replace("n = 2", "n = 1").replace("# names =", "names =");
    let run = |names: &str| {
        fs::write(folder.join("sample.names"), names).expect("names");
        dependent::run(&input::read(&text, None)?, &folder, Format::Json)
    };
    // Two tiles with two nodes each: three of the messages go from one to the other.
    let names = "NODES:4:2\n0:L1Cache_0\n1:L2Cache_0\n2:L1Cache_1\n3:L2Cache_1\n";
    let json: serde_json::Value = serde_json::from_str(&run(names).expect("an answer")).expect("JSON");
    assert_eq!(json["runs"][0]["messages"], 3, "{json}");
    for (names, reason) in [
        ("NODES:4:2\n0:L1Cache\n", "sample.names: line 2: a line is `node:kind_tile`"),
        (&names.replace("L2Cache_1", "L2Cache_2"), "tiles 0 to 2 need a host each, and there are 2"),
    ] {
        let problem = run(names).expect_err(reason);
        assert!(problem.line == Some(13) && problem.reason.contains(reason), "{problem:?}");
    }
    // Task 1 comes to the barrier after a message that task 0 sends behind it.
    let circle = "VEF3 2 1 1 1 2 0 1000\nC0 0 1\nG1 0 6 0 0 0 0 0 -1\n1 0 1 64 3 0 G1\nG1 0 6 1 0 0 2 0 1\n";
    fs::write(folder.join("sample.vef"), circle).expect("a trace");
    let problem = run("NODES:2:0\n0:CPU_0\n1:CPU_1\n").expect_err("a circle");
    assert!(problem.reason.contains("the run came to a stop in cycle "), "{problem:?}");
    fs::remove_dir_all(folder).expect("the folder");
}

#[test]
fn what_is_wrong_with_a_trace_or_a_collective_operation_has_its_line() {
    let transpose = small_transpose();
    let cases = [
        (transpose.replace("ranks = 64 ", "ranks = 1 "), Some(18), "ranks is 1: take 2 to 72"),
        (
            transpose.replace("ranks = 64 ", "ranks = 60 ").replace("tournament", "hypercube"),
            Some(18),
            "a power of two",
        ),
        (transpose.replace("bytes = 512 ", "bytes = 99999999999 "), Some(18), "67,108,864"),
        (
            transpose.replace("measured = 10000000", "measured = 100"),
            None,
            "the run has not ended after 100 cycles",
        ),
        (transpose.replace("measured =", "loads = [1.0]\nmeasured ="), Some(4), "loads is for [[traffic]]"),
        (transpose.replace("# [trace]", "[trace]\npath = \"x\"\ncycle-ps = 1"), None, "more than one of"),
        (
            include_str!("trace.toml").replace("path = \"sample", "path = \"none"),
            Some(13),
            "it cannot be read",
        ),
        (
            include_str!("trace.toml").replace("path = \"sample.vef", "path = \"trace.toml"),
            Some(13),
            "trace.toml: line 1: the first line is",
        ),
        (
            include_str!("trace.toml").replace("measured =", "warm-up = 500\nmeasured ="),
            Some(5),
            "warm-up is 500 cycles, and a [trace] or [collective] is measured from cycle 0 to its end",
        ),
        (transpose.replace("measured =", "warm-up = 1\nmeasured ="), Some(4), "leave warm-up out"),
        (
            include_str!("trace.toml").replace("n = 2", "n = 1"),
            Some(13),
            "4 nodes need a host each, and there are 2",
        ),
        (
            include_str!("trace.toml").replace(
                "n = 2",
                "n = 2\nroutes = \"adaptive\"\n[switch]\nrouting = 1\nstore = 1\nallocation = 1\ncrossing = 1\nspeed = 2\noutput = 64\nleast = 4\n",
            ),
            Some(7),
            "adaptive routes are chosen by queues at outputs",
        ),
    ];
    for (text, line, reason) in cases {
        let problem = dependent(&text, Format::Text).expect_err(reason);
        assert!(problem.line == line && problem.reason.contains(reason), "{reason}: {problem:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A good file with any part replaced gives a scenario or a problem, and never a panic. The scenario is not run:
    /// it could be of any length.
    #[test]
    fn proptest_any_file_is_a_scenario_or_a_problem(which in 0usize..4, at in 0usize..1500, cut in 0usize..60, text in ".{0,40}") {
        let good: Vec<_> = Example::value_variants()[which].text().chars().collect();
        let (from, to) = (at.min(good.len()), (at + cut).min(good.len()));
        let spoilt: String = good[..from].iter().copied().chain(text.chars()).chain(good[to..].iter().copied()).collect();
        if let Ok(scenario) = input::read(&spoilt, None) {
            let _ = network::config(&scenario, input::Scheme::Ecn);
            let _ = network::streams(&scenario, 100, 1.0);
        }
    }
}

/// A small network that is full: its packets keep their deadlines by the tables that their ports got.
#[test]
fn admitted_connections_are_played_and_none_is_late() {
    let text =
        admission::CHAPTER_6.replace("switches = 16", "switches = 4").replace("tries = 3000", "tries = 3");
    let plan = admission::read(&text, Path::new("")).expect("a plan");
    let mut answers = plan.admit();
    let cycles = (4000, 80_000);
    let played = play::play(&plan, &answers, cycles).expect("figures");
    assert_eq!((played.late(), played.connections), (0, answers.admitted().count()));
    let packets: u64 = played.levels.iter().map(|level| level.packets).sum();
    assert!(played.hosts.used.0 > 15.0 && packets > 5000, "{played:?}");
    let [text, csv] = [Format::Text, Format::Csv].map(|format| play::print(&plan, &played, cycles, format));
    assert!(text.contains("0 packets came after their deadline D"), "{text}");
    assert_eq!(csv.lines().count(), 11, "{csv}");
    // A deadline below the time without load is missed, and counted.
    for answer in &mut answers.answers {
        answer.request.demand.deadline = Some(std::time::Duration::from_nanos(1));
    }
    assert!(play::play(&plan, &answers, cycles).expect("figures").late() > 0);
}

/// Table 6.7: with buffers of one packet a lane waits for credits, and the network does not carry what is injected.
#[test]
fn buffers_of_two_packets_carry_the_promised_load_and_those_of_one_do_not() {
    let played = [1, 2].map(|packets| {
        let text = admission::CHAPTER_6
            .replace("switches = 16", "switches = 8")
            .replace("tries = 3000", "tries = 100")
            .replace("buffer = 4", &format!("buffer = {packets}"));
        let plan = admission::read(&text, Path::new("")).expect("a plan");
        play::play(&plan, &plan.admit(), (10_000, 20_000)).expect("figures")
    });
    let carried = played.map(|played| (played.delivered / played.injected, played.late()));
    assert!(carried[0].0 < 0.97 && carried[0].1 == 0, "{carried:?}");
    assert!(carried[1].0 > 0.995 && carried[1].1 == 0, "{carried:?}");
}

/// 1 ms is 19,531.25 flits of 16 bytes at 2.5 Gb/s.
#[test]
fn what_no_simulated_network_has_is_refused_by_its_key() {
    let text = "topology = { kind = \"mesh\", dims = [2, 2], hosts = 1 }\nlink = { rate = \"2.5 Gb/s\", mtu = 256, vls = 1 }\n\
                network = { flight = \"1 ms\" }\n\
                connection = [{ from = \"h0\", to = \"h1\", sl = 0, bandwidth = \"1 Mb/s\" }]\n";
    let plan = admission::read(text, Path::new("")).expect("a plan");
    let problem = play::play(&plan, &plan.admit(), (1, 1)).expect_err("a link");
    let is_of = |problem: &Problem, start: &str| problem.line == Some(3) && problem.reason.starts_with(start);
    assert!(is_of(&problem, "network.flight is 1ms, or 19532 cycles"), "{problem:?}");
    let plan = admission::read(&text.replace("flight = \"1 ms\"", "crossbar = \"none\""), Path::new(""));
    let plan = plan.expect("a plan");
    let problem = play::play(&plan, &plan.admit(), (1, 1)).expect_err("one buffer");
    assert!(is_of(&problem, "network.crossbar is \"none\""), "{problem:?}");
}
