//! Connections that were accepted on the NICs' own threads, until the mailbox's owner lets them in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use udeck_via::quota::{Quota, Share};
use udeck_via::{Caps, CqHandle, Nic, Ptag, Receive, Reliability, Request, Vi, ViAttributes, fault};

use super::connection::Connection;
use crate::config::ENCRYPT_ALL;
use crate::protocol::handshake::RecvData;
use crate::wire::{Introduction, Role};
use udeck_via::ServiceLevel;

/// Set in the context of a data VI; the rest of it is that of its control VI.
pub(super) const DATA: u64 = 1 << 63;

/// Connections that were accepted and not seen by the owner yet.
pub(super) struct Acceptor {
    /// With the contexts of their connections.
    waiting: Mutex<Vec<(usize, Accepted)>>,
    contexts: Mutex<Contexts>,
    accepted: AtomicU32,
    /// Being accepted at this moment.
    coming: AtomicU32,
    /// A NIC has let go of its way in, because it has failed.
    failed: AtomicBool,
    places: Places,
}

/// Connections of one other rank with one mailbox: a postbox has one, and two once it has posted by `handshake`. At least so many,
/// and in a small job more: an equal share of [`PLACES`]. One that has ended counts until the
/// owner has looked at it, because its messages and places are kept until then; who asks for another one meanwhile asks again.
const LEAST_OF_ONE_RANK: u64 = 512;
/// Connections that the completion queues of a mailbox have places for, over shared memory.
const PLACES: u64 = 1023;

/// The place that a connection takes of what its rank may have.
pub(super) type PlaceShare = Share<u32>;

/// By rank. All together are bounded by the NICs.
struct Places {
    taken: Arc<Quota<u32>>,
    /// For one other rank.
    each: u64,
}

/// Lies in the handler of a NIC's listener. The NIC drops that when it fails, and before only if the mailbox is gone.
pub(super) struct WhileOpen {
    pub acceptor: Arc<Acceptor>,
    pub cq: CqHandle,
}

impl Drop for WhileOpen {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.acceptor.failed.store(true, Ordering::Release);
        self.cq.wake();
    }
}

/// Where connections come in by one of the world's NICs.
pub(super) struct NicListener {
    /// The NIC's place in their order.
    pub at: usize,
    pub nic: Nic,
    pub cq: CqHandle,
    pub ptag: Ptag,
    /// Of what goes back.
    pub level: ServiceLevel,
    /// The ranks that may connect by this NIC ([`crate::world_state::WorldState::admitted_by`]); `None`: all.
    pub admits: Option<Vec<u32>>,
}

/// A connection that comes in.
pub(super) enum Accepted {
    Connection(Connection),
    /// The data VI of a postbox's connection.
    Data {
        data: RecvData,
        postbox: (u32, u32),
    },
}

/// Which contexts are free: connections that ended are reused.
#[derive(Default)]
struct Contexts {
    free: Vec<usize>,
    next: usize,
    /// The connection of each postbox, by rank and number: where its data VI belongs.
    of: HashMap<(u32, u32), usize>,
}

impl Acceptor {
    /// Of a mailbox in a job of so many ranks.
    pub fn new(ranks: usize) -> Self {
        let others = ranks.saturating_sub(1).max(1) as u64;
        Acceptor {
            waiting: Mutex::default(),
            contexts: Mutex::default(),
            accepted: AtomicU32::new(0),
            coming: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            places: Places { taken: Quota::new(u64::MAX), each: LEAST_OF_ONE_RANK.max(PLACES / others) },
        }
    }

