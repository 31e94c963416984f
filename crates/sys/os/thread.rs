//! Threads of the library, and the callbacks of users that they run.
//!
//! A thread of the library serves calls that wait. If it panicked and nothing else happened, they would wait for ever, or
//! until a deadline that does not tell the reason. So every such thread is started here. A panic in it is caught, `on_panic`
//! marks the objects that the thread served as failed and wakes the waiters, and one line on stderr reports it.
//!
//! A user's closure may panic, too, and that is no failure of ours: it is called through a [`Callback`], which catches the
//! panic, reports it once, and lets the thread go on.
//!
//! # The panic hook
//! std reports a panic by its hook, before the thread unwinds: its own hook writes to stderr, and waits where that is a pipe
//! that nobody reads. Then nothing would be caught. So the first thread that is started here puts a hook before the existing
//! one. That hook reports panics of the library's threads (a user's closures there included) in one line that waits for no
//! reader, without a backtrace: capturing one may wait for another thread that writes one. Any other thread's panic goes to
//! the hook that was there before, as it is. A hook that the program sets later gets them all; it does well to call the one
//! before it, and not to wait.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::os::limits::name_limits;

/// Prefix of the names of the library's threads. deckrun's watchdog does not count their work as the program's.
pub const PREFIX: &str = "deck-";
/// Prefix of the names of threads that run handlers of the program, and nothing else. Their work is the program's.
const HANDLERS_PREFIX: &str = "on-";
/// Longest name of a thread in Linux, in bytes.
const MAX_NAME: usize = 15;

fn full(prefix: &str, name: &str) -> String {
    debug_assert!(prefix.len() + name.len() <= MAX_NAME, "the kernel cuts {name:?}");
    format!("{prefix}{name}")
}

/// Starts a thread of the library, with [`PREFIX`] before its name. If `body` panics, `on_panic` is called, on the thread,
/// with the panic's words, and joining gives these words, too.
///
/// `on_panic` has to make sure that nothing waits for this thread any more. It must not wait itself, and the locks that it
/// takes must be free after a panic: `parking_lot`'s locks are.
///
/// # Errors
/// Errors of the kernel: no threads left. Neither closure was called then.
pub fn spawn<R: Send + 'static>(
    name: impl AsRef<str>,
    body: impl FnOnce() -> R + Send + 'static,
    on_panic: impl FnOnce(&str) + Send + 'static,
) -> io::Result<JoinHandle<Result<R, String>>> {
    start(full(PREFIX, name.as_ref()), body, on_panic)
}

/// Starts a thread as [`spawn`] does, for handlers of the program. Its name begins with `on-`, because threads that a handler
/// starts have the same name, and all of them do the program's work.
///
/// # Errors
/// Those of [`spawn`].
pub fn spawn_handlers<R: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> R + Send + 'static,
    on_panic: impl FnOnce(&str) + Send + 'static,
) -> io::Result<JoinHandle<Result<R, String>>> {
    start(full(HANDLERS_PREFIX, name), body, on_panic)
}

fn start<R: Send + 'static>(
    name: String,
    body: impl FnOnce() -> R + Send + 'static,
    on_panic: impl FnOnce(&str) + Send + 'static,
) -> io::Result<JoinHandle<Result<R, String>>> {
    put_hook();
    Builder::new().name(name.clone()).spawn(move || run(&name, body, on_panic)).map_err(name_limits)
}

/// Starts a thread as [`spawn`] does, in a scope.
///
/// # Errors
/// Those of [`spawn`].
pub fn spawn_scoped<'scope, R: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    body: impl FnOnce() -> R + Send + 'scope,
    on_panic: impl FnOnce(&str) + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, Result<R, String>>> {
    let name = full(PREFIX, name);
    put_hook();
    let builder = Builder::new().name(name.clone());
    builder.spawn_scoped(scope, move || run(&name, body, on_panic)).map_err(name_limits)
}

fn run<R>(name: &str, body: impl FnOnce() -> R, on_panic: impl FnOnce(&str)) -> Result<R, String> {
    // Called again, because the thread that started this one may have been unwinding.
    put_hook();
    let _mark = LibraryThreadMark::begin();
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => Ok(result),
        Err(panic) => {
            let words = words(panic);
            // Waiting calls are woken first, then the line is written.
            attempt(|| on_panic(&words));
            crate::say!("the library's thread {name} panicked; everything that it served fails: {words}");
            Err(words)
        }
    }
}

thread_local! {
    /// Whether this thread is one of the library, in its body.
    static IS_LIBRARY_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread as one of the library while it lives.
struct LibraryThreadMark;

impl LibraryThreadMark {
    fn begin() -> Self {
        IS_LIBRARY_THREAD.set(true);
        LibraryThreadMark
    }
}

impl Drop for LibraryThreadMark {
    fn drop(&mut self) {
        IS_LIBRARY_THREAD.set(false);
    }
}

/// Puts the hook, once in this process: see the module. Does nothing while this thread unwinds, because std panics then.
fn put_hook() {
    static ONCE: Once = Once::new();
    if std::thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(
            move |panic| if IS_LIBRARY_THREAD.get() { report(panic) } else { before(panic) },
        ));
    });
}

/// Reports a panic, in the hook, at once: a panic that cannot unwind has no later moment. It waits only for a write in progress.
#[cold]
fn report(panic: &PanicHookInfo<'_>) {
    let payload = panic.payload();
    let words = payload.downcast_ref::<&'static str>().copied();
    let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let (thread, process) = (std::thread::current(), std::process::id());
    let thread = thread.name().unwrap_or("without a name");
    let at = panic.location().map(|at| format!(" at {at}")).unwrap_or_default();
    let words = words.unwrap_or("without words");
    crate::os::say::stderr_line_at_once(format_args!(
        "udeck: process {process}: thread {thread} panicked{at}: {words}"
    ));
}

