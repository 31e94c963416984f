//! An incoming connection request, at the process that is asked.

use std::sync::Arc;

use udeck_sys::segment::Mapping;
use udeck_via::transport::{Hello, Incoming, Queues, ViEndpoint};
use udeck_via::{Error, RejectKind, Rejection, Result};

use super::{ShmDevice, attach, establish};
use crate::connection::{Connection, Loss};
use crate::peer_socket::PeerSocket;
use crate::peer_socket_wire::{Datagram, Doorbells};

/// A request that waits for this process's answer.
pub(super) struct IncomingRequest {
    pub(super) device: Arc<ShmDevice>,
    pub(super) peer_socket: Arc<PeerSocket>,
    pub(super) id: u32,
    pub(super) doorbells: Doorbells,
    pub(super) hello: Hello,
    pub(super) control: Arc<Mapping>,
    pub(super) answered: bool,
}

impl IncomingRequest {
    pub(super) fn refuse(&mut self, rejection: Rejection) {
        self.answered = true;
        let refusal = Datagram::Refuse { id: self.id, rejection };
        if let Err(why) = self.peer_socket.answer(&refusal) {
            self.peer_socket.down(why, Loss::Unresponsive);
        }
    }
}

impl Incoming for IncomingRequest {
    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn peer(&self) -> Option<u32> {
        self.peer_socket.peer()
    }

    fn accept(mut self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>> {
        let (send, receive, doorbells) = attach(&self.device.board, queues)?;
        let (control, peer_socket) = (self.control.clone(), self.peer_socket.clone());
        let connection =
            Connection::new(control, 1, peer_socket, self.doorbells, &self.hello, queues.reporter);
        let endpoint =
            establish(&self.device, &connection, (send, receive), queues.context, hello.reliability);
        self.answered = true;
        // The peer socket may be down and forgotten. Then nobody would see the peer inside our windows, so the peer
        // must not learn of this connection. A peer socket that goes down from now on has this connection, and is
        // remembered.
        if let Some(why) = connection.lost() {
            return Err(Error::Lost(why.to_owned()));
        }
        let accept = Datagram::Accept { id: self.id, doorbells, hello: hello.clone() };
        self.peer_socket.answer(&accept).map_err(|why| {
            self.peer_socket.down(why.clone(), Loss::Unresponsive);
            why.into_error(self.peer_socket.pid)
        })?;
        Ok(endpoint)
    }

    fn reject(mut self: Box<Self>, rejection: Rejection) {
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
