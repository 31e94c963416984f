//! Requirements on a process around a hostile case: no thread panics, the case ends, and at the end the process holds the same
//! resources as before. (`clock` checks that a call returns in time, `honest` checks the messages of the honest rank.)

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::LONG;

/// Time limit of a case: one that takes longer hangs.
const CASE: Duration = Duration::from_secs(240);

/// Allows one test at a time, because the counts are those of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays a case. If any thread panics, it fails; if it hangs, the process ends. Both print the name of the case.
pub fn watched(case: &str, play: impl FnOnce()) {
    let panics = panics();
    let (over, watch) = mpsc::channel::<()>();
    let called = case.to_owned();
    let watchdog = thread::spawn(move || {
        if watch.recv_timeout(CASE) == Err(RecvTimeoutError::Timeout) {
            // The line bypasses libtest's capture: nobody would print it after an abort.
            let _ = writeln!(io::stderr(), "{called}: it hangs");
            std::process::abort();
        }
    });
    play();
    drop(over);
    // The watchdog is one of the counted threads.
    watchdog.join().expect("it only waits");
    assert_eq!(self::panics(), panics, "{case}: a thread panicked");
}

/// Number of panics in any thread of the process up to now: all other threads survive a panic in one of the library's
/// threads, so it would not be noticed. The first call begins to count.
fn panics() -> usize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // The library installs with its first thread a hook of its own, which does not pass its threads' panics on to the previous
        // hook. This hook is installed afterwards.
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

/// Resources that a process holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    descriptors: usize,
    /// Number of mappings of the library's shared memory.
    mappings: usize,
    /// Names of threads, except those that run tests.
    threads: Vec<String>,
}

impl Resources {
    pub fn now() -> Self {
        let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
        let names = names.map(|name| name.trim_end().to_owned());
        Resources {
            descriptors: count("/proc/self/fd"),
            mappings: maps.matches("/memfd:udeck").count(),
            threads: names.filter(|name| !name.starts_with("prop_")).collect(),
        }
    }

    /// Counts the resources once they have not changed for a while: threads that nobody waits for give back
    /// what was dropped.
    pub fn at_rest() -> Self {
        let end = Instant::now() + LONG;
        let (mut found, mut since) = (Resources::now(), Instant::now());
        while since.elapsed() < Duration::from_millis(500) && Instant::now() < end {
            thread::sleep(Duration::from_millis(10));
            let now = Resources::now();
            if now != found {
                (found, since) = (now, Instant::now());
            }
        }
        found
    }

    /// Checks that nothing remains that came since then.
    pub fn assert_no_growth(&self, case: &str) {
        let is_within = |now: &Resources| {
            now.descriptors <= self.descriptors
                && now.mappings <= self.mappings
                && now.threads.len() <= self.threads.len()
        };
        eventually(
            || is_within(&Resources::now()).then_some(()),
            || format!("{case}: {:?}, and before it {self:?}", Resources::now()),
        );
    }
}

/// Repeats `look` until it finds something, and returns that.
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
