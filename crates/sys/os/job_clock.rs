//! Job clock: the monotonic clock, less the time for which the job has been stopped (Ctrl-Z).
//!
//! A launcher keeps one word in a page of shared memory, and the ranks of its host map that page read-only. The launcher
//! stops the clock there before it stops the ranks, and resumes it before it continues them. A thread that runs in between
//! (of a rank that someone else continues, or of the launcher) sees that no time passes. No process has to be notified first,
//! or waited for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::memory::segment::{self, Mapping, PeerAccess};

const PAGE: usize = 4096;

/// Value of the page's second word, so that no other page is taken for a clock.
const MAGIC: u64 = u64::from_be_bytes(*b"DECKtime");

/// The clock of the launcher that started this process, once the process has joined it.
static JOINED: OnceLock<Reader> = OnceLock::new();

/// The launcher's clock of the job, on one host.
#[derive(Debug)]
pub struct JobClock {
    fd: OwnedFd,
    reader: Reader,
}

impl JobClock {
    /// Makes a running clock.
    ///
    /// # Errors
    /// Errors of the kernel: no descriptors left, no memory.
    pub fn new() -> io::Result<JobClock> {
        let (fd, page) = segment::create("udeck-clock", PAGE, PeerAccess::Read)?;
        page.commit(fd.as_fd(), 0, PAGE)?;
        magic(&page).store(MAGIC, Ordering::Relaxed);
        Ok(JobClock { fd, reader: Reader::new(page) })
    }

    /// Stops the clock, if it runs. A process that reads the clock during this call may see a time that is later than the one
    /// at which the clock stops, by at most the length of the call.
    pub fn stop(&self) {
        if let State::Running { lost } = self.reader.state() {
            self.set(State::Standing { at: monotonic().saturating_sub(lost) });
        }
    }

    /// Lets the clock run on from the time at which it stopped, if it is stopped.
    pub fn resume(&self) {
        if let State::Standing { at } = self.reader.state() {
            self.set(State::Running { lost: monotonic().saturating_sub(at) });
        }
    }

    /// Advances the clock by `time`, if it is stopped: a simulated job has its time pass as its network does.
    pub fn pass(&self, time: Duration) {
        if let State::Standing { at } = self.reader.state() {
            self.set(State::Standing { at: at.saturating_add(time.as_nanos() as u64) });
        }
    }

    /// Makes this process follow this clock from now on, as [`join_job_clock`] does with a launcher's.
    ///
    /// # Errors
    /// Errors of the kernel; [`io::ErrorKind::AlreadyExists`]: the process follows another clock.
    pub fn join(&self) -> io::Result<()> {
        let page = segment::adopt(self.fd.as_fd(), PAGE..=PAGE, PeerAccess::Read)?;
        JOINED.set(Reader::new(page)).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// The present time of this clock.
    pub fn now(&self) -> Instant {
        self.reader.now()
    }

    fn set(&self, state: State) {
        word(&self.reader.page).store(state.word(), Ordering::Relaxed);
    }
}

impl AsFd for JobClock {
    /// The descriptor that ranks inherit.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes this process follow the clock whose descriptor number the launcher has written into the environment as `number`,
/// from now on. Time goes on from its present value, whatever the job was stopped for before. The program's own children do
/// not inherit the descriptor.
///
/// # Errors
/// In words: it is no clock's descriptor (which is then left as it was).
pub fn join_job_clock(number: &str) -> Result<(), String> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let fd: RawFd = number.parse().ok().filter(|fd| *fd > 2).ok_or("not a descriptor number above 2")?;
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the launcher opened this descriptor for the process to own; nothing else here knows its number, and the swap
    // above lets it be taken once. It is closed only when it is a launcher's clock, by its seals and its words; else it is given
    // up unclosed.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let adopted =
        segment::adopt(fd.as_fd(), PAGE..=PAGE, PeerAccess::Read).map_err(|error| error.to_string());
    let adopted = adopted.and_then(|page| match magic(&page).load(Ordering::Relaxed) {
        MAGIC => Ok(page),
        _ => Err("the memory is not a job clock".into()),
    });
    match adopted {
        Ok(page) => {
            let _ = JOINED.set(Reader::new(page));
            Ok(())
        }
        Err(why) => {
            std::mem::forget(fd);
            TAKEN.store(false, Ordering::Relaxed);
            Err(why)
        }
    }
}

/// The present time of this process's job. Without a clock it is the monotonic clock's.
#[inline]
pub fn job_time() -> Instant {
    JOINED.get().map_or_else(Instant::now, Reader::now)
}

/// A process's view of the clock: the monotonic clock until it has joined, then the same less the time lost since.
#[derive(Debug)]
struct Reader {
    page: Mapping,
    /// The moment of joining, on both clocks.
    origin: (Instant, u64),
    lost_before: u64,
}

impl Reader {
    fn new(page: Mapping) -> Reader {
        let origin = (Instant::now(), monotonic());
        let lost_before = match State::of(word(&page).load(Ordering::Relaxed)) {
            State::Running { lost } => lost,
            State::Standing { at } => origin.1.saturating_sub(at),
        };
        Reader { page, origin, lost_before }
    }

