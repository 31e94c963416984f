//! The engine behind a mailbox: all connections made to it, and what is arriving on them.
//!
//! | file | what it is |
//! |---|---|
//! | here | the next message |
//! | `run` | the quick way to it: one more from the lane that had the last one |
//! | `waiting` | waiting for it, and looking for it by either [`crate::ReceiveModel`] |
//! | `queues` | the completion queues: one per NIC |
//! | `door` | connections, on their way in |
//! | `doubts` | ranks whose connections broke, until it is known whether they finished |
//! | `lane` | one connection, and what arrives on it |
//! | `ready` | looking without taking, for waits on several mailboxes and for tasks |
//! | `deferred` | announcements, and how each is served |
//! | `stalled` | when: memory goes to who asked first; messages that are nearly here |
//! | `grants` | memory that postboxes were given to fill, and its bound |

mod deferred;
mod door;
mod doubts;
pub(crate) mod grants;
mod lane;
mod queues;
mod ready;
mod run;
mod stalled;
mod waiting;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use udeck_via::transport::{Arrival, Found};
use udeck_via::{Budget, CqHandle, Deadline, Error as ViaError, Listener, Ptag};

use self::deferred::Data;
use self::door::{DATA, Door, Entrance, Newcomer, WhileOpen};
use self::grants::Grants;
use self::lane::Lane;
use self::queues::Queues;
use self::run::Run;
use self::stalled::Stalled;
use crate::error::{Error, Result, Titled};
use crate::protocol::ReceiveModel;
use crate::received::Parcel;
use crate::shared::Shared;
use crate::stats::Counters;
use crate::wire::Malformed;
pub(crate) use ready::Around;

/// Messages too long for the program's buffer, and such as came behind them, that are taken out of their rings for one that
/// fits. So many are enough to say that the buffer is too small.
const MOST_SET_ASIDE: usize = 256;

/// A mailbox's connections.
pub(crate) struct Inbox {
    queues: Queues,
    /// By context of the VI, whichever NIC it is of.
    lanes: Vec<Option<Lane>>,
    door: Arc<Door>,
    /// Entries of the door's list that have been let in.
    let_in: u32,
    /// Parcels that could not be given out yet, oldest first.
    set_aside: VecDeque<Parcel>,
    model: ReceiveModel,
    /// Whose turn it is, where work queues are asked.
    turn: usize,
    run: Run,
    /// Lanes with announcements for which there is no memory, or with a message that is nearly here.
    stalled: Stalled,
    /// What they have been granted.
    grants: Arc<Grants>,
    /// Bytes of the buffer that the program retrieves into, if it does.
    room: Option<usize>,
    /// Bytes and sender of the message that was just found too long for it.
    too_long: Option<(usize, u32)>,
    world: Arc<Shared>,
    name: String,
    /// Of its VIs, by NIC.
    ptags: Vec<Ptag>,
    /// Ranks that have or had a postbox of it, or were declared to.
    posters: BTreeSet<u32>,
    /// Lost ranks that this mailbox has reported.
    reported: BTreeSet<u32>,
    /// The news of ranks that ended, up to the last look at them.
    seen: u64,
    counters: Arc<Counters>,
    /// Where new connections come from, by NIC; dropped first.
    listeners: Vec<Listener>,
}

impl Inbox {
    pub fn open(world: &Arc<Shared>, name: &str) -> Result<Self> {
        let failed = |error| Error::via(format!("creating {}", Titled(name)), error);
        let queues = Queues::new(world.nics(), world.oversubscribed()).map_err(failed)?;
        let door = Arc::<Door>::default();
        let (mut ptags, mut listeners) = (Vec::new(), Vec::new());
        for (at, (line, cq)) in world.nics().iter().zip(queues.handles()).enumerate() {
            let ptag = line.nic.ptag();
            ptags.push(ptag);
            let open = WhileOpen { door: door.clone(), cq: cq.clone() };
            let entrance = Entrance { at, nic: line.nic.clone(), cq, ptag };
            let admit = move |request| open.door.admit(&entrance, request);
            listeners.push(Listener::with_handler(&line.nic, name.as_bytes(), admit).map_err(failed)?);
        }
        Ok(Inbox {
            queues,
            lanes: Vec::new(),
            door,
            let_in: 0,
            set_aside: VecDeque::new(),
            model: world.config().receive,
            turn: 0,
            run: Run::default(),
            stalled: Stalled::default(),
            grants: world.open_grants(name),
            room: None,
            too_long: None,
            world: world.clone(),
            name: name.to_owned(),
            ptags,
            posters: BTreeSet::new(),
            reported: BTreeSet::new(),
            seen: 0,
            counters: world.counters(name),
            listeners,
        })
    }

