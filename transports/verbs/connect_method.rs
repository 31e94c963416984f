//! Connect methods: the two queue pairs of a connection are joined by exchanged parameters, or through rdma_cm. The
//! methods differ in nothing else: the admission before and the link after are the same.
//!
//! | | bootstrap | rdma_cm |
//! |---|---|---|
//! | on | InfiniBand, RoCE | all; iWARP has no other |
//! | needs | nothing | `librdmacm.so.1`, the kernel module `rdma_ucm`, an IP address of the device |
//! | path (address, partition, packet sequence numbers) | from the settings | found by the kernel |
//! | the accepting side sends | when the out-of-band connection says *ready* | when the first frame has come: on iWARP the requester speaks first (RFC 5044, 7.1.2) |

use std::net::SocketAddr;

use udeck_via::{Deadline, Error, Result};

use crate::cm::{Invitation, Manager};
use crate::core::Core;
use crate::ffi::CmLibrary;
use crate::hca::Hca;
use crate::qp_address::{self, QpAddress, UnreliableQpAddress};
use crate::queue::Queue;
use crate::settings::{Connect, Settings};

/// Method by which a NIC joins queue pairs.
#[derive(Debug)]
pub enum ConnectMethod {
    Bootstrap,
    Cm(Box<Manager>),
}

impl ConnectMethod {
    /// Returns the method that the settings want or the device needs.
    ///
    /// # Errors
    /// Reason as text why rdma_cm cannot be used.
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

/// Checks for settings that the device or other settings rule out.
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
    /// Prepares the accepting side before its answer, and returns the bytes that it adds to the answer. From then on
    /// its queue pair receives, or will be joined when the peer uses the invitation.
    ///
    /// # Errors
    /// The errors of [`Core::join`].
    pub fn expect(&self, number: u32, queue: &mut Queue, parameters: &[u8]) -> Result<Vec<u8>> {
        match &self.connect_method {
            ConnectMethod::Bootstrap => self.join(queue, parameters).map(|()| Vec::new()),
            ConnectMethod::Cm(manager) => {
                let (peer, unreliable) = self.peer(queue, parameters)?;
                self.join_unreliable(queue, &peer, unreliable)?;
                queue.note_peer(peer);
                Ok(manager.make_invitation(number)?.encode().to_vec())
            }
        }
    }

    /// Joins both queue pairs, on the requesting side, after its request was accepted.
    ///
    /// # Errors
    /// The errors of [`Core::join`]; [`Error::Timeout`].
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

    /// Decodes the address of the peer's queue pair, and of its unreliable one if there is one.
    ///
    /// # Errors
    /// [`Error::Lost`] when the bytes are invalid, or the address cannot be reached.
    pub fn peer(&self, queue: &Queue, parameters: &[u8]) -> Result<(QpAddress, Option<UnreliableQpAddress>)> {
        let undecodable = || Error::Lost("the peer's description of its queue pair cannot be decoded".into());
        let (peer, behind) = parameters.split_at_checked(qp_address::LEN).ok_or_else(undecodable)?;
        let peer = QpAddress::decode(peer).ok_or_else(undecodable)?;
        let unreliable = UnreliableQpAddress::decode(behind);
        if unreliable.is_some() != peer.unreliable
            || behind.len() != unreliable.map_or(0, |_| UnreliableQpAddress::LEN)
        {
            return Err(undecodable());
        }
        match queue.qp_address(&self.hca, &self.settings, self.connect_method.is_cm()).mismatch(&peer) {
            Some(why) => Err(Error::Lost(format!("verbs on {}: {why}", self.hca.name))),
            None => Ok((peer, unreliable)),
        }
    }
}
