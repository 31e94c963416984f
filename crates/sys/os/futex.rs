//! Futexes: sleeping on words of shared memory.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

/// Upper bound of words that [`sleep_any`] can sleep on at a time (Linux: `FUTEX_WAITV_MAX`).
pub const MOST_WORDS: usize = 128;

use crate::sync::atomic::{AtomicU32, raw};

/// Sleeps while `word == expected`, at most `limit`. Spurious returns are allowed; the caller rechecks.
/// The futex is not private: the waker may be another process.
pub fn sleep(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = futex::Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // The result is ignored, because the caller checks again after any return (woken, changed, timed out, a signal).
    let _ = futex::wait(raw(word), futex::Flags::empty(), expected, Some(&limit));
}

/// Sleeps while all of `words`, at most [`MOST_WORDS`], are `expected`, at most `limit`. Spurious returns are allowed,
/// as for one word. (`futex_waitv`.)
///
/// # Errors
/// [`io::ErrorKind::Unsupported`] before Linux 5.16; then it has not slept.
pub fn sleep_any<'a>(
    words: impl IntoIterator<Item = &'a AtomicU32>,
    expected: u32,
    limit: Duration,
) -> io::Result<()> {
    let on_word = |word: &'a AtomicU32| {
        let mut wait = futex::Wait::new();
        (wait.val, wait.flags) = (expected.into(), futex::WaitFlags::SIZE_U32);
        wait.uaddr = futex::WaitPtr::new(raw(word).as_ptr().cast());
        wait
    };
    let waits: Vec<_> = words.into_iter().map(on_word).collect();
    debug_assert!((1..=MOST_WORDS).contains(&waits.len()));
    // Only this one of the futex calls takes its limit as a point in time.
    let limit = futex::Timespec::try_from(limit).ok();
    let until = limit.and_then(|limit| clock_gettime(ClockId::Monotonic).checked_add(limit));
    match futex::waitv(&waits, futex::WaitvFlags::empty(), until.as_ref(), futex::ClockId::Monotonic) {
        Err(Errno::NOSYS | Errno::PERM) => Err(io::ErrorKind::Unsupported.into()),
        _ => Ok(()),
    }
}

/// Wakes every sleeper on `word`.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(raw(word), futex::Flags::empty(), i32::MAX as u32);
}

/// Wakes one sleeper on `word`.
pub fn wake_one(word: &AtomicU32) {
    let _ = futex::wake(raw(word), futex::Flags::empty(), 1);
}