    fn state(&self) -> State {
        State::of(word(&self.page).load(Ordering::Relaxed))
    }

    fn now(&self) -> Instant {
        let mut state = self.state();
        loop {
            let lost = match state {
                State::Running { lost } => lost,
                State::Standing { at } => {
                    let (instant, then) = self.origin;
                    let since = at.saturating_add(self.lost_before).saturating_sub(then);
                    return instant + Duration::from_nanos(since);
                }
            };
            fence(Ordering::Acquire);
            let now = Instant::now();
            fence(Ordering::Acquire);
            // This process may have been stopped between the two reads: the clock and the word do not belong together then.
            let again = self.state();
            if again == state {
                let lost = Duration::from_nanos(lost.saturating_sub(self.lost_before));
                return now.checked_sub(lost).unwrap_or(now);
            }
            state = again;
        }
    }
}

/// State in the word, in nanoseconds of the system's monotonic clock, which all of its processes share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The clock runs. `lost`: total time for which the job has been stopped.
    Running { lost: u64 },
    /// The clock stands. `at`: the job's time at which it stopped.
    Standing { at: u64 },
}

impl State {
    fn of(word: u64) -> State {
        match word & 1 {
            0 => State::Running { lost: word >> 1 },
            _ => State::Standing { at: word >> 1 },
        }
    }

    fn word(self) -> u64 {
        match self {
            State::Running { lost } => lost << 1,
            State::Standing { at } => at << 1 | 1,
        }
    }
}

fn word(page: &Mapping) -> &AtomicU64 {
    atomic(page, 0)
}

fn magic(page: &Mapping) -> &AtomicU64 {
    atomic(page, size_of::<AtomicU64>() as u64)
}

fn atomic(page: &Mapping, offset: u64) -> &AtomicU64 {
    let at = page.at(offset, size_of::<AtomicU64>()).expect("a page is longer than two words").cast();
    // SAFETY: in a mapping, aligned as its beginning is, which lives as long as the reference. Only atomics access it. Where it is
    // mapped read-only it is only loaded, relaxed.
    unsafe { at.as_ref() }
}

fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_millis(30);

    /// The clock's view of a rank that joins now.
    fn joined(clock: &JobClock) -> Reader {
        Reader::new(segment::adopt(clock.as_fd(), PAGE..=PAGE, PeerAccess::Read).unwrap())
    }

    #[test]
    fn it_stands_while_it_is_stopped_and_runs_on_from_there() {
        let clock = JobClock::new().unwrap();
        let rank = joined(&clock);
        let start = Instant::now();
        assert!(clock.now() >= start, "it runs as the system's does");
        for pauses in 1..=3 {
            clock.stop();
            let stopped = [clock.now(), rank.now()];
            std::thread::sleep(PAUSE);
            clock.stop();
            assert_eq!([clock.now(), rank.now()], stopped, "it stands");
            assert!(stopped.iter().all(|at| *at <= Instant::now() - pauses * PAUSE));
            clock.resume();
            clock.resume();
            let (ours, theirs) = (clock.now(), rank.now());
            assert!(ours.max(theirs) <= Instant::now() - pauses * PAUSE, "the pause does not count");
            assert!(ours >= stopped[0] && theirs >= stopped[1], "it goes on from there");
        }
        let before = clock.now();
        std::thread::sleep(PAUSE);
        assert!(clock.now() >= before + PAUSE, "it runs");
    }

    /// Otherwise timers that were set before would be late by all pauses.
    #[test]
    fn who_joins_late_sees_time_resume() {
        let clock = JobClock::new().unwrap();
        clock.stop();
        std::thread::sleep(PAUSE);
        let before = Instant::now();
        let while_it_stands = joined(&clock);
        assert!(while_it_stands.now() >= before);
        clock.resume();
        let before = Instant::now();
        let later = joined(&clock);
        assert!(later.now() >= before);
        let early = while_it_stands.now();
        clock.stop();
        std::thread::sleep(PAUSE);
        clock.resume();
        for rank in [&while_it_stands, &later] {
            assert!(rank.now() <= Instant::now() - PAUSE, "the next pause does not count");
        }
        assert!(while_it_stands.now() >= early);
    }

    #[test]
    fn what_is_no_clock_is_refused_and_left_alone() {
        use std::os::fd::AsRawFd;
        let made = |pages| segment::create("no-clock", pages * PAGE, PeerAccess::Read).unwrap();
        let ((long, _), (other, page)) = (made(2), made(1));
        page.commit(other.as_fd(), 0, PAGE).unwrap();
        let numbers = [&long, &other].map(|fd| fd.as_raw_fd().to_string());
        for value in ["", "x", "-1", "2", "99999999", &numbers[0], &numbers[1]] {
            join_job_clock(value).unwrap_err();
        }
        for fd in [long, other] {
            fd.try_clone().expect("it is still open");
        }
    }
}
