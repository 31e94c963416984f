//! What must hold of a process around a case in which somebody is hostile: no thread panics, the case ends, and in the end the
//! process holds what it held before. (That a call returns in time is `clock`'s, what the honest have posted is `honest`'s.)

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::LONG;

/// All of a case: what takes longer hangs.
const CASE: Duration = Duration::from_secs(240);

/// One test at a time: what is counted is the process's.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays a case. If any thread panics, it fails; if it hangs, the process ends. Both tell what the case is called.
pub fn watched(case: &str, play: impl FnOnce()) {
    let panics = panics();
    let (over, watch) = mpsc::channel::<()>();
    let called = case.to_owned();
    let watchdog = thread::spawn(move || {
        if watch.recv_timeout(CASE) == Err(RecvTimeoutError::Timeout) {
            // Past what libtest keeps of a test: nobody would print that after an abort.
            let _ = writeln!(io::stderr(), "{called}: it hangs");
            std::process::abort();
        }
    });
    play();
    drop(over);
    // It is one of those that are counted.
    watchdog.join().expect("it only waits");
    assert_eq!(self::panics(), panics, "{case}: a thread panicked");
}

/// Panics of any thread of the process so far: one of the library's threads that panics is survived by all others, and would
/// not be noticed. The first call is what begins to count.
fn panics() -> usize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The library puts a hook of its own with its first thread, which does not pass its threads' panics on to the hook that it
        // finds. Ours is put afterwards.
        let first = udeck_sys::thread::spawn("first", || (), |_| {}).expect("a thread");
        first.join().expect("it ends").expect("it ends well");
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            usual(info);
        }));
    });
    PANICS.load(Ordering::Relaxed)
}

/// What a process holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    descriptors: usize,
    /// Of the library's shared memory.
    mappings: usize,
    /// Their names, but for those that run tests.
    threads: Vec<String>,
}

impl Held {
    pub fn now() -> Self {
        let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        let names = names.map(|name| name.trim_end().to_owned());
        Held {
            descriptors: count("/proc/self/fd"),
            mappings: maps.matches("/memfd:udeck").count(),
            threads: names.filter(|name| !name.starts_with("prop_")).collect(),
        }
    }

    /// Once it has not changed for a while: what was dropped is given back by threads that nobody waits for.
    pub fn at_rest() -> Self {
        let end = Instant::now() + LONG;
        let (mut found, mut since) = (Held::now(), Instant::now());
        while since.elapsed() < Duration::from_millis(500) && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
            let now = Held::now();
            if now != found {
                (found, since) = (now, Instant::now());
            }
        }
        found
    }

    /// Nothing that came since then stays.
    pub fn is_all_that_stays(&self, case: &str) {
        let is_within = |now: &Held| {
            now.descriptors <= self.descriptors
                && now.mappings <= self.mappings
                && now.threads.len() <= self.threads.len()
        };
        eventually(
            || is_within(&Held::now()).then_some(()),
            || format!("{case}: {:?}, and before it {self:?}", Held::now()),
        );
    }
}

/// What `look` finds, as soon as it finds something.
pub fn eventually<R>(mut look: impl FnMut() -> Option<R>, what: impl FnOnce() -> String) -> R {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "{}", what());
        thread::sleep(Duration::from_millis(1));
    }
}
