//! Injected fault for tests: sends that would block.

use std::io;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The sends that are refused, as a test sets it.
#[derive(Default)]
pub struct SocketFault(Mutex<Fault>);

#[derive(Default)]
struct Fault {
    /// Every send is refused.
    always: bool,
    /// Number of calls between two pauses; 0: no pauses.
    every: u32,
    pause: Duration,
    calls: u32,
    until: Option<Instant>,
}

impl SocketFault {
    /// Refuses all sends from now on, or none.
    pub fn block_all(&self, always: bool) {
        *self.0.lock() = Fault { always, ..Fault::default() };
    }

    /// Refuses sends for `pause` after each `every`th call.
    pub fn block_every(&self, every: u32, pause: Duration) {
        *self.0.lock() = Fault { every, pause, ..Fault::default() };
    }

    /// Checks whether a send is accepted now.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if it is refused.
    pub fn check(&self) -> io::Result<()> {
        let mut refused = self.0.lock();
        let now = Instant::now();
        if refused.always || refused.until.is_some_and(|until| until > now) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        refused.calls += 1;
        if refused.every > 0 && refused.calls.is_multiple_of(refused.every) {
            refused.until = Some(now + refused.pause);
        }
        Ok(())
    }
}
