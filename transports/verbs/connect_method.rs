//! How the two queue pairs of a connection are joined, when both sides have agreed on it: by what they have told each other, or
//! through rdma_cm. That is the only thing in which the two differ: what is before (the admission) and after (the link) is
//! the same.
//!
//! | | bootstrap | rdma_cm |
//! |---|---|---|
//! | on | InfiniBand, RoCE | all; iWARP has no other |
//! | needs | nothing | `librdmacm.so.1`, the kernel module `rdma_ucm`, an IP address of the device's |
//! | path (address, partition, packets' numbers) | as the settings say | as the kernel finds it |
//! | the side that accepts sends | when the out-of-band connection says *ready* | when the first frame has come: on iWARP it is the requester that speaks first (RFC 5044, 7.1.2) |

use std::net::SocketAddr;

use udeck_via::{Deadline, Error, Result};

use crate::cm::{Invitation, Manager};
use crate::core::Core;
use crate::ffi::CmLibrary;
use crate::hca::Hca;
use crate::qp_address::{self, QpAddress, UnreliableQpAddress};
use crate::queue::Queue;
use crate::settings::{Connect, Settings};

/// See the module.
#[derive(Debug)]
pub enum ConnectMethod {
    Bootstrap,
    Cm(Box<Manager>),
}

impl ConnectMethod {
    /// The method that is wanted, or that the device needs.
    ///
    /// # Errors
    /// In words: why rdma_cm cannot be used.
    pub fn open(settings: &Settings, hca: &Hca, bind: SocketAddr) -> std::result::Result<Self, String> {
        let through_cm = settings.connect == Connect::Cm || (hca.iwarp && settings.connect == Connect::Auto);
        if !through_cm {
            return Ok(ConnectMethod::Bootstrap);
        }
        let manager = Manager::open(CmLibrary::load()?, hca, bind)?;
        Ok(ConnectMethod::Cm(Box::new(manager)))
    }

    pub fn is_cm(&self) -> bool {
        matches!(self, ConnectMethod::Cm(_))
    }

    pub fn manager(&self) -> Option<&Manager> {
        match self {
            ConnectMethod::Bootstrap => None,
            ConnectMethod::Cm(manager) => Some(manager),
        }
    }
}

/// A setting that the device or the other settings rule out.
///
/// # Errors
/// [`Error::InvalidParameter`].
pub fn check(settings: &Settings) -> Result {
    if settings.connect == Connect::Cm && (settings.gid.is_some() || settings.pkey != 0) {
        let what = "DECK_VERBS_CONNECT=cm with DECK_VERBS_GID or DECK_VERBS_PKEY: rdma_cm finds both by the NIC's IP address";
        return Err(Error::InvalidParameter(what.into()));
    }
    Ok(())
}

impl Core {
    /// What the side that accepts does before it answers, and what it adds to its answer: its queue pair receives from then on,
    /// or will be joined when the peer comes to use the invitation.
    ///
    /// # Errors
    /// As [`Core::join`].
    pub fn expect(&self, number: u32, queue: &mut Queue, parameters: &[u8]) -> Result<Vec<u8>> {
        match &self.connect_method {
            ConnectMethod::Bootstrap => self.join(queue, parameters).map(|()| Vec::new()),
            ConnectMethod::Cm(manager) => {
                let (peer, unreliable) = self.peer(queue, parameters)?;
                self.join_unreliable(queue, &peer, unreliable)?;
                queue.note_peer(peer);
                Ok(manager.invite(number)?.encode().to_vec())
            }
        }
    }

    /// What the requester does when it was accepted: both queue pairs are joined then.
    ///
    /// # Errors
    /// As [`Core::join`]; [`Error::Timeout`].
    pub fn meet(&self, number: u32, queue: &mut Queue, parameters: &[u8], deadline: Deadline) -> Result {
        let ConnectMethod::Cm(manager) = &self.connect_method else { return self.join(queue, parameters) };
        let (parameters, invitation) =
            parameters.split_last_chunk::<{ Invitation::LEN }>().ok_or_else(|| {
                Error::Lost("the peer has accepted, but says nothing of where its rdma_cm listens".into())
            })?;
        let (peer, unreliable) = self.peer(queue, parameters)?;
        self.join_unreliable(queue, &peer, unreliable)?;
        queue.note_peer(peer);
        let invitation = Invitation::decode(invitation);
        manager.call(number, queue, (&self.hca, &self.settings), &invitation, deadline)
    }

    /// What the peer has told of its queue pair, and of the one beside it if there is one.
    ///
    /// # Errors
    /// [`Error::Lost`] when that makes no sense, or cannot be reached.
    pub fn peer(&self, queue: &Queue, parameters: &[u8]) -> Result<(QpAddress, Option<UnreliableQpAddress>)> {
        let nonsense = || Error::Lost("the peer's description of its queue pair makes no sense".into());
        let (peer, behind) = parameters.split_at_checked(qp_address::LEN).ok_or_else(nonsense)?;
        let peer = QpAddress::decode(peer).ok_or_else(nonsense)?;
        let unreliable = UnreliableQpAddress::decode(behind);
        if unreliable.is_some() != peer.unreliable
            || behind.len() != unreliable.map_or(0, |_| UnreliableQpAddress::LEN)
        {
            return Err(nonsense());
        }
        match queue.qp_address(&self.hca, &self.settings, self.connect_method.is_cm()).mismatch(&peer) {
            Some(why) => Err(Error::Lost(format!("verbs on {}: {why}", self.hca.name))),
            None => Ok((peer, unreliable)),
        }
    }
}
