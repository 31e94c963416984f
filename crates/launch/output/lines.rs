//! Merging of several ranks' lines into one output: whole, or at least one after the other.

use std::{
    io::BufRead,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::PollFlags,
    io::{Errno, read},
};

use crate::{
    control::{
        WINDOW,
        wire::{OutputForm, Sink},
    },
    wait::ready,
};

/// Upper bound of a line that is kept, in bytes. A longer line is passed on in pieces of this length: a rank
/// must not fill our memory with one.
pub(crate) const MAX_LINE: usize = 64 << 10;

/// How long other ranks wait for the next [`MAX_LINE`] bytes of a long line, or for its end, before one of them
/// interrupts it. An unfinished line is also passed on after this time, if a reader may wait for it.
pub(crate) const HOLD: Duration = Duration::from_secs(2);

/// A pipe from a rank.
pub(crate) struct OutputPipe {
    rank: u32,
    pipe: OwnedFd,
    sink: Sink,
    /// The tag at the beginning of each line, if there is one.
    tag: Option<Vec<u8>>,
    /// How long an unfinished line is kept; `None` keeps it until its end.
    keep: Option<Duration>,
    /// The part of the line that was read and not passed on, without its tag.
    line: Vec<u8>,
    /// When the first byte of `line` was read.
    since: Instant,
    stage: LineState,
    ended: bool,
}

/// How much of the current line has been passed on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineState {
    /// No byte of it.
    Kept,
    /// All bytes up to a carriage return, as of a progress bar. The rest is kept.
    Begun,
    /// Its beginning. The rest is passed on as it comes.
    Open,
    /// Its beginning, and then lines of other ranks. The rest is kept.
    Broken,
}

impl OutputPipe {
    /// Makes the source of one rank, which is `alone` if the job has no other.
    pub(crate) fn new(rank: u32, pipe: OwnedFd, sink: Sink, form: &OutputForm, alone: bool) -> OutputPipe {
        let keep = match (alone, form.watched[sink as usize]) {
            (true, _) => Some(Duration::ZERO),
            (false, watched) => watched.then_some(HOLD),
        };
        let tag = form.tagged.then(|| format!("[{rank}]").into_bytes());
        let (line, since, stage) = (Vec::new(), Instant::now(), LineState::Kept);
        OutputPipe { rank, pipe, sink, tag, keep, line, since, stage, ended: false }
    }

    /// Reads once, blocking if nothing is there; appends the bytes that can be passed on to `out`. At the
    /// pipe's end, appends the rest and returns `false`.
    fn read(&mut self, scratch: &mut [u8], out: &mut Vec<u8>, now: Instant) -> bool {
        match read(&self.pipe, &mut *scratch) {
            Ok(length @ 1..) => self.split(&scratch[..length], out, now),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(0) | Err(_) => {
                self.finish(out);
                return false;
            }
        }
        true
    }

    /// Takes bytes that were read; appends those that can be passed on to `out`.
    fn split(&mut self, mut read: &[u8], out: &mut Vec<u8>, now: Instant) {
        while !read.is_empty() {
            let whole = read;
            // Reading a slice cannot fail. This finds the byte much faster than an iterator.
            let length = read.skip_until(b'\n').unwrap_or(whole.len());
            let piece = &whole[..length];
            let ends = piece.ends_with(b"\n");
            if self.stage == LineState::Open {
                out.extend_from_slice(piece);
                self.stage = if ends { LineState::Kept } else { LineState::Open };
                continue;
            }
            if self.line.is_empty() {
                self.since = now;
            }
            // The last byte of the previous read may have been the carriage return.
            let new = self.line.len().saturating_sub(1);
            self.line.extend_from_slice(piece);
            let length = self.line.len();
            if ends {
                self.pass_on(length, LineState::Kept, out);
            } else if length >= MAX_LINE || self.keep == Some(Duration::ZERO) {
                self.pass_on(length, LineState::Open, out);
            } else if let Some(at) = self.line[new..length - 1].iter().rposition(|byte| *byte == b'\r') {
                self.pass_on(new + at + 1, LineState::Begun, out);
                self.since = now;
            }
        }
    }

    /// Appends `length` bytes of the kept line, with the tag or mark that the line's state needs.
    fn pass_on(&mut self, length: usize, then: LineState, out: &mut Vec<u8>) {
        let mut text = self.line.drain(..length);
        match (&self.tag, self.stage) {
            (Some(tag), LineState::Kept) => out.extend(tag.iter().chain(b" ")),
            (Some(tag), LineState::Broken) => out.extend(continuation(tag)),
            // The line that interrupted this one has ended it.
            (None, LineState::Broken) => out.extend(text.next().filter(|byte| *byte != b'\n')),
            _ => {}
        }
        out.extend(text);
        self.stage = then;
    }

    /// Appends the kept bytes, though the line is unfinished.
    fn pass_on_all(&mut self, out: &mut Vec<u8>) {
        self.pass_on(self.line.len(), LineState::Open, out);
    }

