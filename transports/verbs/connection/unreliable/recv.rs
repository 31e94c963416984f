//! Receiver's side of the unreliable queue pair: messages that come, missed ones, and the end behind them.

use udeck_session::Store;
use udeck_via::transport::Inline;

use super::super::recv_queue::{Item, Offer, Progress};
use super::super::{Connection, MESSAGES};
use super::{ahead, violation};
use crate::wire::{Frame, HEADER, Header, Note, RemotePiece, Violation};

impl Connection {
    /// Handles a frame that has come on the unreliable queue pair.
    pub fn on_receive_unreliable(&mut self, bytes: &[u8]) {
        if self.close.dead {
            return;
        }
        match self.take_in_unreliable(bytes) {
            Ok(()) => self.settle_end(),
            Err(violation) => self.break_protocol(&violation),
        }
    }

    fn take_in_unreliable(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return violation(format!("a frame of {} bytes", bytes.len()));
        };
        let Header { taken: number, control_ack: key, frame } = Header::decode(header)?;
        if rest.len() != frame.rest() {
            return violation(format!("{frame:?} with {} bytes behind it", rest.len()));
        }
        let run = self.unreliable.as_ref().map_or((0, 0), |unreliable| unreliable.run);
        let Some(in_row) = self.on_number(number)? else { return Ok(()) };
        match frame {
            Frame::Short { immediate, .. } => {
                self.arrive_unreliable(number, Item::Inline { immediate, bytes: Inline::gather(rest, &[]) });
            }
            Frame::Body { immediate, receipt: false, head, .. } if !self.close.closed => {
                let (head, body) = rest.split_at(head);
                // Without memory for its body, the message is lost like others.
                let Some(store) = Store::copy_of(&self.memory, body) else {
                    self.unreliable.iter_mut().for_each(|unreliable| unreliable.missed += 1);
                    self.over_at_once(number);
                    return Ok(());
                };
                let head = Inline::gather(head, &[]);
                self.arrive_unreliable(
                    number,
                    Item::Body { immediate, head, store, landed: 0, receipt: None },
                );
            }
            Frame::Body { receipt: false, .. } => self.arrive_closed(number),
            Frame::Offer { immediate, receipt: false, head, len, .. } => {
                let (head, parts) = rest.split_at(head);
                let parts: Vec<RemotePiece> =
                    parts.as_chunks::<{ RemotePiece::LEN }>().0.iter().map(RemotePiece::decode).collect();
                let len = self.check_offer(&parts, len)?;
                if self
                    .recv_queue
                    .iter()
                    .any(|item| matches!(item, Item::Pending(offer) if offer.number == key))
                {
                    return violation(format!("offer {key} twice"));
                }
                if self.close.closed {
                    self.notes.push(Note::Read(key));
                    self.arrive_closed(number);
                    return Ok(());
                }
                let (head, progress) = (Inline::gather(head, &[]), Progress::Waits);
                let offer = Offer { immediate, head, len, parts, number: key, receipt: false, progress };
                self.offers += 1;
                self.arrive_unreliable(number, Item::Pending(Box::new(offer)));
            }
            Frame::Wrote { immediate, pieces, len } => {
                let came = if in_row { run } else { (0, 0) };
                if came.0 != pieces || came.1 as u64 != len {
                    // Some pieces did not come, and are counted already.
                    self.over_at_once(number);
                    return Ok(());
                }
                self.arrive_unreliable(number, Item::Written { immediate, len: came.1, receipt: None });
            }
            other => return violation(format!("{other:?} where messages may be lost")),
        }
        Ok(())
    }

    /// Handles a piece of an RDMA write, whose number its immediate data say.
    pub fn written_unreliable(&mut self, number: u32, len: usize) {
        if self.close.dead {
            return;
        }
        let run = self.unreliable.as_ref().map_or((0, 0), |unreliable| unreliable.run);
        match self.on_number(number) {
            Ok(Some(in_row)) => {
                let before = if in_row { run } else { (0, 0) };
                if let Some(unreliable) = &mut self.unreliable {
                    unreliable.run = (before.0 + 1, before.1.saturating_add(len));
                }
                self.over_at_once(number);
                self.settle_end();
            }
            Ok(None) => {}
            Err(violation) => self.break_protocol(&violation),
        }
    }

    /// Notes a number that has come. Returns whether it is the next one; `None` if it comes too late.
    fn on_number(&mut self, number: u32) -> Result<Option<bool>, Violation> {
        let Some(unreliable) = &mut self.unreliable else {
            return violation("a message on a queue pair that is not there");
        };
        let Some(gap) = ahead(number, unreliable.next) else { return Ok(None) };
        if number.wrapping_sub(unreliable.base) >= MESSAGES {
            return violation(format!("message {number}, and all from {} on are not over", unreliable.base));
        }
        unreliable.miss_below(number);
        (unreliable.next, unreliable.run) = (number.wrapping_add(1), (0, 0));
        self.credits.taken = unreliable.base;
        Ok(Some(gap == 0))
    }

    fn arrive_unreliable(&mut self, number: u32, item: Item) {
        if self.close.closed {
            return self.arrive_closed(number);
        }
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.numbers.push_back(number);
            self.deliver(item);
        }
    }

    /// Handles a message after the program has closed: nobody takes it.
    fn arrive_closed(&mut self, number: u32) {
        if self.unreliable.as_ref().is_some_and(|unreliable| unreliable.abandoned) {
            self.over_at_once(number);
        }
    }

    fn over_at_once(&mut self, number: u32) {
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.is_over(number);
            self.credits.taken = unreliable.base;
        }
    }

    /// Removes the number of the item at `at` in the receive queue: the item was taken, or nobody ever takes it.
    pub(in crate::connection) fn forget_number(&mut self, at: usize, taken: bool) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let Some(number) = unreliable.numbers.remove(at) else { return };
        if taken || unreliable.abandoned {
            self.over_at_once(number);
        }
    }

    /// Handles the peer's report that all messages below `upto` have left.
    pub(in crate::connection) fn on_sent_before(&mut self, upto: u32) -> Result<(), Violation> {
        let Some(unreliable) = &mut self.unreliable else {
            return violation("a `left` frame without an unreliable queue pair");
        };
        // Messages that came since may have been taken, too.
        match ahead(upto, unreliable.base) {
            Some(by) if by > MESSAGES => violation(format!(
                "a `left` frame up to message {upto}, but the messages from {} on are not over",
                unreliable.base
            )),
            Some(_) if ahead(upto, unreliable.peer_sent).is_some() => {
                unreliable.peer_sent = upto;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The first message that has left the peer and has not come. A driver waits for it as long as it likes, and
    /// then [misses](Connection::miss) all that have not come.
    pub fn awaited(&self) -> Option<u32> {
        let unreliable = self.unreliable.as_ref().filter(|_| !self.close.dead)?;
        ahead(unreliable.peer_sent, unreliable.next).filter(|by| *by > 0).map(|_| unreliable.next)
    }

    /// Marks all messages as missed that have left the peer and have not come.
    pub fn miss(&mut self) {
        let (Some(_), Some(unreliable)) = (self.awaited(), &mut self.unreliable) else { return };
        unreliable.miss_below(unreliable.peer_sent);
        (unreliable.next, unreliable.run) = (unreliable.peer_sent, (0, 0));
        self.credits.taken = unreliable.base;
        // The peer may wait to learn it.
        self.credits.asked = true;
        self.settle_end();
    }

    /// Takes the number of messages that were missed since the last call.
    pub fn take_missed(&mut self) -> u64 {
        self.unreliable.as_mut().map_or(0, |unreliable| std::mem::take(&mut unreliable.missed))
    }

    /// Handles the peer's end: now, or when the messages sent before it have come.
    pub(in crate::connection) fn on_end_behind(&mut self, words: Option<String>) {
        match &mut self.unreliable {
            Some(unreliable) => {
                unreliable.held_end.get_or_insert(words);
                self.settle_end();
            }
            None => self.on_end(words),
        }
    }

    fn settle_end(&mut self) {
        if self.awaited().is_none() {
            self.release_end();
        }
    }

    /// Handles the held end of the peer, which waits for nothing more.
    pub(in crate::connection) fn release_end(&mut self) {
        if let Some(words) = self.unreliable.as_mut().and_then(|unreliable| unreliable.held_end.take()) {
            self.on_end(words);
        }
    }
}
