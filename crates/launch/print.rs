//! Writers of deckrun's standard output and error: for its own messages, and for the output of ranks.
//!
//! Each of the two has a thread. A reader that does not read (a paused `less`) blocks that thread, and so in
//! the end the ranks whose output it takes. It never blocks the thread that watches over the job. Unwritten
//! data is bounded: each source of output has a window, and deckrun's own messages have a number of lines.
//!
//! A line that is longer than a source's buffer comes in pieces. While such a line is open the other sources
//! wait for their turn ([`Turn`]); deckrun's own messages do not. A message about a rank's end comes behind the
//! rank's output.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::AsFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustix::{event::PollFlags, io::Errno};
use udeck_sys::{EventFd, thread::spawn};

use crate::{
    control::wire::Sink,
    output::lines::{Turn, continuation},
    signals::Signals,
    wait::ready,
};

/// Maximum number of our own lines that wait to be written; further ones are dropped. One for each rank, and
/// more.
const MAX_MESSAGES: usize = 2 * udeck_boot::MAX_RANKS as usize;

/// How long a job that was ended waits for a reader that takes nothing.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// A source of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stream {
    /// The ranks of this host.
    Here,
    /// The ranks of another host.
    Node(usize),
}

/// Callback for a piece: `true` once it has been written, `false` when it cannot be.
pub(crate) type Done = Box<dyn FnOnce(bool) + Send>;

/// The input of both printing threads. They end when all copies have been dropped and everything is written.
pub(crate) struct Printers([Arc<Printer>; 2]);

/// Observes both printing threads: has everything been written?
pub(crate) struct Drain([Arc<Printer>; 2]);

struct Printer {
    sink: Sink,
    /// Lines begin with their ranks.
    tagged: bool,
    state: Mutex<State>,
    changed: Condvar,
    /// Signalled after each write, and at the end.
    progress: EventFd,
}

#[derive(Default)]
struct State {
    messages: VecDeque<Vec<u8>>,
    pieces: BTreeMap<Stream, VecDeque<Piece>>,
    /// The error of writing ranks' output, unless its reader has left.
    failure: Option<Errno>,
    /// Number of [`Printers`] that exist.
    feeds: usize,
    /// Number of finished writes.
    written: u64,
    done: bool,
}

impl State {
    /// Takes our own next message, if no stream's pieces are before it.
    fn next_message(&mut self) -> Option<Vec<u8>> {
        if let Some(message) = self.messages.pop_front() {
            return Some(message);
        }
        let is_message = |piece: &Piece| piece.done.is_none();
        let first = self.pieces.values_mut().find(|pieces| pieces.front().is_some_and(is_message))?;
        let message = first.pop_front()?.bytes;
        self.pieces.retain(|_, pieces| !pieces.is_empty());
        Some(message)
    }
}

struct Piece {
    bytes: Vec<u8>,
    /// Callback; `None` for our own messages that come behind a stream's pieces.
    done: Option<Done>,
}

enum Next {
    Message(Vec<u8>),
    Piece(Stream, Vec<u8>, Done),
    End,
}

/// Starts both threads. For `tagged` see [`Printer`].
pub(crate) fn start(tagged: bool) -> io::Result<(Printers, Drain)> {
    let printers = Printers([start_one(Sink::Stdout, tagged)?, start_one(Sink::Stderr, tagged)?]);
    let drain = Drain(printers.0.clone());
    Ok((printers, drain))
}

fn start_one(sink: Sink, tagged: bool) -> io::Result<Arc<Printer>> {
    let progress = EventFd::new()?;
    let state = Mutex::new(State { feeds: 1, ..State::default() });
    let printer = Arc::new(Printer { sink, tagged, state, changed: Condvar::new(), progress });
    let own = Arc::clone(&printer);
    let panicked = Arc::clone(&printer);
    // After a panic, too, nobody waits for the thread.
    spawn("print", move || own.run(), move |_| panicked.end())?;
    Ok(printer)
}

impl Printers {
    /// Writes a line for the user to standard error, without waiting.
    pub(crate) fn message(&self, what: &str) {
        let printer = &self.0[Sink::Stderr as usize];
        let mut state = printer.lock();
        if state.messages.len() < MAX_MESSAGES {
            state.messages.push_back(line(what));
        }
        printer.changed.notify_one();
    }

