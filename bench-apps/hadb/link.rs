//! Links that carry messages: by mailboxes, by uDAPL's end points, or by UDP sockets alone. Servers and clients know only
//! this interface.

mod bare;
mod dat;
mod deck;
mod window;

use crate::failure::Result;
use crate::message::{Body, Outgoing, Usage};
use bare::BareLink;
use dat::DatLink;
use deck::DeckLink;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use udeck::{Received, SharedBuf, World};

/// Bytes of a BLOB, in place.
#[derive(Clone, Debug)]
pub enum Blob {
    /// Message memory of this rank: the BLOB is sent from there, and receivers read it there.
    Shared(SharedBuf<u8>),
    /// A received message. It may lie in the sender's memory.
    Lent(Arc<Received<u8>>),
    /// Ordinary memory.
    Bytes(Arc<Vec<u8>>),
}

impl Deref for Blob {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Blob::Shared(bytes) => bytes,
            Blob::Lent(bytes) => bytes,
            Blob::Bytes(bytes) => bytes,
        }
    }
}

/// An event at a rank.
#[derive(Debug)]
pub enum Event {
    Message {
        from: usize,
        body: Body,
        blob: Option<Blob>,
    },
    /// This rank is certainly dead: no more messages of it will come.
    Lost(usize),
    /// Nothing happened within the time limit.
    Idle,
}

/// Connections of a rank with all others.
pub enum Link {
    Deck(Box<DeckLink>),
    Dat(Box<DatLink>),
    Bare(Box<BareLink>),
}

impl Link {
    /// Makes a link of mailboxes. All ranks must call it; it waits for them.
    pub fn mailboxes(world: World) -> Result<Link> {
        Ok(Link::Deck(Box::new(DeckLink::connect(world)?)))
    }

    /// Makes a link with a uDAPL end point for each other rank, on the world's NIC. All ranks must call it; it
    /// waits for them.
    pub fn end_points(world: World) -> Result<Link> {
        DatLink::connect(world).map(|link| Link::Dat(Box::new(link)))
    }

    /// Makes a link with a UDP socket for each other rank; `world` only exchanges their ports. All ranks must
    /// call it; it waits for them.
    pub fn sockets(world: World) -> Result<Link> {
        BareLink::connect(world).map(|link| Link::Bare(Box::new(link)))
    }

    /// Sends a message. A message to a dead rank is lost; [`Link::receive`] reports the death.
    pub fn send(&mut self, message: Outgoing<Blob>) -> Result {
        match self {
            Link::Deck(link) => link.send(message),
            Link::Dat(link) => link.send(message),
            Link::Bare(link) => link.send(message),
        }
    }

    /// Returns the next event, or [`Event::Idle`] after `limit`.
    pub fn receive(&mut self, limit: Duration) -> Result<Event> {
        match self {
            Link::Deck(link) => link.receive(limit),
            Link::Dat(link) => link.receive(limit),
            Link::Bare(link) => link.receive(limit),
        }
    }

    /// Makes a BLOB, in memory from which it can be sent.
    pub fn blob(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<Blob> {
        match self {
            Link::Deck(link) => {
                let mut bytes = link.world().buf_reused::<u8>(len)?;
                fill(&mut bytes);
                Ok(Blob::Shared(bytes.share()))
            }
            Link::Dat(_) | Link::Bare(_) => {
                let mut bytes = vec![0; len];
                fill(&mut bytes);
                Ok(Blob::Bytes(Arc::new(bytes)))
            }
        }
    }

    /// Copies the BLOB to memory of this rank, if another rank's death could take its memory away.
    pub fn keep(&self, blob: Blob) -> Result<Blob> {
        match blob {
            Blob::Lent(lent) => self.blob(lent.len(), |bytes| bytes.copy_from_slice(&lent)),
            own => Ok(own),
        }
    }

    /// Messages, and packets or datagrams, up to now.
    pub fn usage(&self) -> Usage {
        match self {
            Link::Deck(link) => link.usage,
            Link::Dat(link) => link.usage,
            Link::Bare(link) => link.usage,
        }
    }

    /// Description of the transport to the other server or client, for the report.
    pub fn describe(&self) -> String {
        match self {
            Link::Deck(link) => link.describe(),
            Link::Dat(link) => link.describe(),
            Link::Bare(_) => bare::DESCRIPTION.to_owned(),
        }
    }

    /// Delivers sent messages and leaves the job. Links without the library's help leave after the rank `last`.
    pub fn finish(self, last: Option<usize>) -> Result {
        match self {
            Link::Deck(link) => link.finish(),
            Link::Dat(link) => link.finish(last),
            Link::Bare(link) => link.finish(last),
        }
    }
}

/// Counts a sent message, except the measurement's own.
fn count_sent(usage: &mut Usage, body: &Body) {
    usage.sent += u64::from(!body.is_control());
}

fn count_received(usage: &mut Usage, from: usize, body: &Body) {
    if let Some(count) = usage.of_servers.get_mut(from) {
        *count += u64::from(!body.is_control());
    }
}
