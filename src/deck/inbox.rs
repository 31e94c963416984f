//! The engine behind a mailbox: all connections made to it, and what is arriving on them.

mod ready;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body, Inline};
use udeck_via::{
    Block, Cq, CqHandle, Deadline, Error as ViaError, Lent, Listener, Ptag, Receive, Request, Vi,
};
use udeck_via::{ViAttributes, Window};

use crate::error::{Error, Result};
use crate::received::{Parcel, Stored};
use crate::shared::Shared;
use crate::stats::Counters;
use crate::wire::{self, HEAD_BYTES, Kind, Malformed};
pub(crate) use ready::Around;

/// How long a finished RDMA write may take to leave its gate.
const SETTLE: Duration = Duration::from_secs(1);

/// Why most messages are refused. Has to fit into a refusal.
const NO_MEMORY: &str = "its arena is full (raise DECK_ARENA)";
const _: () = assert!(NO_MEMORY.len() <= Inline::CAPACITY - HEAD_BYTES);

/// A mailbox's connections.
pub(crate) struct Inbox {
    cq: Cq,
    /// By context of the VI.
    lanes: Vec<Option<Lane>>,
    door: Arc<Door>,
    /// Entries of the door's list that have been let in.
    let_in: u32,
    /// Parcels that could not be given out yet, oldest first.
    set_aside: VecDeque<Parcel>,
    world: Arc<Shared>,
    name: String,
    ptag: Ptag,
    /// Lost ranks that this mailbox has reported.
    reported: BTreeSet<u32>,
    counters: Arc<Counters>,
    /// Where new connections come from; dropped first.
    listener: Option<Listener>,
}

/// Connections that were accepted on the reactor's thread and not seen by the owner yet.
struct Door {
    waiting: Mutex<Vec<(usize, Lane)>>,
    free: Mutex<Contexts>,
    came: AtomicU32,
}

/// Which contexts are free: lanes that ended are reused.
#[derive(Default)]
struct Contexts {
    free: Vec<usize>,
    next: usize,
}

/// One connection.
struct Lane {
    vi: Vi,
    from: u32,
    postbox: u32,
    /// Announced messages, in the order of their answers.
    coming: VecDeque<Coming>,
}

/// A message that was announced.
enum Coming {
    Written(Window),
    Copied { block: Block, filled: usize, tag: u32 },
}

impl Inbox {
    pub fn open(world: &Arc<Shared>, name: &str) -> Result<Self> {
        let nic = world.nic();
        let failed = |error| Error::via(format!("creating mailbox {name:?}"), error);
        let mut cq = Cq::new(nic).map_err(failed)?;
        cq.set_oversubscribed(world.oversubscribed());
        let door =
            Arc::new(Door { waiting: Mutex::default(), free: Mutex::default(), came: AtomicU32::new(0) });
        let ptag = nic.ptag();
        let (accept, handle, accepting_nic) = (door.clone(), cq.handle(), nic.clone());
        let one_sided = nic.caps().has(udeck_via::Caps::RDMA_WRITE);
        let listener = Listener::with_handler(nic, name.as_bytes(), move |request| {
            accept.admit(&accepting_nic, request, &handle, ptag, one_sided);
        })
        .map_err(failed)?;
        Ok(Inbox {
            cq,
            lanes: Vec::new(),
            door,
            let_in: 0,
            set_aside: VecDeque::new(),
            world: world.clone(),
            name: name.to_owned(),
            ptag,
            reported: BTreeSet::new(),
            counters: world.counters(name),
            listener: Some(listener),
        })
    }

