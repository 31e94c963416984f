//! The library's own threads, and the callbacks of users that they run.
//!
//! A thread of the library serves calls that wait. If it panicked and nothing else happened, they would wait for ever, or
//! until a deadline that says nothing of the reason. So every such thread is started here: a panic in it is caught,
//! `on_panic` marks what the thread served as failed and wakes who waits for it, and one line on stderr says so.
//!
//! What a user gave us to call may panic, too, and that is no failure of ours: it is called through a [`Callback`], which
//! catches the panic, says so once, and lets the thread go on.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// Starts a thread of the library. If `body` panics, `on_panic` is called, on the thread, with the panic's words, and
/// joining gives these words, too.
///
/// `on_panic` has to see to it that nobody waits for this thread any more. It must not wait itself, and what it locks must
/// be free after a panic: `parking_lot`'s locks are.
///
/// # Errors
/// The kernel's: no threads left. Neither of the two was called then.
pub fn spawn<R: Send + 'static>(
    name: impl Into<String>,
    body: impl FnOnce() -> R + Send + 'static,
    on_panic: impl FnOnce(&str) + Send + 'static,
) -> io::Result<JoinHandle<Result<R, String>>> {
    let name = name.into();
    Builder::new().name(name.clone()).spawn(move || run(&name, body, on_panic))
}

/// As [`spawn`], in a scope.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_scoped<'scope, R: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &'static str,
    body: impl FnOnce() -> R + Send + 'scope,
    on_panic: impl FnOnce(&str) + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, Result<R, String>>> {
    Builder::new().name(name.into()).spawn_scoped(scope, move || run(name, body, on_panic))
}

fn run<R>(name: &str, body: impl FnOnce() -> R, on_panic: impl FnOnce(&str)) -> Result<R, String> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => Ok(result),
        Err(panic) => {
            let words = words(panic);
            // First what others wait for, then the words about it.
            attempt(|| on_panic(&words));
            crate::say!("the library's thread {name} panicked, and what it served fails: {words}");
            Err(words)
        }
    }
}

/// What a panic said. A payload's own drop may panic, so that one of unknown type is kept.
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

/// Calls `act`, and leaves a panic in it at that: for what comes after a panic has been told of, and may meet what that has
/// left behind. Whether there was none.
pub fn attempt(act: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(act)).map_err(std::mem::forget).is_ok()
}

/// The place where closures of a user are called: a panic in one is caught, and said once.
#[derive(Debug)]
pub struct Callback {
    what: &'static str,
    told: AtomicBool,
}

impl Callback {
    /// For the closures that `what` names in a sentence: `"the error callback"`.
    pub const fn new(what: &'static str) -> Self {
        Callback { what, told: AtomicBool::new(false) }
    }

    /// Calls one. `None`: it panicked.
    pub fn call<R>(&self, closure: impl FnOnce() -> R) -> Option<R> {
        match catch_unwind(AssertUnwindSafe(closure)) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.tell(panic);
                None
            }
        }
    }

    #[cold]
    fn tell(&self, panic: Box<dyn Any + Send>) {
        let words = words(panic);
        if !self.told.swap(true, Ordering::Relaxed) {
            crate::say!("{} panicked, and is called again all the same (said once): {words}", self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

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

    /// Panics again when it is dropped.
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
}
