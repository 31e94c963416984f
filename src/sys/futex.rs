//! Sleeping on a word of shared memory.

use std::time::Duration;

use rustix::thread::futex;

use crate::atomic::{AtomicU32, raw};

/// Sleeps while `word == expected`, at most `limit`. Spurious returns are allowed; the caller rechecks.
/// The futex is not private: the waker may be another process.
pub fn sleep(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = futex::Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    // Whatever the reason for returning (woken, changed, timed out, a signal), the caller looks again.
    let _ = futex::wait(raw(word), futex::Flags::empty(), expected, Some(&limit));
}

/// Wakes every sleeper on `word`.
pub fn wake(word: &AtomicU32) {
    let _ = futex::wake(raw(word), futex::Flags::empty(), i32::MAX as u32);
}
