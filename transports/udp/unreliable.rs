//! Messages of unreliable VIs: each travels in QUIC datagrams of its own (RFC 9221), beside the link's stream.
//!
//! A send completes when QUIC has all of the message's datagrams. A message is sent when the peer has granted a
//! credit for it and QUIC's datagram buffer has space. Until then it stays in the send queue. Nothing is
//! retransmitted. Some time after the last message was sent, the stream tells the peer that messages which have not
//! arrived will not ([`FLIGHT_TIME`]).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::SendDatagramError;
use udeck_session::{Connection, Landing, Pieces};
use udeck_sys::job_time;

use crate::driver::StreamDriver;
use crate::peer::{Peer, State, Stream};
use crate::reassembly::{Limits, Message, Reassembly};
use crate::wire::Fragment;

/// Time without a fragment after which a message is missed. A sender that lives gives its message up much sooner.
const REASSEMBLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that a datagram may travel after QUIC has sent it, in addition to three round trips.
const FLIGHT_TIME: Duration = Duration::from_millis(20);
/// Upper bound of the incomplete messages of one connection.
const MAX_INCOMPLETE: usize = 64;

/// The additional state of an unreliable VI's driver.
pub struct Unreliable {
    reassembly: Reassembly<Landing>,
    received_datagrams: VecDeque<Bytes>,
    /// Number of bytes of the next message that were sent.
    next_offset: u32,
    /// Times at which all messages below a number had been sent.
    sent: VecDeque<(Instant, u64)>,
    /// When the link's timer is due.
    timer: Option<Instant>,
}

impl Unreliable {
    /// Makes the state for messages of up to `max_transfer` bytes.
    pub fn new(max_transfer: usize) -> Self {
        // A peer that keeps to its credits never has so many bytes in flight. Another peer gets no buffer:
        // `Connection::land`.
        let bytes = max_transfer.saturating_add(2 * udeck_session::DATAGRAM_BYTES);
        let limits = Limits { message: bytes, messages: MAX_INCOMPLETE, bytes, timeout: REASSEMBLY_TIMEOUT };
        let (received_datagrams, sent) = (VecDeque::new(), VecDeque::new());
        Unreliable {
            reassembly: Reassembly::new(limits),
            received_datagrams,
            next_offset: 0,
            sent,
            timer: None,
        }
    }

    /// Bytes of the next message that were not sent. An empty message counts as one byte.
    pub fn waiting(&self, connection: &Connection) -> usize {
        let next = connection.next_datagram(0);
        next.map_or(0, |message| message.len.saturating_sub(self.next_offset as usize).max(1))
    }

    /// When the next message is to be given up.
    fn next_timeout(&self, flight: Duration) -> Option<Instant> {
        let forgotten = self.sent.front().map(|(at, _)| *at + flight);
        self.reassembly.next_timeout().into_iter().chain(forgotten).min()
    }
}

impl Peer {
    /// Whether QUIC has sent all datagrams that it was given.
    pub fn datagrams_sent(&self, state: &mut State) -> bool {
        let space = state.quic.datagrams().send_buffer_space();
        space >= crate::tls::DATAGRAMS_FREE || self.is_over()
    }
}

/// Time after which a sent datagram counts as lost: three round trips and [`FLIGHT_TIME`].
fn flight(state: &State) -> Duration {
    3 * state.quic.rtt() + FLIGHT_TIME
}

impl StreamDriver {
    /// Takes the datagrams that arrived for this link.
    pub fn collect_datagrams(&mut self, state: &mut State) {
        let Some(unreliable) = &mut self.unreliable else { return };
        if let Some(Stream::Vi(flow)) = state.streams.get_mut(&self.stream) {
            unreliable.received_datagrams.append(&mut flow.datagrams);
        }
    }

    pub fn reassemble(&mut self, connection: &mut Connection) {
        let now = job_time();
        while let Some(datagram) =
            self.unreliable.as_mut().and_then(|unreliable| unreliable.received_datagrams.pop_front())
        {
            match Fragment::decode(&datagram) {
                Some(fragment) => self.on_fragment(connection, now, &fragment),
                None => self.core.dropped.count(0, 1),
            }
        }
    }

    fn on_fragment(&mut self, connection: &mut Connection, now: Instant, fragment: &Fragment<'_>) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let end = connection.unreliable_end();
        let received =
            unreliable.reassembly.receive(now, fragment, end, |content, len| connection.land(content, len));
        match received {
            Ok(None) => {}
            Ok(Some(Message::Whole(bytes))) => {
                connection.on_datagram(fragment.message, fragment.content, bytes)
            }
            Ok(Some(Message::Assembled(landing))) => {
                connection.on_receive_unreliable(fragment.message, landing)
            }
            Err(_) => self.core.dropped.count(0, 1),
        }
        self.report_missed(connection);
    }