    /// How many have come, all in all.
    #[inline]
    pub fn accepted(&self) -> u32 {
        self.accepted.load(Ordering::Acquire)
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
    pub fn take_accepted(&self) -> Vec<(usize, Accepted)> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Accepts a connection. On the NIC's own thread.
    pub fn admit(&self, listener: &NicListener, request: Request) {
        let Ok(who) = Introduction::decode(request.private_data()) else {
            return request.reject("a mailbox talks only to postboxes");
        };
        // Not what it says of itself: what it has proved.
        let Some(rank) = request.peer() else {
            return request.reject("a mailbox talks only to ranks of its job that prove which they are");
        };
        if listener.admits.as_ref().is_some_and(|ranks| !ranks.contains(&rank)) {
            return request.reject(&not_encrypted(rank, &listener.nic));
        }
        let is_own = listener.nic.attributes().identity == Some(rank);
        let most = if is_own { u64::MAX } else { self.places.each };
        let Ok(place) = self.places.taken.take(rank, 1, most) else {
            return request.reject_for_now(&format!(
                "rank {rank} has {most} connections with this mailbox, the most that one rank may have (a postbox \
                 has one, by handshake two), those included that have ended and that its owner has not looked at since; share \
                 postboxes"
            ));
        };
        let postbox = (rank, who.postbox);
        match who.role {
            Role::Control => self.admit_control(listener, request, postbox, place),
            Role::Data(pair) => self.admit_data(listener, request, postbox, (pair, place)),
        }
    }

    fn admit_control(
        &self,
        listener: &NicListener,
        request: Request,
        postbox: (u32, u32),
        place: PlaceShare,
    ) {
        let context = self.contexts.lock().take(postbox);
        let mut attributes = ViAttributes::new(listener.ptag);
        attributes.level = listener.level;
        attributes.receive = Receive::Lent;
        attributes.enable_rdma_write = listener.nic.caps().has(Caps::RDMA_WRITE);
        attributes.context = context as u64;
        let connection = |vi| Accepted::Connection(Connection::new(vi, postbox, listener.at, place));
        if !self.accept(listener, attributes, request, context, connection) {
            self.leave(context, postbox);
        }
    }

    fn admit_data(
        &self,
        listener: &NicListener,
        request: Request,
        postbox: (u32, u32),
        (pair, place): (u32, PlaceShare),
    ) {
        let Some(context) = self.contexts.lock().of.get(&postbox).copied() else {
            return request.reject("that postbox has no control VI here");
        };
        let mut attributes = ViAttributes::new(listener.ptag);
        attributes.level = listener.level;
        attributes.reliability = Reliability::Reception;
        attributes.context = context as u64 | DATA;
        // Meanwhile that connection may have ended, and its context be another one's, who came in by another NIC: the owner
        // looks whose it is.
        let data = |vi| Accepted::Data { data: RecvData::new(vi, pair, place), postbox };
        self.accept(listener, attributes, request, context, data);
    }

    /// Whether it worked; if not, the requester was told, or is gone.
    fn accept(
        &self,
        NicListener { nic, cq, .. }: &NicListener,
        attributes: ViAttributes,
        request: Request,
        context: usize,
        wrap: impl FnOnce(Vi) -> Accepted,
    ) -> bool {
        self.coming.fetch_add(1, Ordering::Relaxed);
        // Held while accepting: the owner may be told of the first message before the connection is in the list.
        let mut waiting = self.waiting.lock();
        let accepted =
            Vi::new(nic, attributes).and_then(|mut vi| request.accept(&mut vi, cq, cq, &[]).map(|()| vi));
        let is_accepted = accepted.is_ok();
        if let Ok(vi) = accepted {
            fault::point("accept.accepted");
            waiting.push((context, wrap(vi)));
            drop(waiting);
            self.accepted.fetch_add(1, Ordering::Release);
        }
        // Only now: whoever sees that it is not coming sees that it has come.
        self.coming.fetch_sub(1, Ordering::Release);
        cq.wake();
        is_accepted
    }

    /// Poses as if a connection were being accepted, until it is called with `false`.
    #[cfg(test)]
    pub fn pose_as_admitting(&self, admits: bool) {
        self.coming.store(admits.into(), Ordering::Release);
    }

    /// A connection has ended; its context is free.
    pub fn leave(&self, context: usize, postbox: (u32, u32)) {
        let mut contexts = self.contexts.lock();
        if contexts.of.get(&postbox) == Some(&context) {
            contexts.of.remove(&postbox);
        }
        contexts.free.push(context);
    }
}

/// What a rank of another host is told.
#[cold]
fn not_encrypted(rank: u32, nic: &Nic) -> String {
    let name = &nic.attributes().name;
    format!(
        "messages from other hosts have to be encrypted here (DECK_ENCRYPT); {name} does not encrypt, and rank {rank} runs on \
         another host; {ENCRYPT_ALL}"
    )
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

#[cfg(test)]
mod tests;
