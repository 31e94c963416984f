//! Lines on stderr that cannot harm who says them.
//!
//! `eprintln!` panics when stderr is a pipe that nobody reads any more, and waits for ever when its reader is paused. A
//! library must do neither: its threads serve others than the one who looks at stderr. So every line of the library goes
//! through [`say`](crate::say!): one write, of at most 4096 bytes so that a pipe keeps it whole, after at most
//! 50 ms. A line that cannot be written is dropped.
//!
//! SIGPIPE does not come up: a pipe without a reader is not written to (a reader that leaves in that very moment aside,
//! and there std ignores the signal).

use std::fmt::{self, Write as _};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};

/// What a pipe takes in one piece (`PIPE_BUF`).
const MOST_BYTES: usize = 4096;
/// How long a line may wait for a stderr that takes nothing. The next lines wait no more, until one was written.
const MOST_WAIT: Duration = Duration::from_millis(50);
/// A stderr that says it is ready and then takes nothing is asked so often.
const MOST_TRIES: u32 = 8;

/// Writes `udeck: process PID: …` to stderr: takes what `format!` takes. Never panics, and does not wait for who reads.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {
        $crate::stderr_line(format_args!("udeck: process {}: {}", std::process::id(), format_args!($($words)*)))
    };
}

/// Writes one line to stderr, or drops it: see the module. Control characters other than line feeds and tabs are
/// escaped, because words of a peer may be among it.
pub fn stderr_line(words: fmt::Arguments<'_>) {
    static STUCK: AtomicBool = AtomicBool::new(false);
    let limit = if STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { MOST_WAIT };
    let stuck =
        write_line(io::stderr().as_fd(), &line(words), limit).is_err_and(|error| error == Errno::AGAIN);
    STUCK.store(stuck, Ordering::Relaxed);
}

/// The line as it is written.
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
    // Cut off, or a `Display` that fails: what there is of it is said.
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

/// One write, at most `limit` from now. [`Errno::AGAIN`]: nobody reads.
fn write_line(to: BorrowedFd<'_>, line: &str, limit: Duration) -> Result<(), Errno> {
    let end = Instant::now() + limit;
    for _ in 0..MOST_TRIES {
        wait_until_ready(to, end)?;
        // Another writer may be faster than we are: not to wait then, without a change to the flags that all who have
        // this stderr share.
        match pwritev2(to, &[IoSlice::new(line.as_bytes())], u64::MAX, ReadWriteFlags::NOWAIT) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // What has no such write (terminals, pipes of older kernels) is ready as far as one can know.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {
                return rustix::io::write(to, line.as_bytes()).map(drop);
            }
            Err(error) => return Err(error),
        }
    }
    Err(Errno::AGAIN)
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
        // Interrupted: the write finds out.
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe, pipe_with};
    use std::io::{Read, Seek};
    use std::os::fd::OwnedFd;

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
