//! Driver of a link: moves a VI's frames through its QUIC stream. (Messages of an unreliable VI travel in datagrams:
//! [`crate::unreliable`].)
//!
//! All functions run with the link's lock held, on any thread that has work for the link: one that posts, one that polls, the helper.
//! No call blocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::StreamId;
use udeck_session::{Connection, Driver, Phase, Pieces};
use udeck_sys::job_time;
use udeck_via::ServiceLevel;
use udeck_via::transport::Retransmissions;

use crate::buffer_pool::BUFFER;
use crate::core::Core;
use crate::peer::{ConnectionStatus, Peer, ReadEnd, State};
use crate::unreliable::Unreliable;
use crate::wire::RESET_CANCELLED;

/// How long a poll waits for another thread that reads the socket. It is short, because that thread may wait for
/// this link's lock.
const LOCK_WAIT: Duration = Duration::from_micros(50);
/// How long the last poll before a deadline waits for it. The reading thread may be descheduled, with a datagram for
/// this link.
const LAST_LOCK_WAIT: Duration = Duration::from_millis(100);
/// Upper bound of the bytes gathered for one write to the stream.
const GATHER_BYTES: usize = BUFFER;

/// The stream of a link, and how far its bytes are.
pub struct StreamDriver {
    pub core: Arc<Core>,
    /// Number of the link in the NIC.
    pub number: u64,
    pub peer: Arc<Peer>,
    pub stream: StreamId,
    pub unreliable: Option<Box<Unreliable>>,
    /// Gathered bytes that the stream has not accepted yet.
    unwritten: Bytes,
    /// Offset in the stream up to which bytes were gathered.
    gathered: u64,
    /// The peer has sent STOP_SENDING.
    stopped: bool,
    /// The link waits for its turn ([`udeck_session::SendOrder`]).
    waits_for_turn: bool,
    chunks: Vec<Bytes>,
    has_received: bool,
    /// When the VI was closed and everything was written: from then on only the peer's end is missing.
    closing_since: Option<Instant>,
    is_over: bool,
}

impl StreamDriver {
    /// Makes the driver. `unreliable` is given for a connection whose messages travel outside the stream.
    pub fn new(
        core: Arc<Core>,
        (number, peer, stream): (u64, Arc<Peer>, StreamId),
        unreliable: Option<Box<Unreliable>>,
    ) -> Self {
        StreamDriver {
            core,
            number,
            peer,
            stream,
            unreliable,
            unwritten: Bytes::new(),
            gathered: 0,
            stopped: false,
            waits_for_turn: false,
            chunks: Vec::new(),
            has_received: false,
            closing_since: None,
            is_over: false,
        }
    }

    /// Reads the stream and the datagrams of this link, then sends queued data.
    pub fn drive(&mut self, connection: &mut Connection) {
        if self.is_over {
            return;
        }
        let end = {
            let peer = self.peer.clone();
            let mut state = peer.lock();
            self.collect_datagrams(&mut state);
            peer.read(&mut state, self.stream, &mut self.chunks)
        };
        for chunk in self.chunks.drain(..) {
            self.has_received = true;
            connection.on_receive_beside(&chunk);
        }
        self.reassemble(connection);
        match end {
            ReadEnd::Blocked => {}
            // After a goodbye frame this is an orderly end.
            ReadEnd::Finished => connection.hung_up(),
            ReadEnd::Reset(RESET_CANCELLED) if !self.has_received => connection.withdrawn(),
            ReadEnd::Reset(_) => connection.hung_up(),
            ReadEnd::Closed(ConnectionStatus::Closed) => connection.hung_up(),
            ReadEnd::Closed(why) => connection.lost(&why.error().unwrap_or_default()),
        }
        self.expire_fragments(connection, job_time());
        self.send(connection);
        self.finish_if_over(connection);
    }

    /// Ends the link: the NIC has failed.
    pub fn fail(&mut self, connection: &mut Connection, why: &str) {
        connection.lost(why);
        self.finish_if_over(connection);
    }