    pub fn handle(&self) -> CqHandle {
        self.cq.handle()
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The next message, if one is there.
    #[inline]
    pub fn try_next(&mut self) -> Result<Option<Parcel>> {
        match self.set_aside.pop_front() {
            Some(parcel) => Ok(Some(parcel)),
            None => self.poll(),
        }
    }

    /// The next message.
    pub fn next(&mut self, deadline: Deadline) -> Result<Parcel> {
        match self.try_next()? {
            Some(parcel) => Ok(parcel),
            None => self.wait_for_next(deadline),
        }
    }

    /// A message that could not be given out after all: the next one again.
    #[cold]
    pub fn put_back(&mut self, parcel: Parcel) {
        self.set_aside.push_front(parcel);
    }

    /// The oldest message that `fits`; one that does not stays at the head of its postbox, and only that waits.
    ///
    /// `Err` in the result: nothing fits, and this is how many bytes the oldest message has, and its sender.
    pub fn next_that(
        &mut self,
        deadline: Deadline,
        fits: impl Fn(&Parcel) -> bool,
    ) -> Result<Result<Parcel, (usize, u32)>> {
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
            let parcel = match self.poll()? {
                Some(parcel) => parcel,
                None => match self.set_aside.front() {
                    Some(oldest) => return Ok(Err((oldest.bytes().len(), oldest.from))),
                    None => self.wait_for_next(deadline)?,
                },
            };
            let lane = (parcel.from, parcel.postbox);
            if !blocked.contains(&lane) && fits(&parcel) {
                return Ok(Ok(parcel));
            }
            blocked.insert(lane);
            self.set_aside.push_back(parcel);
        }
    }

    #[cold]
    fn wait_for_next(&mut self, deadline: Deadline) -> Result<Parcel> {
        let start = Instant::now();
        loop {
            self.report_ends()?;
            let world = &self.world;
            let (ends, came) = (world.ends().seen(), self.door.came.load(Ordering::Acquire));
            let door = &self.door;
            let entry = self.cq.wait(world.slice(deadline), || {
                world.help_others();
                world.ends().seen() != ends || door.came.load(Ordering::Relaxed) != came
            });
            if let Some(entry) = entry
                && let Some(parcel) = self.look_at(entry.context)?
            {
                return Ok(parcel);
            }
            if let Some(parcel) = self.poll()? {
                return Ok(parcel);
            }
            if deadline.passed() {
                let what = format!("retrieving from mailbox {:?}", self.name);
                return Err(Error::Deadline { what, waited: start.elapsed(), whom: self.whom() });
            }
        }
    }

    /// Ranks that ended: each lost one is an error once; when nobody is left, so is waiting.
    fn report_ends(&mut self) -> Result {
        if let Some((node, how)) = self.world.ends().lost_beyond(&self.reported) {
            self.reported.insert(node);
            return Err(Error::PeerLost { node: node as usize, how });
        }
        let connected =
            self.lanes.iter().any(Option::is_some) || self.door.came.load(Ordering::Acquire) != self.let_in;
        if !connected && self.world.is_deserted() {
            return Err(Error::NobodyLeft { name: self.name.clone() });
        }
        Ok(())
    }

    /// Who could post.
    fn whom(&self) -> String {
        let ranks: BTreeSet<u32> = self.lanes.iter().flatten().map(|lane| lane.from).collect();
        let ranks: Vec<u32> = ranks.into_iter().collect();
        match ranks.len() {
            0 => "any rank (none has made a postbox of it yet)".into(),
            _ => format!("{} to post", udeck_boot::Ranks(&ranks)),
        }
    }

    /// A message, if one can be had without waiting.
    #[inline]
    fn poll(&mut self) -> Result<Option<Parcel>> {
        while let Some(entry) = self.cq.poll() {
            if let Some(parcel) = self.look_at(entry.context)? {
                return Ok(Some(parcel));
            }
        }
        Ok(None)
    }

    /// What a lane has.
    #[inline]
    fn look_at(&mut self, context: u64) -> Result<Option<Parcel>> {
        let context = context as usize;
        if !matches!(self.lanes.get(context), Some(Some(_))) {
            self.let_in();
        }
        let Some(Some(lane)) = self.lanes.get_mut(context) else { return Ok(None) };
        match lane.vi.arrival() {
            Ok(None) => Ok(None),
            Ok(Some(arrival)) => match lane.take(arrival, &self.world, &self.counters, self.ptag) {
                Ok(parcel) => Ok(parcel),
                Err(Malformed) => self.end_lane(context, Some("it broke the message protocol".into())),
            },
            Err(ViaError::Lost(how)) => self.end_lane(context, Some(how)),
            Err(_) => self.end_lane(context, None),
        }
    }

