//! Connection requests of peers: each waits in a queue for the helper, and then for the listener's answer.

use std::collections::VecDeque;
use std::sync::Arc;

use quinn_proto::StreamId;
use udeck_session::Side;
use udeck_session::admission::wire::{Answer, Request};
use udeck_via::transport::{Hello, Incoming, Queues, ViEndpoint};
use udeck_via::{Error, RejectKind, Rejection, Result};

use crate::completion_queue::take_slots;
use crate::core::Core;
use crate::peer::Peer;

/// Upper bound of the requests that the helper delivers before it reads the socket again.
pub const MAX_REQUESTS: usize = 1024;

/// Requests that wait for the helper. The limit of streams bounds the number of each peer's requests.
pub type Requests = VecDeque<Box<IncomingRequest>>;

/// A connection request. Dropping it unanswered refuses it.
pub struct IncomingRequest {
    core: Arc<Core>,
    peer: Arc<Peer>,
    stream: StreamId,
    /// Rank of the requester.
    rank: Option<u32>,
    request: Request,
    answered: bool,
}

impl IncomingRequest {
    pub fn new(
        core: Arc<Core>,
        peer: Arc<Peer>,
        stream: StreamId,
        rank: Option<u32>,
        request: Request,
    ) -> Self {
        IncomingRequest { core, peer, stream, rank, request, answered: false }
    }

    /// Gives the request to the listener of its discriminator.
    pub fn deliver(self: Box<Self>) {
        match self.core.listeners.get(&self.request.discriminator) {
            Some(listener) => (listener.lock())(self),
            None => self.reject(RejectKind::NoListener.into()),
        }
    }

    fn refuse(&self, rejection: Rejection) {
        self.peer.with(|state| self.peer.send_answer(state, self.stream, &Answer::Refused(rejection)));
    }
}

impl Incoming for IncomingRequest {
    fn hello(&self) -> &Hello {
        &self.request.hello
    }

    fn peer(&self) -> Option<u32> {
        self.rank
    }

    fn accept(mut self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>> {
        let slots = take_slots(&self.core, &queues)?;
        self.answered = true;
        let (core, peer) = (self.core.clone(), self.peer.clone());
        let accepted = Answer::Accepted(hello.clone(), Vec::new());
        let link = peer.with(|state| {
            peer.send_answer(state, self.stream, &accepted).then(|| {
                let link = core.new_link(&peer, self.stream, (hello, &self.request.hello), Side::Accepted);
                peer.attach(state, self.stream, (&link, hello.reliability), None);
                link
            })
        });
        match link {
            Some(link) => Ok(core.vi_endpoint(link, slots, &queues)),
            None => Err(Error::Lost("the requester has given up".into())),
        }
    }

    fn reject(mut self: Box<Self>, rejection: Rejection) {
        self.answered = true;
        self.refuse(rejection);
    }
}

impl Drop for IncomingRequest {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        if !self.answered {
            self.refuse(RejectKind::Unanswered.into());
        }
    }
}
