//! Messages that were taken out of their rings and not given out yet.
//!
//! Most are here because the program asked for others ([`super::choosing`]) or because a wait on several mailboxes found them. A run is
//! what [`crate::Mailbox::drain`] takes by one look: short messages of one postbox, which wait here while the program sees those before
//! them. What the program retrieves meanwhile comes from here, so the order stays.

use std::collections::{BTreeMap, VecDeque};

use udeck_via::transport::ShortArrival;

use super::connection::Connection;
use crate::parcel::{Parcel, Stored};
use crate::stats::Counters;
use crate::wire::{HEAD_BYTES, Kind};

/// Messages of a run.
const MOST: usize = 16;

/// What a message that is set aside takes besides its bytes.
const EACH: usize = 128;

/// All of them, oldest first.
#[derive(Default)]
pub(super) struct SetAside {
    parcels: VecDeque<Parcel>,
    /// What they count for, but for the run.
    weight: usize,
    /// Before all parcels.
    run: Run,
}

/// Short messages of one postbox.
struct Run {
    messages: Box<[ShortArrival; MOST]>,
    /// Those that are not given out yet.
    from: usize,
    to: usize,
    /// Whose they are: rank and postbox.
    source: (u32, u32),
    /// The number of the first.
    number: u32,
}

impl Default for Run {
    fn default() -> Self {
        Run { messages: Box::new([ShortArrival::NONE; MOST]), from: 0, to: 0, source: (0, 0), number: 0 }
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

    /// As the oldest.
    #[cold]
    pub fn push_front(&mut self, parcel: Parcel) {
        self.end_run();
        self.weight += weight(&parcel);
        self.parcels.push_front(parcel);
    }

    /// As the newest.
    #[cold]
    pub fn push_back(&mut self, parcel: Parcel) {
        self.end_run();
        self.weight += weight(&parcel);
        self.parcels.push_back(parcel);
    }

    /// The place of the oldest of which this is true. It is asked about all that are older, too, in their order.
    #[cold]
    pub fn find(&mut self, is_meant: impl FnMut(&Parcel) -> bool) -> Option<usize> {
        self.end_run();
        self.parcels.iter().position(is_meant)
    }

    /// The one at a place of [`SetAside::find`].
    pub fn at(&self, place: usize) -> Option<&Parcel> {
        self.parcels.get(place)
    }

    /// Takes the one at a place of [`SetAside::find`].
    #[cold]
    pub fn take(&mut self, place: usize) -> Option<Parcel> {
        let parcel = self.parcels.remove(place)?;
        self.weight -= weight(&parcel);
        Some(parcel)
    }

    /// How many there are, without those of a run.
    pub fn len(&self) -> usize {
        self.parcels.len()
    }

    /// What they count for, in bytes, without those of a run.
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// How many each rank has here, without those of a run.
    pub fn by_rank(&self) -> BTreeMap<u32, usize> {
        let mut ranks = BTreeMap::new();
        for parcel in &self.parcels {
            *ranks.entry(parcel.rank).or_default() += 1;
        }
        ranks
    }

    /// Makes parcels of what is left of the run.
    fn end_run(&mut self) {
        while let Some(last) = self.run.take_last() {
            self.weight += weight(&last);
            self.parcels.push_front(last);
        }
    }

    /// Takes at most `most` short messages that `connection` has: how many. Nothing is set aside at the moment.
    #[inline]
    pub fn take_run(&mut self, connection: &mut Connection, most: usize, counters: &Counters) -> usize {
        debug_assert!(self.is_empty());
        let run = &mut self.run;
        let places = &mut run.messages[..most.min(MOST)];
        let taken = connection.side.vi.arrival_short_run(Kind::Eager as u8, places);
        (run.from, run.to, run.source) = (0, taken, connection.postbox());
        let lengths = run.messages[..taken].iter().map(|arrival| arrival.message.len() - HEAD_BYTES);
        let bytes = lengths.sum();
        counters.copied(bytes);
        run.number = connection.side.arrivals.take_run(taken, bytes);
        taken
    }

    /// Puts the next message of the run into `parcel`, which holds none: how many bytes it has. `None`: the run is over.
    #[inline(always)]
    pub fn next_of_run(&mut self, parcel: &mut Parcel) -> Option<usize> {
        let run = &mut self.run;
        if run.is_over() {
            return None;
        }
        let ShortArrival { immediate, message } = &run.messages[run.from % MOST];
        run.from += 1;
        parcel.place().copy_from(message);
        (parcel.rank, parcel.postbox) = run.source;
        parcel.tag = immediate.unwrap_or(0);
        Some(message.len() - HEAD_BYTES)
    }

    /// The number of the message that [`SetAside::next_of_run`] gave out last.
    pub fn number_of_run(&self) -> u32 {
        self.run.number.wrapping_add(self.run.from.wrapping_sub(1) as u32)
    }
}

fn weight(parcel: &Parcel) -> usize {
    EACH + parcel.bytes().len()
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
