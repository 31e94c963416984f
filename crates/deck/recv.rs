//! The engine behind a mailbox: all connections made to it, and what is arriving on them.
//!
//! | file | contents |
//! |---|---|
//! | here | an inbox: its connections, and how they begin and end |
//! | `poll` | the next message, if it is there: the fast path |
//! | `waiting` | waiting for the next message, and polling the work queues for it ([`crate::ReceiveModel`]) |
//! | `choosing` | the oldest message of a rank, with a tag, or that fits into a buffer |
//! | `set_aside` | messages that were taken and not given out yet |
//! | `rendezvous` | serving announcements; connections that wait for memory |
//! | `readiness` | whether a message is there, for waits on several mailboxes and for tasks |
//! | `connection` | one connection, and what arrives on it |
//! | `accept` | accepting connections |
//! | `incast` | grants under incast control: how long postboxes have to wait |
//! | `completion_queues`, `wait_lists` | parts of an inbox: where its connections report, and those that wait |
//!
//! A protocol (`protocol/*.rs`) says what to do with a message that arrives. This folder says when
//! connections are polled, and in which order.

mod accept;
pub(crate) mod choosing;
mod completion_queues;
mod connection;
pub(crate) mod incast;
mod poll;
mod readiness;
mod rendezvous;
mod set_aside;
mod wait_lists;
mod waiting;

use std::collections::BTreeSet;
use std::sync::Arc;

use udeck_boot::family;
use udeck_via::{CqHandle, Deadline, Error as ViaError, Listener, Ptag, SpinHistory};

use self::accept::{Accepted, Acceptor, NicListener, WhileOpen};
use self::completion_queues::{Burst, CompletionQueues};
use self::connection::Connection;
use self::incast::Grants;
use self::set_aside::SetAside;
use self::wait_lists::WaitLists;
use crate::error::{Error, Result, Titled};
use crate::matching::Match;
use crate::parcel::{Parcel, TooLong};
use crate::protocol::ReceiveModel;
use crate::stats::Counters;
use crate::turns::Turns;
use crate::world_state::WorldState;
pub(crate) use readiness::WaitConditions;
use udeck_via::ServiceLevel;

/// A mailbox's connections.
pub(crate) struct Inbox {
    queues: CompletionQueues,
    /// Connections by context of their VI, over all NICs.
    connections: Vec<Option<Connection>>,
    acceptor: Arc<Acceptor>,
    /// Number of accepted connections taken from the acceptor.
    accepted_seen: u32,
    /// Messages that were taken and not given out yet, oldest first.
    set_aside: SetAside,
    model: ReceiveModel,
    /// Index of the connection whose turn it is when work queues are polled.
    turn: usize,
    /// Spin history of polling the work queues: whether it pays.
    spin_history: SpinHistory,
    burst: Burst,
    /// Connections with announcements for which there is no memory, or with a message that has almost arrived.
    waiting: WaitLists,
    /// Memory and time granted to the connections.
    grants: Grants,
    /// Length in bytes of the program's buffer, if the program retrieves any message into one.
    buffer_len: Option<usize>,
    /// Filter for the messages that the program waits for.
    wanted: Match,
    /// The message that was just found too long for the buffer.
    too_long: Option<TooLong>,
    world: Arc<WorldState>,
    name: String,
    /// Turns by which other threads ask for the mailbox.
    turns: Arc<Turns>,
    /// Protection tags of the mailbox's VIs, by NIC.
    ptags: Vec<Ptag>,
    /// Ranks that have or had a postbox of this mailbox, or were declared to post here.
    sender_ranks: BTreeSet<u32>,
    /// Lost ranks that this mailbox has reported.
    reported: BTreeSet<u32>,
    /// Version of the exit log at the last check.
    exits_seen: u64,
    /// Whether a connection was being accepted at the last check. It may belong to a rank that has ended.
    exits_open: bool,
    counters: Arc<Counters>,
    /// Listeners for new connections, by NIC; dropped first.
    listeners: Vec<Listener>,
}

impl Inbox {
    /// Opens an inbox. `registered` is the name that the mailbox will have at the name service.
    pub fn open(world: &Arc<WorldState>, registered: &str, level: ServiceLevel) -> Result<Self> {
        let name = family::parts(registered).0;
        let failed = |error| Error::via(format!("creating {}", Titled(name)), error);
        let queues = CompletionQueues::new(world.nics(), world.oversubscribed()).map_err(failed)?;
        let acceptor = Arc::new(Acceptor::new(world.size()));
        let (mut ptags, mut listeners) = (Vec::new(), Vec::new());
        for (at, (world_nic, cq)) in world.nics().iter().zip(queues.handles()).enumerate() {
            let ptag = world_nic.nic.ptag();
            ptags.push(ptag);
            let open = WhileOpen { acceptor: acceptor.clone(), cq: cq.clone() };
            let admits = world.admitted_by(world_nic.nic.attributes());
            let listener = NicListener { at, nic: world_nic.nic.clone(), cq, ptag, level, admits };
            let admit = move |request| open.acceptor.admit(&listener, request);
            listeners
                .push(Listener::with_handler(&world_nic.nic, registered.as_bytes(), admit).map_err(failed)?);
        }
        let turns = Arc::new(Turns::new(queues.handle(), name, world.client().waits()));
        let counters = world.mailbox_counters(name);
        let grants = Grants::new(world.open_quota(name), world.incast_rules(registered), world, &counters);
        Ok(Inbox {
            queues,
            connections: Vec::new(),
            acceptor,
            accepted_seen: 0,
            set_aside: SetAside::default(),
            model: world.config().receive,
            turn: 0,
            spin_history: SpinHistory::default(),
            burst: Burst::default(),
            waiting: WaitLists::default(),
            grants,
            buffer_len: None,
            wanted: Match::ANY,
            too_long: None,
            world: world.clone(),
            name: name.to_owned(),
            turns,
            ptags,
            sender_ranks: BTreeSet::new(),
            reported: BTreeSet::new(),
            exits_seen: 0,
            exits_open: false,
            counters,
            listeners,
        })
    }

