//! Messages that the program takes, and the credits that follow from that.

use std::convert::Infallible;

use udeck_via::transport::{Found, Inline, Refused, TransferStatus};

use super::Connection;
use super::outgoing::OnRelease;
use crate::credits::Credits;
use crate::framed::wire::Frame;
use crate::{BYTES, Item, MESSAGES, TakenMessage};

/// Credits by messages and bytes: how much the peer may send, and how much of that it was told.
///
/// A frame that tells credits alone is a packet, which costs as much as a message. So it is sent while the program has
/// nothing to do but to poll for messages ([`ByteCredits::may_tell`]), and otherwise only before the peer runs out
/// ([`ByteCredits::is_due`]).
pub(super) struct ByteCredits {
    pub messages: Credits,
    /// Bytes that may be in flight and not taken.
    pub window: u64,
    /// Messages that arrived, modulo 2^32 as on the wire: at most [`MESSAGES`] ahead of those that were taken.
    arrived: u32,
    /// Bytes of messages that arrived and were not taken.
    waiting: u64,
    /// Length of the longest such message since there were none, in bytes.
    longest: u64,
    /// Bytes of messages that were taken since the peer was told.
    unadvertised_bytes: u64,
    /// Stream offset of the end of the last credit frame. The next one is sent only when the driver has gathered that.
    last_at: u64,
}

impl Default for ByteCredits {
    fn default() -> Self {
        let messages = Credits::default();
        let window = BYTES as u64;
        ByteCredits {
            messages,
            window,
            arrived: 0,
            waiting: 0,
            longest: 0,
            unadvertised_bytes: 0,
            last_at: 0,
        }
    }
}

impl ByteCredits {
    /// Counts a message of `bytes` that begins to arrive. Returns its number. `Err`: the peer exceeds its credits.
    #[inline]
    pub fn arrive(&mut self, bytes: u64) -> Result<u32, String> {
        if self.arrived.wrapping_sub(self.messages.taken) >= MESSAGES {
            return Err(format!("more than {MESSAGES} messages before one of them was taken"));
        }
        if self.waiting >= self.window {
            let waiting = self.waiting;
            return Err(format!("a message of {bytes} bytes on top of {waiting} that were not taken"));
        }
        self.waiting += bytes;
        self.arrived = self.arrived.wrapping_add(1);
        Ok(self.arrived.wrapping_sub(1))
    }

    fn take(&mut self, bytes: u64) {
        self.wait_no_more(bytes);
        self.count(bytes);
    }

    /// Whether another message of `bytes` may wait: all waiting messages but the longest are together shorter than the
    /// window, in whatever order they came.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        (self.waiting + bytes).saturating_sub(bytes.max(self.longest)) < self.window
    }

    /// Counts bytes that arrive, or will, and were not taken.
    pub fn wait_for(&mut self, bytes: u64) {
        self.waiting += bytes;
        self.longest = self.longest.max(bytes);
    }

    /// Counts bytes that were taken, or will not come.
    pub fn wait_no_more(&mut self, bytes: u64) {
        self.waiting -= bytes;
        if self.waiting == 0 {
            self.longest = 0;
        }
    }

    /// Counts another message as taken.
    pub fn count(&mut self, bytes: u64) {
        self.messages.count();
        self.unadvertised_bytes += bytes;
    }

    /// Acts as if `messages` more had come and been taken.
    #[cfg(test)]
    pub fn advance_for_test(&mut self, messages: u64) {
        self.arrived = self.arrived.wrapping_add(messages as u32);
        self.messages.advance_for_test(messages as u32);
    }

    /// The same as [`Credits::advertise`], for bytes, too.
    #[inline]
    pub fn advertise(&mut self) -> u32 {
        if self.messages.unadvertised() != 0 {
            self.unadvertised_bytes = 0;
        }
        self.messages.advertise()
    }

    /// Whether the peer should be told at once, without another frame to carry the count. A single long message waits for an
    /// answer that carries it, unless the message fills the window by itself.
    #[inline]
    fn is_due(&self) -> bool {
        let many = self.messages.unadvertised() >= 2 && self.unadvertised_bytes >= self.window / 4 * 3;
        self.messages.is_due(MESSAGES / 2) || many || self.unadvertised_bytes >= self.window
    }

    /// Whether the peer should be told when the program is idle.
    #[inline]
    fn may_tell(&self) -> bool {
        // (Nearly always nothing was taken since the peer was told, so this comes first.)
        let some = self.messages.unadvertised() > 0;
        some && (self.messages.is_due(MESSAGES / 4) || self.unadvertised_bytes >= self.window / 4)
    }
}

