//! Messages that were taken out of their rings and not given out yet.
//!
//! Most are here because the program asked for others ([`super::choosing`]), or because a wait on several
//! mailboxes found them. A run is what [`crate::Mailbox::drain`] takes by one poll: short messages of one
//! postbox, which wait here while the program handles the ones before them. Retrieves in the meantime take
//! from here, so the order is kept.

use std::collections::{BTreeMap, VecDeque};

use udeck_via::transport::ShortArrival;

use super::connection::Connection;
use crate::parcel::{Parcel, Stored};
use crate::stats::Counters;
use crate::wire::{HEAD_BYTES, Kind};

/// Maximum number of messages in a run.
const MAX_RUN: usize = 16;

/// Bytes that a message set aside counts besides its length.
const OVERHEAD: usize = 128;

/// Messages set aside, oldest first.
#[derive(Default)]
pub(super) struct SetAside {
    parcels: VecDeque<Parcel>,
    /// Weight of `parcels` in bytes, without the run.
    weight: usize,
    /// The current run, which comes before all parcels.
    run: Run,
}

/// A run: short messages of one postbox.
struct Run {
    messages: Box<[ShortArrival; MAX_RUN]>,
    /// Index of the first message that is not given out yet.
    from: usize,
    to: usize,
    /// Rank and number of the postbox.
    source: (u32, u32),
    /// Sequence number of the run's first message.
    number: u32,
}

impl Default for Run {
    fn default() -> Self {
        Run { messages: Box::new([ShortArrival::NONE; MAX_RUN]), from: 0, to: 0, source: (0, 0), number: 0 }
    }
}

impl SetAside {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parcels.is_empty() && self.run.is_over()
    }

    #[cold]
    pub fn pop_front(&mut self) -> Option<Parcel> {
        self.end_run();
        let parcel = self.parcels.pop_front()?;
        self.weight -= weight(&parcel);
        Some(parcel)
    }

    /// Adds a message as the oldest.
    #[cold]
    pub fn push_front(&mut self, parcel: Parcel) {
        self.end_run();
        self.weight += weight(&parcel);
        self.parcels.push_front(parcel);
    }

    /// Adds a message as the newest.
    #[cold]
    pub fn push_back(&mut self, parcel: Parcel) {
        self.end_run();
        self.weight += weight(&parcel);
        self.parcels.push_back(parcel);
    }

    /// Index of the oldest message that satisfies `is_meant`, which is called for all older ones, too, in
    /// their order.
    #[cold]
    pub fn find(&mut self, is_meant: impl FnMut(&Parcel) -> bool) -> Option<usize> {
        self.end_run();
        self.parcels.iter().position(is_meant)
    }

    /// The message at an index from [`SetAside::find`].
    pub fn at(&self, place: usize) -> Option<&Parcel> {
        self.parcels.get(place)
    }

    /// Takes the message at an index from [`SetAside::find`].
    #[cold]
    pub fn take(&mut self, place: usize) -> Option<Parcel> {
        let parcel = self.parcels.remove(place)?;
        self.weight -= weight(&parcel);
        Some(parcel)
    }

    /// Number of messages, without those of a run.
    pub fn len(&self) -> usize {
        self.parcels.len()
    }

    /// Weight of the messages in bytes, without those of a run.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Number of messages by rank, without those of a run.
    pub fn by_rank(&self) -> BTreeMap<u32, usize> {
        let mut ranks = BTreeMap::new();
        for parcel in &self.parcels {
            *ranks.entry(parcel.rank).or_default() += 1;
        }
        ranks
    }

    /// Turns the rest of the run into parcels.
    fn end_run(&mut self) {
        while let Some(last) = self.run.take_last() {
            self.weight += weight(&last);
            self.parcels.push_front(last);
        }
    }

    /// Takes at most `most` short messages from `connection`, and returns their number. Nothing may be set
    /// aside at the moment.
    #[inline]
    pub fn take_run(&mut self, connection: &mut Connection, most: usize, counters: &Counters) -> usize {
        debug_assert!(self.is_empty());
        let run = &mut self.run;
        let places = &mut run.messages[..most.min(MAX_RUN)];
        let taken = connection.side.vi.arrival_short_run(Kind::Eager as u8, places);
        (run.from, run.to, run.source) = (0, taken, connection.postbox());
        let lengths = run.messages[..taken].iter().map(|arrival| arrival.message.len() - HEAD_BYTES);
        let bytes = lengths.sum();
        counters.copied(bytes);
        run.number = connection.side.arrivals.take_run(taken, bytes);
        taken
    }

    /// Puts the next message of the run into `parcel`, which must be empty, and returns its length in bytes.
    /// `None`: the run is over.
    #[inline(always)]
    pub fn next_of_run(&mut self, parcel: &mut Parcel) -> Option<usize> {
        let run = &mut self.run;
        if run.is_over() {
            return None;
        }
        let ShortArrival { immediate, message } = &run.messages[run.from % MAX_RUN];
        run.from += 1;
        parcel.inline_mut().copy_from(message);
        (parcel.rank, parcel.postbox) = run.source;
        parcel.tag = immediate.unwrap_or(0);
        Some(message.len() - HEAD_BYTES)
    }

    /// Sequence number of the message that [`SetAside::next_of_run`] gave out last.
    pub fn number_of_run(&self) -> u32 {
        self.run.number.wrapping_add(self.run.from.wrapping_sub(1) as u32)
    }
}

fn weight(parcel: &Parcel) -> usize {
    OVERHEAD + parcel.bytes().len()
}

impl Run {
    #[inline]
    fn is_over(&self) -> bool {
        self.from >= self.to
    }

    fn take_last(&mut self) -> Option<Parcel> {
        if self.is_over() {
            return None;
        }
        self.to -= 1;
        let ShortArrival { immediate, message } = self.messages[self.to];
        let (rank, postbox) = self.source;
        let number = self.number.wrapping_add(self.to as u32);
        Some(Parcel { rank, postbox, tag: immediate.unwrap_or(0), number, stored: Stored::Inline(message) })
    }
}