    /// Gives up messages: those that the peer has given up, those that timed out, and sent ones that may no longer arrive.
    pub fn expire_fragments(&mut self, connection: &mut Connection, now: Instant) {
        let peer = self.peer.clone();
        let Some(unreliable) = &mut self.unreliable else { return };
        if let Some(upto) = connection.take_given_up() {
            unreliable.reassembly.give_up(now, upto);
        }
        unreliable.reassembly.on_timeout(now);
        let (flight, are_sent) = {
            let mut state = peer.lock();
            (flight(&state), peer.datagrams_sent(&mut state))
        };
        let mut given_up = None;
        // Datagrams that wait in QUIC's buffer were not sent yet.
        while let Some((at, upto)) = unreliable.sent.front().copied()
            && are_sent
            && at + flight <= now
        {
            given_up = Some(upto);
            unreliable.sent.pop_front();
        }
        if let Some(upto) = given_up {
            connection.give_up(upto);
        }
        if unreliable.timer.is_some_and(|timer| timer <= now) {
            unreliable.timer = None;
        }
        let wanted = unreliable
            .next_timeout(flight)
            .map(|wanted| if are_sent { wanted } else { wanted.max(now + flight) });
        if let Some(wanted) = wanted.filter(|wanted| unreliable.timer.is_none_or(|timer| *wanted < timer)) {
            unreliable.timer = Some(wanted);
            self.core.set_link_timer(wanted, self.number);
        }
        self.report_missed(connection);
    }

    fn report_missed(&mut self, connection: &mut Connection) {
        let Some(unreliable) = &mut self.unreliable else { return };
        let mut count = 0;
        while let Some((number, part)) = unreliable.reassembly.next_missed() {
            connection.on_missed(number, part);
            count += 1;
        }
        self.core.dropped.count(count, 0);
    }

    /// Gives messages to QUIC, as far as credits and its datagram buffer allow, until at least `most` bytes went.
    /// Returns their number.
    pub fn send_fragments(&mut self, connection: &mut Connection, state: &mut State, most: usize) -> usize {
        let stream = self.stream.into();
        let Some(unreliable) = &mut self.unreliable else { return 0 };
        let (before, mut went) = (unreliable.sent.len(), 0);
        while went < most
            && let Some(leaving) = connection.next_datagram(0)
        {
            let Some(longest) = state.quic.datagrams().max_size() else { return went };
            let room = longest.saturating_sub(Fragment::header_len(&leaving.content));
            let total = u32::try_from(leaving.len).unwrap_or(u32::MAX);
            let len = room.min((total - unreliable.next_offset) as usize);
            if len == 0 && total > 0 {
                return went;
            }
            let fragment = Fragment {
                stream,
                message: leaving.number,
                offset: unreliable.next_offset,
                total,
                content: leaving.content,
                payload: &[],
            };
            let mut datagram = Vec::with_capacity(Fragment::header_len(&leaving.content) + len);
            fragment.put_header(&mut datagram);
            append(connection, unreliable.next_offset as usize, len, &mut datagram);
            let bytes = datagram.len();
            match state.quic.datagrams().send(datagram.into(), false) {
                Ok(()) => went += bytes,
                // The event `DatagramsUnblocked` continues the message.
                Err(SendDatagramError::Blocked(_)) => break,
                // The path MTU has become smaller: the next attempt asks again for the longest datagram.
                Err(_) => break,
            }
            unreliable.next_offset += len as u32;
            if unreliable.next_offset >= total {
                unreliable.next_offset = 0;
                let now = job_time();
                match unreliable.sent.back_mut() {
                    // One entry per millisecond is enough.
                    Some((at, upto)) if now.duration_since(*at) < Duration::from_millis(1) => {
                        *upto = leaving.number + 1;
                    }
                    _ => unreliable.sent.push_back((now, leaving.number + 1)),
                }
                connection.on_datagrams_sent(1);
            }
        }
        if unreliable.sent.len() != before && unreliable.timer.is_none() {
            let wanted = job_time() + flight(state);
            unreliable.timer = Some(wanted);
            self.core.set_link_timer(wanted, self.number);
        }
        went
    }
}

/// Appends bytes of the first message to send.
fn append(connection: &Connection, from: usize, len: usize, to: &mut Vec<u8>) {
    let start = to.len();
    to.resize(start + len, 0);
    let mut done = 0;
    while done < len {
        let mut pieces = Pieces::new();
        if connection.gather_unreliable(0, from + done, len - done, &mut pieces) == 0 {
            // The message is as long as announced, so this is not reached.
            return;
        }
        done += pieces.copy_to(&mut to[start + done..]);
    }
}
