//! A link's two streams in datagrams. (An unreliable VI's messages are not in them: [`crate::unreliable`].)
//!
//! Everything here happens with the link's lock held, on whichever thread has work for it: the one that posts, the one
//! that polls, the helper. No call waits.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_session::{Connection, Driver, Phase, Pieces};
use udeck_sys::job_time;

use crate::core::{Core, Tomb};
use crate::flow::{Flow, Names, State, Transmit};
use crate::icmp::{Report, Verdict};
use crate::neighbours::{Vigil, socket_at};
use crate::socket::Batch;
use crate::unreliable::Unreliable;
use crate::wire::{Close, Kind, Packet, open};

/// How long it leaves a kernel alone that takes nothing.
const PAUSE: Duration = Duration::from_millis(1);

/// See the module.
pub struct UdpDriver {
    pub(super) core: Arc<Core>,
    names: Names,
    peer: SocketAddr,
    pub(super) flow: Flow,
    /// What is built, and what the kernel did not take.
    pub(super) batch: Batch,
    pub(super) unreliable: Option<Box<Unreliable>>,
    pub(super) vigil: Vigil,
    /// The kernel took nothing: it is tried again then.
    stalled: Option<Instant>,
    /// The NIC calls at that time.
    called: Option<Instant>,
    /// Since when the program is gone and the peer is waited for.
    waits_since: Option<Instant>,
    over: bool,
}

impl UdpDriver {
    /// `unreliable`: for a connection whose messages go outside the stream.
    pub fn new(
        core: Arc<Core>,
        names: Names,
        peer: SocketAddr,
        vigil: Vigil,
        flow: Flow,
        unreliable: Option<Box<Unreliable>>,
    ) -> Self {
        let batch = Batch::default();
        UdpDriver {
            core,
            names,
            peer,
            flow,
            batch,
            unreliable,
            vigil,
            stalled: None,
            called: None,
            waits_since: None,
            over: false,
        }
    }

    /// A datagram came. [`UdpDriver::answer`] when there are no more.
    pub fn take(&mut self, connection: &mut Connection, now: Instant, datagram: &[u8]) {
        if self.over {
            return;
        }
        let Ok(opened) = open(datagram) else { return };
        if opened.kind == Kind::Piece {
            return self.take_piece(connection, now, &opened);
        }
        let Ok(packet) = Packet::decode(&opened) else { return };
        let received = self.flow.receive(now, &packet, &mut |bytes| {
            let direct = connection.direct();
            connection.came(direct, 0, bytes);
        });
        // What has no effect needs no answer.
        if received.is_ok() {
            self.vigil.heard();
        }
    }

    /// After what came, or a time: gives back what has arrived, sends what there is, and looks how it stands.
    pub fn answer(&mut self, connection: &mut Connection, now: Instant) {
        if self.over {
            return;
        }
        connection.released(self.flow.released().min(connection.queued()));
        self.settle_pieces(connection, now);
        self.send(connection, now);
        self.settle(connection, now);
    }

    /// The time that it asked for has come.
    pub fn time(&mut self, connection: &mut Connection, now: Instant) {
        self.called = None;
        if self.flow.is_silent(now) && self.vigil.excuses(socket_at(self.peer)) {
            self.flow.excuse(now);
        }
        if self.flow.timer().is_some_and(|timer| timer <= now) {
            self.flow.time(now);
        }
        self.answer(connection, now);
    }

    /// The network says something of a datagram of this connection's.
    pub fn hear_report(&mut self, connection: &mut Connection, report: &Report) {
        if self.over {
            return;
        }
        match report.verdict {
            // A router that is too old to say how much, or a liar, says 0.
            Verdict::TooBig(_) => self.flow.carries(report.carries().unwrap_or(0)),
            Verdict::NobodyThere => {
                let to = report.to;
                connection.lost(&format!(
                    "the process at {to} has died, or closed its NIC by force: nobody is there"
                ));
            }
        }
        self.settle(connection, job_time());
    }

    /// The NIC has failed.
    pub fn fail(&mut self, connection: &mut Connection, why: &str) {
        connection.lost(why);
        self.settle(connection, job_time());
    }

    /// The helper's look at what no datagram tells of.
    pub fn check(&mut self, connection: &mut Connection, now: Instant, patience: Duration) {
        let has_all = self.flow.released() == connection.queued() && !connection.holds_back();
        if !self.over && connection.is_closed() && has_all {
            let since = *self.waits_since.get_or_insert(now);
            if now.duration_since(since) >= patience {
                connection.lost("the peer does not answer the end of the connection");
                self.settle(connection, now);
            }
        }
    }

