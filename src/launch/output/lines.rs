//! Lines of several ranks on their way to one output: whole, or at least one after the other.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    event::PollFlags,
    io::{Errno, read},
};

use crate::{
    control::{WINDOW, wire::Sink},
    wait::ready,
};

/// A longer line is passed on in pieces of this length, in bytes: a rank must not fill our memory with one.
pub(crate) const MAX_LINE: usize = 64 << 10;

/// How long the others wait for the next [`MAX_LINE`] bytes of such a line, or its end, before one of them breaks it.
pub(crate) const HOLD: Duration = Duration::from_secs(2);

/// One pipe from a rank, or from all of this host's.
pub(crate) struct OutputPipe {
    pipe: OwnedFd,
    sink: Sink,
    /// What leads each line; `None`: what is read is passed on as it is.
    tag: Option<Tag>,
    /// The line so far, without its tag, unless that has been passed on.
    line: Vec<u8>,
    /// The line that it is in.
    stage: LineState,
    ended: bool,
}

struct Tag {
    rank: u32,
    text: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LineState {
    /// Nothing of it has been passed on.
    Kept,
    /// Its beginning has, and its rest is passed on as it comes.
    Open,
    /// As before, and somebody else's lines have come in between.
    Broken,
}

impl OutputPipe {
    /// Of one rank, by lines that are led by its number.
    pub(crate) fn tagged(rank: u32, pipe: OwnedFd, sink: Sink) -> OutputPipe {
        let tag = Some(Tag { rank, text: format!("[{rank}]").into_bytes() });
        OutputPipe { pipe, sink, tag, line: Vec::new(), stage: LineState::Kept, ended: false }
    }

    /// Of whomever, as it comes.
    pub(crate) fn plain(pipe: OwnedFd, sink: Sink) -> OutputPipe {
        OutputPipe { pipe, sink, tag: None, line: Vec::new(), stage: LineState::Kept, ended: false }
    }

    /// Reads once, blocking if nothing is there; appends what can be passed on to `out`. False at the pipe's end, with
    /// what was left.
    fn read(&mut self, scratch: &mut [u8], out: &mut Vec<u8>) -> bool {
        match read(&self.pipe, &mut *scratch) {
            Ok(length @ 1..) => self.split(&scratch[..length], out),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(0) | Err(_) => {
                self.finish(out);
                return false;
            }
        }
        true
    }

    /// Takes what was read; appends what can be passed on to `out`.
    fn split(&mut self, read: &[u8], out: &mut Vec<u8>) {
        let Some(Tag { text: tag, .. }) = &self.tag else { return out.extend_from_slice(read) };
        for piece in read.split_inclusive(|byte| *byte == b'\n') {
            let ends = piece.ends_with(b"\n");
            match self.stage {
                LineState::Kept => {
                    self.line.extend_from_slice(piece);
                    if !ends && self.line.len() < MAX_LINE {
                        continue;
                    }
                    out.extend_from_slice(tag);
                    out.push(b' ');
                    out.append(&mut self.line);
                }
                LineState::Broken => out.extend(continuation(tag).iter().chain(piece)),
                LineState::Open => out.extend_from_slice(piece),
            }
            self.stage = if ends { LineState::Kept } else { LineState::Open };
        }
    }

    /// Appends a last line without end.
    fn finish(&mut self, out: &mut Vec<u8>) {
        match (&self.tag, self.stage) {
            (Some(Tag { text, .. }), LineState::Kept) if !self.line.is_empty() => {
                out.extend_from_slice(text);
                out.push(b' ');
                out.append(&mut self.line);
                out.push(b'\n');
            }
            (_, LineState::Open) => out.push(b'\n'),
            _ => {}
        }
        self.stage = LineState::Kept;
    }
}

/// What leads the rest of a line that was broken: `[2]+ `.
pub(crate) fn continuation(tag: &[u8]) -> Vec<u8> {
    [tag, b"+ "].concat()
}

/// Whose line is open where several may write. The others wait for its end, but not for ever.
pub(crate) struct Turn<W>(Option<Open<W>>);

struct Open<W> {
    who: W,
    until: Instant,
    /// What has come of it since that was set.
    bytes: usize,
}

impl<W> Default for Turn<W> {
    fn default() -> Turn<W> {
        Turn(None)
    }
}

impl<W: Copy + PartialEq> Turn<W> {
    /// Who alone may write now, and until when.
    pub(crate) fn held(&self, now: Instant) -> Option<(W, Instant)> {
        self.0.as_ref().filter(|open| now < open.until).map(|open| (open.who, open.until))
    }

    fn is_open_to(&self, who: W, now: Instant) -> bool {
        self.held(now).is_none_or(|(holder, _)| holder == who)
    }

