//! Shared receive queue: receive descriptors that several VIs take from (uDAPL's SRQ).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::descriptor::Descriptor;
use crate::error::{Error, Result};
use crate::mem::Ptag;
use crate::nic::Nic;

/// A queue of receive descriptors for any number of VIs ([`crate::Vi::share_receives`]): a program with a thousand
/// connections posts as many descriptors as messages come at a time, not a thousand times as many as come on one connection.
///
/// A VI on which a message comes takes the oldest descriptor, and reports it ([`crate::Vi::receive_done`]). A message that
/// finds none is an error of its VI, as with a queue of its own. The end of a VI flushes nothing here: unused descriptors
/// wait for the other VIs, or for [`SharedReceives::take_back`].
///
/// A cheap handle: clones are the same queue. It may be used from any thread, and takes a lock, uncontended unless VIs of
/// several threads share it.
#[derive(Clone)]
pub struct SharedReceives {
    inner: Arc<PostedReceives>,
}

struct PostedReceives {
    nic: Nic,
    ptag: Ptag,
    bound: usize,
    posted: Mutex<VecDeque<Descriptor>>,
}

impl SharedReceives {
    /// An empty queue for up to `bound` descriptors, whose memory carries `ptag`, as do the VIs that share it.
    pub fn new(nic: &Nic, ptag: Ptag, bound: usize) -> Self {
        let inner = PostedReceives { nic: nic.clone(), ptag, bound, posted: Mutex::default() };
        SharedReceives { inner: Arc::new(inner) }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// The descriptor comes back with [`Error::InvalidPtag`], [`Error::InvalidParameter`] (too many segments) or
    /// [`Error::Full`].
    pub fn post(&self, descriptor: Descriptor) -> Result<(), (Error, Descriptor)> {
        if let Err(error) = descriptor.check_tags(self.inner.ptag) {
            return Err((error, descriptor));
        }
        let (segments, most) = (descriptor.segments().len(), self.inner.nic.attributes().max_segments);
        if segments > most {
            let what = format!("{segments} segments in a descriptor, at most {most}");
            return Err((Error::InvalidParameter(what), descriptor));
        }
        let mut posted = self.inner.posted.lock();
        if posted.len() == self.inner.bound {
            let bound = format!("{} descriptors", self.inner.bound);
            return Err((Error::Full { what: "the shared receive queue", bound: bound.into() }, descriptor));
        }
        posted.push_back(descriptor);
        Ok(())
    }

    /// Number of descriptors that no message has taken yet.
    pub fn len(&self) -> usize {
        self.inner.posted.lock().len()
    }

    /// Whether the next message finds no descriptor.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes back the oldest descriptor, unused.
    pub fn take_back(&self) -> Option<Descriptor> {
        self.inner.posted.lock().pop_front()
    }

    /// Checks that a VI of `nic` with the tag `ptag` may take from this queue.
    pub(crate) fn admit(&self, nic: &Nic, ptag: Ptag) -> Result {
        if !Arc::ptr_eq(self.inner.nic.device(), nic.device()) {
            return Err(Error::InvalidParameter("the shared receive queue belongs to another NIC".into()));
        }
        if self.inner.ptag == ptag { Ok(()) } else { Err(Error::InvalidPtag) }
    }
}

impl fmt::Debug for SharedReceives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedReceives({} of {} descriptors)", self.len(), self.inner.bound)
    }
}
