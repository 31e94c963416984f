//! Reads of offered messages from their sender's memory.
//!
//! The engine reads them, not the program. So a message comes while its receiver computes, and its sender has its
//! memory back soon. The engine reads only as many as the program can be expected to take soon: see `WAITING`.

use udeck_session::{Store, no_memory};
use udeck_via::transport::TransferStatus;

use super::recv_queue::{Item, Offer, Progress};
use super::send_queue::OnCompletion;
use super::{Connection, Span, WAITING, Work};
use crate::memory::{Segment, segment_of};
use crate::wire::{Note, RemoteKey};

/// Read of an offer, whose requests are being posted.
pub(super) struct RendezvousRead {
    number: u32,
    to: Segment,
    /// Number of parts that were requested whole; below, bytes requested of the next part, and bytes requested in all.
    parts: usize,
    within: usize,
    done: usize,
}

impl Connection {
    /// Posts a read of an offered message, if one can be read. Returns whether it did.
    pub(super) fn read_next(&mut self, work: &mut dyn Work) -> Result<bool, String> {
        if self.offers == 0 {
            return Ok(false);
        }
        if self.reading.is_none() && !self.begin_read(work)? {
            return Ok(false);
        }
        let Some(mut reading) = self.reading.take() else { return Ok(false) };
        let number = reading.number;
        let Some(offer) = self.offer(number) else { return Ok(true) };
        let Some(part) = offer.parts.get(reading.parts).copied() else { return Ok(true) };
        let to = [reading.to];
        // A target that consists of several pieces is filled by as much as one request takes.
        let most = work.fitting_read(&to, reading.done)?;
        let len = (part.len as usize - reading.within).min(most);
        let last_of_part = reading.within + len == part.len as usize;
        let last = last_of_part && reading.parts + 1 == offer.parts.len();
        let from =
            RemoteKey { address: part.address.wrapping_add(reading.within as u64), rkey: part.rkey, len: 0 };
        let options = self.read_options(last);
        let read = work.read(Span { segments: &to, from: reading.done, len }, from, options);
        self.track(options, if last { OnCompletion::OfferRead(number) } else { OnCompletion::Nothing });
        reading.done += len;
        (reading.parts, reading.within) =
            if last_of_part { (reading.parts + 1, 0) } else { (reading.parts, reading.within + len) };
        if !last {
            self.reading = Some(reading);
        }
        read.map(|()| true)
    }

    /// Finds the next offer to read, and allocates its target. Returns whether there is one.
    fn begin_read(&mut self, work: &mut dyn Work) -> Result<bool, String> {
        if self.close.closed {
            return Ok(false);
        }
        let mut waiting = 0;
        let mut next = None;
        for (at, item) in self.recv_queue.iter().enumerate() {
            if matches!(item, Item::Pending(offer) if matches!(offer.progress, Progress::Waits)) {
                next = Some(at);
                break;
            }
            waiting += item.bytes();
        }
        let Some(at) = next.filter(|at| *at == 0 || waiting < WAITING) else { return Ok(false) };
        let Some(Item::Pending(offer)) = self.recv_queue.get_mut(at) else { return Ok(false) };
        let Some(mut store) = Store::whole(&self.memory, offer.len) else {
            return Err(no_memory(offer.len));
        };
        let to = segment_of(&mut store, |memory| work.register(memory))?;
        offer.progress = Progress::Reading(store);
        self.reading = Some(RendezvousRead { number: offer.number, to, parts: 0, within: 0, done: 0 });
        Ok(true)
    }

    fn offer(&mut self, number: u32) -> Option<&mut Offer> {
        self.recv_queue.iter_mut().find_map(|item| match item {
            Item::Pending(offer) if offer.number == number => Some(&mut **offer),
            _ => None,
        })
    }

    /// Completes an offered message: all of it has been read.
    pub(super) fn read_done(&mut self, number: u32, status: TransferStatus) {
        if status != TransferStatus::Arrived {
            return;
        }
        self.notes.push(Note::Read(number));
        let Some(at) = self
            .recv_queue
            .iter()
            .position(|item| matches!(item, Item::Pending(offer) if offer.number == number))
        else {
            return;
        };
        let Some(Item::Pending(offer)) = self.recv_queue.remove(at) else { return };
        self.offers -= 1;
        let Offer { immediate, head, receipt, progress, .. } = *offer;
        // If the program has closed the connection, the message is dropped.
        if let (Progress::Reading(store), false) = (progress, self.close.closed) {
            let receipt = receipt.then_some(number);
            self.recv_queue.insert(at, Item::Body { immediate, head, store, landed: 0, receipt });
            self.events.receive = true;
        } else {
            self.forget_number(at, false);
        }
        self.skip_silent();
    }
}
