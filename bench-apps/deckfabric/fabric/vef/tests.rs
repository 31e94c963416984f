//! Tests of traces and their replay.

use super::{names::Names, *};
use crate::{config::Config, engine::Engine, topology::tree};
use proptest::prelude::*;

const SAMPLE: &str = "\
VEF3 4 5 1 0 0 0 1000
C0 0 1 2 3
1 0 1 256 4 10 -1
2 1 0 256 6 100 1
3 0 2 64 1 5 1
4 0 3 0 2 0 2
5 3 3 64 0 7 -1
";

fn run(text: &str, cycle_ps: u64) -> (usize, u64) {
    replayed(Replay::new(parse(text).unwrap(), cycle_ps))
}

/// Runs a replay over four hosts. Returns the records that are done, and the cycle in which the last one was.
fn replayed(replay: Replay) -> (usize, u64) {
    let network = tree(4, 1).unwrap();
    let mut engine = Engine::new(&network, &Config::default(), replay).unwrap();
    assert_eq!(engine.run_dry(u64::MAX / 2), Ok(true));
    (engine.workload().done(), engine.workload().ended())
}

#[test]
fn messages_go_when_those_they_depend_on_have_gone_or_come() {
    // A clock is a cycle. 256 bytes are 4 flits and need 12 cycles; one flit needs 9. Message 1 goes at 10,
    // message 2 at 22 + 100, message 4 a cycle after 134.
    assert_eq!(run(SAMPLE, 1000), (5, 134 + 1 + 9));
    // The link is twice as slow, so clocks are half as many cycles.
    assert_eq!(run(SAMPLE, 2000), (5, 5 + 12 + 50 + 12 + 1 + 9));
}

#[test]
fn a_message_is_sent_when_its_last_flit_has_left() {
    // 1,000 flits, 500 clocks, and a message of a flit.
    let text = "VEF3 4 2 0 0 0 0 1000\n1 0 1 64000 0 10 -1\n2 0 2 64 1 500 1\n";
    assert_eq!(run(text, 1000), (2, 10 + 1000 + 500 + 9));
}

#[test]
fn what_is_wrong_has_its_line_and_a_reason() {
    let cases = [
        ("VEF3", "VEF4", 1, "the first line is `VEF3 nNodes"),
        (
            "VEF3",
            "VEF2",
            1,
            "the header has 7 numbers, and `VEF2 nNodes nMsgs nCOMM nCollComm nLocalCollComm noRecvDep` has 6",
        ),
        (" 1000\n", "\n", 1, "the header has 6 numbers"),
        ("VEF3 4 5 1 0", "VEF3 4 5 1 2", 7, "the header has 2 group operations, and here are 0"),
        ("VEF3 4 5 1 0 0", "VEF3 4 5 1 0 2", 7, "the header has 2 parts of group operations, and here are 0"),
        ("VEF3 4 5", "VEF3 0 5", 1, "nNodes is 0"),
        (
            "VEF3 4 5",
            "VEF3 4 6",
            7,
            "6 messages, and here are 5: correct the header, or the trace is cut off",
        ),
        ("VEF3 4 5", "VEF3 4 4", 7, "4 messages, and this is one more"),
        ("VEF3 4 5 1", "VEF3 4 5 2", 7, "2 communicators, and here are 1"),
        ("0 0 0 1000", "0 0 0 0", 1, "clock_ps is 0"),
        ("C0 0 1", "C0 0 9", 2, "node 9 is a member"),
        ("C0 0 1", "C0 0 0", 2, "node 0 is a member twice"),
        ("C0 0 1 2 3", "C", 2, "the communicator is \"\", and no number"),
        ("1 0 1 256 4 10 -1", "1 0 4 256 4 10 -1", 3, "node 4 is not there"),
        ("1 0 1 256 4 10 -1", "1 0 1 256 4 10", 3, "here are 6 words"),
        ("1 0 1 256 4 10 -1", "1 0 1 x 4 10 -1", 3, "length is \"x\", and no number"),
        ("1 0 1 256", "1 0 1 99999999999", 3, "there can be 67108864"),
        ("2 1 0 256 6", "2 1 0 256 8", 4, "Dep is 8"),
        (
            "2 1 0 256 6",
            "2 1 0 256 7",
            4,
            "depends on operation G1, which is not known here: its line comes first",
        ),
        ("2 1 0 256 6", "2 2 0 256 6", 4, "node 2 waits until it has message 1, which goes to node 1"),
        ("3 0 2 64 1", "3 1 2 64 1", 5, "node 1 waits until it has sent message 1, which node 0 sends"),
        ("3 0 2 64 1 5 1", "3 0 2 64 1 5 9", 5, "depends on message 9, which is not known here"),
        ("3 0 2 64 1 5 1", "1 0 2 64 1 5 1", 5, "message 1 again: line 3 has it"),
    ];
    for (from, to, line, reason) in cases {
        assert!(SAMPLE.contains(from), "{from}");
        let bad = parse(&SAMPLE.replacen(from, to, 1)).unwrap_err();
        assert!(bad.line == line && bad.reason.contains(reason), "{to}: {bad}");
    }
    assert_eq!(parse("").unwrap_err().to_string(), "line 1: the trace is empty");
}

