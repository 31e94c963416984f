//! Driver of a link: moves its two streams over its socket.
//!
//! Every call holds the link's lock, on whichever thread has work for the link: the one that posts, the one that
//! polls, the helper. No call waits.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_session::admission::reset_when_closed;
use udeck_session::poll::EventFlags;
use udeck_session::{Connection, Driver, Phase, Pieces};
use udeck_via::transport::Retransmissions;

use crate::core::Core;
use crate::deferred_ack::DeferredAck;
use crate::liveness;
use crate::socket::{INCOMING, Socket};
use crate::sys::{self, Read};

/// Bytes given to the kernel by one write: other threads may want the lock.
const WRITE: usize = 1 << 20;
/// Reads in a row before the lock is given back.
const READS: usize = 16;
/// Rounds without a full socket after which pollers no longer ask for room: asking the kernel for that and taking it
/// back cost a call each.
const CALM: u32 = 64;

/// The socket of a link, and how far its two streams are.
pub struct TcpDriver {
    core: Arc<Core>,
    number: u64,
    /// The socket; `None` when the link is over.
    socket: Option<Arc<Socket>>,
    peer: SocketAddr,
    /// Stream offset up to which the kernel has the outgoing stream.
    written: u64,
    /// The last write found the socket full.
    stalled: bool,
    /// Rounds since the socket was full, while pollers still ask for room.
    calm: Option<u32>,
    /// The link is in the core's list of send-blocked links.
    is_send_blocked: bool,
    /// The link waits for its turn ([`udeck_session::SendOrder`]).
    waits_for_turn: bool,
    deferred_ack: DeferredAck,
    /// The peer's direction has ended.
    ended: bool,
    /// When the helper first saw that the program is gone and only the peer's end is missing.
    waits_since: Option<Instant>,
    /// Value of `written` when the peer's host was last known to have everything.
    confirmed: u64,
}

impl TcpDriver {
    pub fn new(core: Arc<Core>, number: u64, socket: Arc<Socket>, peer: SocketAddr) -> Self {
        TcpDriver {
            core,
            number,
            socket: Some(socket),
            peer,
            written: 0,
            stalled: false,
            calm: None,
            is_send_blocked: false,
            waits_for_turn: false,
            deferred_ack: DeferredAck::default(),
            ended: false,
            waits_since: None,
            confirmed: 0,
        }
    }

    /// Reads what has come, and writes as much as there is room for. Returns whether the link still exists.
    pub fn serve(&mut self, connection: &mut Connection) -> bool {
        self.deferred_ack.expect(false);
        self.serve_now(connection)
    }

    /// Serves as [`TcpDriver::serve`], for a thread that waits for this link before all others, and most likely
    /// polls again soon.
    pub fn serve_hot(&mut self, connection: &mut Connection) -> bool {
        self.deferred_ack.expect(true);
        self.serve_now(connection)
    }

    fn serve_now(&mut self, connection: &mut Connection) -> bool {
        if !self.read_socket(connection) && !self.stalled && self.calm.is_none() {
            return self.socket.is_some(); // unchanged
        }
        if self.stalled {
            self.stalled = false;
            self.send(connection);
        } else if let Some(rounds) = self.calm {
            self.calm = Some(rounds + 1).filter(|rounds| *rounds < CALM);
            if self.calm.is_none() {
                self.want(false);
            }
        }
        self.settle(connection);
        self.socket.is_some()
    }

    /// Checks for conditions that no event reports: a silent host, and a peer that does not answer the end. Called
    /// by the helper.
    pub fn check(&mut self, connection: &mut Connection, now: Instant, patience: Duration) {
        let Some(socket) = &self.socket else { return };
        if self.written != self.confirmed {
            // The last probe may have been sent well before; the remaining 30 % of the time is for that.
            if liveness::is_dead(socket.as_fd(), self.core.admission.detect * 7 / 10) {
                let seconds = self.core.admission.detect.as_secs();
                connection.lost(&format!("the host of {} has been silent for {seconds} seconds", self.peer));
            }
            self.is_confirmed();
        }
        let has_sent_all = connection.queued() == self.written && !connection.holds_back();
        if connection.is_closed() && has_sent_all {
            let since = *self.waits_since.get_or_insert(now);
            if now.duration_since(since) >= patience {
                // The kernel has all data, and delivers them.
                connection.lost("the peer does not answer the end of the connection");
            }
        }
        self.settle(connection);
    }

