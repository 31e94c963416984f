//! Offered messages, which are read from their sender's memory.
//!
//! The engine reads them, not the program: so a message comes while its receiver computes, and its sender has its memory
//! back. Not more of them than the program can be expected to take soon: see `WAITING`.

use udeck_via::transport::Fate;

use super::posting::Then;
use super::taking::{Item, Offer, Progress};
use super::{Connection, Span, WAITING, Work};
use crate::memory::{Segment, Store};
use crate::wire::{Far, Note};

/// The offer whose reads are being posted.
pub(super) struct Fetching {
    number: u32,
    to: Segment,
    /// Parts that were asked for as a whole; bytes of the next that were; bytes of all.
    parts: usize,
    within: usize,
    done: usize,
}

impl Connection {
    /// Posts a read of an offered message, if there is one to be read.
    pub(super) fn fetch_next(&mut self, work: &mut dyn Work) -> Result<bool, String> {
        if self.offers == 0 {
            return Ok(false);
        }
        if self.fetching.is_none() && !self.begin_fetch(work)? {
            return Ok(false);
        }
        let Some(mut fetching) = self.fetching.take() else { return Ok(false) };
        let number = fetching.number;
        let Some(offer) = self.offer(number) else { return Ok(true) };
        let Some(part) = offer.parts.get(fetching.parts).copied() else { return Ok(true) };
        let to = [fetching.to];
        // Of a place that consists of several pieces, so much as one request takes.
        let most = work.fitting_read(&to, fetching.done);
        let len = (part.len as usize - fetching.within).min(most);
        let last_of_part = fetching.within + len == part.len as usize;
        let last = last_of_part && fetching.parts + 1 == offer.parts.len();
        let from =
            Far { address: part.address.wrapping_add(fetching.within as u64), rkey: part.rkey, len: 0 };
        let how = self.how_to_read(last);
        let read = work.read(Span { segments: &to, from: fetching.done, len }, from, how);
        self.fly(how, if last { Then::Fetched(number) } else { Then::Nothing });
        fetching.done += len;
        (fetching.parts, fetching.within) =
            if last_of_part { (fetching.parts + 1, 0) } else { (fetching.parts, fetching.within + len) };
        if !last {
            self.fetching = Some(fetching);
        }
        read.map(|()| true)
    }

    /// Finds the next offer to be read and makes a place for it.
    fn begin_fetch(&mut self, work: &mut dyn Work) -> Result<bool, String> {
        if self.closed {
            return Ok(false);
        }
        let mut waiting = 0;
        let mut next = None;
        for (at, item) in self.inbox.iter().enumerate() {
            if matches!(item, Item::Offer(offer) if matches!(offer.progress, Progress::Waits)) {
                next = Some(at);
                break;
            }
            waiting += item.bytes();
        }
        let Some(at) = next.filter(|at| *at == 0 || waiting < WAITING) else { return Ok(false) };
        let Some(Item::Offer(offer)) = self.inbox.get_mut(at) else { return Ok(false) };
        let Some(mut store) = Store::new(&self.memory, offer.len) else {
            return Err(format!("there is no memory for a message of {} bytes", offer.len));
        };
        let to = store.segment(|memory| work.register(memory))?;
        offer.progress = Progress::Reading(store);
        self.fetching = Some(Fetching { number: offer.number, to, parts: 0, within: 0, done: 0 });
        Ok(true)
    }

    fn offer(&mut self, number: u32) -> Option<&mut Offer> {
        self.inbox.iter_mut().find_map(|item| match item {
            Item::Offer(offer) if offer.number == number => Some(&mut **offer),
            _ => None,
        })
    }

    /// All of an offered message is here.
    pub(super) fn fetched(&mut self, number: u32, fate: Fate) {
        if fate != Fate::Arrived {
            return;
        }
        self.notes.push(Note::Read(number));
        let Some(at) =
            self.inbox.iter().position(|item| matches!(item, Item::Offer(offer) if offer.number == number))
        else {
            return;
        };
        let Some(Item::Offer(offer)) = self.inbox.remove(at) else { return };
        self.offers -= 1;
        let Offer { immediate, head, receipt, progress, .. } = *offer;
        // Of one that the program has closed the connection to, nothing is left.
        if let (Progress::Reading(store), false) = (progress, self.closed) {
            let receipt = receipt.then_some(number);
            self.inbox.insert(at, Item::Body { immediate, head, store, receipt });
            self.news.receive = true;
        } else {
            self.is_gone(at, false);
        }
        self.skip_silent();
    }
}