    /// Notes that `who` writes so many bytes, after which its line is open or not. Returns whose line that breaks.
    pub(crate) fn write(&mut self, who: W, bytes: usize, leaves_open: bool, now: Instant) -> Option<W> {
        let (own, other) = match self.0.take() {
            Some(open) if open.who == who => (Some(open), None),
            other => (None, other),
        };
        if leaves_open {
            let mut open = own.unwrap_or(Open { who, until: now + HOLD, bytes: 0 });
            open.bytes += bytes;
            // Whoever writes a dot a second keeps nobody waiting.
            if open.bytes >= MAX_LINE {
                (open.until, open.bytes) = (now + HOLD, 0);
            }
            self.0 = Some(open);
        }
        other.map(|open| open.who)
    }

    /// Ends the turn. Returns whose line was open.
    pub(crate) fn end(&mut self) -> Option<W> {
        self.0.take().map(|open| open.who)
    }
}

/// All the pipes of a host's ranks, and what may be read of them.
#[derive(Default)]
pub(crate) struct Gather {
    sources: Vec<OutputPipe>,
    /// What was read and is not written yet, in bytes: of standard output and error.
    unwritten: [usize; 2],
    turns: [Turn<u32>; 2],
    /// The number of the one that is first in turn.
    first: usize,
}

impl Gather {
    pub(crate) fn new(sources: Vec<OutputPipe>) -> Gather {
        Gather { sources, ..Gather::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// What may be read now, by its number, which holds until [`tidy`](Gather::tidy). Each comes first in its turn.
    pub(crate) fn open(&self, now: Instant) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        let (before, behind) = self.sources.split_at(self.first.min(self.sources.len()));
        let behind = (before.len()..).zip(behind);
        let all = behind.chain((0..).zip(before));
        all.filter(move |(_, source)| self.may_read(source, now))
            .map(|(index, source)| (index, source.pipe.as_fd()))
    }

    /// When more may be read, if nothing happens before.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        self.turns.iter().filter_map(|turn| turn.held(now)).map(|(_, until)| until).min()
    }

    fn may_read(&self, source: &OutputPipe, now: Instant) -> bool {
        let sink = source.sink as usize;
        let turn = &self.turns[sink];
        !source.ended
            && self.unwritten[sink] < WINDOW
            && source.tag.as_ref().is_none_or(|tag| turn.is_open_to(tag.rank, now))
    }

    /// Reads once, from one that is ready, if it still may be. Returns what is to be written, if anything.
    pub(crate) fn read(&mut self, index: usize, scratch: &mut [u8], now: Instant) -> (Sink, Vec<u8>) {
        let mut text = Vec::new();
        if self.may_read(&self.sources[index], now) {
            let source = &mut self.sources[index];
            source.ended = !source.read(scratch, &mut text);
            self.first = index + 1;
        }
        let source = &self.sources[index];
        let (rank, sink) = (source.tag.as_ref().map(|tag| tag.rank), source.sink);
        (sink, self.pass(rank, sink, text, source.stage == LineState::Open, now))
    }

    /// Takes out the sources that have ended. Numbers change.
    pub(crate) fn tidy(&mut self) {
        self.sources.retain(|source| !source.ended);
    }

    /// Ends the sources that have nothing more to say: whoever still holds a pipe's other end does so against our will, and
    /// is not waited for.
    pub(crate) fn close_silent(&mut self, now: Instant) -> Vec<(Sink, Vec<u8>)> {
        let mut last = Vec::new();
        for index in (0..self.sources.len()).rev() {
            let source = &self.sources[index];
            if self.may_read(source, now) && !is_readable(&source.pipe) {
                let (mut source, mut text) = (self.sources.remove(index), Vec::new());
                source.finish(&mut text);
                let rank = source.tag.map(|tag| tag.rank);
                last.push((source.sink, self.pass(rank, source.sink, text, false, now)));
            }
        }
        last
    }

    /// So much has been written: so much more may be read.
    pub(crate) fn written(&mut self, sink: Sink, bytes: usize) {
        let unwritten = &mut self.unwritten[sink as usize];
        *unwritten = unwritten.saturating_sub(bytes);
    }

    /// Nobody reads it any more. Whoever writes there gets a SIGPIPE, once it has been [taken out](Gather::tidy).
    pub(crate) fn unread(&mut self, sink: Sink) {
        self.sources.iter_mut().filter(|source| source.sink == sink).for_each(|source| source.ended = true);
    }

    fn pass(&mut self, rank: Option<u32>, sink: Sink, text: Vec<u8>, is_open: bool, now: Instant) -> Vec<u8> {
        let mut text = text;
        if let Some(rank) = rank.filter(|_| !text.is_empty())
            && let Some(other) = self.turns[sink as usize].write(rank, text.len(), is_open, now)
        {
            text.insert(0, b'\n');
            let is_other = |source: &&mut OutputPipe| {
                source.sink == sink && source.tag.as_ref().is_some_and(|tag| tag.rank == other)
            };
            if let Some(source) = self.sources.iter_mut().find(is_other) {
                source.stage = LineState::Broken;
            }
        }
        self.unwritten[sink as usize] += text.len();
        text
    }
}

fn is_readable(pipe: &OwnedFd) -> bool {
    let look = ready(std::iter::once((pipe.as_fd(), PollFlags::IN)), Some(Instant::now()));
    look.is_ok_and(|ready| ready[0])
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Write};

    use rustix::pipe::pipe;