    #[cold]
    fn end_lane(&mut self, context: usize, lost: Option<String>) -> Result<Option<Parcel>> {
        let Some(lane) = self.lanes[context].take() else { return Ok(None) };
        self.door.free.lock().free.push(context);
        let from = lane.from;
        drop(lane);
        match lost {
            Some(how) if !self.world.ends().is_done(from) && self.reported.insert(from) => {
                let how = self.world.ends().how_lost(from).unwrap_or(how);
                Err(Error::PeerLost { node: from as usize, how })
            }
            _ => Ok(None),
        }
    }

    /// Takes over the connections that were accepted meanwhile.
    #[cold]
    fn let_in(&mut self) {
        for (context, lane) in self.door.waiting.lock().drain(..) {
            if self.lanes.len() <= context {
                self.lanes.resize_with(context + 1, || None);
            }
            self.lanes[context] = Some(lane);
            self.let_in = self.let_in.wrapping_add(1);
        }
    }
}

impl Door {
    /// Accepts a connection. On the reactor's thread.
    fn admit(&self, nic: &udeck_via::Nic, request: Request, cq: &CqHandle, ptag: Ptag, one_sided: bool) {
        let Ok((from, postbox)) = wire::introduced(request.private_data()) else {
            return request.reject("a mailbox talks only to postboxes");
        };
        let context = self.free.lock().take();
        let mut attributes = ViAttributes::new(ptag);
        attributes.receive = Receive::Lent;
        attributes.enable_rdma_write = one_sided;
        attributes.context = context as u64;
        // Held while accepting: the owner may be told of the first message before the lane is in the list.
        let mut waiting = self.waiting.lock();
        let accepted =
            Vi::new(nic, attributes).and_then(|mut vi| request.accept(&mut vi, cq, cq, &[]).map(|()| vi));
        match accepted {
            Ok(vi) => {
                waiting.push((context, Lane { vi, from, postbox, coming: VecDeque::new() }));
                drop(waiting);
                self.came.fetch_add(1, Ordering::Release);
                cq.wake();
            }
            // The requester was told, or is gone.
            Err(_) => self.free.lock().free.push(context),
        }
    }
}

impl Contexts {
    fn take(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }
}

impl Lane {
    #[inline]
    fn parcel(&self, tag: u32, stored: Stored) -> Option<Parcel> {
        Some(Parcel { from: self.from, postbox: self.postbox, tag, stored })
    }

    /// What an arrival amounts to.
    #[inline]
    fn take(
        &mut self,
        arrival: Arrival,
        world: &Shared,
        counters: &Counters,
        ptag: Ptag,
    ) -> Result<Option<Parcel>, Malformed> {
        let tag = arrival.immediate.unwrap_or(0);
        match arrival.body {
            Body::Inline(inline) => {
                let (kind, _, rest) = wire::decode(inline.bytes())?;
                if kind == Kind::Eager {
                    counters.copied(rest.len());
                    return Ok(self.parcel(tag, Stored::Inline(inline)));
                }
                self.announced(kind, wire::decode_length(rest)?, tag, world, ptag)?;
                Ok(None)
            }
            Body::Lent(head, lent) => self.take_lent(head, lent, tag, world, counters),
            Body::Written(len) => self.take_written(len, tag),
        }
    }

