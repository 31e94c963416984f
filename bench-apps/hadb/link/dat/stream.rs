//! Messages between two ranks, both ways, as a state machine without I/O: the contents of each packet, and when there is room for
//! it.
//!
//! **Receives.** Each side has [`RECEIVES`] posted receives. A packet takes one, and the other side's packets say how many it has
//! posted again. So no packet arrives without a posted receive. The last of these credits is reserved for a packet that only
//! returns credits: otherwise two sides without credits would wait for each other.
//!
//! **Slots.** BLOBs, and bodies that are longer than a packet, are written by RDMA into the receiver's landing memory, piece by
//! piece. It has [`SLOTS`] slots, which are used in turn; packets say in the same way how many were emptied. Each piece has a
//! packet, posted behind it, so that the receiver empties a slot while the next one is filled.
//!
//! **Packing.** All messages that wait when a packet is made go into it, as far as there is room.

use super::super::Blob;
use super::wire::{self, Entry, Header, MAX_INLINE, Writer};
use std::collections::VecDeque;
use std::sync::Arc;

/// Posted receives of each connection.
pub const RECEIVES: u8 = 32;
/// Slots in each connection's landing memory.
pub const SLOTS: u8 = 8;
/// Bytes of a slot.
pub const SLOT: usize = 128 << 10;
/// Credits reserved for packets without a message.
const KEPT: u8 = 1;
/// Largest number of messages that wait for a peer: more than all transactions under way have.
const MAX_QUEUED: usize = 1024;
/// Largest length of a body or BLOB, in bytes.
const MAX_BULK: usize = 64 << 20;

#[derive(Debug)]
pub struct Stream {
    queue: VecDeque<Item>,
    /// Receives that the peer has posted for this side, and its empty slots.
    credits: u8,
    slots: u8,
    /// Number of the slot that is filled next.
    next: u8,
    /// Receives posted again and slots emptied that no packet has reported yet.
    owed: Header,
    /// Number of the slot that is emptied next.
    full: u8,
    /// A message that has arrived in part.
    partial: Option<Partial>,
}

/// A message to be sent.
#[derive(Debug)]
struct Item {
    body: Vec<u8>,
    blob: Option<Blob>,
    /// Whether its BULK entry was sent, and the bytes of body and BLOB that were sent.
    announced: bool,
    sent: usize,
}

#[derive(Debug)]
struct Partial {
    body: Vec<u8>,
    blob: Vec<u8>,
    /// Bytes that have arrived.
    filled: usize,
}

impl Default for Stream {
    fn default() -> Self {
        Stream {
            queue: VecDeque::new(),
            credits: RECEIVES,
            slots: SLOTS,
            next: 0,
            owed: Header::default(),
            full: 0,
            partial: None,
        }
    }
}

impl Item {
    fn blob(&self) -> &[u8] {
        self.blob.as_deref().unwrap_or_default()
    }

    /// The body, if it does not fit into a packet; otherwise nothing.
    fn rest(&self) -> &[u8] {
        if self.body.len() > MAX_INLINE { &self.body } else { &[] }
    }

    /// Next bytes to be sent, up to the length of a slot.
    fn piece(&self) -> &[u8] {
        let (rest, blob) = (self.rest(), self.blob());
        let left = rest.get(self.sent..).filter(|left| !left.is_empty());
        let left = left.unwrap_or_else(|| &blob[self.sent - rest.len()..]);
        &left[..left.len().min(SLOT)]
    }

    fn is_sent(&self) -> bool {
        self.sent == self.rest().len() + self.blob().len()
    }
}