/// A VEF2 trace is a VEF3 trace without the clock, which is a nanosecond, and without 4 in `Dep`.
#[test]
fn vef2_is_vef3_without_clock_and_triggers() {
    let text = SAMPLE.replace("VEF3 4 5 1 0 0 0 1000", "VEF2 4 5 1 0 0 TRUE");
    let text = text.replace(" 256 4 ", " 256 0 ");
    let bad = parse(&text).unwrap_err();
    assert!(bad.line == 4 && bad.reason.contains("Dep is 6: take 0 to 3; larger ones are VEF3's"), "{bad}");
    assert_eq!(parse(&text.replace(" 256 6 ", " 256 2 ")), parse(SAMPLE));
}

/// Table 3.1 and its example: §3.3.1.4 has messages of two cycles, and the last one, sent in cycle 27, arrives in 29.
const PUBLISHED: &str = "\
VEF3 50 8 1 0 0 0 1000
C0 0 1 2 3 4 5
0 0 18 8 4 17 -1
1 0 18 8 5 0 0
3 18 0 8 6 2 0
4 18 0 72 6 2 1
5 0 18 8 2 2 3
6 0 18 8 2 2 4
7 0 17 8 5 2 6
8 0 17 8 5 0 7
";

#[test]
fn the_published_example_ends_as_published() {
    let trace = parse(PUBLISHED).unwrap();
    let text: String = (0..50).map(|node| format!("{node}:L1Cache_0\n")).collect();
    let names = Names::parse(&format!("NODES:50:2\n{text}"), 50).unwrap();
    // All nodes are on one tile, and a clock is 100 cycles: a record without delay goes a cycle later.
    let (done, ended) = replayed(Replay::new(trace.clone(), 10).placed(&names));
    assert!(done == 8 && (2900..2910).contains(&ended), "{done}, {ended}");
    // Table 3.2: caches 17 and 18 are on the tiles 1 and 2.
    let tile = |node: usize| match node {
        0..48 => node % 16 % 4,
        _ => 0,
    };
    let text: String = (0..50).map(|node| format!("{node}:Device_{}\n", tile(node))).collect();
    let names = Names::parse(&format!("NODES:50:2\n{text}"), 50).unwrap();
    let (done, ended) = replayed(Replay::new(trace, 10).placed(&names));
    // Three messages, one after another, take 9 or 10 cycles of a link in place of 200 (message 7 goes when 6 was sent), and
    // the delays are 17 + 3 × 2 clocks.
    assert!(done == 8 && (2300 + 3 * 9..2300 + 3 * 9 + 10).contains(&ended), "{done}, {ended}");
}

/// A barrier of four tasks, and a message of task 0 after it.
const BARRIER: &str = "\
VEF3 4 1 1 1 4 0 1000
C0 0 1 2 3
G1 0 6 0 0 0 0 10 -1
G1 0 6 1 0 0 0 10 -1
G1 0 6 2 0 0 0 10 -1
G1 0 6 3 0 0 0 10 -1
1 0 1 64 3 5 G1
";

