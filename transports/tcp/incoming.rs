//! Incoming connection requests that wait for the program's answer.

use std::sync::Arc;

use udeck_session::Side;
use udeck_session::admission::PendingRequest;
use udeck_via::transport::{Hello, Incoming, Queues, ViEndpoint};
use udeck_via::{RejectKind, Rejection, Result};

use crate::completion_queue::take_slots;
use crate::core::Core;

/// A connection request. Dropping it rejects it.
pub struct IncomingRequest {
    core: Arc<Core>,
    pending: PendingRequest,
}

impl IncomingRequest {
    /// Gives a request to the listener of its discriminator. Without one, the requester is told that there is no match.
    pub fn deliver(core: &Arc<Core>, pending: PendingRequest) {
        match core.listeners.get(pending.discriminator()) {
            Some(listener) => (listener.lock())(Box::new(IncomingRequest { core: core.clone(), pending })),
            None => pending.reject(RejectKind::NoListener),
        }
    }
}

impl Incoming for IncomingRequest {
    fn hello(&self) -> &Hello {
        self.pending.hello()
    }

    fn peer(&self) -> Option<u32> {
        self.pending.peer()
    }

    fn accept(self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>> {
        let slots = take_slots(&self.core, &queues)?;
        let admitted = self.pending.accept(hello, &[])?;
        Ok(self.core.establish(admitted, hello, Side::Accepted, slots, &queues)?.0)
    }

    fn reject(self: Box<Self>, rejection: Rejection) {
        self.pending.reject(rejection);
    }
}