impl Stream {
    /// Queues a message. `false`: too many wait, or it is too long.
    #[must_use]
    pub fn push(&mut self, body: Vec<u8>, blob: Option<Blob>) -> bool {
        let item = Item { body, blob, announced: false, sent: 0 };
        let fits = self.queue.len() < MAX_QUEUED && item.body.len().max(item.blob().len()) <= MAX_BULK;
        if fits {
            self.queue.push_back(item);
        }
        fits
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether [`Stream::fill`] may produce a packet.
    pub fn is_due(&self) -> bool {
        self.credits > KEPT && !self.queue.is_empty() || self.credits > 0 && self.owes_much()
    }

    /// Whether the unreported credits and slots are so many that the peer may wait for them.
    fn owes_much(&self) -> bool {
        self.owed.credits >= RECEIVES / 2 || self.owed.slots >= SLOTS / 2
    }

    /// Makes the next packet in `packet`, which has [`wire::PACKET`] bytes, and returns its length. `write` posts a piece for the
    /// given slot of the peer, or says that it cannot now. `None`: there is nothing to send, or no room for it yet.
    ///
    /// # Errors
    /// Errors of `write`.
    pub fn fill<E>(
        &mut self,
        packet: &mut [u8],
        mut write: impl FnMut(usize, &[u8]) -> Result<bool, E>,
    ) -> Result<Option<usize>, E> {
        let mut writer = Writer::new(packet);
        while self.credits > KEPT
            && let Some(item) = self.queue.front_mut()
        {
            if !item.announced {
                let (rest, blob) = (item.rest().len(), item.blob().len());
                let body = if rest > 0 { &[] } else { &item.body[..] };
                let entry =
                    if rest + blob > 0 { Entry::Bulk { body, rest, blob } } else { Entry::Message(body) };
                if !writer.put(entry) {
                    break;
                }
                item.announced = true;
            }
            if item.is_sent() {
                self.queue.pop_front();
                continue;
            }
            if self.slots == 0 || !writer.has_room_for_piece() {
                break;
            }
            let piece = item.piece();
            let len = piece.len();
            if !write(self.next.into(), piece)? {
                break;
            }
            writer.put(Entry::Piece(len));
            item.sent += len;
            self.slots -= 1;
            self.next = (self.next + 1) % SLOTS;
            if item.is_sent() {
                self.queue.pop_front();
            }
            break;
        }
        if writer.is_empty() && !(self.credits > 0 && self.owes_much()) {
            return Ok(None);
        }
        self.credits -= 1;
        Ok(Some(writer.finish(std::mem::take(&mut self.owed))))
    }

    /// Takes an arrived packet. Its receive must be posted again before the next call of [`Stream::fill`]. `read` copies from the
    /// given slot, `deliver` gets each body with its BLOB. `None`: the packet is not of this protocol.
    pub fn receive(
        &mut self,
        packet: &[u8],
        mut read: impl FnMut(usize, &mut [u8]) -> Option<()>,
        mut deliver: impl FnMut(&[u8], Option<Blob>) -> Option<()>,
    ) -> Option<()> {
        let (Header { credits, slots }, mut entries) = wire::split(packet)?;
        self.credits = self.credits.checked_add(credits).filter(|credits| *credits <= RECEIVES)?;
        self.slots = self.slots.checked_add(slots).filter(|slots| *slots <= SLOTS)?;
        (self.owed.credits < RECEIVES).then_some(())?;
        self.owed.credits += 1;
        while !entries.is_empty() {
            match wire::next(&mut entries)? {
                Entry::Message(body) if self.partial.is_none() => deliver(body, None)?,
                Entry::Bulk { body, rest, blob } if self.partial.is_none() => {
                    let is_sound = (1..=MAX_BULK).contains(&rest.max(blob)) && (body.is_empty() || rest == 0);
                    is_sound.then_some(())?;
                    let body = if rest > 0 { vec![0; rest] } else { body.to_vec() };
                    let filled = body.len() - rest;
                    self.partial = Some(Partial { body, blob: vec![0; blob], filled });
                }
                Entry::Piece(len) => self.piece(len, &mut read, &mut deliver)?,
                _ => return None,
            }
        }
        Some(())
    }

    fn piece(
        &mut self,
        len: usize,
        read: &mut impl FnMut(usize, &mut [u8]) -> Option<()>,
        deliver: &mut impl FnMut(&[u8], Option<Blob>) -> Option<()>,
    ) -> Option<()> {
        ((1..=SLOT).contains(&len) && self.owed.slots < SLOTS).then_some(())?;
        let Partial { body, blob, filled } = self.partial.as_mut()?;
        let of_body = body.len();
        let place = match filled.checked_sub(of_body) {
            None => body.get_mut(*filled..*filled + len),
            Some(at) => blob.get_mut(at..at + len),
        };
        read(self.full.into(), place?)?;
        *filled += len;
        let is_whole = *filled == of_body + blob.len();
        self.full = (self.full + 1) % SLOTS;
        self.owed.slots += 1;
        if let Some(Partial { body, blob, .. }) = self.partial.take_if(|_| is_whole) {
            deliver(&body, (!blob.is_empty()).then(|| Blob::Bytes(Arc::new(blob))))?;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests;
