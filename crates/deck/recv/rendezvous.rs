//! Serving announcements, and the connections that wait: for memory, for a message that is being read, or for
//! a peer to leave a message's window.
//!
//! While a connection waits, it may be *blocked*: its ring is not read, because no later message may overtake
//! the one that waits (head-of-line blocking). The completion queue goes on reporting a blocked connection
//! while there are messages, but reports the end of its connection once. Hence a connection that was reported
//! while it was blocked is marked ([`Connection::notified_while_blocked`]), and polled when it is not blocked
//! any more.

use udeck_via::PollBudget;

use super::Inbox;
use super::connection::Connection;
use crate::error::Result;
use crate::memory::accounting::{MEMORIES, Memory};
use crate::parcel::Parcel;
use crate::protocol::side::RendezvousStatus;
use crate::stats::trace;
use crate::wire::{Kind, Malformed};

/// Result of serving a connection's oldest announcement.
enum ServeResult {
    /// Served; perhaps with a message.
    Done(Option<Parcel>),
    /// Deferred until there is memory.
    Deferred,
}

impl Inbox {
    /// Serves the announcement that a connection has just made, if any, unless other connections wait for the
    /// same memory.
    #[cold]
    pub(super) fn serve(&mut self, context: usize) -> Result<Option<Parcel>> {
        let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(None) };
        if let Some(asked) = connection.reservations.asked.take() {
            return self.answer_reservation(context, asked);
        }
        let Some(memory) = connection.wants().filter(|_| !connection.awaits_memory) else { return Ok(None) };
        if self.waiting.for_memory[memory as usize].is_empty()
            && let ServeResult::Done(parcel) = self.serve_oldest(context)?
        {
            return Ok(parcel);
        }
        self.wait_for_memory(context);
        Ok(None)
    }

    /// Answers a postbox's reservation for short messages.
    #[cold]
    fn answer_reservation(&mut self, context: usize, asked: u64) -> Result<Option<Parcel>> {
        self.note_outstanding();
        let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(None) };
        let side = &mut connection.side;
        let granted = self.grants.reserve(asked, &mut connection.reservations, side);
        match granted.and_then(|(bytes, delay)| side.answer(Some(delay), Kind::Grant, bytes, &[])) {
            Ok(()) => Ok(None),
            Err(Malformed) => self.end_malformed(context),
        }
    }

    /// Scans the connections for reserved messages that have not arrived.
    fn note_outstanding(&mut self) {
        let connections = self.connections.iter().flatten();
        let reserved = connections.map(|connection| (&connection.reservations, &connection.side));
        self.grants.note_outstanding(reserved);
    }

    /// Serves connections that wait, as far as possible now, up to the first message.
    #[cold]
    pub(super) fn serve_waiting(&mut self) -> Result<Option<Parcel>> {
        if let Some(parcel) = self.finish()? {
            return Ok(Some(parcel));
        }
        for memory in MEMORIES {
            let mut budget = PollBudget::once();
            while budget.take()
                && let Some(context) = self.waiting.for_memory[memory as usize].pop_front()
            {
                let ServeResult::Done(parcel) = self.serve_oldest(context)? else {
                    self.waiting.for_memory[memory as usize].push_front(context);
                    break;
                };
                if let Some(Some(connection)) = self.connections.get_mut(context) {
                    connection.awaits_memory = false;
                    self.wait_for_memory(context);
                }
                if parcel.is_some() || self.too_long.is_some() {
                    return Ok(parcel);
                }
            }
        }
        Ok(None)
    }

    /// Returns a message that had almost arrived and now has: it has been read, or no peer is inside its
    /// window any more.
    fn finish(&mut self) -> Result<Option<Parcel>> {
        for _ in 0..self.waiting.unfinished.len() {
            let Some(context) = self.waiting.unfinished.pop_front() else { break };
            let Some(Some(connection)) = self.connections.get_mut(context) else { continue };
            let finished = connection.finish();
            self.resume_reading(context);
            let found = match finished {
                Ok(RendezvousStatus::Received(parcel)) => return Ok(Some(parcel)),
                Ok(RendezvousStatus::InProgress | RendezvousStatus::Deferred) => {
                    self.waiting.unfinished.push_back(context);
                    continue;
                }
                Ok(RendezvousStatus::Answered | RendezvousStatus::TooLong(_)) => continue,
                Ok(RendezvousStatus::ConnectionEnded(error)) => self.end_with(context, error)?,
                Err(Malformed) => self.end_malformed(context)?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Queues a connection for memory with its oldest announcement, if it has one.
    fn wait_for_memory(&mut self, context: usize) {
        let Some(Some(connection)) = self.connections.get_mut(context) else { return };
        let Some(memory) = connection.wants() else { return };
        connection.awaits_memory = true;
        self.waiting.for_memory[memory as usize].push_back(context);
    }

    fn serve_oldest(&mut self, context: usize) -> Result<ServeResult> {
        // The data VI that a request names may still be at the acceptor.
        self.add_accepted();
        self.note_outstanding();
        let Some(Some(connection)) = self.connections.get_mut(context) else {
            return Ok(ServeResult::Done(None));
        };
        let Some(announcement) = connection.announced() else { return Ok(ServeResult::Done(None)) };
        let step = trace::begin_step(|| announcement.described());
        let served = connection.serve(announcement, self.buffer_len, &self.world, &mut self.grants);
        if matches!(served, Ok(RendezvousStatus::Received(_) | RendezvousStatus::Answered)) {
            trace::end_step(step, self.world.rank(), "answer");
        }
        let parcel = match served {
            Ok(RendezvousStatus::Deferred) => return Ok(ServeResult::Deferred),
            Ok(RendezvousStatus::Received(parcel)) => Some(parcel),
            Ok(RendezvousStatus::Answered) => None,
            Ok(RendezvousStatus::InProgress) => {
                self.waiting.unfinished.push_back(context);
                None
            }
            Ok(RendezvousStatus::TooLong(bytes)) => {
                self.too_long = Some((bytes, connection.side.rank));
                None
            }
            Ok(RendezvousStatus::ConnectionEnded(error)) => {
                return self.end_with(context, error).map(ServeResult::Done);
            }
            Err(Malformed) => return self.end_malformed(context).map(ServeResult::Done),
        };
        connection.pop_announcement();
        self.resume_reading(context);
        Ok(ServeResult::Done(parcel))
    }

    /// Queues a connection for polling if it was reported while it was blocked, and is not blocked any more.
    pub(super) fn resume_reading(&mut self, context: usize) {
        let Some(Some(connection)) = self.connections.get(context) else { return };
        if connection.notified_while_blocked && !connection.is_blocked() {
            self.waiting.notified.push_back(context);
        }
    }

    /// Receives from connections that were reported while they were blocked, up to the first message. One
    /// poll of each is enough: the completion queue reports a connection again if it has more messages.
    pub(super) fn receive_from_notified(&mut self) -> Result<Option<Parcel>> {
        let mut budget = PollBudget::once();
        while budget.take()
            && let Some(context) = self.waiting.notified.pop_front()
        {
            let Some(Some(connection)) = self.connections.get_mut(context) else { continue };
            connection.notified_while_blocked = false;
            let found = self.receive_at_slow(context as u64)?;
            if found.is_some() || self.too_long.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Receives from a data VI.
    #[cold]
    pub(super) fn receive_data(&mut self, context: u64) -> Result<Option<Parcel>> {
        let control = (context & !super::accept::DATA) as usize;
        let Some(Some(connection)) = self.connections.get_mut(control) else { return Ok(None) };
        let awaited = connection.awaits_data();
        match connection.receive_data() {
            Ok(found) => {
                self.data_came(control, awaited);
                Ok(found)
            }
            Err(Malformed) => self.end_malformed(control),
        }
    }

    /// Resumes reading the control VI's ring if the message awaited on the data VI has come.
    pub(super) fn data_came(&mut self, control: usize, awaited: bool) {
        if let Some(Some(connection)) = self.connections.get_mut(control)
            && awaited
            && !connection.awaits_data()
        {
            connection.blocked_by_announcement = false;
            self.resume_reading(control);
        }
    }

    /// Whether a connection is blocked. The completion queue would report such a connection again and again.
    pub(super) fn has_blocked_connections(&self) -> bool {
        let is_blocked = |at: &usize| self.connections[*at].as_ref().is_some_and(Connection::is_blocked);
        let mut waiting =
            self.waiting.for_memory[Memory::Outbox as usize].iter().chain(&self.waiting.unfinished);
        waiting.any(is_blocked)
    }

    /// Whether a message is being read, which may arrive any moment.
    pub(super) fn is_reading(&self) -> bool {
        let reads = |at: &usize| self.connections[*at].as_ref().is_some_and(Connection::is_reading);
        self.waiting.unfinished.iter().any(reads)
    }

    /// The shortage that an announced message waits for, in words.
    pub(super) fn shortage(&self) -> Option<String> {
        if let Some(Some(connection)) =
            self.waiting.unfinished.front().and_then(|at| self.connections.get(*at))
        {
            let rank = connection.side.rank;
            if connection.is_reading() {
                return Some(format!("the data of a message that is being read from rank {rank}"));
            }
            let what = "a rank that writes by RDMA, without permission, into the memory";
            return Some(format!("{what} of the message of rank {rank}"));
        }
        let connection = self.connections.get(self.waiting.first()?)?.as_ref()?;
        let (announcement, rank) = (connection.announced()?, connection.side.rank);
        let (len, memory) = (announcement.len(), announcement.memory());
        let why = match announcement.shortage(&connection.side, &self.world) {
            Some(error) => error.to_string(),
            None => format!(
                "{} bytes are granted to postboxes that have not filled them yet, and {} may be (half of DECK_ARENA, and \
                 less under incast control); retrieve more often",
                self.grants.quota.bytes(memory),
                self.grants.most_memory(&connection.side, &self.world)
            ),
        };
        let holders = self.world.holders(memory);
        Some(format!("memory for the {len} bytes that rank {rank} announced: {why}; {holders}"))
    }
}