    /// Writes a line to standard error behind the earlier output of a stream. Only for messages of which each
    /// rank has a few.
    pub(crate) fn message_behind(&self, stream: Stream, what: &str) {
        let printer = &self.0[Sink::Stderr as usize];
        printer.lock().pieces.entry(stream).or_default().push_back(Piece { bytes: line(what), done: None });
        printer.changed.notify_one();
    }

    /// Writes a piece of a stream behind those before it, without waiting: the caller's window bounds it.
    pub(crate) fn print(&self, stream: Stream, sink: Sink, bytes: Vec<u8>, done: Done) {
        let printer = &self.0[sink as usize];
        printer.lock().pieces.entry(stream).or_default().push_back(Piece { bytes, done: Some(done) });
        printer.changed.notify_one();
    }
}

fn line(what: &str) -> Vec<u8> {
    format!("deckrun: {what}\n").into_bytes()
}

impl Clone for Printers {
    fn clone(&self) -> Printers {
        self.0.iter().for_each(|printer| printer.lock().feeds += 1);
        Printers(self.0.clone())
    }
}

impl Drop for Printers {
    fn drop(&mut self) {
        for printer in &self.0 {
            printer.lock().feeds -= 1;
            printer.changed.notify_one();
        }
    }
}

impl Drain {
    /// Waits until everything has been written, as long as the reader takes data, and returns the signal that
    /// came first. With `hurried`, gives up on a reader that takes nothing. The threads then stay until the
    /// process ends.
    pub(crate) fn finish(&self, signals: &Signals, hurried: bool) -> io::Result<Option<i32>> {
        let mut before = self.written();
        let mut give_up_at = Instant::now() + LAST_WAIT;
        while !self.is_done() {
            let progress = self.0.iter().map(|printer| printer.progress.as_fd());
            let fds = progress.chain([signals.pending()]).map(|fd| (fd, PollFlags::IN));
            ready(fds, hurried.then_some(give_up_at))?;
            while let Some(signal) = signals.take_next() {
                match signal {
                    libc::SIGCHLD | libc::SIGQUIT => {}
                    libc::SIGTSTP => give_up_at += signals.suspend(),
                    signal => return Ok(Some(signal)),
                }
            }
            for printer in &self.0 {
                printer.progress.reset();
            }
            let (now, written) = (Instant::now(), self.written());
            if written != before {
                (before, give_up_at) = (written, now + LAST_WAIT);
            } else if hurried && now >= give_up_at {
                break;
            }
        }
        Ok(None)
    }

    /// Returns the error of writing ranks' output, unless the reader has left.
    pub(crate) fn failure(&self) -> Option<Errno> {
        self.0.iter().find_map(|printer| printer.lock().failure)
    }

    fn is_done(&self) -> bool {
        self.0.iter().all(|printer| printer.lock().done)
    }

    fn written(&self) -> u64 {
        self.0.iter().map(|printer| printer.lock().written).sum()
    }
}

impl Printer {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the thread.
    fn run(&self) {
        let (mut output, mut gone) = (OutputState { tagged: self.tagged, ..OutputState::default() }, false);
        loop {
            match self.next(&output) {
                Next::End => break,
                // Our own messages are no part of the job: it does not fail with them.
                Next::Message(message) => drop(self.write(&output.message(message))),
                Next::Piece(stream, bytes, done) => {
                    let bytes = output.piece(stream, bytes, Instant::now());
                    gone |= !gone && !self.print(&bytes);
                    done(!gone);
                }
            }
            self.lock().written += 1;
            self.progress.signal();
        }
        self.end();
    }

    fn end(&self) {
        self.lock().done = true;
        self.progress.signal();
    }