impl Connection {
    /// Takes the next arrival, or returns how the connection ended.
    pub(crate) fn take(&mut self) -> Result<Option<TakenMessage>, Refused> {
        let Some(item) = self.recv_queue.pop_front() else {
            self.on_idle();
            return self.end().map_or(Ok(None), Err);
        };
        self.count_taken(item.bytes());
        let taken = item.into_taken().expect("what the program is not told of never lies in front");
        self.owed += u32::from(taken.receipt.is_some());
        self.skip_silent();
        self.notify_end_after_arrival();
        Ok(Some(taken))
    }

    /// Whether neither a message nor the end is there.
    #[inline]
    pub(crate) fn has_nothing_yet(&self) -> bool {
        self.recv_queue.is_empty() && !self.close.is_ended()
    }

    /// The same as [`Connection::take`], for a short message, which is copied into `to`.
    #[inline]
    pub(crate) fn take_short(&mut self, to: &mut Inline) -> Found {
        let taken = self.recv_queue.take_inline(|bytes| *to = *bytes);
        let Some(immediate) = taken else {
            self.on_idle();
            return if self.has_nothing_yet() { Found::Nothing } else { Found::Other };
        };
        self.count_taken(to.len());
        self.skip_silent();
        self.notify_end_after_arrival();
        Found::Short(immediate)
    }

    #[inline]
    fn count_taken(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if !self.taken_unreliable(bytes) {
            self.credits.take(bytes);
        }
    }

    /// Notes the end again, if it was announced while this arrival lay before it: a program that takes one message per
    /// announcement is told of the end, too.
    #[inline]
    fn notify_end_after_arrival(&mut self) {
        if self.recv_queue.is_empty() && self.close.is_ended() {
            self.events.notify_end_after_arrival();
        }
    }

    /// Counts payload bytes that were copied for the program.
    pub(crate) fn count_copied(&self, bytes: usize) {
        self.memory.count_copied(bytes);
    }

    /// Delivers a short message.
    #[inline]
    pub(super) fn deliver_short(&mut self, immediate: Option<u32>, bytes: &[u8]) {
        self.recv_queue.push_back(Item::Inline { immediate, bytes: Inline::copy_of(bytes) });
        self.events.receive = true;
    }

    /// Delivers an arrival.
    pub(super) fn deliver(&mut self, item: Item<Infallible>) {
        let is_silent = matches!(item, Item::Silent);
        self.recv_queue.push_back(item);
        if is_silent { self.skip_silent() } else { self.events.receive = true }
    }

    #[inline(always)]
    fn skip_silent(&mut self) {
        while self.recv_queue.pop_silent() {
            self.credits.take(0);
        }
        self.send_credits();
    }

    /// Sends credits if there is time for it: the program has polled for a message, and there is none.
    #[inline]
    pub(crate) fn on_idle(&mut self) {
        if self.credits.may_tell() {
            self.send_credits_now();
        }
    }

    /// Sends credits, if the peer should be told now.
    #[inline]
    pub(super) fn send_credits(&mut self) {
        if self.credits.is_due() {
            self.send_credits_now();
        }
    }

    /// Sends credits by one frame at a time, so that a peer that asks and does not read takes no more of our memory.
    #[cold]
    #[inline(never)]
    fn send_credits_now(&mut self) {
        let is_over = self.close.dead || self.broken || self.over;
        if is_over || self.credits.last_at > self.outgoing.gathered() {
            return;
        }
        self.credits.messages.asked = false;
        self.control(Frame::Credit, OnRelease::Nothing);
        self.credits.last_at = self.outgoing.end();
    }

    /// Sends the receipt for a message that was taken.
    pub(crate) fn acknowledge(&mut self, number: u32, status: TransferStatus) {
        if self.owed == 0 {
            return; // the connection is lost, so no receipt is awaited
        }
        self.owed -= 1;
        if !self.broken {
            self.control(Frame::Receipt { number, status }, OnRelease::Receipt);
        }
        self.try_over();
    }
}