    /// Whoever waits here is woken by it.
    pub fn handle(&self) -> CqHandle {
        self.queues.handle()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Puts the next message into `parcel`, if one is there. `all`: nobody will wait for one that this look leaves out.
    pub fn try_next(&mut self, parcel: &mut Parcel, all: bool) -> Result<bool> {
        if self.set_aside.is_empty() {
            return self.poll_into(parcel, all);
        }
        self.take_set_aside(parcel);
        Ok(true)
    }

    #[cold]
    fn take_set_aside(&mut self, to: &mut Parcel) {
        if let Some(parcel) = self.set_aside.pop_front() {
            *to = parcel;
        }
    }

    /// The next message.
    pub fn next(&mut self, deadline: Deadline) -> Result<Parcel> {
        let mut parcel = Parcel::NONE;
        if self.try_next(&mut parcel, false)? { Ok(parcel) } else { self.wait_for_next(deadline) }
    }

    /// A message that could not be given out after all: the next one again.
    #[cold]
    pub fn put_back(&mut self, parcel: Parcel) {
        self.run.end();
        self.set_aside.push_front(parcel);
    }

    /// The oldest message of at most `room` bytes; one that is longer stays at the head of its postbox, and only that
    /// waits.
    ///
    /// `Err` in the result: nothing fits, and this is how many bytes the oldest message has, and its sender.
    pub fn next_within(&mut self, deadline: Deadline, room: usize) -> Result<Result<Parcel, (usize, u32)>> {
        self.room = Some(room);
        let found = self.find_within(deadline, room);
        (self.room, self.too_long) = (None, None);
        found
    }

    fn find_within(&mut self, deadline: Deadline, room: usize) -> Result<Result<Parcel, (usize, u32)>> {
        let fits = |parcel: &Parcel| parcel.bytes().len() <= room;
        let mut blocked = BTreeSet::new();
        for at in 0..self.set_aside.len() {
            let parcel = &self.set_aside[at];
            let lane = (parcel.from, parcel.postbox);
            if !blocked.contains(&lane) && fits(parcel) {
                return Ok(Ok(self.set_aside.remove(at).expect("in range")));
            }
            blocked.insert(lane);
        }
        loop {
            if let Some(too_long) = self.too_long.take() {
                return Ok(Err(too_long));
            }
            if self.set_aside.len() >= MOST_SET_ASIDE
                && let Some(too_long) = self.longest_waiting()
            {
                return Ok(Err(too_long));
            }
            let parcel = match self.poll()? {
                Some(parcel) => parcel,
                None => match self.longest_waiting() {
                    Some(too_long) => return Ok(Err(too_long)),
                    None => match self.wait_for_any(deadline)? {
                        Some(parcel) => parcel,
                        None => continue,
                    },
                },
            };
            let lane = (parcel.from, parcel.postbox);
            if !blocked.contains(&lane) && fits(&parcel) {
                return Ok(Ok(parcel));
            }
            blocked.insert(lane);
            self.run.end();
            self.set_aside.push_back(parcel);
        }
    }

    /// Bytes and sender of a message that does not fit: the one that was just refused, or the oldest.
    fn longest_waiting(&mut self) -> Option<(usize, u32)> {
        let oldest = || self.set_aside.front().map(|oldest| (oldest.bytes().len(), oldest.from));
        self.too_long.take().or_else(oldest)
    }

    /// A message, if one can be had without waiting.
    fn poll(&mut self) -> Result<Option<Parcel>> {
        let mut parcel = Parcel::NONE;
        Ok(self.poll_into(&mut parcel, true)?.then_some(parcel))
    }

    /// As [`Inbox::poll`]: whether there was one.
    #[inline]
    fn poll_into(&mut self, parcel: &mut Parcel, all: bool) -> Result<bool> {
        self.queues.passed_over(self.run.end());
        if self.model != ReceiveModel::CompletionQueue || !self.stalled.is_empty() {
            return Ok(parcel.fill(self.poll_otherwise()?));
        }
        // A peer whose arrivals are no messages does not keep us: who waits looks at the time, and again.
        let mut budget = Budget::once();
        while budget.take()
            && let Some(entry) = self.queues.poll(all)
        {
            if self.look_at(entry.context, parcel)? {
                return Ok(true);
            }
            if self.too_long.is_some() {
                break;
            }
            if !self.stalled.is_empty() {
                return Ok(parcel.fill(self.poll_otherwise()?));
            }
        }
        Ok(false)
    }

    /// What a lane has: whether that is a message, which then is in `parcel`.
    #[inline]
    fn look_at(&mut self, context: u64, parcel: &mut Parcel) -> Result<bool> {
        let context = context as usize;
        if !matches!(self.lanes.get(context), Some(Some(_))) {
            self.let_in();
        }
        let Some(Some(lane)) = self.lanes.get_mut(context) else {
            return Ok(parcel.fill(self.look_at_data(context as u64)?));
        };
        if lane.is_held_up() {
            lane.named = true;
            let found =
                if lane.awaits_data() { self.look_at_data(context as u64)? } else { self.serve_stalled()? };
            return Ok(parcel.fill(found));
        }
        let found = lane.vi.arrival_short(parcel.place());
        if found == Found::Nothing {
            return Ok(false);
        }
        let is_message = lane.name_short(found, parcel, &self.counters).is_some();
        self.begin_run(context);
        if is_message { Ok(true) } else { self.look_further(found, context, parcel) }
    }

    /// An arrival that is more than a short message.
    #[inline(never)]
    fn take(&mut self, context: usize, arrival: Arrival) -> Result<Option<Parcel>> {
        let Some(Some(lane)) = self.lanes.get_mut(context) else { return Ok(None) };
        match lane.take(arrival, &self.world, &self.counters) {
            Ok(None) if lane.unfinished.is_some() => {
                self.run.end();
                self.stalled.is_unfinished(context);
                Ok(None)
            }
            Ok(None) => {
                self.run.end();
                self.serve(context)
            }
            Ok(parcel) => Ok(parcel),
            Err(Malformed) => self.end_malformed(context),
        }
    }

    /// As [`Inbox::look_at`], where speed does not matter.
    #[cold]
    fn look_into(&mut self, context: u64) -> Result<Option<Parcel>> {
        let mut parcel = Parcel::NONE;
        Ok(self.look_at(context, &mut parcel)?.then_some(parcel))
    }

    #[cold]
    fn end_with(&mut self, context: usize, error: ViaError) -> Result<Option<Parcel>> {
        let lost = if let ViaError::Lost(how) = error { Some(how) } else { None };
        self.end_lane(context, lost)
    }

    #[cold]
    fn end_lane(&mut self, context: usize, lost: Option<String>) -> Result<Option<Parcel>> {
        let Some(lane) = self.lanes[context].take() else { return Ok(None) };
        if lane.stalled || lane.named || lane.unfinished.is_some() {
            self.stalled.forget(context);
        }
        let from = lane.from;
        self.queues.left(lane.line);
        self.door.leave(context, (from, lane.postbox));
        drop(lane);
        if let Some(how) = lost.filter(|_| !self.reported.contains(&from)) {
            self.stalled.doubts.add(from, how);
            self.settle_doubts()?;
        }
        Ok(None)
    }

    /// Tells of a rank whose connection broke, if it is known now that it did not finish.
    #[cold]
    fn settle_doubts(&mut self) -> Result {
        while let Some((node, how)) = self.stalled.doubts.settle(&self.world) {
            if self.reported.insert(node) {
                return Err(Error::PeerLost { node: node as usize, how });
            }
        }
        Ok(())
    }

    /// These ranks post here.
    pub fn expect(&mut self, ranks: impl IntoIterator<Item = usize>) {
        let size = self.world.size();
        self.posters.extend(ranks.into_iter().filter(|rank| *rank < size).map(|rank| rank as u32));
    }

    /// What a data VI has.
    #[cold]
    fn look_at_data(&mut self, context: u64) -> Result<Option<Parcel>> {
        let control = (context & !DATA) as usize;
        let Some(Some(lane)) = self.lanes.get_mut(control) else { return Ok(None) };
        let awaited = lane.awaits_data();
        match lane.take_data() {
            Ok(found) => {
                self.data_came(control, awaited);
                Ok(found)
            }
            Err(Malformed) => self.end_malformed(control),
        }
    }

    /// If a message was awaited on the data VI, and is not any more, the control VI is read on.
    fn data_came(&mut self, control: usize, awaited: bool) {
        if let Some(Some(lane)) = self.lanes.get_mut(control)
            && awaited
            && !lane.awaits_data()
        {
            lane.held_up = false;
            self.read_on(control);
        }
    }

    fn end_malformed(&mut self, context: usize) -> Result<Option<Parcel>> {
        self.end_lane(context, Some("it broke the message protocol".into()))
    }

    /// Takes over the connections that were accepted meanwhile.
    #[cold]
    fn let_in(&mut self) {
        for (context, newcomer) in self.door.let_in() {
            self.let_in = self.let_in.wrapping_add(1);
            if self.lanes.len() <= context {
                self.lanes.resize_with(context + 1, || None);
            }
            match (newcomer, &mut self.lanes[context]) {
                (Newcomer::Lane(lane), place) => {
                    if (lane.from as usize) < self.world.size() {
                        self.posters.insert(lane.from);
                    }
                    self.queues.joined(lane.line);
                    *place = Some(lane);
                }
                (Newcomer::Data(vi, pair), Some(lane)) => {
                    let awaited = lane.awaits_data();
                    lane.data = Some(Box::new(Data::new(vi, pair)));
                    self.data_came(context, awaited);
                }
                // Its lane has ended meanwhile.
                (Newcomer::Data(..), None) => {}
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        // No new connections first; then those that nobody will look at.
        self.listeners.clear();
        drop(self.door.let_in());
        self.lanes.clear();
        // Nothing carries the tags any more, unless a connection is being accepted right now: then its stays with the NIC.
        for (line, ptag) in self.world.nics().iter().zip(&self.ptags) {
            let _ = line.nic.destroy_ptag(*ptag);
        }
    }
}
