//! Whether a call returned in time, on a machine that has other things to do, too.
//!
//! A call that says how long it may take is back 100 ms after that. Not counted is time in which its thread could have run, and
//! the machine did not let it (`schedstat` of proc(5)), nor what the process did not get altogether, by SIGSTOP or a quota: that shows in
//! the sleeps of a thread that does nothing else.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// So long after its deadline every call has returned.
const PROMISE: Duration = Duration::from_millis(100);
/// For what is not seen here: somebody holds a lock and is not run, a page comes from a disk.
const MARGIN: Duration = Duration::from_millis(400);
const TICK: Duration = Duration::from_millis(20);

/// A call that is to end after `limit`, and may fail.
#[track_caller]
pub fn timely<R>(limit: Duration, what: &str, call: impl FnOnce() -> R) -> R {
    let (begun, before) = (Instant::now(), [unscheduled(), stolen()]);
    let result = call();
    let took = begun.elapsed();
    if took > limit + PROMISE + MARGIN {
        let waited = unscheduled() - before[0];
        // Whoever counts has counted then.
        thread::sleep(4 * TICK);
        let stolen = stolen() - before[1];
        assert!(
            // As `tests/jobs/soak` does: a thread that hardly ever runs is let run sooner than others are.
            took <= limit + PROMISE + MARGIN + waited + 4 * stolen,
            "{what} had {limit:?}, and took {took:?}, of which the machine took {waited:?}, and {stolen:?} of the process"
        );
    }
    result
}

/// For how long this thread has waited for a processor so far.
fn unscheduled() -> Duration {
    // Run for, waited for, how often. Nothing of that on a kernel that does not count it.
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let waited = counts.split_whitespace().nth(1).and_then(|waited| waited.parse().ok());
    Duration::from_nanos(waited.unwrap_or(0))
}

/// By how much somebody's sleeps were too long so far.
fn stolen() -> Duration {
    static STOLEN: AtomicU64 = AtomicU64::new(0);
    static WATCH: OnceLock<()> = OnceLock::new();
    WATCH.get_or_init(|| {
        let watch = thread::Builder::new().name("watch".into()).spawn(|| {
            loop {
                let begun = Instant::now();
                thread::sleep(TICK);
                let stolen = begun.elapsed().saturating_sub(2 * TICK);
                STOLEN.fetch_add(stolen.as_micros() as u64, Ordering::Relaxed);
            }
        });
        drop(watch.expect("a thread"));
    });
    Duration::from_micros(STOLEN.load(Ordering::Relaxed))
}
