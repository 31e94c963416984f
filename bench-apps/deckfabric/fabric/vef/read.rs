//! Parser of traces.

use super::{
    After, BadTrace, MOST_NODES, Part, Record, Start, Trace,
    groups::{Kind, Operation},
    number,
};
use std::collections::BTreeMap;

/// Upper bound of a message in bytes.
const LONGEST: u64 = 1 << 26;
/// Upper bound of a trace's records, and of its messages with those of its group operations.
const MOST: u64 = 1 << 26;
/// Length of a clock of a VEF2 trace in picoseconds.
const NANOSECOND: u64 = 1000;

/// Reads a trace.
///
/// # Errors
/// A line is invalid, or the lines are not as many as the first one says.
pub fn parse(text: &str) -> Result<Trace, BadTrace> {
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let (line, first) = lines.next().ok_or(BadTrace { line: 1, reason: "the trace is empty".into() })?;
    let header = Header::read(first).map_err(|reason| BadTrace { line, reason })?;
    let mut reader = Reader::new(header);
    let mut last = line;
    for (line, text) in lines {
        last = line;
        reader.read(line, text.trim()).map_err(|reason| BadTrace { line, reason })?;
    }
    reader.end(last)
}

struct Header {
    nodes: u32,
    messages: u64,
    communicators: u64,
    operations: u64,
    parts: u64,
    clock_ps: u64,
    /// Largest `Dep`.
    most_dep: u64,
}

impl Header {
    fn read(text: &str) -> Result<Self, String> {
        const COUNTS: &str = "nNodes nMsgs nCOMM nCollComm nLocalCollComm noRecvDep";
        let words: Vec<_> = text.split_whitespace().collect();
        let (form, has_clock) = match words.first() {
            Some(&"VEF3") => (format!("VEF3 {COUNTS} clock_ps"), true),
            Some(&name @ ("VEF2" | "VEF")) => (format!("{name} {COUNTS}"), false),
            _ => return Err(format!("the first line is `VEF3 {COUNTS} clock_ps`, or `VEF2 {COUNTS}`")),
        };
        let numbers = &words[1..];
        if numbers.len() != 6 + usize::from(has_clock) {
            let fields = 6 + usize::from(has_clock);
            return Err(format!("the header has {} numbers, and `{form}` has {fields}", numbers.len()));
        }
        let mut values = [0; 5];
        for ((value, word), name) in values.iter_mut().zip(numbers).zip(COUNTS.split(' ')) {
            *value = number(word, name)?;
        }
        let [nodes, messages, communicators, operations, parts] = values;
        if !(1..=MOST_NODES).contains(&nodes) {
            return Err(format!("nNodes is {nodes}: take 1 to {MOST_NODES}"));
        }
        if messages.saturating_add(parts) > MOST {
            return Err(format!(
                "nMsgs is {messages}, and nLocalCollComm is {parts}: there can be {MOST} in all"
            ));
        }
        let clock_ps = if has_clock { number(numbers[6], "clock_ps")? } else { NANOSECOND };
        if !(1..=1_000_000_000).contains(&clock_ps) {
            return Err(format!("clock_ps is {clock_ps}: take 1 to 1000000000"));
        }
        let most_dep = if has_clock { 7 } else { 3 };
        Ok(Self { nodes: nodes as u32, messages, communicators, operations, parts, clock_ps, most_dep })
    }
}

/// The lines that were read so far.
struct Reader {
    header: Header,
    trace: Trace,
    /// Index and line of each message.
    messages: BTreeMap<u64, (u32, usize)>,
    /// Number of messages that group operations may still have.
    left: u64,
    /// Index of each communicator.
    communicators: BTreeMap<u64, u32>,
    /// Place of each node in each communicator, by the communicator's index and the node.
    places: BTreeMap<(u32, u32), u32>,
    operations: BTreeMap<u64, First>,
}

/// Index of a group operation, and its first line.
#[derive(Clone, Copy)]
struct First {
    index: u32,
    line: usize,
    receive: u64,
}

impl Reader {
    fn new(header: Header) -> Self {
        let trace = Trace {
            nodes: header.nodes,
            clock_ps: header.clock_ps,
            communicators: Vec::new(),
            records: Vec::new(),
            operations: Vec::new(),
            parts: Vec::new(),
        };
        let left = MOST - header.messages;
        let (messages, communicators) = (BTreeMap::new(), BTreeMap::new());
        let (places, operations) = (BTreeMap::new(), BTreeMap::new());
        Self { header, trace, messages, left, communicators, places, operations }
    }

    fn read(&mut self, line: usize, text: &str) -> Result<(), String> {
        if let Some(rest) = text.strip_prefix('C') {
            self.communicator(rest)
        } else if let Some(rest) = text.strip_prefix('G') {
            self.part(line, rest)
        } else {
            self.message(line, text)
        }
    }

