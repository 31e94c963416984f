//! What the program takes, and the credits that follow from that.

use std::convert::Infallible;

use udeck_via::transport::{Found, Inline, Refused, TransferStatus};

use super::Connection;
use super::outgoing::Then;
use crate::credits::Credits;
use crate::framed::wire::Frame;
use crate::{BYTES, Item, MESSAGES, Taken};

/// How much the peer may send, and what it knows of that: not only messages are counted, but their bytes.
///
/// A frame that tells it is a packet, which costs as much as a message. So it is sent while the program has nothing to do
/// but to look for messages ([`ByteCredits::may_tell`]), and otherwise only before the peer runs out ([`ByteCredits::is_due`]).
pub(super) struct ByteCredits {
    pub messages: Credits,
    /// Bytes that may be under way and not taken.
    pub window: u64,
    /// Modulo 2^32, as it travels: at most [`MESSAGES`] ahead of those that were taken.
    arrived: u32,
    /// Bytes of what arrived and was not taken.
    waiting: u64,
    /// Those of the longest message since there were none.
    longest: u64,
    /// Bytes of what was taken since the peer was told.
    unadvertised_bytes: u64,
    /// Where the last credit frame ends in the stream: it is told again when somebody has gathered that.
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
    /// A message of so many bytes begins to arrive; its number. `Err`: more than the peer may send.
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

    /// Whether a message of so many bytes may wait, too: all but the longest together are fewer than the window, in
    /// whatever order they came.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        (self.waiting + bytes).saturating_sub(bytes.max(self.longest)) < self.window
    }

    /// So many bytes arrive, or will, and were not taken.
    pub fn wait_for(&mut self, bytes: u64) {
        self.waiting += bytes;
        self.longest = self.longest.max(bytes);
    }

    /// They were taken, or will not come.
    pub fn wait_no_more(&mut self, bytes: u64) {
        self.waiting -= bytes;
        if self.waiting == 0 {
            self.longest = 0;
        }
    }

    /// Another message counts as taken.
    pub fn count(&mut self, bytes: u64) {
        self.messages.count();
        self.unadvertised_bytes += bytes;
    }

    /// As if so many more messages had come and been taken.
    #[cfg(test)]
    pub fn age(&mut self, messages: u64) {
        self.arrived = self.arrived.wrapping_add(messages as u32);
        self.messages.age(messages as u32);
    }

    /// As [`Credits::advertise`].
    #[inline]
    pub fn advertise(&mut self) -> u32 {
        if self.messages.unadvertised() != 0 {
            self.unadvertised_bytes = 0;
        }
        self.messages.advertise()
    }

    /// Whether the peer should be told at once, without another frame to tell it in. A single long message waits for an
    /// answer to tell it in, unless it fills the window by itself.
    #[inline]
    fn is_due(&self) -> bool {
        let many = self.messages.unadvertised() >= 2 && self.unadvertised_bytes >= self.window / 4 * 3;
        self.messages.is_due(MESSAGES / 2) || many || self.unadvertised_bytes >= self.window
    }

    /// Whether the peer should be told when there is time for it.
    #[inline]
    fn may_tell(&self) -> bool {
        // (Nearly always nothing was taken since the peer was told.)
        let some = self.messages.unadvertised() > 0;
        some && (self.messages.is_due(MESSAGES / 4) || self.unadvertised_bytes >= self.window / 4)
    }
}

impl Connection {
    /// The next arrival, or how it is over.
    pub(crate) fn take(&mut self) -> Result<Option<Taken>, Refused> {
        let Some(item) = self.recv_queue.pop_front() else {
            self.on_idle();
            return self.end().map_or(Ok(None), Err);
        };
        self.count_taken(item.bytes());
        let taken = item.into_taken().expect("what the program is not told of never lies in front");
        self.owed += u32::from(taken.receipt.is_some());
        self.skip_silent();
        self.tell_end_behind();
        Ok(Some(taken))
    }

    /// Whether nothing lies there, neither a message nor the end.
    #[inline]
    pub(crate) fn has_nothing_yet(&self) -> bool {
        self.recv_queue.is_empty() && !self.close.is_ended()
    }

    /// As [`Connection::take`], of a short message, into `to`.
    #[inline]
    pub(crate) fn take_short(&mut self, to: &mut Inline) -> Found {
        let taken = self.recv_queue.take_inline(|bytes| *to = *bytes);
        let Some(immediate) = taken else {
            self.on_idle();
            return if self.has_nothing_yet() { Found::Nothing } else { Found::Other };
        };
        self.count_taken(to.len());
        self.skip_silent();
        self.tell_end_behind();
        Found::Short(immediate)
    }

    #[inline]
    fn count_taken(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if !self.taken_unreliable(bytes) {
            self.credits.take(bytes);
        }
    }

    /// The end may have been told while this lay before it: who takes one message at each telling is told of it, too.
    #[inline]
    fn tell_end_behind(&mut self) {
        if self.recv_queue.is_empty() && self.close.is_ended() {
            self.events.tell_end_behind();
        }
    }

    /// Payload was copied for the program.
    pub(crate) fn count_copied(&self, bytes: usize) {
        self.memory.count_copied(bytes);
    }

    /// A short message arrived.
    #[inline]
    pub(super) fn deliver_short(&mut self, immediate: Option<u32>, bytes: &[u8]) {
        self.recv_queue.push_back(Item::Inline { immediate, bytes: Inline::copy_of(bytes) });
        self.events.receive = true;
    }

    /// Something arrived.
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
        self.tell_credits();
    }

    /// The program has looked for a message, and there is none.
    #[inline]
    pub(crate) fn on_idle(&mut self) {
        if self.credits.may_tell() {
            self.tell_credits_now();
        }
    }

    /// Tells the peer what was taken, if it should know now.
    #[inline]
    pub(super) fn tell_credits(&mut self) {
        if self.credits.is_due() {
            self.tell_credits_now();
        }
    }

    /// By one frame at a time, so that a peer that asks and does not read has no more of our memory.
    #[cold]
    #[inline(never)]
    fn tell_credits_now(&mut self) {
        let is_over = self.close.dead || self.broken || self.over;
        if is_over || self.credits.last_at > self.outgoing.gathered() {
            return;
        }
        self.credits.messages.asked = false;
        self.control(Frame::Credit, Then::Nothing);
        self.credits.last_at = self.outgoing.end();
    }

    /// Gives the receipt for a message that was taken.
    pub(crate) fn acknowledge(&mut self, number: u32, status: TransferStatus) {
        if self.owed == 0 {
            return; // the connection is lost: nobody waits any more
        }
        self.owed -= 1;
        if !self.broken {
            self.control(Frame::Receipt { number, status }, Then::Receipt);
        }
        self.try_over();
    }
}
