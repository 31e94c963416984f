//! An unreliable VI's messages, as its link's driver moves them: each in QUIC datagrams of its own (RFC 9221), beside the link's
//! stream.
//!
//! A message is over for its sender when QUIC has all of its datagrams. It leaves when the peer's program has room for it,
//! which the stream tells, and when QUIC has; until then it waits where it lies, and posts are refused when too many do.
//! Nothing is sent again. Some time after the last of them has left, the peer is told by the stream that what has not come
//! will not ([`FLIGHT`]).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::SendDatagramError;
use udeck_session::{Connection, Landing, Pieces};
use udeck_sys::job_time;

use crate::driver::QuicDriver;
use crate::peer::{Peer, State, Stream};
use crate::pieces::{Assembly, Limits, Message};
use crate::wire::Piece;

/// How long nothing may come of a message. Its sender gives it up much sooner, unless it has died or was stopped.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a datagram may be on its way after QUIC has sent it, besides three round trips.
const FLIGHT: Duration = Duration::from_millis(20);
/// Messages of one connection that are incomplete at a time.
const INCOMPLETE: usize = 64;

/// What a driver has besides, for an unreliable VI.
pub struct Unreliable {
    assembly: Assembly<Landing>,
    came: VecDeque<Bytes>,
    /// Bytes of the next message that have left.
    at: u32,
    /// Messages below that number left by that time.
    left: VecDeque<(Instant, u64)>,
    /// The NIC calls the link at that time.
    called: Option<Instant>,
}

impl Unreliable {
    /// Takes messages of up to `max_transfer` bytes.
    pub fn new(max_transfer: usize) -> Self {
        // Who keeps the rules never has so many bytes under way, and who does not gets no room: `Connection::land`.
        let bytes = max_transfer.saturating_add(2 * udeck_session::BYTES);
        let limits = Limits { message: bytes, messages: INCOMPLETE, bytes, patience: PATIENCE };
        let (came, left) = (VecDeque::new(), VecDeque::new());
        Unreliable { assembly: Assembly::new(limits), came, at: 0, left, called: None }
    }

    /// When something is to be given up.
    fn timer(&self, flight: Duration) -> Option<Instant> {
        let forgotten = self.left.front().map(|(at, _)| *at + flight);
        self.assembly.timer().into_iter().chain(forgotten).min()
    }
}

impl Peer {
    /// Whether QUIC has sent all datagrams.
    pub fn datagrams_left(&self, state: &mut State) -> bool {
        let space = state.quic.datagrams().send_buffer_space();
        space >= crate::tls::DATAGRAMS_FREE || self.is_over()
    }
}

/// Three round trips, and some more.
fn flight(state: &State) -> Duration {
    3 * state.quic.rtt() + FLIGHT
}

impl QuicDriver {
    /// Takes the datagrams that have come for it.
    pub fn take_datagrams(&mut self, state: &mut State) {
        let Some(unreliable) = &mut self.unreliable else { return };
        if let Some(Stream::Linked(flow)) = state.streams.get_mut(&self.stream) {
            unreliable.came.append(&mut flow.datagrams);
        }
    }

    pub fn land_datagrams(&mut self, connection: &mut Connection) {
        let now = job_time();
        while let Some(datagram) = self.unreliable.as_mut().and_then(|unreliable| unreliable.came.pop_front())
        {
            match Piece::decode(&datagram) {
                Some(piece) => self.take_piece(connection, now, &piece),
                None => self.core.dropped.count(0, 1),
            }
        }
    }

    fn take_piece(&mut self, connection: &mut Connection, now: Instant, piece: &Piece<'_>) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let end = connection.unreliable_end();
        let received =
            unreliable.assembly.receive(now, piece, end, |content, len| connection.land(content, len));
        match received {
            Ok(None) => {}
            Ok(Some(Message::Whole(bytes))) => connection.on_datagram(piece.message, piece.content, bytes),
            Ok(Some(Message::Assembled(landing))) => connection.on_receive_unreliable(piece.message, landing),
            Err(_) => self.core.dropped.count(0, 1),
        }
        self.tell_missed(connection);
    }

