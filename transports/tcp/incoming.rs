//! A request that waits for its answer.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{SendFlags, send};
use udeck_via::Result;
use udeck_via::transport::{Hello, Incoming, Port, Queues};
use udeck_wired::Side;

use crate::core::{Core, Made};
use crate::station::Seats;
use crate::wire::Answer;

/// See the module. Dropped, it hangs up, after a word if nobody has answered.
pub struct IncomingRequest {
    core: Arc<Core>,
    /// Until it was answered.
    socket: Option<OwnedFd>,
    from: SocketAddr,
    hello: Hello,
}

impl IncomingRequest {
    pub fn new(core: Arc<Core>, socket: OwnedFd, from: SocketAddr, hello: Hello) -> Self {
        IncomingRequest { core, socket: Some(socket), from, hello }
    }

    pub fn refuse(mut self, answer: &Answer) {
        self.answer(answer);
    }

    /// Gives the answer; the socket, for a connection.
    fn answer(&mut self, answer: &Answer) -> Option<OwnedFd> {
        let socket = self.socket.take()?;
        // It is the first that is written here, save the hand-shake: there is room. A requester that is gone is found to
        // be, by whoever reads; one that was refused does not matter.
        let _ = send(&socket, &answer.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        Some(socket)
    }
}

impl Incoming for IncomingRequest {
    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn accept(mut self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn Port>> {
        let seats = Seats::take(&self.core, &queues)?;
        let socket = self
            .answer(&Answer::Accepted(hello.clone()))
            .ok_or_else(|| udeck_via::Error::Lost("the request was answered already".into()))?;
        let made = Made { socket, peer: self.from, ours: hello, theirs: &self.hello, side: Side::Accepted };
        self.core.establish(made, seats, &queues)
    }

    fn reject(mut self: Box<Self>, reason: &str) {
        self.answer(&Answer::Rejected(reason.to_owned()));
    }

    fn reject_reliability(mut self: Box<Self>) {
        self.answer(&Answer::Reliability);
    }
}

impl Drop for IncomingRequest {
    fn drop(&mut self) {
        self.answer(&Answer::Rejected("the request was dropped unanswered".into()));
    }
}
