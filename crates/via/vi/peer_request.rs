//! Peer requests: connecting to a peer that asks at the same time.

use udeck_sys::Deadline;

use super::Vi;
use crate::attributes::{NetAddress, ViAttributes};
use crate::cq::{CqHandle, CqReservations};
use crate::error::Result;
use crate::peer::{NewConnection, Peering, Side};

impl Vi {
    /// Asks `remote` for a connection, while it asks us: both name the other's host and the same discriminator. Does not
    /// block; [`Vi::peer_done`] and [`Vi::peer_wait`] return the outcome, [`Vi::disconnect`] withdraws the request. There is
    /// at most one such request per discriminator and pair of NICs at a time.
    ///
    /// # Errors
    /// [`crate::Error::InvalidState`] unless idle; [`crate::Error::InvalidParameter`] (private data or names too long;
    /// another VI here waits for the same peer at the same discriminator already); [`crate::Error::Full`] when a completion
    /// queue has no entry free; the operating system's.
    pub fn peer_request(
        &mut self,
        remote: &NetAddress,
        send: &CqHandle,
        receive: &CqHandle,
        private_data: &[u8],
        deadline: Deadline,
    ) -> Result {
        self.require_idle("peer_request")?;
        self.nic().check()?;
        let hello = self.hello(private_data)?;
        let ViAttributes { context, level, peer, .. } = *self.attributes();
        let error_sink = self.nic().error_sink().clone();
        let side =
            Side { error_sink, hello, send: send.clone(), receive: receive.clone(), context, level, peer };
        let places = CqReservations::take(send, receive)?;
        self.pending(Peering::start(self.nic(), remote, side, deadline)?, places);
        Ok(())
    }

    /// Polls for the connection that [`Vi::peer_request`] asked for. Returns the peer's private data, or `None` while there
    /// is no connection.
    ///
    /// # Errors
    /// The VI is idle again: [`crate::Error::Timeout`], [`crate::Error::Rejected`], [`crate::Error::InvalidReliability`], the
    /// operating system's. [`crate::Error::InvalidState`] when no such request is in progress.
    pub fn peer_done(&mut self) -> Result<Option<Vec<u8>>> {
        self.peer_outcome(Deadline::now())
    }

    /// Waits for [`Vi::peer_done`], until the request's deadline.
    ///
    /// # Errors
    /// Those of [`Vi::peer_done`].
    pub fn peer_wait(&mut self) -> Result<Vec<u8>> {
        let deadline = self.peering("peer_wait")?.deadline;
        loop {
            if let Some(theirs) = self.peer_outcome(deadline)? {
                return Ok(theirs);
            }
        }
    }

    fn peer_outcome(&mut self, until: Deadline) -> Result<Option<Vec<u8>>> {
        match self.peering("peer_done")?.outcome(until) {
            None => Ok(None),
            Some(Ok(NewConnection { endpoint, theirs, reporter })) => {
                self.met(endpoint, reporter);
                Ok(Some(theirs.private_data))
            }
            Some(Err(error)) => {
                self.disconnect();
                Err(error)
            }
        }
    }
}
