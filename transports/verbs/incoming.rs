//! Incoming connection requests that wait for the program's answer.

use std::sync::Arc;

use udeck_session::admission::PendingRequest;
use udeck_via::transport::{Hello, Incoming, Queues, ViEndpoint};
use udeck_via::{RejectKind, Rejection, Result};

use crate::completion_queue::take_slots;
use crate::core::{AgreedConnection, Core};

/// A connection request. Dropping it rejects it.
pub struct IncomingRequest {
    core: Arc<Core>,
    pending: PendingRequest,
}

impl IncomingRequest {
    pub fn new(core: Arc<Core>, pending: PendingRequest) -> Self {
        IncomingRequest { core, pending }
    }
}

impl Incoming for IncomingRequest {
    fn hello(&self) -> &Hello {
        self.pending.hello()
    }

    fn peer(&self) -> Option<u32> {
        self.pending.peer()
    }

    /// Accepts the request. The queue pair is joined to the peer's before the peer learns of it (through rdma_cm:
    /// when the peer comes). It sends nothing before the peer has said that it is ready.
    fn accept(self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>> {
        let IncomingRequest { core, pending } = *self;
        let slots = take_slots(&core, &queues)?;
        let (number, mut queue) = core.queue(hello)?;
        queue.set_level(queues.level);
        let more = match core.expect(number, &mut queue, pending.parameters()) {
            Ok(more) => more,
            Err(error) => {
                pending.reject(Rejection::new(RejectKind::Failed, error.to_string()));
                return Err(error);
            }
        };
        let parameters = [core.parameters(&queue), more].concat();
        let made = pending.accept(hello, &parameters).and_then(|admitted| {
            core.establish(
                AgreedConnection { number, queue, admitted, ours: hello, requested: false },
                slots,
                &queues,
            )
        });
        if let (Err(_), Some(manager)) = (&made, core.connect_method.manager()) {
            manager.withdraw(number);
        }
        made
    }

    fn reject(self: Box<Self>, rejection: Rejection) {
        self.pending.reject(rejection);
    }
}
