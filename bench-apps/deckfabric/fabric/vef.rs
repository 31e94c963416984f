//! Traces of MPI programs in the format VEF3, and their replay: a message goes when those that it depends on have
//! left or arrived.
//!
//! ```text
//! VEF3 nNodes nMsgs nCOMM nCollComm nLocalCollComm noRecvDep clock_ps
//! C0 0 1 2 3                                      communicators, a line each; not needed for messages
//! ID src dst length Dep dTime IDdep               messages, lengths in bytes, times in clocks of clock_ps picoseconds
//! ```
//!
//! | Dep | a message goes |
//! |---|---|
//! | 0 | at dTime |
//! | 1 | dTime after its sender has sent the message IDdep |
//! | 2 | dTime after its sender has received the message IDdep |
//! | 3 | dTime after the group operation IDdep: **not supported**, such a trace is refused |
//! | + 4 | the same, and others depend on it (not needed for a replay) |
//!
//! Traces with group operations have to be written with the messages of these operations instead.

use crate::workload::{Actions, Post, Workload};
use std::collections::BTreeMap;
use thiserror::Error;

/// Bytes of a flit.
const FLIT: u64 = 64;
/// Upper bound of a message in bytes.
const LONGEST: u64 = 1 << 26;
/// Upper bound of a trace's messages.
const MOST: u64 = 1 << 26;

/// An invalid line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct BadTrace {
    /// Number of the line, from 1.
    pub line: usize,
    /// Reason as text.
    pub reason: String,
}

/// Event after which a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The beginning of the run.
    Begin,
    /// Its sender has sent another message, which is named by its index in the trace.
    Sent(u32),
    /// Its sender has received another message, which is named by its index in the trace.
    Received(u32),
}

/// A message of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Node of the sender.
    pub from: u32,
    /// Node of the receiver.
    pub to: u32,
    /// Length in bytes.
    pub bytes: u64,
    /// Event after which it goes.
    pub after: After,
    /// Number of clocks after that event.
    pub clocks: u64,
}

/// A trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Number of nodes.
    pub nodes: u32,
    /// Length of a clock in picoseconds.
    pub clock_ps: u64,
    /// Messages in the order of the file.
    pub records: Vec<Record>,
}

/// Reads a trace.
pub fn parse(text: &str) -> Result<Trace, BadTrace> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (line, first) = lines.next().ok_or(BadTrace { line: 1, reason: "the trace is empty".into() })?;
    let header = Header::read(first).map_err(|reason| BadTrace { line, reason })?;
    let mut trace = Trace { nodes: header.nodes, clock_ps: header.clock_ps, records: Vec::new() };
    let mut places: BTreeMap<u64, (u32, usize)> = BTreeMap::new();
    let (mut communicators, mut last) = (0, line);
    for (line, text) in lines {
        last = line;
        let bad = |reason: String| BadTrace { line, reason };
        if let Some(members) = text.trim_start().strip_prefix('C') {
            if !trace.records.is_empty() {
                return Err(bad("a communicator behind messages".into()));
            }
            check_members(members, header.nodes).map_err(bad)?;
            communicators += 1;
            continue;
        }
        if trace.records.len() as u64 == header.messages {
            return Err(bad(format!("the header has {} messages, and this is one more", header.messages)));
        }
        let (id, record) = record(text, &header, &places, &trace.records).map_err(bad)?;
        if let Some((_, first)) = places.insert(id, (trace.records.len() as u32, line)) {
            return Err(bad(format!("message {id} again: line {first} has it")));
        }
        trace.records.push(record);
    }
    let missing = |what: &str, stated: u64, found: u64| BadTrace {
        line: last,
        reason: format!("the header has {stated} {what}, and here are {found}"),
    };
    if trace.records.len() as u64 != header.messages {
        return Err(missing("messages", header.messages, trace.records.len() as u64));
    }
    if communicators != header.communicators {
        return Err(missing("communicators", header.communicators, communicators));
    }
    Ok(trace)
}

struct Header {
    nodes: u32,
    messages: u64,
    communicators: u64,
    clock_ps: u64,
}