    /// Periodic check by the helper: gives up a closed VI whose peer does not answer the end. `closing` says that
    /// the NIC is closed.
    pub fn check_close(
        &mut self,
        connection: &mut Connection,
        now: Instant,
        timeout: Duration,
        closing: bool,
    ) {
        if self.is_over || !connection.is_closed() {
            return;
        }
        let last_received = self.peer.lock().last_received();
        let gives_up = if self.is_all_written(connection) {
            let since = *self.closing_since.get_or_insert(now);
            let is_late = now.duration_since(since) >= timeout;
            // QUIC still retransmits to a silent peer. The peer exists, or its connection would be lost.
            let is_silent = last_received < since + timeout / 2;
            if is_late && is_silent && !closing {
                self.closing_since = Some(now);
            }
            is_late && (closing || !is_silent)
        } else {
            closing && now.duration_since(last_received) >= self.core.detect
        };
        if gives_up {
            connection.lost("the peer does not answer the end of the connection");
            self.finish_if_over(connection);
        }
    }

    fn is_all_written(&self, connection: &Connection) -> bool {
        connection.is_all_sent() && self.unwritten.is_empty()
    }

    fn send(&mut self, connection: &mut Connection) {
        let peer = self.peer.clone();
        let mut state = peer.lock();
        match self.core.send_order.is_some() {
            false => _ = self.write(connection, &mut state, usize::MAX),
            true => self.send_in_order(connection, &mut state),
        }
        peer.drive(&mut state);
    }

    /// Gives queued bytes to QUIC: at most `most`, rounded up to the end of a datagram. Returns their number.
    fn write(&mut self, connection: &mut Connection, state: &mut State, most: usize) -> usize {
        let mut written = 0;
        while !self.stopped && written < most && self.fill(connection, state, most - written) {
            let before = self.unwritten.len();
            if !self.peer.write(state, self.stream, &mut self.unwritten) {
                (self.stopped, self.unwritten) = (true, Bytes::new());
            }
            written += before - self.unwritten.len();
            if !self.unwritten.is_empty() {
                break;
            }
        }
        if self.stopped {
            connection.released(connection.queued());
        }
        written + self.send_fragments(connection, state, most.saturating_sub(written))
    }

    /// Sets the level by which the link's messages are sent, where levels have shares. Before this call they are
    /// sent when they are posted.
    pub fn order_by(&mut self, level: ServiceLevel) {
        if let (Some(order), Some(meter), false) = (&self.core.send_order, &self.peer.meter, self.is_over) {
            order.add(self.number, level, meter);
        }
    }

    /// Writes queued bytes while it is this link's turn.
    fn send_in_order(&mut self, connection: &mut Connection, state: &mut State) {
        // `waiting` counts one datagram message at a time, so the loop goes on until none is left.
        loop {
            let bytes = self.waiting(connection);
            if bytes == 0 || self.waits_for_turn {
                return;
            }
            if !self.core.send_order.as_ref().is_none_or(|order| order.may_send(self.number, bytes)) {
                self.waits_for_turn = true;
            } else if self.write_metered(connection, state, bytes) == 0 {
                return;
            }
        }
    }

    /// Writes up to `bytes` bytes: it is the link's turn.
    pub fn take_turn(&mut self, connection: &mut Connection, bytes: usize) {
        self.waits_for_turn = false;
        if self.is_over {
            return;
        }
        let peer = self.peer.clone();
        let mut state = peer.lock();
        let written = self.write_metered(connection, &mut state, bytes);
        if let Some(order) = &self.core.send_order {
            order.sent(self.number, written);
        }
        // If flow control takes nothing, an event reports when it does.
        if written > 0 {
            self.send_in_order(connection, &mut state);
        }
        peer.drive(&mut state);
        drop(state);
        self.finish_if_over(connection);
    }

    fn write_metered(&mut self, connection: &mut Connection, state: &mut State, bytes: usize) -> usize {
        let written = self.write(connection, state, bytes);
        if let Some(meter) = &self.peer.meter {
            meter.on_written(written);
        }
        written
    }

    /// Bytes that QUIC does not have yet. Of datagram messages only the first one counts.
    fn waiting(&self, connection: &Connection) -> usize {
        let stream = (connection.queued() - self.gathered) as usize + self.unwritten.len();
        stream + self.unreliable.as_ref().map_or(0, |unreliable| unreliable.waiting(connection))
    }