#[test]
fn a_message_goes_after_its_tasks_part_of_a_group_operation() {
    // Two rounds of 9 cycles, 5 clocks, and the message.
    assert_eq!(run(BARRIER, 1000), (5, 10 + 2 * 9 + 5 + 9));
    // Task 3 comes later: task 0 waits for its first message only, and sends its last one, of a flit.
    assert_eq!(run(&BARRIER.replace("3 0 0 0 10 -1", "3 0 0 0 100 -1"), 1000), (5, 100 + 9 + 1 + 5 + 9));
}

#[test]
fn a_part_of_a_group_operation_ends_when_its_messages_have_left() {
    // The root of a broadcast sends 1,000 flits. Its next message goes 500 clocks later.
    let text = "VEF3 4 1 1 1 2 0 1000\nC0 0 1\n\
                G1 0 0 0 64000 0 0 10 -1\nG1 0 0 1 0 64000 0 0 -1\n1 0 2 64 3 500 G1\n";
    assert_eq!(run(text, 1000), (3, 10 + 1000 + 500 + 9));
    // Task 0 of an all-to-all of 1,000 flits has those of task 1 two cycles before its own have left.
    let text = text.replace("G1 0 0", "G1 0 7").replace("0 10 -1", "0 20 -1");
    let text = text.replace("G1 0 7 1 0 64000 0 0", "G1 0 7 1 64000 0 0 10");
    assert_eq!(run(&text, 1000), (3, 20 + 1000 + 500 + 9));
}

#[test]
fn a_bad_group_operation_has_its_line_and_a_reason() {
    let cases = [
        (
            "G1 0 6 1 0 0 0 10 -1",
            "G1 0 6 1 0 0 0 10",
            4,
            "a part of a group operation is `GID COMM op task send recv Dep",
        ),
        ("G1 0 6 1", "G1 1 6 1", 4, "communicator C1 is not there"),
        ("G1 0 6 1", "G1 0 8 1", 4, "op is 8: take 0 to 7 (broadcast,"),
        ("G1 0 6 1", "G1 0 7 1", 4, "operation G1 has another op or communicator in line 3"),
        ("G1 0 6 1", "G1 0 6 0", 4, "operation G1 has a line of node 0 before this one"),
        ("C0 0 1 2 3", "C0 0 2 3", 4, "node 1 is no member of communicator C0"),
        ("C0 0 1 2 3", "C0 0 1 2 3\nC0 1", 3, "communicator C0 again"),
        (
            "VEF3 4 1 1 1 4",
            "VEF3 4 1 1 1 3",
            6,
            "the header has 3 parts of group operations, and this is one more",
        ),
        ("1 0 1 64 3 5 G1", "1 0 1 64 3 5 G2", 7, "depends on operation G2, which is not known here"),
        ("1 0 1 64 3 5 G1", "1 0 1 64 2 5 G1", 7, "IDdep is \"G1\", and no number"),
        ("VEF3 4 1 1 1 4 0 1000\nC0 0 1 2 3", "VEF3 5 1 1 1 4 0 1000\nC0 0 1 2 3 4", 3, "no line of node 4"),
        ("1 0 1 64 3", "1 0 1 64 8", 7, "Dep is 8: take 0 to 7"),
    ];
    for (from, to, line, reason) in cases {
        assert!(BARRIER.contains(from), "{from}");
        let bad = parse(&BARRIER.replacen(from, to, 1)).unwrap_err();
        assert!(bad.line == line && bad.reason.contains(reason), "{to}: {bad}");
    }
    // 8,193 tasks have more messages than a trace.
    let tasks: String = (0..8193).map(|task| format!(" {task}")).collect();
    let large =
        |op| parse(&format!("VEF3 8193 0 1 1 8193 0 1000\nC0{tasks}\nG1 0 {op} 0 0 0 0 0 -1\n")).unwrap_err();
    let bad = large(7);
    assert!(
        bad.line == 3 && bad.reason.starts_with("operation G1 has 67117056 messages: a trace can"),
        "{bad}"
    );
    assert!(large(6).reason.contains("and here are 1"), "a barrier has fewer");
    // `recv` of an all-to-all is a flag.
    let exchange = BARRIER.replace("G1 0 6", "G1 0 7");
    let bad = parse(&exchange.replace("G1 0 7 1 0 0", "G1 0 7 1 64 64")).unwrap_err();
    assert!(
        bad.line == 4 && bad.reason.starts_with("recv is 64: in an all-to-all it is 0, send is"),
        "{bad}"
    );
    let bad = parse(&exchange.replace("G1 0 7 2 0 0", "G1 0 7 2 0 1")).unwrap_err();
    assert!(bad.line == 5 && bad.reason.starts_with("recv is 1, and 0 in line 3: all tasks"), "{bad}");
    // All of four tasks send in a broadcast.
    let bad = parse(&BARRIER.replace("G1 0 6", "G1 0 0").replace(" 0 0 0 10", " 64 0 0 10")).unwrap_err();
    assert!(bad.line == 3 && bad.reason.contains("both member 0 and member 1"), "{bad}");
}

