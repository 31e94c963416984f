//! Barriers, by dissemination: in round k every rank tells the one 2^k further on, and hears from the one 2^k before.
//! After ⌈log2 n⌉ rounds everybody has heard of everybody, directly or not.
//!
//! Source: Hensgen, Finkel, Manber, *Two algorithms for barrier synchronization*, 1988.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_via::Deadline;
use udeck_via::mem::Fill;

use crate::buffer::Buf;
use crate::channel::{Channel, Patience};
use crate::error::{Error, Result};
use crate::mailbox::Mailbox;
use crate::postbox::Postbox;
use crate::protocol::Protocol;
use crate::shared::{INTERNAL, Shared};

/// One rank's part. Made at the first barrier; making it is collective, too.
pub(crate) struct Barrier {
    inbox: Mailbox<u8>,
    /// To the rank 2^k further on, by k.
    next: Vec<Postbox<u8>>,
    generation: u32,
    /// Where a wait that ran out of time goes on: the round, and whether its token is out.
    round: u32,
    told: bool,
    /// Rounds of this and the next generation that have been heard.
    heard: BTreeSet<u32>,
}

/// How often a rank that waits looks whether the one it waits for has finished. (News of lost ranks wake it at once.)
const LOOK_UP: Duration = Duration::from_millis(500);
/// More rounds than any world has.
const ROUNDS: u32 = 32;

impl Barrier {
    pub fn new(world: &Arc<Shared>) -> Result<Self> {
        let (rank, size) = (world.rank(), world.size());
        let inbox = Mailbox::create(world, &name(rank))?;
        let distances = (0..ROUNDS).map(|k| 1usize << k).take_while(|distance| *distance < size);
        let next = distances
            .map(|distance| {
                let node = (rank + distance) % size;
                let channel = meet(world, node)?;
                let postbox = Postbox::new(world, &name(node), channel);
                postbox.set_protocol(Protocol::Auto)?; // whatever the program wants for its own messages
                Ok(postbox)
            })
            .collect::<Result<_>>()?;
        Ok(Barrier { inbox, next, generation: 0, round: 0, told: false, heard: BTreeSet::new() })
    }

    pub fn wait(&mut self, world: &Arc<Shared>, deadline: Deadline) -> Result {
        let start = Instant::now();
        // The mailbox reports a loss once, but no later barrier can be complete either.
        if let Some((node, how)) = world.ends().lost_beyond(&BTreeSet::new()) {
            return Err(Error::PeerLost { node: node as usize, how });
        }
        while let Some(next) = self.next.get(self.round as usize) {
            if !self.told {
                let mut token: Buf<u8> =
                    Buf::new(world.block_for_message(0, Fill::Keep, Patience::Until(deadline))?);
                token.set_tag(self.generation.wrapping_mul(ROUNDS) + self.round);
                let posted = next.post_within(token, deadline.remaining());
                posted.map_err(|failed| left(world, failed.error))?;
                self.told = true;
            }
            self.hear(world, self.round, start, deadline)?;
            (self.round, self.told) = (self.round + 1, false);
        }
        self.round = 0;
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    fn hear(&mut self, world: &Arc<Shared>, round: u32, start: Instant, deadline: Deadline) -> Result {
        let expected = self.generation.wrapping_mul(ROUNDS) + round;
        let distance = 1usize << round;
        let from = (world.rank() + world.size() - distance % world.size()) % world.size();
        while !self.heard.remove(&expected) {
            match self.inbox.retrieve_within(LOOK_UP.min(deadline.remaining())) {
                Ok(token) => {
                    self.heard.insert(token.tag());
                }
                Err(Error::Deadline { .. }) if world.ends().is_done(from as u32) => return Err(ended(from)),
                Err(Error::Deadline { .. }) if deadline.passed() => {
                    let whom = format!("rank {from} (or one that it waits for)");
                    return Err(Error::Deadline {
                        what: "the barrier".into(),
                        waited: start.elapsed(),
                        whom,
                    });
                }
                Err(Error::Deadline { .. }) => {}
                Err(Error::NobodyLeft { .. }) => return Err(ended(from)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Connects to a rank when it comes to its first barrier. That it computes before is no fault of its set-up: it is waited
/// for as at any barrier. It may end instead, which is looked for once in a set-up's time.
fn meet(world: &Arc<Shared>, node: usize) -> Result<Channel> {
    let (start, config) = (Instant::now(), world.config());
    let deadline = Deadline::after(config.deadline);
    loop {
        let connected = world.connect::<u8>(&name(node), true, Deadline::after(config.setup).min(deadline));
        match connected {
            Err(_) if world.ends().is_done(node as u32) => return Err(ended(node)),
            Err(Error::NoSuchMailbox { .. }) => {}
            other => return other,
        }
        if let Some((node, how)) = world.ends().lost_beyond(&BTreeSet::new()) {
            return Err(Error::PeerLost { node: node as usize, how });
        }
        if deadline.passed() {
            let whom = format!("rank {node}, which has come to no barrier yet");
            return Err(Error::Deadline { what: "the barrier".into(), waited: start.elapsed(), whom });
        }
    }
}

/// A rank that finished will not come to a barrier any more.
fn ended(node: usize) -> Error {
    Error::PeerLost { node, how: "it finished without coming to this barrier".into() }
}

/// The mailbox of a rank that has ended is gone: to the program, the rank is.
#[cold]
fn left(world: &Shared, error: Error) -> Error {
    match error {
        Error::MailboxGone { owner: node, .. } => world
            .ends()
            .how_lost(node as u32)
            .map_or_else(|| ended(node), |how| Error::PeerLost { node, how }),
        other => other,
    }
}

fn name(rank: usize) -> String {
    format!("{INTERNAL}barrier/{rank}")
}
