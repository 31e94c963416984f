//! A clock that judges whether a call returned in time, on a machine that has other work, too.
//!
//! A call with a time limit must be back 100 ms after it. Two times are not counted: the time in which its thread could have run,
//! but the machine did not let it (`schedstat` of proc(5)), and the time that the process did not get at all, because of SIGSTOP
//! or a quota. The second shows in the sleeps of a thread that does nothing else.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Time after its deadline within which every call returns.
const PROMISE: Duration = Duration::from_millis(100);
/// Allowance for delays that are not seen here: the holder of a lock does not run, or a page comes from a disk.
const MARGIN: Duration = Duration::from_millis(400);
const TICK: Duration = Duration::from_millis(20);

/// Makes a call that must end after `limit`, and may fail.
#[track_caller]
pub fn within_deadline<R>(limit: Duration, what: &str, call: impl FnOnce() -> R) -> R {
    let (begun, before) = (Instant::now(), [unscheduled(), process_stalled()]);
    let result = call();
    let took = begun.elapsed();
    if took > limit + PROMISE + MARGIN {
        let waited = unscheduled() - before[0];
        // By the end of this sleep the watch thread has counted.
        thread::sleep(4 * TICK);
        let stalled = process_stalled() - before[1];
        assert!(
            // The factor is that of `tests/jobs/soak`: a thread that hardly ever runs is scheduled sooner than
            // others.
            took <= limit + PROMISE + MARGIN + waited + 4 * stalled,
            "{what} had {limit:?}, and took {took:?}, of which the machine took {waited:?}, and {stalled:?} of the process"
        );
    }
    result
}

/// Time that this thread has waited for a processor up to now.
fn unscheduled() -> Duration {
    // The fields are time run, time waited, and number of runs. A kernel may not count them.
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = counts.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

/// Time by which the watch thread's sleeps were too long up to now.
fn process_stalled() -> Duration {
    static STALLED: AtomicU64 = AtomicU64::new(0);
    static WATCH: OnceLock<()> = OnceLock::new();
    WATCH.get_or_init(|| {
        let watch = thread::Builder::new().name("watch".into()).spawn(|| {
            loop {
                let begun = Instant::now();
                thread::sleep(TICK);
                let stalled = begun.elapsed().saturating_sub(2 * TICK);
                STALLED.fetch_add(stalled.as_micros() as u64, Ordering::Relaxed);
            }
        });
        drop(watch.expect("a thread"));
    });
    Duration::from_micros(STALLED.load(Ordering::Relaxed))
}
