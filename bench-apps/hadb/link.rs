//! How messages travel: by mailboxes, by uDAPL's end points, or by UDP sockets alone. Servers and clients know only this.

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

/// A BLOB's bytes, where they lie.
#[derive(Clone, Debug)]
pub enum Blob {
    /// In message memory of this rank's own: it is sent from there, and read there by its receivers.
    Shared(SharedBuf<u8>),
    /// As it was received. It may lie in its sender's memory.
    Lent(Arc<Received<u8>>),
    /// Anywhere.
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

/// What a rank hears.
#[derive(Debug)]
pub enum Event {
    Message {
        from: usize,
        body: Body,
        blob: Option<Blob>,
    },
    /// This rank is dead, for certain: no more comes of it.
    Lost(usize),
    /// Nothing for as long as was waited.
    Idle,
}

/// A rank's connections with all others.
pub enum Link {
    Deck(Box<DeckLink>),
    Dat(Box<DatLink>),
    Bare(Box<BareLink>),
}

impl Link {
    /// To be called by all ranks. Waits for them.
    pub fn mailboxes(world: World) -> Result<Link> {
        Ok(Link::Deck(Box::new(DeckLink::connect(world)?)))
    }

    /// The same, with an end point for each other rank, on the world's NIC.
    pub fn end_points(world: World) -> Result<Link> {
        DatLink::connect(world).map(|link| Link::Dat(Box::new(link)))
    }

    /// The same, with a UDP socket for each other rank; `world` is used only to tell their ports.
    pub fn sockets(world: World) -> Result<Link> {
        BareLink::connect(world).map(|link| Link::Bare(Box::new(link)))
    }

    /// What is sent to the dead is lost; that they are dead, [`Link::receive`] says.
    pub fn send(&mut self, message: Outgoing<Blob>) -> Result {
        match self {
            Link::Deck(link) => link.send(message),
            Link::Dat(link) => link.send(message),
            Link::Bare(link) => link.send(message),
        }
    }

    /// The next event, after `limit` [`Event::Idle`].
    pub fn receive(&mut self, limit: Duration) -> Result<Event> {
        match self {
            Link::Deck(link) => link.receive(limit),
            Link::Dat(link) => link.receive(limit),
            Link::Bare(link) => link.receive(limit),
        }
    }

    /// A new BLOB, in memory from which it can be sent.
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

    /// The BLOB in memory of this rank's own, which no other's death takes away.
    pub fn keep(&self, blob: Blob) -> Result<Blob> {
        match blob {
            Blob::Lent(lent) => self.blob(lent.len(), |bytes| bytes.copy_from_slice(&lent)),
            own => Ok(own),
        }
    }

    /// Messages, and packets or datagrams, so far.
    pub fn usage(&self) -> Usage {
        match self {
            Link::Deck(link) => link.usage,
            Link::Dat(link) => link.usage,
            Link::Bare(link) => link.usage,
        }
    }

    /// What messages travel by, for the report: to the other server or client.
    pub fn describe(&self) -> String {
        match self {
            Link::Deck(link) => link.describe(),
            Link::Dat(link) => link.describe(),
            Link::Bare(_) => bare::DESCRIPTION.to_owned(),
        }
    }

    /// Delivers what was sent, and leaves the job; without the library's help not before the rank `last`.
    pub fn finish(self, last: Option<usize>) -> Result {
        match self {
            Link::Deck(link) => link.finish(),
            Link::Dat(link) => link.finish(last),
            Link::Bare(link) => link.finish(last),
        }
    }
}

/// Counts a message, unless it is the measurement's own.
fn count_sent(usage: &mut Usage, body: &Body) {
    usage.sent += u64::from(!body.is_control());
}

fn count_received(usage: &mut Usage, from: usize, body: &Body) {
    if let Some(count) = usage.of_servers.get_mut(from) {
        *count += u64::from(!body.is_control());
    }
}