    /// Sleeps until there is something to write.
    fn next(&self, output: &OutputState) -> Next {
        let mut state = self.lock();
        loop {
            if let Some(message) = state.next_message() {
                return Next::Message(message);
            }
            let now = Instant::now();
            // If nothing more can come, a turn is not worth waiting for.
            let held = output.turn.holder(now).filter(|_| state.feeds > 0);
            let stream = match held {
                Some((holder, _)) => Some(holder),
                None => output.after_the_last(state.pieces.keys().copied()),
            };
            if let Some(stream) = stream
                && let Some(pieces) = state.pieces.get_mut(&stream)
                && let Some(Piece { bytes, done: Some(done) }) = pieces.pop_front()
            {
                if pieces.is_empty() {
                    state.pieces.remove(&stream);
                }
                return Next::Piece(stream, bytes, done);
            }
            if state.feeds == 0 && state.pieces.is_empty() {
                return Next::End;
            }
            // A hold ends by itself, but only waiting streams need to know.
            let until = held.map(|(_, until)| until).filter(|_| !state.pieces.is_empty());
            let limit = until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
            state = match limit {
                Duration::MAX => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                limit => self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Writes ranks' output, and returns whether that worked. If the reader has left, ranks that write there
    /// get a SIGPIPE. Any other error, such as a full disk, is known to this process only.
    fn print(&self, text: &[u8]) -> bool {
        match self.write(text) {
            Ok(()) => return true,
            Err(Errno::PIPE) => {}
            Err(error) => {
                self.lock().failure.get_or_insert(error);
                if self.sink == Sink::Stdout {
                    udeck_sys::stderr_line(format_args!(
                        "deckrun: the ranks' output cannot be written: {}",
                        io::Error::from(error)
                    ));
                }
            }
        }
        false
    }

    /// Writes the text in one call, so that other writers do not interrupt it.
    fn write(&self, mut text: &[u8]) -> Result<(), Errno> {
        // Not through the standard library's handle: this call may block for ever, and must not hold its lock
        // then.
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let fd = match self.sink {
            Sink::Stdout => stdout.as_fd(),
            Sink::Stderr => stderr.as_fd(),
        };
        while !text.is_empty() {
            match rustix::io::write(fd, text) {
                Ok(written) => text = &text[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let _ = ready(std::iter::once((fd, PollFlags::OUT)), None);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// State of the output so far: the open line, and the broken ones.
#[derive(Default)]
struct OutputState {
    tagged: bool,
    turn: Turn<Stream>,
    last: Option<Stream>,
    /// For each stream with an open line: its tag, and whether something else was written since.
    open: BTreeMap<Stream, (Vec<u8>, bool)>,
}

impl OutputState {
    /// Chooses the next stream in turn.
    fn after_the_last(&self, waiting: impl Iterator<Item = Stream> + Clone) -> Option<Stream> {
        waiting.clone().find(|stream| Some(*stream) > self.last).or_else(|| waiting.clone().next())
    }

    /// Puts our own message on a line of its own.
    fn message(&mut self, message: Vec<u8>) -> Vec<u8> {
        match self.turn.end() {
            Some(broken) => self.break_line(broken, message),
            None => message,
        }
    }

    /// Returns a stream's piece in the form in which it is written.
    fn piece(&mut self, stream: Stream, bytes: Vec<u8>, now: Instant) -> Vec<u8> {
        self.last = Some(stream);
        let leaves_open = !bytes.ends_with(b"\n");
        let before = self.open.remove(&stream);
        let mut text = match &before {
            Some((tag, true)) if self.tagged => [&continuation(tag)[..], &bytes].concat(),
            // The line that interrupted this one has ended it.
            Some((_, true)) if bytes.first() == Some(&b'\n') => bytes[1..].to_vec(),
            _ => bytes,
        };
        if text.is_empty() {
            return text;
        }
        if leaves_open {
            let last = || match text.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => tag_of(&text[end + 1..]),
                None => before.map_or_else(|| tag_of(&text), |(tag, _)| tag),
            };
            let tag = if self.tagged { last() } else { Vec::new() };
            self.open.insert(stream, (tag, false));
        }
        if let Some(broken) = self.turn.write(stream, &text, now) {
            text = self.break_line(broken, text);
        }
        text
    }

    fn break_line(&mut self, whose: Stream, text: Vec<u8>) -> Vec<u8> {
        if let Some((_, is_broken)) = self.open.get_mut(&whose) {
            *is_broken = true;
        }
        [&b"\n"[..], &text].concat()
    }
}

/// Returns the tag of a line: `[17]`.
fn tag_of(line: &[u8]) -> Vec<u8> {
    /// Slightly more than the length of the longest tag, in bytes.
    const LONGEST: usize = 12;
    let start = &line[..line.len().min(LONGEST)];
    let end = start.iter().position(|byte| *byte == b']').filter(|_| start.starts_with(b"["));
    end.map(|end| start[..=end].to_vec()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{HOLD, MAX_LINE};

    fn tagged() -> OutputState {
        OutputState { tagged: true, ..OutputState::default() }
    }

    /// Returns the output after these pieces; each comes the given time after the one before.
    fn print(mut output: OutputState, pieces: &[(usize, &str, Duration)]) -> String {
        let mut now = Instant::now();
        let mut text = Vec::new();
        for (node, piece, later) in pieces {
            now += *later;
            text.extend(output.piece(Stream::Node(*node), piece.as_bytes().to_vec(), now));
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_line_whose_rest_does_not_come_is_broken_and_marked() {
        let at_once = Duration::ZERO;
        let pieces = [
            (0, "[1] a\n[2] lo", at_once),
            (0, "ng", at_once),
            (1, "[7] b\n[7] lo", HOLD),
            (0, "er\n[1] c\n", HOLD),
            (1, "st\n", at_once),
            (0, "[1] d\n", at_once),
        ];
        let text = "[1] a\n[2] long\n[7] b\n[7] lo\n[2]+ er\n[1] c\n[7]+ st\n[1] d\n";
        assert_eq!(print(tagged(), &pieces), text);
    }

    #[test]
    fn a_plain_line_that_is_broken_gets_no_mark_and_no_second_end() {
        let pieces = [
            (0, "10%\r", Duration::ZERO),
            (1, "[7] lo", Duration::ZERO),
            (0, "20%\n", HOLD),
            (1, "\n", HOLD),
            (0, "next\n", Duration::ZERO),
        ];
        assert_eq!(print(OutputState::default(), &pieces), "10%\r\n[7] lo\n20%\nnext\n");
    }

    #[test]
    fn our_own_words_get_a_line_of_their_own() {
        let mut output = tagged();
        let now = Instant::now();
        let mut text = output.message(b"deckrun: a\n".to_vec());
        text.extend(output.piece(Stream::Here, b"[2] lo".to_vec(), now));
        text.extend(output.message(b"deckrun: b\n".to_vec()));
        text.extend(output.message(b"deckrun: c\n".to_vec()));
        text.extend(output.piece(Stream::Here, b"ng\n".to_vec(), now));
        assert_eq!(text, b"deckrun: a\n[2] lo\ndeckrun: b\ndeckrun: c\n[2]+ ng\n");
    }

    #[test]
    fn whose_line_is_open_comes_first_and_then_each_in_its_turn() {
        let mut output = OutputState::default();
        let now = Instant::now();
        let waiting = || [Stream::Here, Stream::Node(0), Stream::Node(1)].into_iter();
        output.piece(Stream::Node(0), b"[2] name? ".to_vec(), now);
        assert_eq!(
            output.turn.holder(now),
            None,
            "an unfinished line keeps nobody waiting, unless it is long"
        );
        output.piece(Stream::Node(0), vec![b'x'; MAX_LINE], now);
        assert_eq!(output.turn.holder(now).map(|(writer, _)| writer), Some(Stream::Node(0)));
        output.piece(Stream::Node(0), b"ng\n".to_vec(), now);
        assert_eq!(output.turn.holder(now), None);
        assert_eq!(output.after_the_last(waiting()), Some(Stream::Node(1)));
        output.piece(Stream::Node(1), b"[3] x\n".to_vec(), now);
        assert_eq!(output.after_the_last(waiting()), Some(Stream::Here));
    }

    #[test]
    fn a_tag_is_read_from_the_line_that_it_leads() {
        assert_eq!(tag_of(b"[4095] text"), b"[4095]");
        for line in [&b""[..], b"text]", b"[no end of it here]"] {
            assert_eq!(tag_of(line), b"");
        }
    }
}
