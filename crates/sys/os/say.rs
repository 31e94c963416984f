//! Lines on stderr that cannot block or end the writer.
//!
//! `eprintln!` panics when stderr is a pipe without a reader, and waits for ever when its reader is paused. A library must do
//! neither: its threads serve others than the reader of stderr. So every line of the library goes through
//! [`say`](crate::say!): one write, of at most 4096 bytes so that a pipe keeps it whole, after at most 50 ms. A line that
//! cannot be written is dropped.
//!
//! Most kinds of stderr have a write that does not wait (pipes since Linux 6.5). For kinds without one, such as terminals, a
//! thread that may wait writes in our place (`deck-say`): one line at a time. The caller waits at most 50 ms for that thread,
//! and other callers meanwhile at most 50 ms for their turn. Where no thread can be started, the line is written without one.
//!
//! SIGPIPE does not occur: a pipe without a reader is not written to (apart from a reader that leaves at that very moment,
//! for which std ignores the signal).

use std::fmt::{self, Write as _};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

/// Bytes that a pipe takes in one piece (`PIPE_BUF`).
const MOST_BYTES: usize = 4096;
/// Time that a line may wait for a stderr that takes nothing, and for the thread that writes it. After a line that stderr did
/// not take, the next ones do not wait, until one was taken.
const MOST_WAIT: Duration = Duration::from_millis(50);
/// Number of attempts at a stderr that says it is ready and then takes nothing.
const MOST_TRIES: u32 = 8;

/// Writes `udeck: process PID: …` to stderr, with the arguments of `format!`. Never panics, and does not wait for the reader.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        $crate::stderr_line(format_args!("udeck: process {}: {}", std::process::id(), format_args!($($words)*)))
    };
}

/// Writes one line to stderr, or drops it: see the module. Control characters other than line feeds and tabs are escaped,
/// because a peer's words may be in it.
pub fn stderr_line(words: fmt::Arguments<'_>) {
    static STUCK: AtomicBool = AtomicBool::new(false);
    let limit = if STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { MOST_WAIT };
    let (stderr, end) = (rustix::stdio::stderr(), Instant::now() + limit);
    let written = write_or_have_written(stderr, &line(words), end, MOST_WAIT, start_thread);
    STUCK.store(written == Err(Errno::AGAIN), Ordering::Relaxed);
}

/// Writes a line as [`stderr_line`] does, without waiting for a stderr that takes nothing. It does wait for the thread that
/// writes the line: this process may be about to end.
pub(crate) fn stderr_line_at_once(words: fmt::Arguments<'_>) {
    let _ = write_at_once(rustix::stdio::stderr(), &line(words), start_thread);
}

/// The line in the form in which it is written.
fn line(words: fmt::Arguments<'_>) -> String {
    struct Escaping(String);
    impl fmt::Write for Escaping {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            for char in part.chars() {
                if self.0.len() >= MOST_BYTES {
                    return Err(fmt::Error); // the rest is cut off in any case
                }
                match char {
                    '\n' | '\t' => self.0.push(char),
                    _ if char.is_control() => self.0.extend(char.escape_default()),
                    _ => self.0.push(char),
                }
            }
            Ok(())
        }
    }
    let mut text = Escaping(String::new());
    // The text may be cut off, or a `Display` may fail: the beginning is written.
    let _ = text.write_fmt(words);
    let Escaping(mut text) = text;
    if text.len() >= MOST_BYTES {
        let end = (0..=MOST_BYTES - "…\n".len()).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    text.push('\n');
    text
}

/// Body of the thread that writes a line.
type Body = Box<dyn FnOnce() + Send>;

/// Starts the thread. `false`: none could be started.
fn start_thread(body: Body) -> bool {
    std::thread::Builder::new().name("deck-say".into()).spawn(body).is_ok()
}

fn write_at_once(to: BorrowedFd<'static>, line: &str, start: impl FnOnce(Body) -> bool) -> Result<(), Errno> {
    write_or_have_written(to, line, Instant::now(), MOST_WAIT, start)
}

/// Waits until `end` for a `to` that takes the line, and then `patience` for the thread that may have to write it in our
/// place. [`Errno::AGAIN`]: nobody reads. [`Errno::INPROGRESS`]: it is being written.
fn write_or_have_written(
    to: BorrowedFd<'static>,
    line: &str,
    end: Instant,
    patience: Duration,
    start: impl FnOnce(Body) -> bool,
) -> Result<(), Errno> {
    match write_line(to, line, end) {
        // The stream was ready as far as can be known, and may not be any more.
        Err(Errno::OPNOTSUPP) => {
            let owned = line.to_owned();
            let write = move || rustix::io::write(to, owned.as_bytes()).map(drop);
            apart(end, patience, start, write).unwrap_or_else(|| {
                wait_until_ready(to, Instant::now())?;
                rustix::io::write(to, line.as_bytes()).map(drop)
            })
        }
        other => other,
    }
}

