//! Barriers, by dissemination: in round k every rank tells the one 2^k further on, and hears from the one 2^k before.
//! After ⌈log2 n⌉ rounds everybody has heard of everybody, directly or not.
//!
//! Source: Hensgen, Finkel, Manber, *Two algorithms for barrier synchronization*, 1988.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use udeck_via::Deadline;
use udeck_via::mem::Fill;

use crate::buffer::Buf;
use crate::error::{Error, Result};
use crate::mailbox::Mailbox;
use crate::postbox::Postbox;
use crate::world::{INTERNAL, Shared};

/// One rank's part. Made at the first barrier; making it is collective, too.
pub(crate) struct Barrier {
    inbox: Mailbox<u8>,
    /// To the rank 2^k further on, by k.
    next: Vec<Postbox<u8>>,
    generation: u32,
    /// Rounds of this and the next generation that have been heard.
    heard: BTreeSet<u32>,
}

/// More rounds than any world has.
const ROUNDS: u32 = 32;

impl Barrier {
    pub fn new(world: &Arc<Shared>) -> Result<Self> {
        let (rank, size) = (world.rank(), world.size());
        let inbox = Mailbox::create(world, &name(rank))?;
        let distances = (0..ROUNDS).map(|k| 1usize << k).take_while(|distance| *distance < size);
        let next = distances
            .map(|distance| {
                let to = name((rank + distance) % size);
                let deadline = Deadline::after(world.config().setup);
                let channel = world.connect::<u8>(&to, true, deadline)?;
                Ok(Postbox::new(world, &to, channel))
            })
            .collect::<Result<_>>()?;
        Ok(Barrier { inbox, next, generation: 0, heard: BTreeSet::new() })
    }

    pub fn wait(&mut self, world: &Arc<Shared>) -> Result {
        let start = Instant::now();
        for round in 0..self.next.len() as u32 {
            let mut token: Buf<u8> = Buf::new(world.allocate_or_error(0, Fill::Keep)?);
            token.set_tag(self.generation.wrapping_mul(ROUNDS) + round);
            self.next[round as usize].post(token).map_err(|failed| failed.error)?;
            self.hear(world, round, start)?;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }

    fn hear(&mut self, world: &Arc<Shared>, round: u32, start: Instant) -> Result {
        let expected = self.generation.wrapping_mul(ROUNDS) + round;
        while !self.heard.remove(&expected) {
            match self.inbox.retrieve() {
                Ok(token) => {
                    self.heard.insert(token.tag());
                }
                Err(Error::Deadline { .. }) => {
                    let distance = 1usize << round;
                    let from = (world.rank() + world.size() - distance % world.size()) % world.size();
                    let whom = format!("rank {from} (or one that it waits for)");
                    return Err(Error::Deadline {
                        what: "the barrier".into(),
                        waited: start.elapsed(),
                        whom,
                    });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn name(rank: usize) -> String {
    format!("{INTERNAL}barrier/{rank}")
}
