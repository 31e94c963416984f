//! A fault for tests: sends that would block.

use std::io;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// What the kernel refuses, as a test wants it.
#[derive(Default)]
pub struct SocketFault(Mutex<Fault>);

#[derive(Default)]
struct Fault {
    /// All of it.
    always: bool,
    /// After every so many calls, for that long; 0: never.
    every: u32,
    pause: Duration,
    calls: u32,
    until: Option<Instant>,
}

impl SocketFault {
    /// Refuses everything from now on, or nothing.
    pub fn block_all(&self, always: bool) {
        *self.0.lock() = Fault { always, ..Fault::default() };
    }

    /// Refuses for `pause` after each `every`th call.
    pub fn block_every(&self, every: u32, pause: Duration) {
        *self.0.lock() = Fault { every, pause, ..Fault::default() };
    }

    /// Whether the kernel takes what is given to it now.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: it does not.
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