    /// Reads a communicator's line such as `0 0 1 2`: its number, and its nodes.
    fn communicator(&mut self, text: &str) -> Result<(), String> {
        if !(self.trace.records.is_empty() && self.trace.parts.is_empty()) {
            return Err("a communicator behind messages: its line comes before all of them".into());
        }
        let mut words = text.split_whitespace();
        let id = number(words.next().unwrap_or(""), "the communicator")?;
        let index = self.trace.communicators.len() as u32;
        let mut members = Vec::new();
        for word in words {
            let node = number(word, "its member")?;
            if node >= u64::from(self.header.nodes) {
                return Err(format!("node {node} is a member, and there are {}, from 0", self.header.nodes));
            }
            if self.places.insert((index, node as u32), members.len() as u32).is_some() {
                return Err(format!("node {node} is a member twice"));
            }
            members.push(node as u32);
        }
        if self.communicators.insert(id, index).is_some() {
            return Err(format!("communicator C{id} again: each has one line"));
        }
        self.trace.communicators.push(members);
        Ok(())
    }

    fn message(&mut self, line: usize, text: &str) -> Result<(), String> {
        if self.trace.records.len() as u64 == self.header.messages {
            return Err(format!("the header has {} messages, and this is one more", self.header.messages));
        }
        const NAMES: [&str; 7] = ["ID", "src", "dst", "length", "Dep", "dTime", "IDdep"];
        let ([id, from, to, bytes, dep, clocks], on) = fields(text, "message", "", NAMES)?;
        if let Some(node) = [from, to].into_iter().find(|node| *node >= u64::from(self.header.nodes)) {
            return Err(format!("node {node} is not there: there are {}, from 0", self.header.nodes));
        }
        check_length("length", bytes)?;
        let after = self.after(from as u32, &format!("message {id}"), dep, on)?;
        let index = self.trace.records.len() as u32;
        if let Some((_, first)) = self.messages.insert(id, (index, line)) {
            return Err(format!("message {id} again: line {first} has it"));
        }
        let start = Start { after, clocks };
        self.trace.records.push(Record { from: from as u32, to: to as u32, bytes, start });
        Ok(())
    }

    /// Reads a part of a group operation without the `G` of its number.
    fn part(&mut self, line: usize, text: &str) -> Result<(), String> {
        if self.trace.parts.len() as u64 == self.header.parts {
            let count = self.header.parts;
            return Err(format!("the header has {count} parts of group operations, and this is one more"));
        }
        const NAMES: [&str; 9] = ["ID", "COMM", "op", "task", "send", "recv", "Dep", "dTime", "IDdep"];
        let ([id, communicator, op, node, send, receive, dep, clocks], on) =
            fields(text, "part of a group operation", "G", NAMES)?;
        let index = *self.communicators.get(&communicator).ok_or_else(|| {
            format!("communicator C{communicator} is not there: its line comes before the messages")
        })?;
        let kind = usize::try_from(op).ok().and_then(|op| Kind::ALL.get(op).copied()).ok_or_else(|| {
            format!("op is {op}: take 0 to 7 (broadcast, reduce, all-reduce, gather, scatter, all-gather, barrier, all-to-all)")
        })?;
        check_length("send", send)?;
        check_length("recv", receive)?;
        let place = u32::try_from(node).ok().and_then(|node| self.places.get(&(index, node)).copied());
        let member =
            place.ok_or_else(|| format!("node {node} is no member of communicator C{communicator}"))?;
        let size = self.trace.communicators[index as usize].len();
        let after = self.after(node as u32, &format!("operation G{id}"), dep, on)?;
        if kind == Kind::AllToAll && receive > 1 {
            return Err(format!(
                "recv is {receive}: in an all-to-all it is 0, send is for each other task, or 1, send is for all"
            ));
        }
        let next = self.trace.operations.len() as u32;
        let first = *self.operations.entry(id).or_insert(First { index: next, line, receive });
        let operation = first.index;
        if operation == next {
            let messages = kind.messages(size as u64);
            self.left = self.left.checked_sub(messages).ok_or_else(|| {
                format!(
                    "operation G{id} has {messages} messages: a trace can have {MOST} with those of its group operations, and {} of them are left here",
                    self.left
                )
            })?;
            let (bytes, parts) = (vec![(0, 0); size], vec![None; size]);
            self.trace.operations.push(Operation { kind, communicator: index, bytes, parts });
        }
        let known = &mut self.trace.operations[operation as usize];
        if (known.kind, known.communicator) != (kind, index) {
            return Err(format!("operation G{id} has another op or communicator in line {}", first.line));
        }
        if kind == Kind::AllToAll && receive != first.receive {
            let First { line, receive: other, .. } = first;
            return Err(format!(
                "recv is {receive}, and {other} in line {line}: all tasks of an all-to-all have the same"
            ));
        }
        if known.parts[member as usize].replace(self.trace.parts.len() as u32).is_some() {
            return Err(format!("operation G{id} has a line of node {node} before this one"));
        }
        known.bytes[member as usize] = (send, receive);
        let start = Start { after, clocks };
        self.trace.parts.push(Part { operation, member, start });
        Ok(())
    }