    use super::*;

    fn tagged(reads: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
        let mut source = OutputPipe::tagged(7, pipe().unwrap().0, Sink::Stdout);
        let mut out = Vec::new();
        for read in reads {
            source.split(read, &mut out);
        }
        let kept = source.line.clone();
        (out, kept)
    }

    #[test]
    fn lines_are_tagged_whole_however_they_arrive() {
        assert_eq!(tagged(&[b"a\nb", b"c\n\nd"]), (b"[7] a\n[7] bc\n[7] \n".to_vec(), b"d".to_vec()));
        assert_eq!(tagged(&[b"\xff\xfe\n"]), (b"[7] \xff\xfe\n".to_vec(), vec![]));
    }

    #[test]
    fn a_long_line_is_passed_on_without_a_break_and_without_being_kept() {
        let long = vec![b'x'; 2 * MAX_LINE + 5];
        let (out, rest) = tagged(&[&long, b"yz", b"\nnext\n"]);
        assert_eq!(out, [b"[7] ", &long[..], b"yz\n[7] next\n"].concat());
        assert!(rest.is_empty());
        let mut source = OutputPipe::tagged(7, pipe().unwrap().0, Sink::Stdout);
        let mut out = Vec::new();
        source.split(&long, &mut out);
        source.finish(&mut out);
        assert!(out.ends_with(b"x\n"), "the end of the pipe is the end of the line");
    }

    #[test]
    fn others_wait_for_the_end_of_a_long_line_and_break_it_when_its_rest_does_not_come() {
        let ((a, to_a), (b, to_b)) = (pipe().unwrap(), pipe().unwrap());
        let (mut to_a, mut to_b) = (File::from(to_a), File::from(to_b));
        let sources = vec![OutputPipe::tagged(0, a, Sink::Stdout), OutputPipe::tagged(1, b, Sink::Stdout)];
        let mut gather = Gather::new(sources);
        let (mut scratch, mut now) = (vec![0; MAX_LINE], Instant::now());
        let mut step = |gather: &mut Gather, index, now| {
            let text = gather.read(index, &mut scratch, now).1;
            gather.written(Sink::Stdout, text.len());
            text
        };
        to_a.write_all(&[b'a'; MAX_LINE]).unwrap();
        to_b.write_all(b"b\n").unwrap();
        assert_eq!(step(&mut gather, 0, now).len(), b"[0] ".len() + MAX_LINE);
        assert_eq!(gather.open(now).map(|(index, _)| index).collect::<Vec<_>>(), [0]);
        assert!(step(&mut gather, 1, now).is_empty(), "it is not the other's turn");
        to_a.write_all(b"dot").unwrap();
        assert_eq!(step(&mut gather, 0, now), b"dot");
        now = gather.due(now).unwrap();
        assert_eq!(gather.open(now).count(), 2);
        assert_eq!(step(&mut gather, 1, now), b"\n[1] b\n");
        to_a.write_all(b"end\nnext\n").unwrap();
        assert_eq!(step(&mut gather, 0, now), b"[0]+ end\n[0] next\n");
        assert!(gather.due(now).is_none());
        drop(to_a);
        assert!(step(&mut gather, 0, now).is_empty());
        assert_eq!(
            gather.open(now).map(|(index, _)| index).collect::<Vec<_>>(),
            [1],
            "the other one has ended"
        );
        gather.tidy();
        assert_eq!(gather.open(now).map(|(index, _)| index).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn each_source_has_its_turn() {
        let (pipes, writers): (Vec<_>, Vec<_>) = (0..3).map(|_| pipe().unwrap()).unzip();
        let sources = (0..).zip(pipes).map(|(rank, pipe)| OutputPipe::tagged(rank, pipe, Sink::Stdout));
        let mut gather = Gather::new(sources.collect());
        writers.iter().for_each(|writer| assert_eq!(rustix::io::write(writer, b"x\n"), Ok(2)));
        let now = Instant::now();
        let order = |gather: &Gather| gather.open(now).map(|(index, _)| index).collect::<Vec<_>>();
        assert_eq!(order(&gather), [0, 1, 2]);
        for (index, then) in [(0, [1, 2, 0]), (2, [0, 1, 2]), (1, [2, 0, 1])] {
            gather.read(index, &mut [0; 10], now);
            assert_eq!(order(&gather), then);
        }
    }

    #[test]
    fn what_is_not_written_is_not_read() {
        let (pipe, writer) = pipe().unwrap();
        File::from(writer).write_all(&[b'x'; 100]).unwrap();
        let mut gather = Gather::new(vec![OutputPipe::plain(pipe, Sink::Stderr)]);
        let now = Instant::now();
        gather.unwritten[Sink::Stderr as usize] = WINDOW;
        assert_eq!((gather.open(now).count(), gather.close_silent(now).len()), (0, 0));
        gather.written(Sink::Stderr, 1);
        assert_eq!(gather.open(now).count(), 1);
        gather.unread(Sink::Stderr);
        assert_eq!(gather.open(now).count(), 0);
        gather.tidy();
        assert!(gather.is_empty());
    }
}
