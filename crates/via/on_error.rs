//! A NIC's callback for errors.

use crate::error::Result;
use crate::nic::Nic;
use crate::report::ErrorEvent;

impl Nic {
    /// Calls `callback` for each error that is found from now on and that no call returns to its maker; the former
    /// callback, if there was one, is called for what was found before, and dropped. Events come one at a time, in the
    /// order in which they were found, on a thread of the callback's own: it may block and call the library, and a
    /// panic in it is caught and costs the event. It is told **once** how a connection ended, if it ended by an error,
    /// whether or not the program looks at the VI; calls that find the same error return it all the same.
    ///
    /// The NIC stays open as long as its callback holds a clone of it.
    ///
    /// # Errors
    /// The operating system's, when there is no thread for it; the former callback stays.
    pub fn on_error(&self, callback: impl FnMut(&ErrorEvent) + Send + 'static) -> Result {
        self.alarm().set(callback)
    }

    /// Takes [`Nic::on_error`]'s callback away. It is still called for what was found before, then dropped; both may
    /// happen after this returns.
    pub fn clear_on_error(&self) {
        self.alarm().clear();
    }
}