    /// Appends a last line without end. A tagged one gets an end.
    fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.line.is_empty() {
            self.pass_on_all(out);
        }
        if self.tag.is_some() && matches!(self.stage, LineState::Open | LineState::Begun) {
            out.push(b'\n');
        }
        self.stage = LineState::Kept;
    }

    /// Returns when the kept bytes are to be passed on, though the line is unfinished.
    fn due(&self) -> Option<Instant> {
        self.keep.filter(|_| !self.line.is_empty()).map(|keep| self.since + keep)
    }
}

/// Returns the mark of an interrupted line's rest: `[2]+ `.
pub(crate) fn continuation(tag: &[u8]) -> Vec<u8> {
    [tag, b"+ "].concat()
}

/// The writer whose line is open, where there are several. The other writers wait for the end of a long line,
/// but not for ever.
pub(crate) struct Turn<W>(Option<Open<W>>);

struct Open<W> {
    writer: W,
    until: Instant,
    /// Bytes of the line since `until` was set.
    bytes: usize,
}

impl<W> Default for Turn<W> {
    fn default() -> Turn<W> {
        Turn(None)
    }
}

impl<W: Copy + PartialEq> Turn<W> {
    /// Returns the writer that alone may write now, and until when.
    pub(crate) fn holder(&self, now: Instant) -> Option<(W, Instant)> {
        self.0.as_ref().filter(|open| now < open.until).map(|open| (open.writer, open.until))
    }

    fn is_open_to(&self, writer: W, now: Instant) -> bool {
        self.holder(now).is_none_or(|(holder, _)| holder == writer)
    }

    /// Notes that `writer` writes this text, which may leave its line open. Returns the writer whose line it
    /// interrupts.
    pub(crate) fn write(&mut self, writer: W, text: &[u8], now: Instant) -> Option<W> {
        let (own, other) = match self.0.take() {
            Some(open) if open.writer == writer => (Some(open), None),
            other => (None, other),
        };
        self.0 = match text.last() {
            None | Some(b'\n') => None,
            // No rank waits for the next state of a progress bar. Later text begins a new line.
            Some(b'\r') => Some(Open { writer, until: now, bytes: 0 }),
            Some(_) => {
                let line = text.rsplit(|byte| *byte == b'\n').next().unwrap_or(text);
                let goes_on = line.len() == text.len();
                let mut open = own.filter(|_| goes_on).unwrap_or(Open { writer, until: now, bytes: 0 });
                open.bytes += line.len();
                // A rank that writes a prompt, or a dot a second, makes no other rank wait.
                if open.bytes >= MAX_LINE {
                    (open.until, open.bytes) = (now + HOLD, 0);
                }
                Some(open)
            }
        };
        other.map(|open| open.writer)
    }

    /// Ends the wait of the others, if the rest of this line will not come.
    fn release(&mut self, writer: W, now: Instant) {
        self.0.iter_mut().filter(|open| open.writer == writer).for_each(|open| open.until = now);
    }

    /// Ends the turn. Returns the writer whose line was open.
    pub(crate) fn end(&mut self) -> Option<W> {
        self.0.take().map(|open| open.writer)
    }
}

/// All pipes of a host's ranks, and the state that decides which may be read.
#[derive(Default)]
pub(crate) struct Gather {
    /// The pipes, in rank order.
    sources: Vec<OutputPipe>,
    /// Bytes that were read and are not yet written: of standard output and of standard error.
    unwritten: [usize; 2],
    turns: [Turn<u32>; 2],
    /// Index of the pipe that is first in turn.
    first: usize,
}

impl Gather {
    pub(crate) fn new(sources: Vec<OutputPipe>) -> Gather {
        Gather { sources, ..Gather::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Returns the pipes that may be read now, with their indices, which hold until [`tidy`](Gather::tidy).
    /// Each pipe comes first in its turn.
    pub(crate) fn open(&self, now: Instant) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let (before, behind) = self.sources.split_at(self.first.min(self.sources.len()));
        let behind = (before.len()..).zip(behind);
        let all = behind.chain((0..).zip(before));
        all.filter(move |(_, source)| self.may_read(source, now))
            .map(|(index, source)| (index, source.pipe.as_fd()))
    }

    /// Returns when more may be read or is [overdue](Gather::overdue), if no other event comes before.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let held = self.turns.iter().filter_map(|turn| turn.holder(now)).map(|(_, until)| until);
        let kept =
            self.sources.iter().filter(|source| self.may_read(source, now)).filter_map(OutputPipe::due);
        held.chain(kept).min()
    }

    fn may_read(&self, source: &OutputPipe, now: Instant) -> bool {
        let sink = source.sink as usize;
        !source.ended && self.unwritten[sink] < WINDOW && self.turns[sink].is_open_to(source.rank, now)
    }

    /// Reads once from a pipe that is ready, if it still may be read. Returns the text to write; it may be
    /// empty.
    pub(crate) fn read(&mut self, index: usize, scratch: &mut [u8], now: Instant) -> (Sink, Vec<u8>) {
        let mut text = Vec::new();
        if self.may_read(&self.sources[index], now) {
            let source = &mut self.sources[index];
            source.ended = !source.read(scratch, &mut text, now);
            self.first = index + 1;
        }
        self.pass(index, text, now)
    }

