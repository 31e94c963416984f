//! The merged file in the format VEF3: the job's messages, for simulators of networks (`deckfabric`).
//!
//! ```text
//! VEF3 ranks messages 1 0 0 0 1000                a clock is 1000 ps, as the times of a trace have nanoseconds
//! C0 0 1 2 3                                      all ranks
//! ID src dst length Dep dTime IDdep               a message, behind the one that it depends on
//! ```
//!
//! A message depends on what its rank did before its post began, of all threads together:
//!
//! | the rank, since its previous message | Dep | dTime: time until the post began |
//! |---|---|---|
//! | retrieved messages that arrived when that post had begun | 2: it goes after the one of them that arrived last | since that arrival, or since the post returned, if it returned later |
//! | retrieved none, or only ones that had arrived before | 1: it goes after the previous message | since the post of that message returned |
//! | has no previous one, and retrieved messages | 2: it goes after the one of them that arrived last | since that arrival |
//! | has no previous one, and retrieved none | 0 | since the job's first post began |
//!
//! So dTime contains no post of the rank, and no wait before that post.
//!
//! Others add 4 if a message depends on their arrival. A record has room for one dependency only.
//!
//! The moment of arrival is not recorded. If a retrieve took more than [`WAITED`], it waited, and the message
//! arrived at its end. Otherwise the message was there before: the end of its post is taken. A retrieve
//! whose message has no known post counts as time that passes.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;

use udeck_sys::say;

use super::{Clock, Lane, Line, Merged, Survey, Watch, each_line};
use crate::file::NewFile;

/// Length of a clock of the file in picoseconds.
const CLOCK_PS: u64 = 1000;
/// Duration in nanoseconds of a retrieve that has waited, as for `wait` in a trace of events.
const WAITED: i64 = 1000;
/// Stands for a message whose post is not known.
const UNKNOWN: u32 = u32::MAX;

/// Event after which a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Begin,
    /// The sender's message of this index was sent.
    Sent(u32),
    /// The message of this index arrived at the sender.
    Received(u32),
}

impl After {
    fn message(self) -> Option<u32> {
        match self {
            After::Begin => None,
            After::Sent(on) | After::Received(on) => Some(on),
        }
    }
}

/// A posted message. Times are those of the trace, in nanoseconds.
struct Message {
    from: u32,
    to: u32,
    bytes: u64,
    /// Beginning and end of the call that posted it.
    start: i64,
    end: i64,
    after: After,
    /// Nanoseconds between that event and the post.
    delay: i64,
    /// Whether another message depends on the arrival of this one.
    is_trigger: bool,
}

/// An event of a rank that its next messages may depend on.
struct Event {
    start: i64,
    end: i64,
    what: What,
}

#[derive(Clone, Copy)]
enum What {
    /// The message of this index was posted.
    Sent(u32),
    /// The message with the arrow of this index was retrieved.
    Received(u32),
    /// The trace itself was written.
    Written,
}

/// Slice whose arrow, if it has one, is in the next line.
enum Slice {
    Post(u32),
    Retrieve { rank: u32, start: i64, end: i64 },
}

/// The messages of all ranks.
struct Job<'a> {
    survey: &'a Survey,
    /// Number of ranks.
    size: usize,
    messages: Vec<Message>,
    /// Events of each rank.
    ranks: Vec<Vec<Event>>,
    /// Message of each arrow that has both ends.
    posts: Vec<u32>,
}

