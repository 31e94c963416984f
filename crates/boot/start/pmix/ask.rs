//! Calls that may never return: each has a thread of its own, and a deadline.
//!
//! PMIx's calls wait for the launcher's daemon, however long it hangs. A thread owns all memory that its call
//! reads and writes: it can be left behind when the deadline has passed. A call that returns leaves no thread
//! behind.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use udeck_sys::{Deadline, thread};

/// Reasons why there is no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The call goes on, on its thread.
    Late(Duration),
    /// The call's thread could not be started, or it panicked; the reason in words.
    Failed(String),
}

/// Runs `call`, and waits for its result until the deadline.
pub(super) fn ask<T: Send + 'static>(
    until: Deadline,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoAnswer> {
    let waited = until.remaining();
    let (tell, told) = mpsc::channel();
    // A panic drops `tell`, which ends the wait.
    let thread = thread::spawn("pmix", move || drop(tell.send(call())), |_| {});
    let thread = thread.map_err(|error| NoAnswer::Failed(format!("no thread can be started: {error}")))?;
    loop {
        match told.recv_timeout(until.remaining()) {
            Ok(answer) => {
                // The thread has nothing left to do. Without the join a program could end, and fork, while the
                // thread is still ending.
                let _ = thread.join();
                return Ok(answer);
            }
            Err(RecvTimeoutError::Disconnected) => {
                let words = thread.join().map_or_else(|_| None, Result::err);
                return Err(NoAnswer::Failed(
                    words.unwrap_or_else(|| "the call ended without an answer".into()),
                ));
            }
            // The job's clock may have stood meanwhile.
            Err(RecvTimeoutError::Timeout) if until.passed() => return Err(NoAnswer::Late(waited)),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