/// The words of a panic. A payload of unknown type is leaked, because its own drop may panic.
fn words(panic: Box<dyn Any + Send>) -> String {
    let panic = match panic.downcast::<String>() {
        Ok(words) => return *words,
        Err(panic) => panic,
    };
    match panic.downcast::<&'static str>() {
        Ok(words) => (*words).to_owned(),
        Err(panic) => {
            std::mem::forget(panic);
            "a panic without words".to_owned()
        }
    }
}

/// Calls `act`, and ignores a panic in it: for code that runs after a panic was reported, and may meet its remains. Returns
/// whether there was none.
pub fn attempt(act: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(act)).map_err(std::mem::forget).is_ok()
}

/// Caller of a user's closures: a panic in one is caught, and reported once.
#[derive(Debug)]
pub struct Callback {
    what: &'static str,
    reported: AtomicBool,
}

impl Callback {
    /// Makes a caller for the closures that `what` names in a sentence: `"the error callback"`.
    pub const fn new(what: &'static str) -> Self {
        Callback { what, reported: AtomicBool::new(false) }
    }

    /// Calls a closure. `None`: it panicked.
    pub fn call<R>(&self, closure: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(closure)) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.report(panic);
                None
            }
        }
    }

    #[cold]
    fn report(&self, panic: Box<dyn Any + Send>) {
        let words = words(panic);
        if !self.reported.swap(true, Ordering::Relaxed) {
            crate::say!("{} panicked, and is called again all the same (said once): {words}", self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_panic_is_told_and_joining_gives_its_words() {
        let (tell, told) = mpsc::channel();
        let thread = spawn("test", || panic!("no {}", "luck"), move |why| tell.send(why.to_owned()).unwrap());
        let joined: Result<(), String> = thread.unwrap().join().expect("the panic was caught");
        assert_eq!(joined, Err("no luck".to_owned()));
        assert_eq!(told.recv(), Ok("no luck".to_owned()));
    }

    #[test]
    fn an_orderly_end_is_no_panic() {
        let thread = spawn("test", || 7, |why| unreachable!("{why}"));
        assert_eq!(thread.unwrap().join().unwrap(), Ok(7));
    }

    /// A value that panics again when it is dropped.
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("when dropped");
        }
    }

    #[test]
    fn nothing_that_panics_afterwards_gets_out() {
        let thread = spawn("test", || std::panic::panic_any(Bomb), |_| std::panic::panic_any(Bomb));
        let joined: Result<(), String> = thread.unwrap().join().expect("the panics were caught");
        assert_eq!(joined, Err("a panic without words".to_owned()));
    }

    #[test]
    fn a_scoped_thread_is_told_of_likewise() {
        let told = parking_lot::Mutex::new(None);
        std::thread::scope(|scope| {
            spawn_scoped(scope, "test", || panic!("here"), |why| *told.lock() = Some(why.to_owned()))
                .unwrap();
        });
        assert_eq!(*told.lock(), Some("here".to_owned()));
    }

    #[test]
    fn a_callback_may_panic_and_is_called_again() {
        let callback = Callback::new("the test's callback");
        assert_eq!(callback.call(|| 1), Some(1));
        assert_eq!(callback.call(|| -> u8 { panic!("first") }), None);
        assert_eq!(callback.call(|| std::panic::panic_any(Bomb)), None);
        assert_eq!(callback.call(|| 2), Some(2));
    }

    /// Environment variable that is set in the process that a test starts.
    const CHILD: &str = "UDECK_TEST_PANICS";

    /// Starts this test again, as a process in which [`CHILD`] is set.
    fn child(name: &str) -> Command {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([&format!("os::thread::tests::{name}"), "--exact", "--nocapture"]);
        child.env(CHILD, "1").env_remove("RUST_BACKTRACE").stdout(Stdio::piped());
        child
    }

    #[test]
    fn a_panic_is_acted_on_although_nobody_reads_stderr() {
        if std::env::var_os(CHILD).is_some() {
            let thread = spawn("test", || panic!("nobody reads"), |_| println!("\nacted"));
            let _: Result<(), String> = thread.unwrap().join().unwrap();
            return;
        }
        let (reader, mut writer) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while writer.write(&[b'x'; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&writer, false).unwrap();
        let name = "a_panic_is_acted_on_although_nobody_reads_stderr";
        let mut child = child(name).stderr(writer).spawn().unwrap();
        let (tell, told) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).filter(|line| line == "acted").for_each(|line| _ = tell.send(line));
        });
        let acted = told.recv_timeout(Duration::from_secs(60));
        let _ = child.kill();
        child.wait().unwrap();
        drop(reader);
        assert_eq!(acted.as_deref(), Ok("acted"));
    }

    #[test]
    fn only_panics_of_the_librarys_threads_are_kept_from_the_hook_that_was_there() {
        if std::env::var_os(CHILD).is_some() {
            panic::set_hook(Box::new(|panic| println!("\nthe program's hook: {panic}")));
            let _ = spawn("test", || panic!("of ours"), |_| {}).map(JoinHandle::<Result<(), _>>::join);
            let _ = std::thread::spawn(|| panic!("of theirs")).join();
            return;
        }
        let name = "only_panics_of_the_librarys_threads_are_kept_from_the_hook_that_was_there";
        let output = child(name).stderr(Stdio::piped()).output().unwrap();
        let (said, erred) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("of theirs") && !said.contains("of ours"), "{said}");
        assert!(erred.contains("thread deck-test panicked at crates/sys/os/thread.rs:"), "{erred}");
        assert!(!erred.contains("of theirs"), "{erred}");
    }
}