proptest! {
    /// A part of a good trace is replaced by anything: the result is a trace that ends, or an error, and never a
    /// panic.
    #[test]
    fn proptest_any_text_is_a_trace_or_an_error(at in 0usize..120, cut in 0usize..10, text in "[0-9CVEF \n-]{0,12}") {
        let from = at.min(SAMPLE.len());
        let spoilt = format!("{}{text}{}", &SAMPLE[..from], &SAMPLE[(at + cut).min(SAMPLE.len())..]);
        if let Ok(trace) = parse(&spoilt) {
            let count = trace.records.len();
            let network = tree(4, 1).unwrap();
            prop_assume!(trace.nodes <= 4 && trace.records.iter().all(|record| record.bytes < 100_000 && record.start.clocks < 100_000));
            let mut engine = Engine::new(&network, &Config::default(), Replay::new(trace, 1000)).unwrap();
            prop_assert_eq!(engine.run_dry(u64::MAX / 4), Ok(true));
            prop_assert_eq!(engine.workload().done(), count);
        }
    }

    /// Random traces: all messages arrive, whatever they depend on.
    #[test]
    fn proptest_all_of_a_trace_arrives(links in prop::collection::vec((0u64..4, 0u64..4, 0u64..2000, 0u8..3, 0u64..500, any::<prop::sample::Index>()), 1..60)) {
        let mut text = format!("VEF3 4 {} 0 0 0 0 500\n", links.len());
        let mut known: Vec<(u64, u64)> = Vec::new();
        for (id, (from, to, bytes, dep, clocks, on)) in links.into_iter().enumerate() {
            let on = if known.is_empty() { None } else { Some(on.index(known.len())) };
            let (from, dep, on) = match (dep, on) {
                (1, Some(on)) => (known[on].0, 1, on as i64),
                (2, Some(on)) => (known[on].1, 6, on as i64),
                _ => (from, 0, -1),
            };
            text += &format!("{id} {from} {to} {bytes} {dep} {clocks} {on}\n");
            known.push((from, to));
        }
        prop_assert_eq!(run(&text, 1000).0, known.len());
    }

    /// Group operations of any kind, one after another at each task, with a task that comes late: all end.
    #[test]
    fn proptest_all_of_a_traces_group_operations_end(operations in prop::collection::vec((0u64..8, 0u64..4, 0u64..2000, 0u64..500), 1..12)) {
        let mut text = format!("VEF3 4 0 1 {} {} 0 500\nC7 3 2 1 0\n", operations.len(), 4 * operations.len());
        for (id, (op, root, bytes, clocks)) in operations.iter().enumerate() {
            for task in 0..4 {
                let (send, receive) = match (op, task == *root) {
                    (0 | 4, true) | (1 | 3, false) => (bytes + 1, 0),
                    (0 | 4, false) | (1 | 3, true) => (0, bytes + 1),
                    (7, _) => (*bytes, clocks % 2),
                    (6, _) => (0, 0),
                    _ => (*bytes, *bytes),
                };
                let clocks = if task == *root { 10 * clocks } else { *clocks };
                let start = if id == 0 { format!("0 {clocks} -1") } else { format!("3 {clocks} G{}", id - 1) };
                text += &format!("G{id} 7 {op} {task} {send} {receive} {start}\n");
            }
        }
        prop_assert_eq!(run(&text, 1000).0, 4 * operations.len());
    }
}