    /// Takes the unfinished lines for which a reader may wait, and which have been kept long enough.
    pub(crate) fn overdue(&mut self, now: Instant) -> Vec<(Sink, Vec<u8>)> {
        self.pass_kept(now, |source| source.due().is_some_and(|due| due <= now))
    }

    /// Takes the unfinished lines of ranks that have ended, though other processes may hold their pipes.
    pub(crate) fn kept_of(&mut self, ranks: &[u32], now: Instant) -> Vec<(Sink, Vec<u8>)> {
        self.pass_kept(now, |source| !source.line.is_empty() && ranks.contains(&source.rank))
    }

    fn pass_kept(&mut self, now: Instant, which: impl Fn(&OutputPipe) -> bool) -> Vec<(Sink, Vec<u8>)> {
        let mut passed = Vec::new();
        for index in 0..self.sources.len() {
            if which(&self.sources[index]) && self.may_read(&self.sources[index], now) {
                let mut text = Vec::new();
                self.sources[index].pass_on_all(&mut text);
                passed.push(self.pass(index, text, now));
            }
        }
        passed
    }

    /// Tells whether these ranks have written text that was not read yet.
    pub(crate) fn has_unread_of(&self, ranks: &[u32]) -> bool {
        ranks.iter().any(|rank| self.unread_of(*rank).next().is_some())
    }

    /// Reads the last output of a rank that has ended, with a limited number of reads, and takes its kept
    /// bytes.
    pub(crate) fn read_last_of(
        &mut self,
        rank: u32,
        scratch: &mut [u8],
        most: usize,
        now: Instant,
    ) -> Vec<(Sink, Vec<u8>)> {
        let mut passed = Vec::new();
        for _ in 0..most {
            let may_read = |index: &usize| self.may_read(&self.sources[*index], now);
            let Some(index) = self.unread_of(rank).find(may_read) else { break };
            passed.push(self.read(index, scratch, now));
        }
        passed.extend(self.kept_of(&[rank], now));
        passed
    }

    /// Returns the indices of a rank's pipes that can be read from.
    fn unread_of(&self, rank: u32) -> impl Iterator<Item = usize> + '_ {
        let first = self.sources.partition_point(|source| source.rank < rank);
        let theirs = (first..).zip(&self.sources[first..]).take_while(move |(_, source)| source.rank == rank);
        theirs.filter(|(_, source)| !source.ended && is_readable(&source.pipe)).map(|(index, _)| index)
    }

    /// Removes the pipes that have ended. Indices change.
    pub(crate) fn tidy(&mut self) {
        self.sources.retain(|source| !source.ended);
    }

    /// Ends the pipes that have no more text. A process that still holds a pipe's writing end does so against
    /// our will, and is not waited for.
    pub(crate) fn close_silent(&mut self, now: Instant) -> Vec<(Sink, Vec<u8>)> {
        let mut last = Vec::new();
        for index in 0..self.sources.len() {
            if self.may_read(&self.sources[index], now) && !is_readable(&self.sources[index].pipe) {
                let (source, mut text) = (&mut self.sources[index], Vec::new());
                source.finish(&mut text);
                source.ended = true;
                last.push(self.pass(index, text, now));
            }
        }
        self.tidy();
        last
    }

    /// Notes that `bytes` have been written: the same number more may be read.
    pub(crate) fn written(&mut self, sink: Sink, bytes: usize) {
        let unwritten = &mut self.unwritten[sink as usize];
        *unwritten = unwritten.saturating_sub(bytes);
    }

    /// Ends the pipes of an output that has no reader any more. A rank that writes there gets a SIGPIPE once
    /// the pipe has been [removed](Gather::tidy).
    pub(crate) fn unread(&mut self, sink: Sink) {
        self.sources.iter_mut().filter(|source| source.sink == sink).for_each(|source| source.ended = true);
    }

    /// Returns a piece that a pipe passes on, in the form in which it is written.
    fn pass(&mut self, index: usize, mut text: Vec<u8>, now: Instant) -> (Sink, Vec<u8>) {
        let OutputPipe { rank, sink, ended, .. } = self.sources[index];
        let turn = &mut self.turns[sink as usize];
        let broken = if text.is_empty() { None } else { turn.write(rank, &text, now) };
        if ended {
            turn.release(rank, now);
        }
        if let Some(other) = broken {
            text.insert(0, b'\n');
            let is_other = |source: &&mut OutputPipe| source.sink == sink && source.rank == other;
            if let Some(source) = self.sources.iter_mut().find(is_other) {
                source.stage = LineState::Broken;
            }
        }
        self.unwritten[sink as usize] += text.len();
        (sink, text)
    }
}

fn is_readable(pipe: &OwnedFd) -> bool {
    let polled = ready(std::iter::once((pipe.as_fd(), PollFlags::IN)), Some(Instant::now()));
    polled.is_ok_and(|ready| ready[0])
}

#[cfg(test)]
mod tests;
