//! A message on its way to a mailbox, by any protocol: the questions of a connection, passed on to the
//! protocol's file.
//!
//! All announced messages need memory of the receiver. While there is none, the announcement stays with its
//! connection, and so does everything posted behind it. Thus order is kept, and only as much piles up as the
//! sender's bounds allow. Entries behind the announcement *in the ring* may be read where the postbox runs
//! ahead (`rdma-write`, `copy`): they are further announcements, and the data of messages that were granted
//! before, whose memory may be what is waited for.

use udeck_via::{Error as ViaError, MemHandle, RemoteBuffer, fault};

use super::side::{RecvSide, RendezvousStatus, may_come};
use super::{Protocol, copy, rdma_write};
use crate::memory::accounting::{Grant, Memory};
use crate::recv::incast::Grants;
use crate::wire::{self, Kind, Malformed};
use crate::world_state::WorldState;

/// An announcement that has not been served yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Announcement {
    /// The postbox will write the message.
    RdmaWrite { len: usize },
    /// The postbox will send the message by fragments.
    Copy { len: usize, tag: u32 },
    /// The message can be read at `from`.
    RdmaRead { from: RemoteBuffer, tag: u32 },
    /// The postbox will send the message on the data VI of pair `pair`.
    Handshake { len: usize, pair: u32 },
}

impl Announcement {
    pub fn decode(kind: Kind, part: u32, rest: &[u8], tag: u32) -> Result<Self, Malformed> {
        Ok(match kind {
            Kind::AskWrite => Announcement::RdmaWrite { len: wire::decode_length(rest)? },
            Kind::AskCopy => Announcement::Copy { len: wire::decode_length(rest)?, tag },
            Kind::AskRead => {
                let from =
                    RemoteBuffer { handle: MemHandle(part), offset: 0, len: wire::decode_length(rest)? };
                Announcement::RdmaRead { from, tag }
            }
            Kind::Request => Announcement::Handshake { len: tag as usize, pair: part },
            _ => return Err(Malformed),
        })
    }

    /// Length of the message in bytes.
    pub fn len(self) -> usize {
        match self {
            Announcement::RdmaRead { from, .. } => from.len,
            Announcement::RdmaWrite { len }
            | Announcement::Copy { len, .. }
            | Announcement::Handshake { len, .. } => len,
        }
    }

    /// Protocol of the message, and its length in bytes.
    pub fn described(self) -> (Protocol, usize) {
        let protocol = match self {
            Announcement::RdmaWrite { .. } => Protocol::RdmaWrite,
            Announcement::Copy { .. } => Protocol::Copy,
            Announcement::RdmaRead { .. } => Protocol::RdmaRead,
            Announcement::Handshake { .. } => Protocol::Handshake,
        };
        (protocol, self.len())
    }

    /// The memory that the message needs.
    pub fn memory(self) -> Memory {
        match self {
            Announcement::RdmaWrite { .. } => Memory::Landing,
            _ => Memory::Outbox,
        }
    }

    /// Whether the ring is not read until the announcement has been served (head-of-line blocking).
    pub fn blocks_ring(self) -> bool {
        matches!(self, Announcement::RdmaRead { .. } | Announcement::Handshake { .. })
    }

    /// The shortage of memory that prevents serving the announcement now, if any.
    pub fn shortage(self, side: &RecvSide, world: &WorldState) -> Option<ViaError> {
        match self {
            Announcement::RdmaWrite { len } => rdma_write::shortage(len, side, world),
            other => world.allocate(other.len(), udeck_via::mem::Fill::Keep).err(),
        }
    }
}

/// An announced message that the mailbox has memory for.
pub(crate) enum Incoming {
    RdmaWrite(rdma_write::WriteReceive),
    Copy(copy::CopyReceive),
}

/// Allocates memory for a message that the postbox will write, or send by fragments, and answers. `Some`: the
/// message may come now. `granted` is `None` if no memory could hold it.
pub(crate) fn prepare(
    announcement: Announcement,
    granted: Option<Grant>,
    side: &mut RecvSide,
    world: &WorldState,
    grants: &mut Grants,
) -> Result<(RendezvousStatus, Option<(Incoming, Grant)>), Malformed> {
    let len = announcement.len();
    let (kind, prepared) = match announcement {
        Announcement::Copy { tag, .. } => {
            let prepared = copy::prepare(len, tag, world);
            (Kind::AskCopy, prepared.map(|(incoming, fragments)| (Incoming::Copy(incoming), fragments)))
        }
        _ => {
            let prepared = rdma_write::prepare(len, side, world);
            (Kind::AskWrite, prepared.map(|(incoming, handle)| (Incoming::RdmaWrite(incoming), handle)))
        }
    };
    let (incoming, part) = match prepared {
        Ok(prepared) => prepared,
        Err(error) if may_come(&error) => return Ok((RendezvousStatus::Deferred, None)),
        Err(error) => return side.refuse(kind, 0, &error).map(|served| (served, None)),
    };
    let delay = grants.delay(len, side);
    side.answer(delay, Kind::Ready, part, &[])?;
    fault::point("announce.answered");
    Ok((RendezvousStatus::Answered, granted.map(|granted| (incoming, granted))))
}