    /// Ends the link: the NIC has failed.
    pub fn fail(&mut self, connection: &mut Connection, why: &str) {
        connection.lost(why);
        self.settle(connection);
    }

    /// Whether the peer's host has confirmed everything that was written, or the socket can no longer be asked.
    fn is_confirmed(&mut self) -> bool {
        let Some(socket) = &self.socket else { return true };
        if self.written != self.confirmed
            && !sys::liveness(socket.as_fd()).is_ok_and(|liveness| liveness.outstanding)
        {
            self.confirmed = self.written;
        }
        self.written == self.confirmed
    }

    /// Reads from the socket. Returns whether anything has come, the end included.
    fn read_socket(&mut self, connection: &mut Connection) -> bool {
        for read in 0..READS {
            let Some(socket) = self.socket.as_ref().filter(|_| !self.ended) else { return true };
            let (fd, deferred_ack) = (socket.as_fd(), &mut self.deferred_ack);
            // The peek is noted before the connection takes the bytes. If the connection panics (in the program's
            // code, when its memory is dropped), the same bytes do not come twice.
            let found = if connection.is_between_frames() && !connection.expects_body() {
                let peek = deferred_ack.may_peek();
                deferred_ack.settle(fd).and_then(|()| {
                    sys::receive_beside(fd, peek, |bytes| {
                        deferred_ack.on_read(peek, bytes.len());
                        connection.on_receive_beside(bytes);
                    })
                })
            } else {
                let direct = connection.direct();
                let peek = direct.is_empty() && deferred_ack.may_peek();
                deferred_ack.settle(fd).and_then(|()| {
                    sys::receive(fd, peek, direct, |direct, filled, rest| {
                        deferred_ack.on_read(peek, filled + rest.len());
                        connection.on_receive(direct, filled, rest);
                    })
                })
            };
            match found {
                Ok(Read::Some) => {}
                Ok(Read::All) => return true,
                Ok(Read::End) => {
                    self.ended = true;
                    connection.hung_up();
                    self.want(self.stalled);
                    return true;
                }
                Err(error) if is_later(&error) => {
                    self.deferred_ack.on_idle(self.core.sends());
                    return read > 0;
                }
                Err(error) => {
                    self.ended = true;
                    connection.lost(&self.words(&error));
                    return true;
                }
            }
        }
        true
    }

    /// Writes the queued data when it is this link's turn.
    #[inline]
    fn send(&mut self, connection: &mut Connection) {
        match self.core.send_order.is_some() {
            false => self.write(connection, u64::MAX),
            true => self.send_in_order(connection),
        }
    }

    fn send_in_order(&mut self, connection: &mut Connection) {
        let upto = connection.queued();
        let bytes = upto.saturating_sub(self.written) as usize;
        let Some(order) = self.core.send_order.as_ref().filter(|_| bytes > 0 && !self.waits_for_turn) else {
            return;
        };
        if order.may_send(self.number, bytes) {
            self.write(connection, upto);
        } else {
            self.waits_for_turn = true;
        }
    }

    /// Writes up to `bytes` bytes: it is the link's turn.
    pub fn take_turn(&mut self, connection: &mut Connection, bytes: usize) {
        self.waits_for_turn = false;
        if self.stalled {
            return; // the link asks again when there is room
        }
        let before = self.written;
        self.write(connection, before + bytes as u64);
        if let Some(order) = &self.core.send_order {
            order.sent(self.number, (self.written - before) as usize);
        }
        if self.written > before && !self.stalled {
            self.send_in_order(connection);
        }
        self.settle(connection);
    }

