//! Listeners of a NIC, by discriminator.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use udeck_sys::thread::PREFIX;
use udeck_via::transport::OnRequest;
use udeck_via::{Error, Result};

/// A listener's handler. It may run any code, and take its time: call it with no other lock held.
pub type Listener = Arc<Mutex<OnRequest>>;

/// Listeners of a NIC. A NIC whose helper has failed has none any more.
pub struct Listeners {
    max_discriminator: usize,
    table: Mutex<HashMap<Vec<u8>, Listener>>,
    failure: OnceLock<String>,
}

impl Listeners {
    /// A table without listeners. `max_discriminator`: longest discriminator, in bytes.
    pub fn new(max_discriminator: usize) -> Self {
        Listeners { max_discriminator, table: Mutex::default(), failure: OnceLock::new() }
    }

    /// The listener at this discriminator, if there is one.
    pub fn get(&self, discriminator: &[u8]) -> Option<Listener> {
        self.table.lock().get(discriminator).cloned()
    }

    /// Checks that a discriminator of this length can have a listener, at this NIC or at another one of its kind.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`].
    pub fn check(&self, discriminator: &[u8]) -> Result {
        let (len, most) = (discriminator.len(), self.max_discriminator);
        if len <= most {
            return Ok(());
        }
        Err(Error::InvalidParameter(format!("a discriminator of {len} bytes, at most {most}")))
    }

    /// Lets `on_request` handle the requests for `discriminator` from now on.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] when the discriminator has a listener, or is too long; [`Error::Lost`] when the NIC has
    /// failed.
    pub fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result {
        self.check(discriminator)?;
        let mut table = self.table.lock();
        if let Some(why) = self.failure.get() {
            return Err(Error::Lost(why.clone()));
        }
        if table.contains_key(discriminator) {
            let name = String::from_utf8_lossy(discriminator);
            let what = format!("discriminator {name:?} has a listener already");
            return Err(Error::InvalidParameter(what));
        }
        table.insert(discriminator.to_vec(), Arc::new(Mutex::new(on_request)));
        Ok(())
    }

    /// Removes the listener at this discriminator.
    pub fn unlisten(&self, discriminator: &[u8]) {
        let listener = self.table.lock().remove(discriminator);
        drop(listener); // outside the lock: the drop may run the program's code
    }

    /// Removes all listeners.
    pub fn clear(&self) {
        let listeners = std::mem::take(&mut *self.table.lock());
        drop(listeners);
    }
}

impl Listeners {
    /// Removes all listeners for good, because the NIC's helper `thread` has panicked. Returns the cause in words, for the
    /// NIC's connections.
    pub fn fail(&self, thread: &str, why: &str) -> String {
        let words = format!("this NIC's thread {PREFIX}{thread} has panicked: {why}");
        let listeners = {
            let mut table = self.table.lock();
            // Set under the lock, so that a later listener is refused.
            let _ = self.failure.set(words.clone());
            std::mem::take(&mut *table)
        };
        drop(listeners);
        words
    }

    /// Why the NIC has failed, if it has.
    pub fn failure(&self) -> Option<&String> {
        self.failure.get()
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listeners({})", self.table.lock().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_listens_at_a_discriminator_of_its_bound() {
        let listeners = Listeners::new(4);
        let listen = |at: &[u8]| listeners.listen(at, Box::new(|_| {}));
        listen(b"four").unwrap();
        assert!(listen(b"fives").unwrap_err().to_string().contains("5 bytes, at most 4"));
        assert!(listen(b"four").unwrap_err().to_string().contains("already"));
        assert!(listeners.get(b"four").is_some() && listeners.get(b"fou").is_none());
        listeners.unlisten(b"four");
        assert!(listeners.get(b"four").is_none());
        listen(b"four").unwrap();
        listeners.clear();
        assert!(listeners.get(b"four").is_none());
        listen(b"four").unwrap();
        assert_eq!(listeners.fail("tcp-1", "oh"), "this NIC's thread deck-tcp-1 has panicked: oh");
        assert!(listeners.get(b"four").is_none());
        assert!(listen(b"four").unwrap_err().to_string().contains("has panicked: oh"));
    }
}