impl Header {
    fn read(text: &str) -> Result<Self, String> {
        const FORM: &str = "VEF3 nNodes nMsgs nCOMM nCollComm nLocalCollComm noRecvDep clock_ps";
        let words: Vec<_> = text.split_whitespace().collect();
        let ["VEF3", numbers @ ..] = &words[..] else {
            return Err(format!("the first line is `{FORM}`"));
        };
        if numbers.len() != 7 {
            return Err(format!("the header has {} numbers, and `{FORM}` has 7", numbers.len()));
        }
        let names = ["nNodes", "nMsgs", "nCOMM", "nCollComm", "nLocalCollComm", "noRecvDep", "clock_ps"];
        let mut values = [0; 7];
        for ((value, word), name) in values.iter_mut().zip(numbers).zip(names) {
            *value = number(word, name)?;
        }
        let [nodes, messages, communicators, of_groups, local, _, clock_ps] = values;
        if !(1..=1 << 16).contains(&nodes) {
            return Err(format!("nNodes is {nodes}: take 1 to 65536"));
        }
        if messages > MOST {
            return Err(format!("nMsgs is {messages}: there can be {MOST}"));
        }
        if of_groups > 0 || local > 0 {
            return Err(format!(
                "there are {of_groups} group operations and {local} local ones: only messages are replayed. Write the trace with them as messages"
            ));
        }
        if !(1..=1_000_000_000).contains(&clock_ps) {
            return Err(format!("clock_ps is {clock_ps}: take 1 to 1000000000"));
        }
        Ok(Self { nodes: nodes as u32, messages, communicators, clock_ps })
    }
}

fn number(word: &str, name: &str) -> Result<u64, String> {
    let shown: String = word.chars().take(30).collect();
    word.parse().map_err(|_| format!("{name} is {shown:?}, and no number"))
}

/// Checks a communicator's line such as `0 0 1 2`: its number, and its nodes.
fn check_members(text: &str, nodes: u32) -> Result<(), String> {
    for (at, word) in text.split_whitespace().enumerate() {
        let node = number(word, if at == 0 { "the communicator" } else { "its member" })?;
        if at > 0 && node >= u64::from(nodes) {
            return Err(format!("node {node} is a member, and there are {nodes}, from 0"));
        }
    }
    Ok(())
}

fn record(
    text: &str,
    header: &Header,
    places: &BTreeMap<u64, (u32, usize)>,
    records: &[Record],
) -> Result<(u64, Record), String> {
    let words: Vec<_> = text.split_whitespace().collect();
    if words.len() != 7 {
        return Err(format!(
            "a message is `ID src dst length Dep dTime IDdep`, and here are {} words",
            words.len()
        ));
    }
    let mut values = [0; 7];
    for ((value, word), name) in
        values.iter_mut().zip(words).zip(["ID", "src", "dst", "length", "Dep", "dTime", "IDdep"])
    {
        // IDdep may be -1 for a message that depends on none.
        *value = if name == "IDdep" && word.starts_with('-') { u64::MAX } else { number(word, name)? };
    }
    let [id, from, to, bytes, dep, clocks, on] = values;
    if let Some(node) = [from, to].into_iter().find(|node| *node >= u64::from(header.nodes)) {
        return Err(format!("node {node} is not there: there are {}, from 0", header.nodes));
    }
    if bytes > LONGEST {
        return Err(format!("length is {bytes} bytes: there can be {LONGEST}"));
    }
    let place = || {
        places.get(&on).map(|(place, _)| *place).ok_or_else(|| {
            format!("message {id} depends on message {on}, which is not known here: its line comes first")
        })
    };
    let after = match dep & 3 {
        _ if dep > 7 => return Err(format!("Dep is {dep}: take 0 to 7")),
        0 => After::Begin,
        1 => {
            let place = place()?;
            let sender = records[place as usize].from;
            if u64::from(sender) != from {
                return Err(format!(
                    "node {from} waits until it has sent message {on}, which node {sender} sends"
                ));
            }
            After::Sent(place)
        }
        2 => {
            let place = place()?;
            let receiver = records[place as usize].to;
            if u64::from(receiver) != from {
                return Err(format!(
                    "node {from} waits until it has message {on}, which goes to node {receiver}"
                ));
            }
            After::Received(place)
        }
        _ => return Err(format!("message {id} depends on a group operation: only messages are replayed")),
    };
    Ok((id, Record { from: from as u32, to: to as u32, bytes, after, clocks }))
}

/// A trace as a workload: node n is host n.
pub struct Replay {
    records: Vec<Record>,
    /// Picoseconds that a flit needs over a link, and below, length of a clock of the trace.
    cycle_ps: u64,
    clock_ps: u64,
    /// Messages that go when the message of this index was sent, and below, when it has arrived.
    on_sent: Vec<Vec<u32>>,
    on_received: Vec<Vec<u32>>,
    done: usize,
    ended: u64,
}