/// Writes once, until `end`. [`Errno::AGAIN`]: nobody reads. [`Errno::OPNOTSUPP`]: this kind of stream has no write that does
/// not wait (terminals, pipes of older kernels).
fn write_line(to: BorrowedFd<'_>, line: &str, end: Instant) -> Result<(), Errno> {
    for _ in 0..MOST_TRIES {
        wait_until_ready(to, end)?;
        // Another writer may be faster. This write does not wait then, and does not change the flags that all processes with
        // this stderr share.
        match pwritev2(to, &[IoSlice::new(line.as_bytes())], u64::MAX, ReadWriteFlags::NOWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => return Err(Errno::OPNOTSUPP),
            Err(error) => return Err(error),
        }
    }
    Err(Errno::AGAIN)
}

/// Runs `write` on a thread of its own, and waits for it, for `patience`. While one is in progress, there is no other, and a
/// caller waits for its turn until `end`: of lines that nobody reads, one is kept. `None`: no thread could be started.
/// [`Errno::AGAIN`]: another one is still in progress. [`Errno::INPROGRESS`]: this one is, which on a busy machine tells
/// nothing about the reader.
fn apart(
    end: Instant,
    patience: Duration,
    start: impl FnOnce(Body) -> bool,
    write: impl FnOnce() -> Result<(), Errno> + Send + 'static,
) -> Option<Result<(), Errno>> {
    // No lock is used here: a process that is forked meanwhile writes no more lines, and does not wait for one, either.
    static BUSY: AtomicBool = AtomicBool::new(false);
    while BUSY.swap(true, Ordering::Acquire) {
        if Instant::now() >= end {
            return Some(Err(Errno::AGAIN));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let (done, wait) = mpsc::sync_channel(1);
    let writing = move || {
        let written = write();
        BUSY.store(false, Ordering::Release);
        let _ = done.send(written);
    };
    if !start(Box::new(writing)) {
        BUSY.store(false, Ordering::Release);
        return None;
    }
    Some(wait.recv_timeout(patience).unwrap_or(Err(Errno::INPROGRESS)))
}

fn wait_until_ready(to: BorrowedFd<'_>, end: Instant) -> Result<(), Errno> {
    let mut asked = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
    let left = end.saturating_duration_since(Instant::now());
    let limit = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    match poll(&mut asked, Some(&limit)) {
        Ok(0) => Err(Errno::AGAIN),
        Ok(_) if asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) => {
            Err(Errno::PIPE)
        }
        // After an interruption the write finds out.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags, open};
    use rustix::pipe::{PipeFlags, pipe, pipe_with};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use std::io::{Read, Seek};
    use std::os::fd::{AsFd, OwnedFd};

    const LONG: Duration = Duration::from_secs(60);

    /// A terminal, which has no write that does not wait: its screen, and the end to which programs write.
    fn terminal() -> (OwnedFd, OwnedFd) {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        let programs = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        (screen, programs)
    }

    fn apart(
        end: Instant,
        patience: Duration,
        write: impl FnOnce() -> Result<(), Errno> + Send + 'static,
    ) -> Result<(), Errno> {
        super::apart(end, patience, start_thread, write).unwrap()
    }

    /// Writes to any kind of stream, as for stderr.
    fn write_line(to: BorrowedFd<'_>, line: &str, limit: Duration) -> Result<(), Errno> {
        match super::write_line(to, line, Instant::now() + limit) {
            Err(Errno::OPNOTSUPP) => rustix::io::write(to, line.as_bytes()).map(drop),
            other => other,
        }
    }

    fn read(from: OwnedFd) -> String {
        let mut text = String::new();
        std::fs::File::from(from).read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_line_is_written() {
        let (reader, writer) = pipe().unwrap();
        write_line(writer.as_fd(), &line(format_args!("one {}", 2)), MOST_WAIT).unwrap();
        drop(writer);
        assert_eq!(read(reader), "one 2\n");
    }

    #[test]
    fn a_file_takes_lines_at_its_end() {
        let mut file = std::fs::File::from(tempfile());
        for text in ["one", "two"] {
            write_line(file.as_fd(), &line(format_args!("{text}")), MOST_WAIT).unwrap();
        }
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntwo\n");
    }

    fn tempfile() -> OwnedFd {
        rustix::fs::memfd_create("lines", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        assert_eq!(write_line(writer.as_fd(), "lost\n", MOST_WAIT), Err(Errno::PIPE));
    }

    #[test]
    fn a_full_pipe_is_given_up() {
        let (reader, writer) = pipe().unwrap();
        let (_keep, filler) = (reader, rustix::io::dup(&writer).unwrap());
        let page = [b'x'; MOST_BYTES];
        while pwritev2(&filler, &[IoSlice::new(&page)], u64::MAX, ReadWriteFlags::NOWAIT).is_ok() {}
        assert_eq!(write_line(writer.as_fd(), "nobody reads\n", MOST_WAIT), Err(Errno::AGAIN));
        assert_eq!(write_line(writer.as_fd(), "nobody reads\n", Duration::ZERO), Err(Errno::AGAIN));
    }

    #[test]
    fn what_cannot_be_asked_whether_it_waits_is_written_by_another_thread() {
        let end = || Instant::now() + LONG;
        assert_eq!(apart(end(), LONG, || Ok(())), Ok(()));
        assert_eq!(apart(end(), LONG, || Err(Errno::IO)), Err(Errno::IO));
        let (go, wait) = mpsc::channel::<()>();
        let (begin, began) = mpsc::channel();
        let stuck = move || {
            begin.send(()).unwrap();
            let _ = wait.recv();
            Ok(())
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(move || apart(Instant::now() + LONG, LONG, stuck));
            began.recv().unwrap();
            let second = apart(Instant::now(), LONG, || unreachable!("one at a time"));
            assert_eq!(second, Err(Errno::AGAIN), "it is dropped");
            drop(go);
            assert_eq!(first.join().unwrap(), Ok(()));
        });
        let (go, wait) = mpsc::channel::<()>();
        let late = apart(end(), Duration::ZERO, move || wait.recv().map_err(|_| Errno::IO));
        assert_eq!(
            late,
            Err(Errno::INPROGRESS),
            "who says it waits no longer than it may, and it is not stuck"
        );
        drop(go);
        assert_eq!(apart(end(), LONG, || Ok(())), Ok(()), "and the next ones are written");
    }

    #[test]
    fn where_no_thread_is_to_be_had_a_line_is_written_all_the_same() {
        let (screen, programs) = terminal();
        let to: &'static OwnedFd = Box::leak(Box::new(rustix::io::dup(&programs).unwrap()));
        let none = |_: Body| false;
        let said = write_or_have_written(to.as_fd(), "no thread\n", Instant::now() + LONG, LONG, none);
        assert_eq!(said, Ok(()));
        let mut seen = [0; 9];
        rustix::io::read(&screen, &mut seen).unwrap();
        assert_eq!(&seen, b"no thread");
        drop(programs);
    }

    /// After a panic that cannot unwind the process ends, and the thread could not write later.
    #[test]
    fn what_is_said_at_once_is_on_the_terminal_before_anything_else_is_done() {
        let (_screen, programs) = terminal();
        let to: &'static OwnedFd = Box::leak(Box::new(programs));
        let slowly = |body: Body| {
            std::thread::spawn(|| {
                std::thread::sleep(MOST_WAIT / 4);
                body();
            });
            true
        };
        let said = || loop {
            match write_at_once(to.as_fd(), "last words\n", slowly) {
                // Another test has its turn.
                Err(Errno::AGAIN) => std::thread::yield_now(),
                other => return other.is_ok(),
            }
        };
        // On a busy machine the wait may be too short for a thread; not each time.
        assert!((0..20).any(|_| said()), "nobody waits for the thread");
    }

    #[test]
    fn a_line_has_a_bound_and_no_escape_sequences() {
        let long = line(format_args!("{}", "ä".repeat(MOST_BYTES)));
        assert!(long.len() <= MOST_BYTES && long.ends_with("ä…\n"), "{} bytes", long.len());
        let (reader, writer) = pipe_with(PipeFlags::empty()).unwrap();
        write_line(writer.as_fd(), &long, MOST_WAIT).unwrap();
        drop(writer);
        assert_eq!(read(reader), long, "in one write");
        assert_eq!(line(format_args!("a\x1b[2Jb\r\n\tc")), "a\\u{1b}[2Jb\\r\n\tc\n");
    }
}
