//! Serving announcements, and the lanes that wait: for memory, or that nobody is in the middle of a write.
//!
//! Of each memory, who asked first is served first: a large message is not overtaken for ever by small ones. A lane that
//! was served queues up again with its next announcement, so a postbox that announces much does not hold up the others.

use std::collections::VecDeque;

use udeck_via::Deadline;

use super::Inbox;
use super::deferred::Served;
use super::grants::{self, MEMORIES, Memory};
use crate::error::Result;
use crate::received::Parcel;
use crate::wire::Malformed;

/// Lanes that wait.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// By [`Memory`], in the order in which they asked. Each is in one of them at most.
    for_memory: [VecDeque<usize>; 2],
    /// Whose message was written, while somebody is in the middle of another write.
    settling: VecDeque<usize>,
}

impl Stalled {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.for_memory.iter().all(VecDeque::is_empty) && self.settling.is_empty()
    }

    pub fn settles(&mut self, lane: usize) {
        self.settling.push_back(lane);
    }

    pub fn forget(&mut self, lane: usize) {
        let lists = self.for_memory.iter_mut().chain([&mut self.settling]);
        lists.for_each(|lanes| lanes.retain(|other| *other != lane));
    }

    /// Who is given memory next.
    fn first(&self) -> Option<usize> {
        self.for_memory.iter().find_map(|lanes| lanes.front()).copied()
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
        if self.stalled.for_memory[memory as usize].is_empty()
            && let Attempt::Done(parcel) = self.attempt(context)?
        {
            return Ok(parcel);
        }
        self.stall(context);
        Ok(None)
    }

    /// Serves those that wait, as far as that is possible now, up to the first message.
    #[cold]
    pub(super) fn serve_stalled(&mut self) -> Result<Option<Parcel>> {
        if let Some(parcel) = self.settle()? {
            return Ok(Some(parcel));
        }
        for memory in MEMORIES {
            while let Some(context) = self.stalled.for_memory[memory as usize].pop_front() {
                let Attempt::Done(parcel) = self.attempt(context)? else {
                    self.stalled.for_memory[memory as usize].push_front(context);
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

    /// A message that was written, if nobody is in the middle of another write any more.
    fn settle(&mut self) -> Result<Option<Parcel>> {
        for _ in 0..self.stalled.settling.len() {
            let Some(context) = self.stalled.settling.pop_front() else { break };
            let Some(Some(lane)) = self.lanes.get_mut(context) else { continue };
            match lane.settle(Deadline::now()) {
                Ok(None) => self.stalled.settles(context),
                Ok(parcel) => return Ok(parcel),
                Err(Malformed) => return self.end_malformed(context),
            }
        }
        Ok(None)
    }

    /// Queues a lane up with its oldest announcement, if it has one.
    fn stall(&mut self, context: usize) {
        let Some(Some(lane)) = self.lanes.get_mut(context) else { return };
        let Some(memory) = lane.wants() else { return };
        lane.stalled = true;
        self.stalled.for_memory[memory as usize].push_back(context);
    }

    fn attempt(&mut self, context: usize) -> Result<Attempt> {
        // The data VI that a request names may stand at the door.
        self.let_in();
        let Some(Some(lane)) = self.lanes.get_mut(context) else { return Ok(Attempt::Done(None)) };
        let Some(deferred) = lane.deferred.front().copied() else { return Ok(Attempt::Done(None)) };
        let parcel = match lane.serve(deferred, self.room, &self.world, &self.grants) {
            Ok(Served::NotYet) => return Ok(Attempt::NotYet),
            Ok(Served::Parcel(parcel)) => Some(parcel),
            Ok(Served::Answered) => None,
            Ok(Served::TooLong(bytes)) => {
                self.too_long = Some((bytes, lane.from));
                None
            }
            Ok(Served::Over(error)) => return self.end_with(context, error).map(Attempt::Done),
            Err(Malformed) => return self.end_malformed(context).map(Attempt::Done),
        };
        lane.deferred.pop_front();
        lane.held_up = false;
        Ok(Attempt::Done(parcel))
    }

    /// Whether a lane is not read on: the completion queue would name it again and again.
    pub(super) fn has_lanes_held_up(&self) -> bool {
        let held_up = |lane: &usize| self.lanes[*lane].as_ref().is_some_and(|lane| lane.held_up);
        !self.stalled.settling.is_empty()
            || self.stalled.for_memory[Memory::Outbox as usize].iter().any(held_up)
    }

    /// What a message that was announced waits for, if one does.
    pub(super) fn shortage(&self) -> Option<String> {
        if let Some(Some(lane)) = self.stalled.settling.front().and_then(|lane| self.lanes.get(*lane)) {
            let what = "a rank that is in the middle of an RDMA write or read here (stopped?)";
            return Some(format!("{what}, before which the message of rank {} cannot be taken", lane.from));
        }
        let lane = self.lanes.get(self.stalled.first()?)?.as_ref()?;
        let (deferred, from) = (*lane.deferred.front()?, lane.from);
        let (len, memory) = (deferred.len(), deferred.arena());
        let why = match grants::short_of(memory, len, &self.world, lane) {
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