impl Replay {
    /// Makes a replay. `cycle_ps` is the time that a link needs for 64 bytes, in picoseconds; 0 counts as 1.
    pub fn new(trace: Trace, cycle_ps: u64) -> Self {
        let mut on_sent = vec![Vec::new(); trace.records.len()];
        let mut on_received = on_sent.clone();
        for (nth, record) in (0u32..).zip(&trace.records) {
            match record.after {
                After::Begin => {}
                After::Sent(place) => on_sent[place as usize].push(nth),
                After::Received(place) => on_received[place as usize].push(nth),
            }
        }
        let (cycle_ps, clock_ps) = (cycle_ps.max(1), trace.clock_ps);
        Self { records: trace.records, cycle_ps, clock_ps, on_sent, on_received, done: 0, ended: 0 }
    }

    /// Number of messages that have arrived.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Whether all messages have arrived.
    pub fn is_done(&self) -> bool {
        self.done == self.records.len()
    }

    /// Cycle at which the last message arrived.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    fn cycles(&self, clocks: u64) -> u64 {
        let picoseconds = u128::from(clocks) * u128::from(self.clock_ps);
        // No run comes to times beyond this bound.
        u64::try_from(picoseconds.div_ceil(u128::from(self.cycle_ps))).unwrap_or(u64::MAX).min(1 << 60)
    }

    fn follow(&self, now: u64, nth: u32, actions: &mut Actions) {
        actions.at(now + self.cycles(self.records[nth as usize].clocks), nth);
    }
}

impl Workload for Replay {
    fn classes(&self) -> Vec<String> {
        vec!["trace".into()]
    }

    fn begin(&mut self, actions: &mut Actions) {
        for (nth, record) in (0u32..).zip(&self.records) {
            if record.after == After::Begin {
                self.follow(0, nth, actions);
            }
        }
    }

    fn timer(&mut self, now: u64, nth: u32, actions: &mut Actions) {
        let Record { from, to, bytes, .. } = self.records[nth as usize];
        if from == to {
            // A message within one node is there at once.
            self.sent(now, nth, actions);
            self.delivered(now, nth, actions);
            return;
        }
        let flits = bytes.div_ceil(FLIT).max(1) as u32;
        actions.post(Post { from, to, flits, level: 0, class: 0, token: nth });
    }

    fn sent(&mut self, now: u64, nth: u32, actions: &mut Actions) {
        self.on_sent[nth as usize].iter().for_each(|next| self.follow(now, *next, actions));
    }

    fn delivered(&mut self, now: u64, nth: u32, actions: &mut Actions) {
        self.done += 1;
        self.ended = self.ended.max(now);
        self.on_received[nth as usize].iter().for_each(|next| self.follow(now, *next, actions));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let network = tree(4, 1).unwrap();
        let replay = Replay::new(parse(text).unwrap(), cycle_ps);
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
    fn what_is_wrong_has_its_line_and_a_reason() {
        let cases = [
            ("VEF3", "VEF2", 1, "the first line is `VEF3 nNodes"),
            (" 1000\n", "\n", 1, "the header has 6 numbers"),
            ("VEF3 4 5 1 0", "VEF3 4 5 1 2", 1, "2 group operations"),
            ("VEF3 4 5", "VEF3 0 5", 1, "nNodes is 0"),
            ("VEF3 4 5", "VEF3 4 6", 7, "the header has 6 messages, and here are 5"),
            ("VEF3 4 5", "VEF3 4 4", 7, "4 messages, and this is one more"),
            ("VEF3 4 5 1", "VEF3 4 5 2", 7, "2 communicators, and here are 1"),
            ("0 0 0 1000", "0 0 0 0", 1, "clock_ps is 0"),
            ("C0 0 1", "C0 0 9", 2, "node 9 is a member"),
            ("1 0 1 256 4 10 -1", "1 0 4 256 4 10 -1", 3, "node 4 is not there"),
            ("1 0 1 256 4 10 -1", "1 0 1 256 4 10", 3, "here are 6 words"),
            ("1 0 1 256 4 10 -1", "1 0 1 x 4 10 -1", 3, "length is \"x\", and no number"),
            ("1 0 1 256", "1 0 1 99999999999", 3, "there can be 67108864"),
            ("2 1 0 256 6", "2 1 0 256 8", 4, "Dep is 8"),
            ("2 1 0 256 6", "2 1 0 256 7", 4, "depends on a group operation"),
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
                prop_assume!(trace.nodes <= 4 && trace.records.iter().all(|record| record.bytes < 100_000 && record.clocks < 100_000));
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
    }
}
