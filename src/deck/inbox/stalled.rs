//! Serving announcements, and the lanes that wait: for memory, for what is being read, or that nobody is inside the window of
//! a message.
//!
//! While a lane waits, its ring may not be read on. The completion queue goes on naming it while there are messages, but
//! names the end of its connection once. Such a lane is noted ([`Lane::named`]), and looked at when it is read on.
//!
//! Of each memory, who asked first is served first: a large message is not overtaken for ever by small ones. A lane that
//! was served queues up again with its next announcement, so a postbox that announces much does not hold up the others.

use std::collections::VecDeque;

use udeck_via::Budget;

use super::Inbox;
use super::deferred::Served;
use super::doubts::Doubts;
use super::grants::{self, MEMORIES, Memory};
use super::lane::Lane;
use crate::error::Result;
use crate::received::Parcel;
use crate::wire::Malformed;

/// Lanes that wait.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// By [`Memory`], in the order in which they asked. Each is in one of them at most.
    for_memory: [VecDeque<usize>; 2],
    /// Whose message is nearly here.
    unfinished: VecDeque<usize>,
    /// Whose connection broke: the launcher has been asked whether their ranks have finished.
    pub doubts: Doubts,
    /// That were named while they were held up, and are read on again.
    named: VecDeque<usize>,
}

impl Stalled {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.for_memory.iter().all(VecDeque::is_empty)
            && self.unfinished.is_empty()
            && self.named.is_empty()
            && self.doubts.is_empty()
    }

    pub fn is_unfinished(&mut self, lane: usize) {
        self.unfinished.push_back(lane);
    }

    pub fn forget(&mut self, lane: usize) {
        let lists = self.for_memory.iter_mut().chain([&mut self.unfinished, &mut self.named]);
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
        if let Some(parcel) = self.finish()? {
            return Ok(Some(parcel));
        }
        for memory in MEMORIES {
            let mut budget = Budget::once();
            while budget.take()
                && let Some(context) = self.stalled.for_memory[memory as usize].pop_front()
            {
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

    /// A message that was nearly here and is now: it has been read, or nobody is inside its window any more.
    fn finish(&mut self) -> Result<Option<Parcel>> {
        for _ in 0..self.stalled.unfinished.len() {
            let Some(context) = self.stalled.unfinished.pop_front() else { break };
            let Some(Some(lane)) = self.lanes.get_mut(context) else { continue };
            let finished = lane.finish();
            self.read_on(context);
            let found = match finished {
                Ok(Served::Parcel(parcel)) => return Ok(Some(parcel)),
                Ok(Served::UnderWay | Served::NotYet) => {
                    self.stalled.is_unfinished(context);
                    continue;
                }
                Ok(Served::Answered | Served::TooLong(_)) => continue,
                Ok(Served::Over(error)) => self.end_with(context, error)?,
                Err(Malformed) => self.end_malformed(context)?,
            };
            if found.is_some() {
                return Ok(found);
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
            Ok(Served::UnderWay) => {
                self.stalled.is_unfinished(context);
                None
            }
            Ok(Served::TooLong(bytes)) => {
                self.too_long = Some((bytes, lane.from));
                None
            }
            Ok(Served::Over(error)) => return self.end_with(context, error).map(Attempt::Done),
            Err(Malformed) => return self.end_malformed(context).map(Attempt::Done),
        };
        lane.deferred.pop_front();
        lane.held_up = lane.awaits_data();
        self.read_on(context);
        Ok(Attempt::Done(parcel))
    }

    /// If a lane is not held up any more, and was named while it was, it is looked at next.
    pub(super) fn read_on(&mut self, context: usize) {
        let Some(Some(lane)) = self.lanes.get(context) else { return };
        if lane.named && !lane.is_held_up() {
            self.stalled.named.push_back(context);
        }
    }

    /// What the lanes have that were named while they were held up, up to the first message. One look at each is enough:
    /// the completion queue names again what has more messages.
    pub(super) fn look_at_named(&mut self) -> Result<Option<Parcel>> {
        let mut budget = Budget::once();
        while budget.take()
            && let Some(context) = self.stalled.named.pop_front()
        {
            let Some(Some(lane)) = self.lanes.get_mut(context) else { continue };
            lane.named = false;
            let found = self.look_into(context as u64)?;
            if found.is_some() || self.too_long.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Whether a lane is not read on: the completion queue would name it again and again.
    pub(super) fn has_lanes_held_up(&self) -> bool {
        let held_up = |lane: &usize| self.lanes[*lane].as_ref().is_some_and(Lane::is_held_up);
        let mut lanes =
            self.stalled.for_memory[Memory::Outbox as usize].iter().chain(&self.stalled.unfinished);
        lanes.any(held_up)
    }

    /// Whether a message is being read, which may be here any moment.
    pub(super) fn is_reading(&self) -> bool {
        let reads = |lane: &usize| self.lanes[*lane].as_ref().is_some_and(Lane::is_reading);
        self.stalled.unfinished.iter().any(reads)
    }

    /// What a message that was announced waits for, if one does.
    pub(super) fn shortage(&self) -> Option<String> {
        if let Some(Some(lane)) = self.stalled.unfinished.front().and_then(|lane| self.lanes.get(*lane)) {
            if lane.is_reading() {
                return Some(format!("the data of a message that is being read from rank {}", lane.from));
            }
            let what = "a rank that is in the middle of an RDMA write where";
            return Some(format!("{what} the message of rank {} lies, and was not told of it", lane.from));
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
