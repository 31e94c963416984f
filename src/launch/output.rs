//! The ranks' output, each line led by its rank: `[2] text`.
//!
//! One thread reads all the pipes of the ranks of this host and writes their lines whole, so that lines never mix. When our
//! own reader is slow the ranks are slowed, as they would be without us between; when it goes away the pipes are closed
//! and the ranks get their SIGPIPE. A node reads [`Source`]s too, and sends on what it read.

use std::{
    io::{self, Write},
    os::fd::OwnedFd,
    thread::{self, JoinHandle},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{Errno, read, write},
};

use crate::link::wire::Sink;

/// A longer line is cut here, in bytes: a rank must not fill our memory with one.
pub(crate) const MAX_LINE: usize = 64 << 10;

/// One pipe from a rank, or from all of this host's.
pub(crate) struct Source {
    pipe: OwnedFd,
    sink: Sink,
    /// What leads each line; `None`: what is read is passed on as it is.
    prefix: Option<Vec<u8>>,
    /// The line so far, without its prefix.
    line: Vec<u8>,
}

/// The thread that tags.
pub(crate) struct Output {
    thread: JoinHandle<()>,
    last_call: std::sync::Arc<OwnedFd>,
}

impl Output {
    pub(crate) fn start(sources: Vec<Source>) -> io::Result<Output> {
        let last_call = std::sync::Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let bell = std::sync::Arc::clone(&last_call);
        let thread =
            thread::Builder::new().name("deckrun-output".into()).spawn(move || forward(sources, &bell))?;
        Ok(Output { thread, last_call })
    }

    /// Writes what has been read and what lies in the pipes; whoever may still hold their other ends is not waited for.
    pub(crate) fn finish(self) {
        let _ = write(&*self.last_call, &1u64.to_ne_bytes());
        // A panic of that thread has already been reported by it.
        let _ = self.thread.join();
    }
}

impl Source {
    /// Of one rank, by lines that are led by its number.
    pub(crate) fn tagged(rank: u32, pipe: OwnedFd, sink: Sink) -> Source {
        Source { pipe, sink, prefix: Some(format!("[{rank}] ").into_bytes()), line: Vec::new() }
    }

    /// Of whomever, as it comes.
    pub(crate) fn plain(pipe: OwnedFd, sink: Sink) -> Source {
        Source { pipe, sink, prefix: None, line: Vec::new() }
    }

    pub(crate) fn pipe(&self) -> &OwnedFd {
        &self.pipe
    }

    pub(crate) fn sink(&self) -> Sink {
        self.sink
    }

    /// Reads once, blocking if nothing is there; appends what can be passed on to `out`. False at the pipe's end, with
    /// what was left.
    pub(crate) fn read(&mut self, scratch: &mut [u8], out: &mut Vec<u8>) -> bool {
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

    /// Appends a last line without end.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.line.is_empty() {
            self.end_line(out);
        }
    }

    /// Takes what was read; appends the lines that are complete to `out`.
    fn split(&mut self, read: &[u8], out: &mut Vec<u8>) {
        if self.prefix.is_none() {
            return out.extend_from_slice(read);
        }
        for piece in read.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            while self.line.len() > MAX_LINE {
                let rest = self.line.split_off(MAX_LINE);
                self.end_line(out);
                self.line = rest;
            }
            if self.line.ends_with(b"\n") {
                self.end_line(out);
            }
        }
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        out.extend(self.prefix.iter().flatten());
        out.append(&mut self.line);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

impl Sink {
    /// In one go, so that what others write does not get into it.
    pub(crate) fn write(self, text: &[u8]) -> io::Result<()> {
        match self {
            Sink::Stdout => io::stdout().lock().write_all(text).and_then(|()| io::stdout().flush()),
            Sink::Stderr => io::stderr().lock().write_all(text),
        }
    }
}

fn forward(mut sources: Vec<Source>, last_call: &OwnedFd) {
    let mut scratch = vec![0; MAX_LINE];
    let mut closing = false;
    while !sources.is_empty() {
        let Ok(ready) = wait(&sources, last_call, closing) else { return };
        closing |= ready[sources.len()];
        if closing && !ready[..sources.len()].contains(&true) {
            break;
        }
        let mut ready = ready.into_iter();
        sources = sources
            .into_iter()
            .filter_map(|source| if ready.next()? { pump(source, &mut scratch) } else { Some(source) })
            .collect();
    }
    sources.into_iter().for_each(finish);
}

/// Which sources, and last whether the bell, have something to say.
fn wait(sources: &[Source], last_call: &OwnedFd, closing: bool) -> Result<Vec<bool>, Errno> {
    let pipes = sources.iter().map(|source| &source.pipe);
    let mut fds: Vec<_> = pipes.chain([last_call]).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match poll(&mut fds, closing.then_some(&at_once)) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
        }
    }
}

/// Reads once and writes the lines. `None` when that was the source's end, or the sink's.
fn pump(mut source: Source, scratch: &mut [u8]) -> Option<Source> {
    let mut out = Vec::new();
    let goes_on = source.read(scratch, &mut out);
    (source.sink.write(&out).is_ok() && goes_on).then_some(source)
}

fn finish(mut source: Source) {
    let mut out = Vec::new();
    source.finish(&mut out);
    // A sink that has gone has nobody left to tell.
    let _ = source.sink.write(&out);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(reads: &[&[u8]]) -> (Vec<u8>, Vec<u8>) {
        let pipe = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut source = Source::tagged(7, pipe, Sink::Stdout);
        let mut out = Vec::new();
        for read in reads {
            source.split(read, &mut out);
        }
        (out, source.line)
    }

    #[test]
    fn lines_are_tagged_whole_however_they_arrive() {
        assert_eq!(tagged(&[b"a\nb", b"c\n\nd"]), (b"[7] a\n[7] bc\n[7] \n".to_vec(), b"d".to_vec()));
        assert_eq!(tagged(&[b"\xff\xfe\n"]), (b"[7] \xff\xfe\n".to_vec(), vec![]));
    }

    #[test]
    fn a_line_without_end_is_cut() {
        let long = vec![b'x'; 2 * MAX_LINE + 5];
        let (out, rest) = tagged(&[&long, b"\n"]);
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 3);
        assert_eq!(out.iter().filter(|byte| **byte == b'x').count(), long.len());
        assert!(rest.is_empty());
    }
}
