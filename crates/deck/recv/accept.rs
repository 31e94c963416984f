//! Connections that were accepted on the NICs' own threads and that the mailbox's owner has not taken over
//! yet.

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

/// Bit set in the context of a data VI; the other bits are its control VI's context.
pub(super) const DATA: u64 = 1 << 63;

/// Accepted connections that the owner has not seen yet.
pub(super) struct Acceptor {
    /// Accepted connections, with their contexts.
    waiting: Mutex<Vec<(usize, Accepted)>>,
    contexts: Mutex<Contexts>,
    accepted: AtomicU32,
    /// Number of connections that are being accepted at this moment.
    being_accepted: AtomicU32,
    /// Whether a NIC has dropped its listener because the NIC failed.
    failed: AtomicBool,
    places: Places,
}

/// Connections that one other rank may have with one mailbox: a postbox has one, and two once it has posted
/// by `handshake`. At least this number; in a small job more, an equal share of [`PLACES`]. A connection that
/// has ended counts until the owner has seen it, because its messages and its place are kept until then. A
/// rank that asks for another one meanwhile asks again.
const MIN_PER_RANK: u64 = 512;
/// Connections for which a mailbox's completion queues have places, over shared memory.
const PLACES: u64 = 1023;

/// The place of one connection, out of those that its rank may have.
pub(super) type PlaceShare = Share<u32>;

/// Places taken, by rank. The NICs bound their total.
struct Places {
    taken: Arc<Quota<u32>>,
    /// Places of one other rank.
    each: u64,
}

/// Guard that lies in the handler of a NIC's listener. The NIC drops it when it fails; otherwise it is
/// dropped after the mailbox.
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

/// A listener for connections that come in by one of the world's NICs.
pub(super) struct NicListener {
    /// Index of the NIC in the world's order.
    pub at: usize,
    pub nic: Nic,
    pub cq: CqHandle,
    pub ptag: Ptag,
    /// Service level of what the mailbox sends back.
    pub level: ServiceLevel,
    /// The ranks that may connect by this NIC ([`crate::world_state::WorldState::admitted_by`]); `None`: all.
    pub admits: Option<Vec<u32>>,
}

/// An accepted connection.
pub(super) enum Accepted {
    Connection(Connection),
    /// The data VI of a postbox's connection.
    Data {
        data: RecvData,
        postbox: (u32, u32),
    },
}

/// Free contexts (those of ended connections are reused), and contexts in use.
#[derive(Default)]
struct Contexts {
    free: Vec<usize>,
    next: usize,
    /// Context of each postbox's connection, by rank and number of the postbox: its data VI belongs there.
    of: HashMap<(u32, u32), usize>,
}

impl Acceptor {
    /// Makes the acceptor of a mailbox in a job of `ranks` ranks.
    pub fn new(ranks: usize) -> Self {
        let others = ranks.saturating_sub(1).max(1) as u64;
        Acceptor {
            waiting: Mutex::default(),
            contexts: Mutex::default(),
            accepted: AtomicU32::new(0),
            being_accepted: AtomicU32::new(0),
            failed: AtomicBool::new(false),
            places: Places { taken: Quota::new(u64::MAX), each: MIN_PER_RANK.max(PLACES / others) },
        }
    }

    /// Number of connections accepted so far.
    #[inline]
    pub fn accepted(&self) -> u32 {
        self.accepted.load(Ordering::Acquire)
    }

    /// Whether a connection is being accepted. Its requester may know already that it is accepted, and may
    /// have posted and finished before the connection is in the list.
    pub fn is_admitting(&self) -> bool {
        self.being_accepted.load(Ordering::Acquire) > 0
    }

    /// Whether a NIC has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Takes the accepted connections. Waits for one that is being accepted at this moment.
    pub fn take_accepted(&self) -> Vec<(usize, Accepted)> {
        std::mem::take(&mut *self.waiting.lock())
    }

    /// Accepts a connection. Runs on the NIC's own thread.
    pub fn admit(&self, listener: &NicListener, request: Request) {
        let Ok(who) = Introduction::decode(request.private_data()) else {
            return request.reject("a mailbox accepts connections from postboxes only");
        };
        // The rank that the peer has proved, not the one that it names.
        let Some(rank) = request.peer() else {
            return request.reject(
                "a mailbox accepts connections only from ranks of its job that prove which rank they are",
            );
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
        // The control connection may have ended meanwhile, and its context may belong to a connection that
        // came by another NIC: the owner checks which postbox it is.
        let data = |vi| Accepted::Data { data: RecvData::new(vi, pair, place), postbox };
        self.accept(listener, attributes, request, context, data);
    }

    /// Accepts the VI. Returns whether it worked; if not, the requester was told, or is gone.
    fn accept(
        &self,
        NicListener { nic, cq, .. }: &NicListener,
        attributes: ViAttributes,
        request: Request,
        context: usize,
        wrap: impl FnOnce(Vi) -> Accepted,
    ) -> bool {
        self.being_accepted.fetch_add(1, Ordering::Relaxed);
        // Held while accepting: the owner may get the completion of a first message before the connection is
        // in the list.
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
        // Decremented only now: a thread that sees that no connection is coming also sees the one that came.
        self.being_accepted.fetch_sub(1, Ordering::Release);
        cq.wake();
        is_accepted
    }

    /// Simulates a connection that is being accepted, until called with `false`.
    #[cfg(test)]
    pub fn pose_as_admitting(&self, admits: bool) {
        self.being_accepted.store(admits.into(), Ordering::Release);
    }

    /// Frees the context of a connection that has ended.
    pub fn leave(&self, context: usize, postbox: (u32, u32)) {
        let mut contexts = self.contexts.lock();
        if contexts.of.get(&postbox) == Some(&context) {
            contexts.of.remove(&postbox);
        }
        contexts.free.push(context);
    }
}

/// The text that rejects a rank of another host.
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
