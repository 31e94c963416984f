//! The watch over a rank's calls: each must return by its deadline plus a margin; one that hangs for ever is
//! noticed, too.
//!
//! This thread's own sleeps show how busy the machine is: the time by which they are too long is nobody's fault, a
//! SIGSTOP's included.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use udeck_jobs::soak::facts::Fact;
use udeck_jobs::soak::folder::Log;

const TICK: Duration = Duration::from_millis(20);
/// Margin after the deadline: a call that is later hangs, or waits for another rank without a deadline.
const MARGIN: Duration = Duration::from_secs(10);

pub struct Watch(Arc<Inner>);

struct Inner {
    calls: Mutex<BTreeMap<u64, Call>>,
    next: AtomicU64,
    /// Microseconds by which sleeps were too long up to now.
    stolen: AtomicU64,
    is_over: AtomicBool,
    log: Log,
}

struct Call {
    what: String,
    limit: Duration,
    start: Instant,
    stolen_before: u64,
}

impl Watch {
    pub fn new(log: Log) -> Watch {
        let inner = Arc::new(Inner {
            calls: Mutex::default(),
            next: AtomicU64::new(0),
            stolen: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            log,
        });
        let watching = inner.clone();
        thread::spawn(move || watching.watch());
        Watch(inner)
    }

    /// Makes a call that has this time limit.
    pub fn call<R>(&self, what: &str, limit: Duration, call: impl FnOnce() -> R) -> R {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let stolen_before = self.0.stolen.load(Ordering::Relaxed);
        let entry = Call { what: what.to_owned(), limit, start: Instant::now(), stolen_before };
        self.0.lock().insert(number, entry);
        let result = call();
        self.0.lock().remove(&number);
        result
    }

    /// A clock that stands still while this process does.
    pub fn patience(&self, limit: Duration) -> Patience<'_> {
        Patience { watch: &self.0, limit, start: Instant::now(), stolen_before: self.stolen() }
    }

    fn stolen(&self) -> u64 {
        self.0.stolen.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let start = Instant::now();
            thread::sleep(TICK);
            let stolen = start.elapsed().saturating_sub(2 * TICK);
            self.stolen.fetch_add(stolen.as_micros() as u64, Ordering::Relaxed);
            self.tell_late_ones();
        }
    }

    fn tell_late_ones(&self) {
        let now = self.stolen.load(Ordering::Relaxed);
        self.lock().retain(|_, call| {
            let stolen = Duration::from_micros(now - call.stolen_before);
            let took = call.start.elapsed();
            let is_late = took > call.limit + MARGIN + 4 * stolen;
            if is_late {
                let Call { what, limit, .. } = call;
                self.log.tell(&Fact::Late(format!("{what}: {took:.1?} of {limit:.1?}, {stolen:.1?} stolen")));
            }
            !is_late
        });
    }
}

/// Time limit for something that must succeed.
pub struct Patience<'a> {
    watch: &'a Inner,
    limit: Duration,
    start: Instant,
    stolen_before: u64,
}

impl Patience<'_> {
    pub fn is_over(&self) -> bool {
        let stolen = self.watch.stolen.load(Ordering::Relaxed) - self.stolen_before;
        self.start.elapsed() > self.limit + 4 * Duration::from_micros(stolen)
    }

    pub fn renew(&mut self) {
        self.start = Instant::now();
        self.stolen_before = self.watch.stolen.load(Ordering::Relaxed);
    }
}
