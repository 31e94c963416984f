//! The door: connections that were accepted on the NICs' own threads, until the mailbox's owner lets them in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use udeck_via::{Caps, CqHandle, Nic, Ptag, Receive, Reliability, Request, Vi, ViAttributes, fault};

use super::lane::Lane;
use crate::wire::{Introduction, Role};

/// Set in the context of a data VI; the rest of it is that of its control VI.
pub(super) const DATA: u64 = 1 << 63;

/// Connections that were accepted and not seen by the owner yet.
#[derive(Default)]
pub(super) struct Door {
    /// With the contexts of their lanes.
    waiting: Mutex<Vec<(usize, Newcomer)>>,
    contexts: Mutex<Contexts>,
    came: AtomicU32,
    /// Being accepted at this moment.
    coming: AtomicU32,
    /// A NIC has let go of its way in, because it has failed.
    failed: AtomicBool,
}

/// Lies in the handler of an entrance. The NIC drops that when it fails, and before only if the mailbox is gone.
pub(super) struct WhileOpen {
    pub door: Arc<Door>,
    pub cq: CqHandle,
}

impl Drop for WhileOpen {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.door.failed.store(true, Ordering::Release);
        self.cq.wake();
    }
}

/// Where connections come in by one of the world's NICs.
pub(super) struct Entrance {
    /// The NIC's place in their order.
    pub at: usize,
    pub nic: Nic,
    pub cq: CqHandle,
    pub ptag: Ptag,
}

/// A connection that comes in.
pub(super) enum Newcomer {
    Lane(Lane),
    /// The data VI of a lane, and the number of the pair that they are.
    Data(Vi, u32),
}

/// Which contexts are free: lanes that ended are reused.
#[derive(Default)]
struct Contexts {
    free: Vec<usize>,
    next: usize,
    /// The lane of each postbox, by rank and number: where its data VI belongs.
    of: HashMap<(u32, u32), usize>,
}

impl Door {
    /// How many have come, all in all.
    #[inline]
    pub fn came(&self) -> u32 {
        self.came.load(Ordering::Acquire)
    }

    /// Whether one is being accepted. Who asked for it may know already, and may have posted and finished before it has come.
    pub fn is_admitting(&self) -> bool {
        self.coming.load(Ordering::Acquire) > 0
    }

    /// Whether a NIC has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Those that wait. Includes whoever is being accepted at this moment.
    pub fn let_in(&self) -> Vec<(usize, Newcomer)> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Accepts a connection. On the NIC's own thread.
    pub fn admit(&self, entrance: &Entrance, request: Request) {
        let Ok(who) = Introduction::decode(request.private_data()) else {
            return request.reject("a mailbox talks only to postboxes");
        };
        // Not what it says of itself: what it has proved.
        let Some(rank) = request.peer() else {
            return request.reject("a mailbox talks only to ranks of its job that prove which they are");
        };
        let postbox = (rank, who.postbox);
        match who.role {
            Role::Control => self.admit_control(entrance, request, postbox),
            Role::Data(pair) => self.admit_data(entrance, request, postbox, pair),
        }
    }

    fn admit_control(&self, entrance: &Entrance, request: Request, postbox: (u32, u32)) {
        let context = self.contexts.lock().take(postbox);
        let mut attributes = ViAttributes::new(entrance.ptag);
        attributes.receive = Receive::Lent;
        attributes.enable_rdma_write = entrance.nic.caps().has(Caps::RDMA_WRITE);
        attributes.context = context as u64;
        let lane = |vi| Newcomer::Lane(Lane::new(vi, postbox.0, postbox.1, entrance.at));
        if !self.accept(entrance, attributes, request, context, lane) {
            self.leave(context, postbox);
        }
    }

    fn admit_data(&self, entrance: &Entrance, request: Request, postbox: (u32, u32), pair: u32) {
        let Some(context) = self.contexts.lock().of.get(&postbox).copied() else {
            return request.reject("that postbox has no control VI here");
        };
        let mut attributes = ViAttributes::new(entrance.ptag);
        attributes.reliability = Reliability::Reception;
        attributes.context = context as u64 | DATA;
        self.accept(entrance, attributes, request, context, |vi| Newcomer::Data(vi, pair));
    }

    /// Whether it worked; if not, the requester was told, or is gone.
    fn accept(
        &self,
        Entrance { nic, cq, .. }: &Entrance,
        attributes: ViAttributes,
        request: Request,
        context: usize,
        newcomer: impl FnOnce(Vi) -> Newcomer,
    ) -> bool {
        self.coming.fetch_add(1, Ordering::Relaxed);
        // Held while accepting: the owner may be told of the first message before the newcomer is in the list.
        let mut waiting = self.waiting.lock();
        let accepted =
            Vi::new(nic, attributes).and_then(|mut vi| request.accept(&mut vi, cq, cq, &[]).map(|()| vi));
        let is_accepted = accepted.is_ok();
        if let Ok(vi) = accepted {
            fault::point("door.accepted");
            waiting.push((context, newcomer(vi)));
            drop(waiting);
            self.came.fetch_add(1, Ordering::Release);
        }
        // Only now: whoever sees that it is not coming sees that it has come.
        self.coming.fetch_sub(1, Ordering::Release);
        cq.wake();
        is_accepted
    }

    /// A lane has ended; its context is free.
    pub fn leave(&self, context: usize, postbox: (u32, u32)) {
        let mut contexts = self.contexts.lock();
        if contexts.of.get(&postbox) == Some(&context) {
            contexts.of.remove(&postbox);
        }
        contexts.free.push(context);
    }
}

impl Contexts {
    fn take(&mut self, postbox: (u32, u32)) -> usize {
        let context = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.of.insert(postbox, context);
        context
    }
}