    /// After what came, or a time: what will not come any more, here and there.
    pub fn settle_pieces(&mut self, connection: &mut Connection, now: Instant) {
        let peer = self.peer.clone();
        let Some(unreliable) = &mut self.unreliable else { return };
        if let Some(upto) = connection.take_given_up() {
            unreliable.assembly.give_up(now, upto);
        }
        unreliable.assembly.time(now);
        let (flight, have_left) = {
            let mut state = peer.lock();
            (flight(&state), peer.datagrams_left(&mut state))
        };
        let mut given_up = None;
        // What still waits in QUIC's buffer has not left.
        while let Some((at, upto)) = unreliable.left.front().copied()
            && have_left
            && at + flight <= now
        {
            given_up = Some(upto);
            unreliable.left.pop_front();
        }
        if let Some(upto) = given_up {
            connection.give_up(upto);
        }
        if unreliable.called.is_some_and(|called| called <= now) {
            unreliable.called = None;
        }
        let wanted =
            unreliable.timer(flight).map(|wanted| if have_left { wanted } else { wanted.max(now + flight) });
        if let Some(wanted) = wanted.filter(|wanted| unreliable.called.is_none_or(|called| *wanted < called))
        {
            unreliable.called = Some(wanted);
            self.core.call_link_at(wanted, self.number);
        }
        self.tell_missed(connection);
    }

    fn tell_missed(&mut self, connection: &mut Connection) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let mut count = 0;
        while let Some((number, part)) = unreliable.assembly.next_missed() {
            connection.on_missed(number, part);
            count += 1;
        }
        self.core.dropped.count(count, 0);
    }

    /// Sends what there is and may go, as far as QUIC takes it.
    pub fn send_pieces(&mut self, connection: &mut Connection, state: &mut State) {
        let stream = self.stream.into();
        let Some(unreliable) = &mut self.unreliable else { return };
        let before = unreliable.left.len();
        while let Some(leaving) = connection.next_datagram(0) {
            let Some(most) = state.quic.datagrams().max_size() else { return };
            let room = most.saturating_sub(Piece::header_len(&leaving.content));
            let total = u32::try_from(leaving.len).unwrap_or(u32::MAX);
            let len = room.min((total - unreliable.at) as usize);
            if len == 0 && total > 0 {
                return;
            }
            let piece = Piece {
                stream,
                message: leaving.number,
                offset: unreliable.at,
                total,
                content: leaving.content,
                payload: &[],
            };
            let mut datagram = Vec::with_capacity(Piece::header_len(&leaving.content) + len);
            piece.put_header(&mut datagram);
            append(connection, unreliable.at as usize, len, &mut datagram);
            match state.quic.datagrams().send(datagram.into(), false) {
                Ok(()) => {}
                // It goes on when there is room again.
                Err(SendDatagramError::Blocked(_)) => break,
                // The path has become narrower: the next attempt asks again how long one may be.
                Err(_) => break,
            }
            unreliable.at += len as u32;
            if unreliable.at >= total {
                unreliable.at = 0;
                let now = job_time();
                match unreliable.left.back_mut() {
                    // One entry a millisecond is enough.
                    Some((at, upto)) if now.duration_since(*at) < Duration::from_millis(1) => {
                        *upto = leaving.number + 1;
                    }
                    _ => unreliable.left.push_back((now, leaving.number + 1)),
                }
                connection.on_datagrams_sent(1);
            }
        }
        if unreliable.left.len() != before && unreliable.called.is_none() {
            let wanted = job_time() + flight(state);
            unreliable.called = Some(wanted);
            self.core.call_link_at(wanted, self.number);
        }
    }
}

/// Appends bytes of the first message that is to leave.
fn append(connection: &Connection, from: usize, len: usize, to: &mut Vec<u8>) {
    let start = to.len();
    to.resize(start + len, 0);
    let mut done = 0;
    while done < len {
        let mut pieces = Pieces::new();
        if connection.gather_unreliable(0, from + done, len - done, &mut pieces) == 0 {
            // It is as long as it said, so it does not end before.
            return;
        }
        done += pieces.copy_to(&mut to[start + done..]);
    }
}
