//! A link by mailboxes: each rank has one, and a postbox to each other rank's.
//!
//! A message's tag says whether a BLOB follows, as a message of its own, sent in place. The two go through one postbox, so no
//! other message comes between them.

use super::{Blob, Event, count_received, count_sent};
use crate::failure::{HadbError, Result};
use crate::message::{Body, Outgoing, Usage};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use udeck::{Error, Mailbox, Postbox, Received, World};

const NAME: &str = "hadb";
/// Tags of messages.
const ALONE: u32 = 0;
const BLOB_FOLLOWS: u32 = 1;

pub struct DeckLink {
    // Mailbox and postboxes stand before the world, so that they are dropped first. (They may outlive it.)
    inbox: Mailbox<u8>,
    outs: Vec<Postbox<u8>>,
    /// Messages whose BLOBs have not arrived, by sender.
    halves: HashMap<usize, Body>,
    /// Whether any rank has died.
    has_lost_peer: bool,
    pub usage: Usage,
    world: World,
}

impl DeckLink {
    pub fn connect(world: World) -> Result<DeckLink> {
        let inbox = world.mailboxes(NAME)?;
        let outs = world.postboxes(NAME)?;
        // A rank that has not posted yet is missed, too, if it dies.
        inbox.expect((0..world.size()).filter(|rank| *rank != world.rank()));
        world.barrier()?;
        let (halves, usage) = (HashMap::new(), Usage::default());
        Ok(DeckLink { inbox, outs, halves, has_lost_peer: false, usage, world })
    }

    pub fn world(&self) -> &World {
        &self.world
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
        let posted = out.post_tagged(&bytes, tag).and_then(|()| match blob {
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

    pub fn finish(self) -> Result {
        let DeckLink { inbox, outs, has_lost_peer, world, .. } = self;
        drop((inbox, outs));
        match world.finish() {
            // Messages that the dead did not read are no failure of the run.
            Err(Error::Undelivered { .. } | Error::Multiple(_) | Error::PeerLost { .. }) if has_lost_peer => {
                Ok(())
            }
            other => Ok(other?),
        }
    }
}