    fn send(&mut self, connection: &mut Connection, now: Instant) {
        if self.stalled.is_some_and(|until| until > now) || !self.flush(connection, now) {
            return;
        }
        self.flow.offer(connection.queued());
        while let Some(transmit) = self.flow.transmit_loaded(now) {
            if !self.add(connection, now, transmit) {
                return;
            }
        }
        self.send_pieces(connection, now);
        // What is to be acknowledged, if nothing has carried it.
        if self.stalled.is_none()
            && let Some(transmit) = self.flow.transmit(now)
        {
            self.add(connection, now, transmit);
        }
        self.flush(connection, now);
    }

    /// `false`: it counts as lost, one datagram of many.
    fn add(&mut self, connection: &mut Connection, now: Instant, transmit: Transmit) -> bool {
        if !self.batch.takes(transmit.size(), self.core.socket.most()) && !self.flush(connection, now) {
            return false;
        }
        self.build(connection, transmit);
        true
    }

    fn build(&mut self, connection: &Connection, mut transmit: Transmit) {
        let datagram = self.batch.add(transmit.size());
        let (header, payload) = datagram.split_at_mut(transmit.header.bytes().len());
        let (mut at, mut done) = (transmit.range.start, 0);
        while at < transmit.range.end {
            let mut pieces = Pieces::new();
            let len = connection.gather(at, (transmit.range.end - at) as usize, &mut pieces);
            if len == 0 {
                // It is not offered, so it is not asked for.
                break;
            }
            done += pieces.copy_to(&mut payload[done..]);
            at += len as u64;
        }
        transmit.header.seal([&*payload]);
        header.copy_from_slice(transmit.header.bytes());
    }

    /// Whether the kernel took what was built.
    pub(super) fn flush(&mut self, connection: &mut Connection, now: Instant) -> bool {
        if self.batch.is_empty() {
            return true;
        }
        match self.core.socket.send_batch(self.peer, &self.batch) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.stalled = Some(now + PAUSE);
                return false;
            }
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
                self.flow.too_long(self.batch.longest());
            }
            // Lost on its way, as it were: silence or what comes next tells.
            Ok(()) | Err(_) => {}
        }
        self.batch.clear();
        self.stalled = None;
        self.pieces_left(connection);
        true
    }

    fn settle(&mut self, connection: &mut Connection, now: Instant) {
        match self.flow.state() {
            State::Open | State::Over(_) => {}
            // Its NIC is there and knows nothing of the connection.
            State::Closed(_) if self.flow.delivered() == 0 => connection.withdrawn(),
            State::Closed(_) => connection.hung_up(),
            State::Silent => {
                let seconds = self.core.detect.as_secs();
                connection.lost(&format!("nothing was heard of {} for {seconds} seconds", self.peer));
            }
        }
        if connection.phase() == Phase::Broken {
            connection.lost(&format!("{} broke the protocol", self.peer));
        }
        match connection.phase() {
            Phase::Open | Phase::Broken => self.call_me(),
            Phase::Over { .. } => self.close(now),
        }
    }

    fn close(&mut self, now: Instant) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        // Told to whoever still sends; a peer that is over itself does not.
        self.batch.clear();
        self.flow.close(Close(0));
        if let Some(mut transmit) = self.flow.transmit(now) {
            transmit.header.seal([]);
            let _ = self.core.socket.send(self.peer, transmit.header.bytes());
        }
        self.core.forget_link(self.names.ours, Tomb { theirs: self.names.theirs, peer: self.peer });
    }

    /// Asks to be called in time. While the kernel takes nothing, that is when it is tried again: whatever is due before
    /// could not be sent.
    fn call_me(&mut self) {
        let pieces = self.unreliable.as_ref().and_then(|unreliable| unreliable.timer());
        let wanted = self.stalled.or_else(|| self.flow.timer().into_iter().chain(pieces).min());
        if let Some(wanted) = wanted.filter(|wanted| self.called.is_none_or(|called| *wanted < called)) {
            self.called = Some(wanted);
            self.core.call_at(wanted, self.names.ours);
        }
    }
}

impl Driver for UdpDriver {
    fn pump(&mut self, connection: &mut Connection) {
        if !self.over {
            let now = job_time();
            self.send(connection, now);
            self.settle(connection, now);
        }
    }

    fn look(&mut self, connection: &mut Connection) {
        let core = self.core.clone();
        let now = job_time();
        let mut any = false;
        core.look_for(self.names.ours, &mut |datagram| {
            any = true;
            self.take(connection, now, datagram);
        });
        if any {
            self.answer(connection, now);
        }
    }

    /// Without a look: whoever asks has read the socket.
    fn is_done(&mut self, connection: &mut Connection) -> bool {
        self.over || (connection.has_left() && self.batch.is_empty())
    }
}
