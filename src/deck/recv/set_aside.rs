//! Messages that were taken out of their rings and not given out yet.
//!
//! Most are here because they did not fit ([`super::fitting`]) or because a wait on several mailboxes found them. A run is
//! what [`crate::Mailbox::drain`] takes by one look: short messages of one postbox, which wait here while the program sees those before
//! them. What the program retrieves meanwhile comes from here, so the order stays.

use std::collections::VecDeque;

use udeck_via::transport::ShortArrival;

use super::connection::Connection;
use crate::parcel::{Parcel, Stored};
use crate::stats::Counters;
use crate::wire::{HEAD_BYTES, Kind};

/// Messages of a run.
const MOST: usize = 16;

/// All of them, oldest first.
#[derive(Default)]
pub(super) struct SetAside {
    parcels: VecDeque<Parcel>,
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
}

impl Default for Run {
    fn default() -> Self {
        Run { messages: Box::new([ShortArrival::NONE; MOST]), from: 0, to: 0, source: (0, 0) }
    }
}

impl SetAside {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parcels.is_empty() && self.run.is_over()
    }

    #[cold]
    pub fn pop_front(&mut self) -> Option<Parcel> {
        self.parcels().pop_front()
    }

    /// All of them, for who looks for one.
    #[cold]
    pub fn parcels(&mut self) -> &mut VecDeque<Parcel> {
        while let Some(last) = self.run.take_last() {
            self.parcels.push_front(last);
        }
        &mut self.parcels
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
        counters.copied(lengths.sum());
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
        Some(Parcel { rank, postbox, tag: immediate.unwrap_or(0), stored: Stored::Inline(message) })
    }
}
