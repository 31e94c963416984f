//! Serving announcements, and the lanes whose announcements wait for memory.
//!
//! Of each memory, who asked first is served first: a large message is not overtaken for ever by small ones. A lane that
//! was served queues up again with its next announcement, so a postbox that announces much does not hold up the others.

use std::collections::VecDeque;

use super::Inbox;
use super::deferred::Served;
use super::grants::{self, MEMORIES, Memory};
use crate::error::Result;
use crate::received::Parcel;
use crate::wire::Malformed;

/// Lanes that wait, by [`Memory`], in the order in which they asked. Each is in one of them at most.
#[derive(Debug, Default)]
pub(super) struct Stalled([VecDeque<usize>; 2]);

impl Stalled {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0[0].is_empty() && self.0[1].is_empty()
    }

    pub fn forget(&mut self, lane: usize) {
        self.0.iter_mut().for_each(|lanes| lanes.retain(|other| *other != lane));
    }

    /// Who is served next.
    fn first(&self) -> Option<usize> {
        self.0.iter().find_map(|lanes| lanes.front()).copied()
    }
}

/// What became of a lane's oldest announcement.
enum Attempt {
    /// It is done with; perhaps there is a message.
    Done(Option<Parcel>),
    NotYet,
}

impl Inbox {
    /// Serves what a lane has just announced, if it has and nobody waits for the same memory.
    #[cold]
    pub(super) fn serve(&mut self, context: usize) -> Result<Option<Parcel>> {
        let Some(Some(lane)) = self.lanes.get(context) else { return Ok(None) };
        let Some(memory) = lane.wants().filter(|_| !lane.stalled) else { return Ok(None) };
        if self.stalled.0[memory as usize].is_empty()
            && let Attempt::Done(parcel) = self.attempt(context)?
        {
            return Ok(parcel);
        }
        self.stall(context);
        Ok(None)
    }

    /// Serves those that wait, as far as there is memory now, up to the first message.
    #[cold]
    pub(super) fn serve_stalled(&mut self) -> Result<Option<Parcel>> {
        for memory in MEMORIES {
            while let Some(context) = self.stalled.0[memory as usize].pop_front() {
                let Attempt::Done(parcel) = self.attempt(context)? else {
                    self.stalled.0[memory as usize].push_front(context);
                    break;
                };
                if let Some(Some(lane)) = self.lanes.get_mut(context) {
                    lane.stalled = false;
                    self.stall(context);
                }
                if parcel.is_some() || self.too_long.is_some() {
                    return Ok(parcel);
                }
            }
        }
        Ok(None)
    }

    /// Queues a lane up with its oldest announcement, if it has one.
    fn stall(&mut self, context: usize) {
        let Some(Some(lane)) = self.lanes.get_mut(context) else { return };
        let Some(memory) = lane.wants() else { return };
        lane.stalled = true;
        self.stalled.0[memory as usize].push_back(context);
    }

    fn attempt(&mut self, context: usize) -> Result<Attempt> {
        // The data VI that a request names may stand at the door.
        self.let_in();
        let Some(Some(lane)) = self.lanes.get_mut(context) else { return Ok(Attempt::Done(None)) };
        let Some(deferred) = lane.deferred.front().copied() else { return Ok(Attempt::Done(None)) };
        let parcel = match lane.serve(deferred, self.room, &self.world, self.ptag, &self.grants) {
            Ok(Served::NotYet) => return Ok(Attempt::NotYet),
            Ok(Served::Parcel(parcel)) => Some(parcel),
            Ok(Served::Answered) => None,
            Ok(Served::TooLong(bytes)) => {
                self.too_long = Some((bytes, lane.from));
                None
            }
            Err(Malformed) => return self.end_malformed(context).map(Attempt::Done),
        };
        lane.deferred.pop_front();
        lane.held_up = false;
        Ok(Attempt::Done(parcel))
    }

    /// Whether a lane is not read on for want of memory: the completion queue would name it again and again.
    pub(super) fn is_held_up_by_memory(&self) -> bool {
        let held_up = |lane: &usize| self.lanes[*lane].as_ref().is_some_and(|lane| lane.held_up);
        self.stalled.0[Memory::Outbox as usize].iter().any(held_up)
    }

    /// The memory that is waited for, if it is.
    pub(super) fn shortage(&self) -> Option<String> {
        let lane = self.lanes.get(self.stalled.first()?)?.as_ref()?;
        let (deferred, from) = (*lane.deferred.front()?, lane.from);
        let (len, memory) = (deferred.len(), deferred.arena());
        let why = match grants::short_of(memory, len, &self.world, self.ptag) {
            Some(error) => error.to_string(),
            None => format!(
                "{} bytes are granted to postboxes that have not filled them yet, and more than half of the arena is \
                 not; retrieve more often, or raise DECK_ARENA",
                self.grants.bytes(memory)
            ),
        };
        let holders = self.world.holders(memory);
        Some(format!("memory for the {len} bytes that rank {from} announced: {why}; {holders}"))
    }
}