pub(super) fn write(
    to: NewFile,
    lanes: &[Lane],
    parts: &[(PathBuf, Clock)],
    (survey, watch): (&Survey, &Watch<'_>),
) -> io::Result<Merged> {
    let mut job = Job {
        survey,
        size: lanes.len(),
        messages: Vec::new(),
        ranks: lanes.iter().map(|_| Vec::new()).collect(),
        posts: vec![UNKNOWN; survey.arrows.whole.len()],
    };
    for (part, clock) in parts {
        let mut last = None;
        each_line(part, watch, |line| job.note(clock, line, &mut last))?;
    }
    job.find_dependencies(watch)?;
    let order = job.order();
    job.write(to, &order, watch)?;
    say_gaps(lanes);
    Ok(Merged {
        events: order.len() as u64,
        arrows: job.posts.iter().filter(|post| **post != UNKNOWN).count() as u64,
        dropped: survey.dropped.values().sum(),
        left_out: Vec::new(),
    })
}

/// Names the ranks whose messages may be missing: the format has no place for that.
fn say_gaps(lanes: &[Lane]) {
    let gaps: Vec<String> = lanes
        .iter()
        .filter(|lane| lane.state() != "complete")
        .map(|lane| format!("rank {} ({})", lane.rank, lane.state()))
        .collect();
    if !gaps.is_empty() {
        say!("the trace for the simulator may lack messages of {}", gaps.join(", "));
    }
}

impl Job<'_> {
    /// Notes a line of a part. `last` is the slice of the line before, if it may have an arrow.
    fn note(&mut self, clock: &Clock, line: Line<'_>, last: &mut Option<Slice>) {
        let slice = last.take();
        let arrow = || line.arrow().and_then(|id| self.survey.arrows.whole.binary_search(&id).ok());
        match (line.letter(), slice) {
            (Some('X'), _) => *last = self.note_slice(clock, line),
            (Some('s'), Some(Slice::Post(message))) => {
                if let Some(arrow) = arrow() {
                    self.posts[arrow] = message;
                }
            }
            (Some('f'), Some(Slice::Retrieve { rank, start, end })) => {
                if let Some(arrow) = arrow() {
                    let what = What::Received(arrow as u32);
                    self.ranks[rank as usize].push(Event { start, end, what });
                }
            }
            _ => {}
        }
    }

    fn note_slice(&mut self, clock: &Clock, line: Line<'_>) -> Option<Slice> {
        let is =
            |name: &str| line.0.contains(&format!(",\"name\":\"{name}\",\"cat\":\"{}\"", crate::MESSAGES));
        let number = |name: &str| line.member(name)?.parse::<u64>().ok();
        let rank_of = |name: &str| number(name).filter(|rank| *rank < self.size as u64);
        let (rank, time) = (rank_of("pid")? as u32, line.time()?);
        let start = clock.convert(time);
        // No event is without length: one that ends when another begins was before it.
        let end = clock.convert(time + line.length()).max(start + 1);
        if is("post") {
            let (to, bytes) = (rank_of("to")? as u32, number("bytes")?);
            let message = self.messages.len() as u32;
            let (after, delay, is_trigger) = (After::Begin, 0, false);
            self.messages.push(Message { from: rank, to, bytes, start, end, after, delay, is_trigger });
            self.ranks[rank as usize].push(Event { start, end, what: What::Sent(message) });
            return Some(Slice::Post(message));
        }
        if is("trace written") {
            self.ranks[rank as usize].push(Event { start, end, what: What::Written });
        }
        is("retrieve").then_some(Slice::Retrieve { rank, start, end })
    }

    /// Finds what each message depends on.
    fn find_dependencies(&mut self, watch: &Watch<'_>) -> io::Result<()> {
        let begin = self.messages.iter().map(|message| message.start).min().unwrap_or(0);
        for mut events in std::mem::take(&mut self.ranks) {
            events.sort_by_key(|event| event.end);
            let mut posts: Vec<u32> = events.iter().filter_map(Event::post).collect();
            posts.sort_by_key(|post| self.messages[*post as usize].start);
            let (written, mut before) = (sums_of_written(&events), 0);
            for post in posts {
                watch.look()?;
                let start = self.messages[post as usize].start;
                before += events[before..].iter().take_while(|event| event.end <= start).count();
                let (after, since) = self.last_of(&events[..before]).unwrap_or((After::Begin, begin));
                let own =
                    written[before] - written[events.partition_point(|event| event.end <= since).min(before)];
                let message = &mut self.messages[post as usize];
                (message.after, message.delay) = (after, (start - since - own).max(0));
            }
        }
        for nth in 0..self.messages.len() {
            if let After::Received(on) = self.messages[nth].after {
                self.messages[on as usize].is_trigger = true;
            }
        }
        Ok(())
    }

    /// Returns the event that the next message depends on, and its time.
    fn last_of(&self, events: &[Event]) -> Option<(After, i64)> {
        let mut arrived: Option<(After, i64)> = None;
        for event in events.iter().rev() {
            match event.what {
                What::Written => {}
                What::Sent(message) => {
                    let since = arrived.filter(|(_, at)| *at > event.start);
                    let since = since.map(|(after, at)| (after, at.max(event.end)));
                    return since.or(Some((After::Sent(message), event.end)));
                }
                What::Received(arrow) => {
                    let post = self.posts[arrow as usize];
                    let Some(message) = self.messages.get(post as usize) else { continue };
                    let waited = event.end - event.start > WAITED;
                    let at = if waited { event.end } else { message.end.min(event.start) };
                    if arrived.is_none_or(|(_, latest)| latest < at) {
                        arrived = Some((After::Received(post), at));
                    }
                }
            }
        }
        arrived
    }

    /// Returns the messages in the order of the file: by their times, but each behind the one it depends on, whatever
    /// the clocks of two hosts say. Messages that depend on each other in a circle (arrows may be interchanged) are cut loose.
    fn order(&mut self) -> Vec<u32> {
        let mut by_time: Vec<u32> = (0..self.messages.len() as u32).collect();
        by_time.sort_by_key(|message| self.messages[*message as usize].start);
        let begin = by_time.first().map_or(0, |first| self.messages[*first as usize].start);
        let (mut order, mut waiting) = (Vec::with_capacity(by_time.len()), Vec::new());
        let mut is_seen = vec![false; by_time.len()];
        for message in by_time {
            let mut next = Some(message);
            while let Some(message) = next.filter(|message| !is_seen[*message as usize]) {
                is_seen[message as usize] = true;
                waiting.push(message);
                next = self.messages[message as usize].after.message();
            }
            // A message that was seen and is not in the order yet waits itself.
            if let (Some(last), Some(_)) = (waiting.last(), next.filter(|next| waiting.contains(next))) {
                let last = &mut self.messages[*last as usize];
                (last.after, last.delay) = (After::Begin, last.start - begin);
            }
            order.extend(waiting.drain(..).rev());
        }
        order
    }

    fn write(&self, to: NewFile, order: &[u32], watch: &Watch<'_>) -> io::Result<()> {
        let mut file = BufWriter::new(to);
        let mut ids = vec![0_u32; order.len()];
        (0..).zip(order).for_each(|(id, message)| ids[*message as usize] = id);
        let mut line = format!("VEF3 {} {} 1 0 0 0 {CLOCK_PS}\nC0", self.size, order.len());
        (0..self.size).for_each(|rank| _ = write!(line, " {rank}"));
        writeln!(file, "{line}")?;
        for (id, message) in order.iter().map(|message| &self.messages[*message as usize]).enumerate() {
            watch.look()?;
            let Message { from, to, bytes, after, delay, is_trigger, .. } = message;
            let dep = match after {
                After::Begin => 0,
                After::Sent(_) => 1,
                After::Received(_) => 2,
            } + if *is_trigger { 4 } else { 0 };
            write!(file, "{id} {from} {to} {bytes} {dep} {delay} ")?;
            match after.message() {
                Some(on) => writeln!(file, "{}", ids[on as usize])?,
                None => writeln!(file, "-1")?,
            }
        }
        file.flush()
    }
}

impl Event {
    fn post(&self) -> Option<u32> {
        if let What::Sent(message) = self.what { Some(message) } else { None }
    }
}

/// Returns the sums of the durations in which the trace itself was written: before the first event, the second, and so on.
fn sums_of_written(events: &[Event]) -> Vec<i64> {
    let durations = events.iter().map(|event| match event.what {
        What::Written => event.end - event.start,
        _ => 0,
    });
    let sums = durations.scan(0, |sum, duration| {
        *sum += duration;
        Some(*sum)
    });
    std::iter::once(0).chain(sums).collect()
}