    pub fn world(&self) -> &WorldState {
        &self.world
    }

    /// Handle of the first completion queue: waking it wakes the thread that waits here.
    pub fn handle(&self) -> CqHandle {
        self.queues.handle()
    }

    pub fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Puts the next message into `parcel`.
    pub fn next(&mut self, parcel: &mut Parcel, deadline: Deadline) -> Result {
        if self.try_next(parcel, false)? || self.wait_in_place(parcel)? {
            return Ok(());
        }
        self.wait_for_next(parcel, deadline)
    }

    /// Makes a message that could not be given out the next one again.
    #[cold]
    pub fn put_back(&mut self, parcel: Parcel) {
        self.burst.end();
        self.turns.set_aside(parcel.rank, parcel.tag);
        self.set_aside.push_front(parcel);
    }

    /// Sets a message aside that is not for the caller.
    #[cold]
    fn pass_over(&mut self, parcel: Parcel) {
        self.burst.end();
        self.turns.set_aside(parcel.rank, parcel.tag);
        self.set_aside.push_back(parcel);
    }

    #[cold]
    fn end_with(&mut self, context: usize, error: ViaError) -> Result<Option<Parcel>> {
        let lost = if let ViaError::Lost(how) = error { Some(how) } else { None };
        self.end_connection(context, lost)
    }

    #[cold]
    fn end_connection(&mut self, context: usize, lost: Option<String>) -> Result<Option<Parcel>> {
        let Some(connection) = self.connections[context].take() else { return Ok(None) };
        if connection.awaits_memory || connection.notified_while_blocked || connection.is_unfinished() {
            self.waiting.forget(context);
        }
        let rank = connection.side.rank;
        self.queues.disconnected(connection.nic);
        self.turns.ring_all(); // threads may be waiting for this rank only
        self.acceptor.leave(context, connection.postbox());
        drop(connection);
        if let Some(how) = lost.filter(|_| !self.reported.contains(&rank)) {
            self.waiting.exit_checks.add(rank, how);
            self.report_checked_exits()?;
        }
        Ok(None)
    }

    /// Reports a rank whose connection broke, if the launcher has said that it did not finish.
    #[cold]
    fn report_checked_exits(&mut self) -> Result {
        while let Some((rank, how)) = self.waiting.exit_checks.next_lost(&self.world) {
            if self.reported.insert(rank) {
                return Err(Error::PeerLost { rank: rank as usize, how });
            }
        }
        Ok(())
    }

    /// Declares that these ranks post here.
    pub fn expect(&mut self, ranks: impl IntoIterator<Item = usize>) {
        let size = self.world.size();
        self.sender_ranks.extend(ranks.into_iter().filter(|rank| *rank < size).map(|rank| rank as u32));
    }

    fn end_malformed(&mut self, context: usize) -> Result<Option<Parcel>> {
        self.end_connection(context, Some("it broke the message protocol".into()))
    }

    /// Takes over connections that were accepted since the last call.
    #[cold]
    fn add_accepted(&mut self) {
        for (context, accepted) in self.acceptor.take_accepted() {
            self.accepted_seen = self.accepted_seen.wrapping_add(1);
            if self.connections.len() <= context {
                self.connections.resize_with(context + 1, || None);
            }
            match (accepted, &mut self.connections[context]) {
                (Accepted::Connection(connection), place) => {
                    if (connection.side.rank as usize) < self.world.size() {
                        self.sender_ranks.insert(connection.side.rank);
                    }
                    self.queues.connected(connection.nic);
                    self.world.count_arrivals(connection.side.rank, &connection.side.arrivals);
                    *place = Some(connection);
                }
                (Accepted::Data { data, postbox }, Some(connection)) if postbox == connection.postbox() => {
                    let awaited = connection.awaits_data();
                    connection.data = Some(Box::new(data));
                    self.data_came(context, awaited);
                }
                // The connection of this data VI has ended; its context may now be another postbox's, even
                // another rank's.
                (Accepted::Data { .. }, _) => {}
            }
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        // Accept no new connections first; then drop the ones that nobody will poll.
        self.listeners.clear();
        drop(self.acceptor.take_accepted());
        self.connections.clear();
        // Nothing carries the tags any more, except a connection that is being accepted right now: its tag
        // stays with the NIC.
        for (world_nic, ptag) in self.world.nics().iter().zip(&self.ptags) {
            let _ = world_nic.nic.destroy_ptag(*ptag);
        }
    }
}
