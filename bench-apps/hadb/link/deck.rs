//! A link by mailboxes: each rank has one, and a postbox to each other rank's.
//!
//! A message's tag says whether a BLOB follows, as a message of its own, sent in place. The two go through one postbox, so no
//! other message comes between them.

use super::{Blob, Event, Pairs, count_received, count_sent};
use crate::failure::{HadbError, Result};
use crate::message::{Body, Outgoing, Usage};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use udeck::{Error, Mailbox, Postbox, Received, WithTag, World};

const NAME: &str = "hadb";
/// Tags of messages.
const ALONE: u32 = 0;
const BLOB_FOLLOWS: u32 = 1;
/// Tag of a message of this rank to itself, by which another thread ends its wait.
const WAKE: u32 = 2;

pub struct DeckLink {
    // Mailbox and postboxes stand before the world, so that they are dropped first. (They may outlive it.)
    inbox: Mailbox<u8>,
    outs: Vec<Postbox<u8>>,
    /// Messages whose BLOBs have not arrived, by sender.
    halves: HashMap<usize, Body>,
    /// Whether any rank has died.
    pub has_lost_peer: bool,
    pub usage: Usage,
    world: Rc<World>,
}

impl DeckLink {
    pub(super) fn connect(world: &Rc<World>, pairs: Pairs) -> Result<DeckLink> {
        let inbox = world.mailboxes(NAME)?;
        let outs = world.postboxes(NAME)?;
        // A rank that has not posted yet is missed, too, if it dies.
        inbox.expect((0..world.size()).filter(|rank| pairs.has(world.rank(), *rank)));
        world.barrier()?;
        let (halves, usage) = (HashMap::new(), Usage::default());
        Ok(DeckLink { inbox, outs, halves, has_lost_peer: false, usage, world: world.clone() })
    }

    /// Makes a function for another thread, which ends this rank's wait with [`Event::Idle`].
    pub fn waker(&self) -> Result<impl Fn() + Send + use<>> {
        let own = self.world.postbox_of::<u8>(NAME, self.world.rank())?;
        // A mailbox without room is one that has messages.
        Ok(move || drop(own.post([].with_tag(WAKE))))
    }

    pub fn describe(&self) -> String {
        let route = self.outs[usize::from(self.world.rank() == 0)].route();
        format!("µDECK's mailboxes over {}", route.transport)
    }

    pub fn send(&mut self, message: Outgoing<Blob>) -> Result {
        let Outgoing { to, body, blob } = message;
        count_sent(&mut self.usage, &body);
        let Some(out) = self.outs.get(to) else { return Ok(()) };
        let bytes = postcard::to_allocvec(&body).map_err(|_| HadbError::BadMessage { from: to })?;
        let tag = if blob.is_some() { BLOB_FOLLOWS } else { ALONE };
        let posted = out.post(bytes.with_tag(tag)).map_err(Error::from).and_then(|()| match blob {
            None => Ok(()),
            Some(Blob::Shared(blob)) => out.post(blob).map_err(Error::from),
            Some(Blob::Lent(blob)) => out.post(&blob[..]).map_err(Error::from),
            Some(Blob::Bytes(blob)) => out.post(&blob[..]).map_err(Error::from),
        });
        match posted {
            Err(Error::PeerLost { .. } | Error::Undelivered { .. } | Error::MailboxGone { .. }) => Ok(()),
            other => Ok(other?),
        }
    }

    pub fn receive(&mut self, limit: Duration) -> Result<Event> {
        loop {
            match self.inbox.retrieve_timeout(limit) {
                Ok(received) => {
                    if let Some(event) = self.received(received)? {
                        return Ok(event);
                    }
                }
                Err(Error::PeerLost { rank, .. }) => {
                    self.has_lost_peer = true;
                    return Ok(Event::Lost(rank));
                }
                Err(Error::Deadline { .. }) => return Ok(Event::Idle),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn received(&mut self, received: Received<u8>) -> Result<Option<Event>> {
        let from = received.source();
        if received.tag() == WAKE {
            return Ok(Some(Event::Idle));
        }
        if let Some(body) = self.halves.remove(&from) {
            let blob = Some(Blob::Lent(Arc::new(received)));
            return Ok(Some(Event::Message { from, body, blob }));
        }
        let body: Body = postcard::from_bytes(&received).map_err(|_| HadbError::BadMessage { from })?;
        count_received(&mut self.usage, from, &body);
        if received.tag() == BLOB_FOLLOWS {
            self.halves.insert(from, body);
            return Ok(None);
        }
        Ok(Some(Event::Message { from, body, blob: None }))
    }
}