    /// Event after which a record of a node goes. `what` names the record.
    fn after(&self, node: u32, what: &str, dep: u64, on: &str) -> Result<After, String> {
        let most = self.header.most_dep;
        if dep > most {
            let more = if most == 3 {
                "; larger ones are VEF3's, whose first line is `VEF3` and has a clock"
            } else {
                ""
            };
            return Err(format!("Dep is {dep}: take 0 to {most}{more}"));
        }
        if dep & 3 == 0 {
            return Ok(After::Begin);
        }
        if dep & 3 == 3 {
            let on = number(on.strip_prefix('G').unwrap_or(on), "IDdep")?;
            let unknown = || {
                format!("{what} depends on operation G{on}, which is not known here: its line comes first")
            };
            let First { index, .. } = self.operations.get(&on).ok_or_else(unknown)?;
            let operation = &self.trace.operations[*index as usize];
            let member = self.places.get(&(operation.communicator, node));
            let part = member.and_then(|member| operation.parts[*member as usize]);
            return part.map(After::Done).ok_or_else(|| {
                format!("node {node} waits for its part of operation G{on}, of which no line comes before this one")
            });
        }
        let on = number(on, "IDdep")?;
        let unknown =
            || format!("{what} depends on message {on}, which is not known here: its line comes first");
        let (place, _) = *self.messages.get(&on).ok_or_else(unknown)?;
        let Record { from, to, .. } = self.trace.records[place as usize];
        match dep & 3 {
            1 if from != node => {
                Err(format!("node {node} waits until it has sent message {on}, which node {from} sends"))
            }
            1 => Ok(After::Sent(place)),
            _ if to != node => {
                Err(format!("node {node} waits until it has message {on}, which goes to node {to}"))
            }
            _ => Ok(After::Received(place)),
        }
    }

    /// Returns the trace, if the lines are as many as the header says and no operation lacks a member.
    fn end(self, last: usize) -> Result<Trace, BadTrace> {
        let Self { header, trace, operations, .. } = self;
        let counts = [
            ("messages", header.messages, trace.records.len()),
            ("communicators", header.communicators, trace.communicators.len()),
            ("group operations", header.operations, trace.operations.len()),
            ("parts of group operations", header.parts, trace.parts.len()),
        ];
        if let Some((what, stated, found)) =
            counts.into_iter().find(|(_, stated, found)| *stated != *found as u64)
        {
            let reason = format!(
                "the header has {stated} {what}, and here are {found}: correct the header, or the trace is cut off"
            );
            return Err(BadTrace { line: last, reason });
        }
        for (id, First { index, line, .. }) in operations {
            let operation = &trace.operations[index as usize];
            let bad = |reason| BadTrace { line, reason };
            operation.root().map_err(|why| bad(format!("operation G{id}: {why}")))?;
            if let Some(member) = operation.parts.iter().position(Option::is_none) {
                let node = trace.communicators[operation.communicator as usize][member];
                return Err(bad(format!(
                    "operation G{id} has no line of node {node}, a member of its communicator: it would never end"
                )));
            }
        }
        Ok(trace)
    }
}

fn check_length(name: &str, bytes: u64) -> Result<(), String> {
    match bytes {
        0..=LONGEST => Ok(()),
        _ => Err(format!("{name} is {bytes} bytes: there can be {LONGEST}")),
    }
}

/// Splits a line into numbers, and its last word.
fn fields<'text, const ALL: usize, const NUMBERS: usize>(
    text: &'text str,
    what: &str,
    sign: &str,
    names: [&str; ALL],
) -> Result<([u64; NUMBERS], &'text str), String> {
    let words: Vec<_> = text.split_whitespace().collect();
    let (Ok(words), [.., on]) = (<[&str; ALL]>::try_from(&words[..]), &words[..]) else {
        return Err(format!("a {what} is `{sign}{}`, and here are {} words", names.join(" "), words.len()));
    };
    let mut values = [0; NUMBERS];
    for ((value, word), name) in values.iter_mut().zip(words).zip(names) {
        *value = number(word, name)?;
    }
    Ok((values, on))
}