    fn take_lent(
        &mut self,
        head: Inline,
        lent: Lent,
        tag: u32,
        world: &Shared,
        counters: &Counters,
    ) -> Result<Option<Parcel>, Malformed> {
        match wire::decode(head.bytes())?.0 {
            Kind::HandOff => Ok(self.parcel(tag, Stored::Lent(lent))),
            // Without memory for the copy, the sender's will do.
            Kind::Eager => match world.allocate(lent.len(), Fill::Keep) {
                Err(_) => Ok(self.parcel(tag, Stored::Lent(lent))),
                Ok(mut block) => {
                    block.bytes_mut().copy_from_slice(lent.bytes());
                    counters.copied(lent.len());
                    Ok(self.parcel(tag, Stored::Owned(block)))
                }
            },
            Kind::Fragment => self.take_fragment(lent, world.config().copy_window, counters),
            _ => Err(Malformed),
        }
    }

    fn take_fragment(
        &mut self,
        lent: Lent,
        window: u32,
        counters: &Counters,
    ) -> Result<Option<Parcel>, Malformed> {
        let Some(Coming::Copied { block, filled, tag }) = self.coming.front_mut() else {
            return Err(Malformed);
        };
        let room = block.bytes_mut().get_mut(*filled..*filled + lent.len()).ok_or(Malformed)?;
        room.copy_from_slice(lent.bytes());
        counters.copied(lent.len());
        *filled += lent.len();
        if *filled < block.len() {
            // What the sender may send unasked needs no word; without one it may be gone already.
            let unasked = window.saturating_sub(1) as usize * lent.len();
            let ask = block.len() - *filled > unasked;
            drop(lent); // goes home before its sender is asked for more
            if ask {
                self.vi.send_inline(None, &wire::head(Kind::More, 0), &[]).map_err(|_| Malformed)?;
            }
            return Ok(None);
        }
        let tag = *tag;
        match self.coming.pop_front() {
            Some(Coming::Copied { block, .. }) => Ok(self.parcel(tag, Stored::Owned(block))),
            _ => Err(Malformed),
        }
    }

    fn take_written(&mut self, len: usize, tag: u32) -> Result<Option<Parcel>, Malformed> {
        let Some(Coming::Written(window)) = self.coming.pop_front() else { return Err(Malformed) };
        if window.len() != len {
            return Err(Malformed);
        }
        let settled = window.revoke(Deadline::after(SETTLE)).map_err(|_| Malformed)?;
        Ok(self.parcel(tag, Stored::Settled(settled)))
    }

    /// A postbox announces a message: finds memory, and answers.
    #[cold]
    fn announced(
        &mut self,
        kind: Kind,
        len: usize,
        tag: u32,
        world: &Shared,
        ptag: Ptag,
    ) -> Result<(), Malformed> {
        let prepared = match kind {
            Kind::AskWrite => world.nic().window(len, ptag).map(Coming::Written),
            Kind::AskCopy => {
                world.allocate(len, Fill::Keep).map(|block| Coming::Copied { block, filled: 0, tag })
            }
            _ => return Err(Malformed),
        };
        let answer = match &prepared {
            Ok(Coming::Written(window)) => wire::head(Kind::Ready, window.remote().handle.0),
            Ok(Coming::Copied { .. }) => wire::head(Kind::Ready, world.config().copy_window.max(1)),
            Err(_) => wire::head(Kind::Refused, 0),
        };
        let why = match &prepared {
            Ok(_) => String::new(),
            Err(ViaError::NoMemory { .. }) => NO_MEMORY.into(),
            Err(error) => error.to_string(),
        };
        let room = Inline::CAPACITY - HEAD_BYTES;
        let why = &why.as_bytes()[..why.len().min(room)];
        // A postbox announces fewer messages than a ring has cells, so there is room; one that does not read its
        // answers is no postbox.
        self.vi.send_inline(None, &answer, why).map_err(|_| Malformed)?;
        self.coming.extend(prepared);
        Ok(())
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        // No new connections first; then those that nobody will look at.
        self.listener = None;
        self.door.waiting.lock().clear();
        self.lanes.clear();
        // Nothing carries the tag any more, unless a connection is being accepted right now: then it stays with the NIC.
        let _ = self.world.nic().destroy_ptag(self.ptag);
    }
}
