//! An unreliable VI's messages, as its link's driver moves them: each in datagrams of its own, beside the link's stream.
//!
//! A message is over for its sender when the kernel has all of its datagrams. It leaves when the peer's program has room for
//! it, which the stream tells, and when the network has, which [`crate::flow`] knows; until then it waits where it lies, and
//! posts are refused when too many do. Nothing is sent again.

use std::time::{Duration, Instant};

use udeck_session::{Connection, Landing, Pieces};
use udeck_sys::atomic::{AtomicU64, Ordering};

use crate::driver::UdpDriver;
use crate::flow::Cut;
use crate::pieces::{Assembly, Departed, Limits, Message};
use crate::wire::{Opened, Piece};

/// How long nothing may come of a message. Its sender gives it up much sooner, unless it has died or was stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// Messages of one connection that are incomplete at a time.
const INCOMPLETE: usize = 64;

/// What a NIC has dropped of unreliable messages so far. Whoever opens it may keep a clone of its
/// [`crate::Options::dropped`], and look at any time.
#[derive(Debug, Default)]
pub struct Dropped {
    messages: AtomicU64,
    datagrams: AtomicU64,
}

impl Dropped {
    /// Messages and RDMA writes that did not arrive, although a piece of them came or their sender told of them: the network
    /// lost some of it, or there was no place for it. (What arrived and found no descriptor is not among them.)
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Datagrams that came and were no use: twice, too late, not allowed, or no piece of anything.
    pub fn datagrams(&self) -> u64 {
        self.datagrams.load(Ordering::Relaxed)
    }

    fn count(&self, messages: u64, datagrams: u64) {
        for (counter, more) in [(&self.messages, messages), (&self.datagrams, datagrams)] {
            if more > 0 {
                counter.fetch_add(more, Ordering::Relaxed);
            }
        }
    }
}

/// What a driver has besides, for an unreliable VI.
pub struct Unreliable {
    assembly: Assembly<Landing>,
    departed: Departed,
    /// Messages that lie in the batch as a whole, and bytes of the next one that do.
    cut: usize,
    at: u32,
}

impl Unreliable {
    /// Takes messages of up to `max_transfer` bytes.
    pub fn new(max_transfer: usize) -> Self {
        // Who keeps the rules never has so many bytes under way, and who does not gets no room: `Connection::land`.
        let bytes = max_transfer.saturating_add(2 * udeck_session::BYTES);
        let limits = Limits { message: bytes, messages: INCOMPLETE, bytes, patience: PATIENCE };
        Unreliable { assembly: Assembly::new(limits), departed: Departed::default(), cut: 0, at: 0 }
    }

    /// When something is to be given up.
    pub fn timer(&self) -> Option<Instant> {
        self.assembly.timer()
    }
}

impl UdpDriver {
    /// A datagram came that says it is a piece.
    pub(super) fn take_piece(&mut self, connection: &mut Connection, now: Instant, opened: &Opened<'_>) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let Ok(piece) = Piece::decode(opened) else { return self.core.dropped.count(0, 1) };
        if self.flow.receive_piece(now, &piece).is_err() {
            return self.core.dropped.count(0, 1);
        }
        self.vigil.heard();
        let end = connection.unreliable_end();
        let received =
            unreliable.assembly.receive(now, &piece, end, |content, len| connection.land(content, len));
        match received {
            Ok(None) => {}
            Ok(Some(Message::Whole(bytes))) => connection.came_whole(piece.message, piece.content, bytes),
            Ok(Some(Message::Assembled(landing))) => connection.came_unreliable(piece.message, landing),
            Err(_) => self.core.dropped.count(0, 1),
        }
        self.tell_missed(connection);
    }

    /// After what came, or a time: what will not come any more, here and there.
    pub(super) fn settle_pieces(&mut self, connection: &mut Connection, now: Instant) {
        let Some(unreliable) = &mut self.unreliable else { return };
        if let Some(upto) = connection.take_given_up() {
            unreliable.assembly.give_up(now, upto);
        }
        unreliable.assembly.time(now);
        while let Some((message, lost)) = self.flow.next_settled() {
            unreliable.departed.settled(message, lost);
        }
        if let Some(upto) = unreliable.departed.given_up() {
            connection.give_up(upto);
        }
        self.tell_missed(connection);
    }

    fn tell_missed(&mut self, connection: &mut Connection) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let mut count = 0;
        while let Some((number, part)) = unreliable.assembly.next_missed() {
            connection.missed(number, part);
            count += 1;
        }
        self.core.dropped.count(count, 0);
    }

    /// Sends what there is and may go, as far as the batch goes out.
    pub(super) fn send_pieces(&mut self, connection: &mut Connection, now: Instant) {
        while let Some((nth, at)) = self.unreliable.as_ref().map(|state| (state.cut, state.at)) {
            let Some(leaving) = connection.leaving(nth) else { return };
            let total = u32::try_from(leaving.len).unwrap_or(u32::MAX);
            let Some(cut) = self.flow.cut(at, total, &leaving.content) else { return };
            if !self.batch.takes(cut.size, self.core.socket.most()) {
                if !self.flush(connection, now) {
                    return;
                }
                // What was in it has left: the queue begins elsewhere.
                continue;
            }
            let whole = cut.range.end == total;
            let last = whole && connection.leaving(nth + 1).is_none();
            let mut header = self.flow.piece(now, leaving.number, &cut, &leaving.content, last);
            let datagram = self.batch.add(cut.size);
            let (front, payload) = datagram.split_at_mut(header.bytes().len());
            fill(connection, nth, &cut, payload);
            header.seal([&*payload]);
            front.copy_from_slice(header.bytes());
            let Some(state) = &mut self.unreliable else { return };
            state.departed.left(leaving.number, whole);
            state.at = if whole { 0 } else { cut.range.end };
            state.cut += usize::from(whole);
        }
    }

    /// The batch has gone: so have the messages in it.
    pub(super) fn pieces_left(&mut self, connection: &mut Connection) {
        if let Some(state) = self.unreliable.as_mut().filter(|state| state.cut > 0) {
            connection.left(std::mem::take(&mut state.cut));
        }
    }
}

fn fill(connection: &Connection, nth: usize, cut: &Cut, payload: &mut [u8]) {
    let mut done = 0;
    while done < payload.len() {
        let mut pieces = Pieces::new();
        let from = cut.range.start as usize + done;
        if connection.gather_unreliable(nth, from, payload.len() - done, &mut pieces) == 0 {
            // It is as long as it said, so it does not end before.
            return;
        }
        done += pieces.copy_to(&mut payload[done..]);
    }
}
