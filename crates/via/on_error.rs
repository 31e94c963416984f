//! Error callback of a NIC.

use crate::error::Result;
use crate::nic::Nic;
use crate::report::ErrorEvent;

impl Nic {
    /// Calls `callback` for each later error that no call returns to its maker. The former callback, if there was one, is
    /// called for earlier errors, and dropped. Events come one at a time, in the order in which they were found, on a thread
    /// of the callback's own: the callback may block and call the library, and a panic in it is caught and costs the event.
    /// It is told **once** how a connection ended, if it ended by an error, whether or not the program polls the VI; calls
    /// that find the same error return it all the same.
    ///
    /// The NIC stays open as long as its callback holds a clone of it.
    ///
    /// # Errors
    /// [`crate::Error::Os`] when there is no thread for the callback; the former callback stays.
    pub fn on_error(&self, callback: impl FnMut(&ErrorEvent) + Send + 'static) -> Result {
        self.error_sink().set(callback)
    }

    /// Removes [`Nic::on_error`]'s callback. It is still called for errors that were found before, then dropped; both may
    /// happen after this returns.
    pub fn clear_on_error(&self) {
        self.error_sink().clear();
    }
}
