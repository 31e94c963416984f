//! Links that carry messages: by mailboxes, by uDAPL's end points, or by UDP sockets alone; or by UDP sockets with clients, and
//! by the library between servers. Servers and clients know only this interface.

mod bare;
mod dat;
mod deck;
mod split;
mod window;

use crate::failure::Result;
use crate::message::{Body, Outgoing, Usage};
use crate::options::{LinkKind, Links};
use crate::ranks::Servers;
use bare::BareLink;
use dat::DatLink;
use deck::DeckLink;
use split::SplitLink;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use udeck::{Error, Received, SharedBuf, World};

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

/// Pairs of ranks that a carrier connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pairs {
    All,
    /// Pairs with a client.
    OfClients(Servers),
    /// Pairs of servers, or spares.
    OfNodes(Servers),
}

impl Pairs {
    fn has(self, one: usize, other: usize) -> bool {
        one != other
            && match self {
                Pairs::All => true,
                Pairs::OfClients(servers) => !(servers.has(one) && servers.has(other)),
                Pairs::OfNodes(servers) => servers.has(one) && servers.has(other),
            }
    }
}

/// Connections of a rank with all others.
pub struct Link {
    carrier: Carrier,
    description: String,
    // The world is dropped after all that uses it.
    world: Rc<World>,
}

enum Carrier {
    Deck(Box<DeckLink>),
    Dat(Box<DatLink>),
    Bare(Box<BareLink>),
    Split(Box<SplitLink>),
}

impl Link {
    /// Connects this rank with all others. All ranks must call it; it waits for them.
    pub fn connect(world: World, links: Links, servers: Servers) -> Result<Link> {
        let world = Rc::new(world);
        let (carrier, description) = if links.clients == links.nodes {
            let all = Carrier::connect(&world, links.nodes, Pairs::All)?;
            let description = all.describe();
            (all, description)
        } else {
            split::connect(&world, links, servers)?
        };
        Ok(Link { carrier, description, world })
    }

    /// Description of the transports, for the report.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Sends a message. A message to a dead rank is lost; [`Link::receive`] reports the death.
    pub fn send(&mut self, message: Outgoing<Blob>) -> Result {
        self.carrier.send(message)
    }

    /// Returns the next event, or [`Event::Idle`] after `limit`.
    pub fn receive(&mut self, limit: Duration) -> Result<Event> {
        self.carrier.receive(limit)
    }

    /// Makes a BLOB, in memory from which it can be sent.
    pub fn blob(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<Blob> {
        if self.carrier.has_mailboxes() {
            let mut bytes = self.world.buf_reused::<u8>(len)?;
            fill(&mut bytes);
            return Ok(Blob::Shared(bytes.share()));
        }
        let mut bytes = vec![0; len];
        fill(&mut bytes);
        Ok(Blob::Bytes(Arc::new(bytes)))
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
        self.carrier.usage()
    }

    /// Delivers sent messages and leaves the job. Links without the library's help leave after the rank `last`.
    pub fn finish(self, last: Option<usize>) -> Result {
        let Link { carrier, world, .. } = self;
        let tolerates_loss = carrier.tolerates_loss();
        carrier.finish(last)?;
        // The carrier has dropped its share.
        match Rc::into_inner(world).map_or(Ok(()), World::finish) {
            // Messages that the dead did not read are no failure of the run.
            Err(Error::PeerLost { .. } | Error::Undelivered { .. } | Error::Multiple(_))
                if tolerates_loss =>
            {
                Ok(())
            }
            other => Ok(other?),
        }
    }
}

impl Carrier {
    fn connect(world: &Rc<World>, kind: LinkKind, pairs: Pairs) -> Result<Carrier> {
        Ok(match kind {
            LinkKind::Mailboxes => Carrier::Deck(Box::new(DeckLink::connect(world, pairs)?)),
            LinkKind::Dat => Carrier::Dat(Box::new(DatLink::connect(world, pairs)?)),
            LinkKind::Bare => Carrier::Bare(Box::new(BareLink::connect(world, pairs)?)),
        })
    }

    fn send(&mut self, message: Outgoing<Blob>) -> Result {
        match self {
            Carrier::Deck(link) => link.send(message),
            Carrier::Dat(link) => link.send(message),
            Carrier::Bare(link) => link.send(message),
            Carrier::Split(link) => link.send(message),
        }
    }

    fn receive(&mut self, limit: Duration) -> Result<Event> {
        match self {
            Carrier::Deck(link) => link.receive(limit),
            Carrier::Dat(link) => link.receive(limit),
            Carrier::Bare(link) => link.receive(limit),
            Carrier::Split(link) => link.receive(limit),
        }
    }

    /// Whether a BLOB is sent in place from message memory.
    fn has_mailboxes(&self) -> bool {
        match self {
            Carrier::Deck(_) => true,
            Carrier::Dat(_) | Carrier::Bare(_) => false,
            Carrier::Split(link) => link.nodes.has_mailboxes(),
        }
    }

    fn usage(&self) -> Usage {
        match self {
            Carrier::Deck(link) => link.usage,
            Carrier::Dat(link) => link.usage,
            Carrier::Bare(link) => link.usage,
            Carrier::Split(link) => link.usage(),
        }
    }

    fn describe(&self) -> String {
        match self {
            Carrier::Deck(link) => link.describe(),
            Carrier::Dat(link) => link.describe(),
            Carrier::Bare(_) | Carrier::Split(_) => bare::DESCRIPTION.to_owned(),
        }
    }

    /// Whether lost ranks are no failure of the run's end. Only mailboxes tell whether one was lost.
    fn tolerates_loss(&self) -> bool {
        match self {
            Carrier::Deck(link) => link.has_lost_peer,
            Carrier::Dat(_) | Carrier::Bare(_) | Carrier::Split(_) => true,
        }
    }

    fn finish(self, last: Option<usize>) -> Result {
        match self {
            Carrier::Deck(link) => {
                drop(link);
                Ok(())
            }
            Carrier::Dat(link) => link.finish(last),
            Carrier::Bare(link) => link.finish(last),
            Carrier::Split(link) => link.finish(last),
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
