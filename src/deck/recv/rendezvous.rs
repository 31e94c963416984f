//! Serving announcements, and the connections that wait for memory, for what is being read, or that nobody is inside the window
//! of a message.
//!
//! While a connection waits, its ring may not be read on. The completion queue goes on naming it while there are messages, but
//! names the end of its connection once. Such a connection is noted ([`Connection::named`]), and looked at when it is read on.

use udeck_via::Budget;

use super::Inbox;
use super::connection::Connection;
use super::memory_budget::{MEMORIES, Memory};
use crate::error::Result;
use crate::parcel::Parcel;
use crate::protocol::link::Served;
use crate::wire::Malformed;

/// What became of a connection's oldest announcement.
enum Outcome {
    /// It is done with; perhaps there is a message.
    Done(Option<Parcel>),
    NotYet,
}

impl Inbox {
    /// Serves what a connection has just announced, if it has and nobody waits for the same memory.
    #[cold]
    pub(super) fn serve(&mut self, context: usize) -> Result<Option<Parcel>> {
        let Some(Some(connection)) = self.connections.get(context) else { return Ok(None) };
        let Some(memory) = connection.wants().filter(|_| !connection.waits) else { return Ok(None) };
        if self.waiting.for_memory[memory as usize].is_empty()
            && let Outcome::Done(parcel) = self.serve_oldest(context)?
        {
            return Ok(parcel);
        }
        self.wait_for_memory(context);
        Ok(None)
    }

    /// Serves those that wait, as far as that is possible now, up to the first message.
    #[cold]
    pub(super) fn serve_waiting(&mut self) -> Result<Option<Parcel>> {
        if let Some(parcel) = self.finish()? {
            return Ok(Some(parcel));
        }
        for memory in MEMORIES {
            let mut budget = Budget::once();
            while budget.take()
                && let Some(context) = self.waiting.for_memory[memory as usize].pop_front()
            {
                let Outcome::Done(parcel) = self.serve_oldest(context)? else {
                    self.waiting.for_memory[memory as usize].push_front(context);
                    break;
                };
                if let Some(Some(connection)) = self.connections.get_mut(context) {
                    connection.waits = false;
                    self.wait_for_memory(context);
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
        for _ in 0..self.waiting.unfinished.len() {
            let Some(context) = self.waiting.unfinished.pop_front() else { break };
            let Some(Some(connection)) = self.connections.get_mut(context) else { continue };
            let finished = connection.finish();
            self.read_on(context);
            let found = match finished {
                Ok(Served::Parcel(parcel)) => return Ok(Some(parcel)),
                Ok(Served::UnderWay | Served::NotYet) => {
                    self.waiting.unfinished.push_back(context);
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

    /// Queues a connection up with its oldest announcement, if it has one.
    fn wait_for_memory(&mut self, context: usize) {
        let Some(Some(connection)) = self.connections.get_mut(context) else { return };
        let Some(memory) = connection.wants() else { return };
        connection.waits = true;
        self.waiting.for_memory[memory as usize].push_back(context);
    }

    fn serve_oldest(&mut self, context: usize) -> Result<Outcome> {
        // The data VI that a request names may not be let in yet.
        self.let_in();
        let Some(Some(connection)) = self.connections.get_mut(context) else {
            return Ok(Outcome::Done(None));
        };
        let Some(announcement) = connection.announced() else { return Ok(Outcome::Done(None)) };
        let parcel = match connection.serve(announcement, self.room, &self.world, &self.budget) {
            Ok(Served::NotYet) => return Ok(Outcome::NotYet),
            Ok(Served::Parcel(parcel)) => Some(parcel),
            Ok(Served::Answered) => None,
            Ok(Served::UnderWay) => {
                self.waiting.unfinished.push_back(context);
                None
            }
            Ok(Served::TooLong(bytes)) => {
                self.too_long = Some((bytes, connection.link.rank));
                None
            }
            Ok(Served::Over(error)) => return self.end_with(context, error).map(Outcome::Done),
            Err(Malformed) => return self.end_malformed(context).map(Outcome::Done),
        };
        connection.was_served();
        self.read_on(context);
        Ok(Outcome::Done(parcel))
    }

    /// If a connection is not held up any more, and was named while it was, it is looked at next.
    pub(super) fn read_on(&mut self, context: usize) {
        let Some(Some(connection)) = self.connections.get(context) else { return };
        if connection.named && !connection.is_held_up() {
            self.waiting.named.push_back(context);
        }
    }

    /// What the connections have that were named while they were held up, up to the first message. One look at each is enough:
    /// the completion queue names again what has more messages.
    pub(super) fn receive_from_named(&mut self) -> Result<Option<Parcel>> {
        let mut budget = Budget::once();
        while budget.take()
            && let Some(context) = self.waiting.named.pop_front()
        {
            let Some(Some(connection)) = self.connections.get_mut(context) else { continue };
            connection.named = false;
            let found = self.receive_at_slow(context as u64)?;
            if found.is_some() || self.too_long.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// What a data VI has.
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

    /// If a message was awaited on the data VI, and is not any more, the control VI is read on.
    pub(super) fn data_came(&mut self, control: usize, awaited: bool) {
        if let Some(Some(connection)) = self.connections.get_mut(control)
            && awaited
            && !connection.awaits_data()
        {
            connection.held_up = false;
            self.read_on(control);
        }
    }

    /// Whether a connection is not read on: the completion queue would name it again and again.
    pub(super) fn has_connections_held_up(&self) -> bool {
        let held_up = |at: &usize| self.connections[*at].as_ref().is_some_and(Connection::is_held_up);
        let mut waiting =
            self.waiting.for_memory[Memory::Outbox as usize].iter().chain(&self.waiting.unfinished);
        waiting.any(held_up)
    }

    /// Whether a message is being read, which may be here any moment.
    pub(super) fn is_reading(&self) -> bool {
        let reads = |at: &usize| self.connections[*at].as_ref().is_some_and(Connection::is_reading);
        self.waiting.unfinished.iter().any(reads)
    }

    /// What a message that was announced waits for, if one does.
    pub(super) fn shortage(&self) -> Option<String> {
        if let Some(Some(connection)) =
            self.waiting.unfinished.front().and_then(|at| self.connections.get(*at))
        {
            let rank = connection.link.rank;
            if connection.is_reading() {
                return Some(format!("the data of a message that is being read from rank {rank}"));
            }
            let what = "a rank that is in the middle of an RDMA write where";
            return Some(format!("{what} the message of rank {rank} lies, and was not told of it"));
        }
        let connection = self.connections.get(self.waiting.first()?)?.as_ref()?;
        let (announcement, rank) = (connection.announced()?, connection.link.rank);
        let (len, memory) = (announcement.len(), announcement.memory());
        let why = match announcement.shortage(&connection.link, &self.world) {
            Some(error) => error.to_string(),
            None => format!(
                "{} bytes are granted to postboxes that have not filled them yet, and more than half of the arena is \
                 not; retrieve more often, or raise DECK_ARENA",
                self.budget.bytes(memory)
            ),
        };
        let holders = self.world.holders(memory);
        Some(format!("memory for the {len} bytes that rank {rank} announced: {why}; {holders}"))
    }
}