    /// Gathers the bytes to write next. Returns whether there are any.
    fn fill(&mut self, connection: &mut Connection, state: &mut State, most: usize) -> bool {
        if !self.unwritten.is_empty() {
            return true;
        }
        let mut pieces = Pieces::new();
        let len = connection.gather(self.gathered, GATHER_BYTES.min(most), &mut pieces);
        if len == 0 {
            return false;
        }
        let filled = state.gathered.filled(len, |buffer| _ = pieces.copy_to(buffer));
        self.unwritten = filled.freeze();
        self.gathered += len as u64;
        connection.released(self.gathered);
        true
    }

    fn finish_if_over(&mut self, connection: &mut Connection) {
        if connection.phase() == Phase::Broken {
            if self.core.send_order.is_some() {
                let peer = self.peer.clone();
                peer.with(|state| _ = self.write(connection, state, usize::MAX));
            }
            // The error frame for the peer is in the stream.
            connection.lost(&format!("{} broke the protocol", self.peer.at));
        }
        if let Phase::Over { .. } = connection.phase()
            && !std::mem::replace(&mut self.is_over, true)
        {
            let whole = self.unwritten.is_empty() && !self.stopped;
            let (peer, stream) = (self.peer.clone(), self.stream);
            peer.with(|state| peer.close_stream(state, stream, whole));
            self.core.remove_link(self.number);
        }
    }
}

impl Driver for StreamDriver {
    fn pump(&mut self, connection: &mut Connection) {
        if !self.is_over {
            self.send(connection);
            self.finish_if_over(connection);
        }
    }

    fn poll(&mut self, connection: &mut Connection) {
        let core = self.core.clone();
        if core.poll_for(&self.peer, self.stream, LOCK_WAIT) {
            self.drive(connection);
        }
    }

    fn drain_before_close(&mut self, connection: &mut Connection) {
        let core = self.core.clone();
        if core.poll_for(&self.peer, self.stream, LAST_LOCK_WAIT) {
            self.drive(connection);
        }
    }

    fn retransmissions(&mut self) -> Option<Retransmissions> {
        // The link's lock is held, and the peer's lock comes after it in the lock order.
        let packets = self.peer.lock().quic.stats().path.lost_packets;
        Some(Retransmissions { connection: Arc::as_ptr(&self.peer).addr() as u64, packets })
    }

    /// Whether the peer has everything. The caller has called [`Core::progress_all`].
    fn is_done(&mut self, connection: &mut Connection) -> bool {
        if self.is_over {
            return true;
        }
        if !self.is_all_written(connection) {
            return false;
        }
        let peer = self.peer.clone();
        peer.with(|state| {
            peer.is_delivered(state, self.stream, self.gathered)
                && (self.unreliable.is_none() || peer.datagrams_sent(state))
        })
    }
}

#[cfg(test)]
mod tests {
    use udeck_via::{Descriptor, Error, Reliability};

    use crate::fixture::{End, connect, open_with, soon};

    /// `waiting` counts one datagram message at a time, and yet all of them are sent.
    #[test]
    fn all_messages_go_that_the_peer_has_room_for() {
        let open = || open_with(|options| options.levels = Some("5:50,0:50".parse().unwrap()));
        let ((core_a, a), (_core_b, b)) = (open(), open());
        let (mut a, mut b) = (End::new(&a, Reliability::Unreliable), End::new(&b, Reliability::Unreliable));
        connect(&mut a, &mut b);
        let link = core_a.links()[0].clone();
        // The peer has room for some of the messages only.
        let (len, mut posted, mut came) = (4000, 0, 0);
        loop {
            let mut region = a.nic.region(len, a.ptag).unwrap();
            region.fill(posted as u8);
            match a.vi.post_send(Descriptor::new([region])) {
                Ok(()) => posted += 1,
                Err((Error::Full { .. }, _)) => break,
                Err((error, _)) => panic!("{error}"),
            }
        }
        assert!(posted * len > udeck_session::DATAGRAM_BYTES, "{posted} messages");
        let deadline = soon();
        while came < posted {
            assert!(!deadline.passed(), "{came} of {posted} messages came");
            while b.vi.arrival().expect("it stands").is_some() {
                came += 1;
            }
            core_a.progress();
            link.with(|connection, driver| {
                let waiting = driver.waiting(connection);
                let has_room = driver.peer.lock().quic.datagrams().send_buffer_space() > 2 * len;
                assert!(
                    waiting == 0 || driver.waits_for_turn || !has_room,
                    "{waiting} bytes wait for nothing"
                );
            });
        }
    }
}