    /// Writes the stream up to offset `upto`, as far as there is room.
    fn write(&mut self, connection: &mut Connection, upto: u64) {
        loop {
            let Some(socket) = &self.socket else { return };
            let mut pieces = Pieces::new();
            let most = usize::try_from(upto - self.written).map_or(WRITE, |most| most.min(WRITE));
            let len = connection.gather(self.written, most, &mut pieces);
            if len == 0 {
                self.stalled = false;
                return;
            }
            match sys::send(socket.as_fd(), &pieces) {
                Ok(sent) => {
                    self.core.note_send();
                    self.written += sent as u64;
                    connection.released(self.written);
                    if sent < len {
                        return self.stall();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_later(&error) => return self.stall(),
                Err(error) => {
                    self.stalled = false;
                    // Frames that the peer sent before count, the orderly end of the connection among them.
                    self.read_socket(connection);
                    connection.lost(&self.words(&error));
                    return;
                }
            }
        }
    }

    /// Notes that the socket is full, and asks the pollers to report room.
    fn stall(&mut self) {
        self.stalled = true;
        if self.calm.is_none() {
            self.want(true);
        }
        self.calm = Some(0);
    }

    fn want(&self, room: bool) {
        let incoming = if self.ended { EventFlags::empty() } else { INCOMING };
        let room = if room { EventFlags::OUT } else { EventFlags::empty() };
        if let Some(socket) = &self.socket {
            socket.want(incoming | room);
        }
    }

    /// Closes the socket when the connection is over.
    #[inline]
    fn settle(&mut self, connection: &mut Connection) {
        if !connection.is_calm() || self.stalled || self.is_send_blocked {
            self.settle_end(connection);
        }
    }

    fn settle_end(&mut self, connection: &mut Connection) {
        if connection.phase() == Phase::Broken {
            self.write(connection, u64::MAX);
            connection.lost(&format!("{} broke the protocol", self.peer));
        }
        match connection.phase() {
            Phase::Open => {}
            Phase::Broken => self.close(false),
            Phase::Over { abruptly } => self.close(abruptly),
        }
        self.update_send_blocked(connection);
    }

    /// Lets other threads poll this link while posted data wait for the socket.
    fn update_send_blocked(&mut self, connection: &Connection) {
        let is_send_blocked = self.socket.is_some() && (self.stalled || connection.holds_back());
        if is_send_blocked == std::mem::replace(&mut self.is_send_blocked, is_send_blocked) {
            return;
        }
        match is_send_blocked {
            true => self.core.send_blocked.add(self.number),
            false => self.core.send_blocked.remove(self.number),
        }
    }

    fn close(&mut self, abruptly: bool) {
        let Some(socket) = self.socket.take() else { return };
        // The kernel resets a socket that is closed with unread bytes.
        let _ = self.deferred_ack.settle(socket.as_fd());
        if abruptly {
            reset_when_closed(socket.as_fd());
        }
        socket.unwatch();
        self.core.forget_link(self.number);
    }

    fn words(&self, error: &io::Error) -> String {
        format!("the process behind {} died, or the network: {error}", self.peer)
    }
}

impl Driver for TcpDriver {
    fn pump(&mut self, connection: &mut Connection) {
        // A full socket is served when there is room.
        if !self.stalled {
            self.send(connection);
        }
        self.settle(connection);
    }

    fn poll(&mut self, connection: &mut Connection) {
        self.serve_hot(connection);
    }

    fn retransmissions(&mut self) -> Option<Retransmissions> {
        let packets = sys::retransmitted(self.socket.as_ref()?.as_fd()).ok()?;
        Some(Retransmissions { connection: self.number, packets })
    }

    /// The kernel goes on sending when this process has ended, but forgets the data that the peer's host has not
    /// confirmed as soon as anything comes for the ended process. So confirmation is waited for, too.
    fn is_done(&mut self, connection: &mut Connection) -> bool {
        self.serve(connection);
        connection.is_all_sent() && self.is_confirmed()
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
