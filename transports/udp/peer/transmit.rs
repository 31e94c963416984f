//! Packets to the socket, and when the NIC is to call.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_session::address::is_outage;

use super::{Peer, State};
use crate::tls::CONNECTION_ID;

/// How long it leaves a kernel alone that takes nothing.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes of a batch to send, at most.
const BATCH: usize = 63 << 10;
/// Batches that are sent in a row, at most.
const BATCHES: usize = 64;
/// Connection ids of datagrams that were sent last: what ICMP quotes.
const QUOTED: usize = 4;

/// See the module.
#[derive(Default)]
pub struct Transmit {
    batch: Vec<u8>,
    /// What the kernel did not take, which is in the batch.
    refused: Option<quinn_proto::Transmit>,
    /// It is tried again then.
    stalled: Option<Instant>,
    /// The NIC calls at that time.
    pub called: Option<Instant>,
    /// Destination connection ids of what was sent.
    sent: Vec<Vec<u8>>,
    /// Since when the kernel says that there is no way there.
    pub outage: Option<(Instant, io::Error)>,
    /// The kernel refuses for good.
    pub failure: Option<io::Error>,
}

impl Transmit {
    /// Whether `quote` is how a datagram begins that was sent, by what nobody off its way can know.
    pub fn has_sent(&self, quote: &[u8]) -> bool {
        destination(quote).is_some_and(|id| self.sent.iter().any(|sent| sent == id))
    }

    #[cfg(test)]
    pub fn last_sent(&self) -> Vec<u8> {
        self.sent.last().cloned().unwrap_or_default()
    }

    fn note(&mut self) {
        let Some(id) = destination(&self.batch) else { return };
        if self.sent.last().is_none_or(|last| last != id) {
            let id = id.to_vec();
            self.sent.retain(|sent| *sent != id);
            if self.sent.len() >= QUOTED {
                self.sent.remove(0);
            }
            self.sent.push(id);
        }
    }
}

/// The destination connection id of a QUIC packet (RFC 9000, section 17): of a short one, as long as ours are.
fn destination(packet: &[u8]) -> Option<&[u8]> {
    const LONG: u8 = 0x80;
    match packet.first()? & LONG {
        0 => packet.get(1..1 + CONNECTION_ID),
        _ => packet.get(6..6 + usize::from(*packet.get(5)?)).filter(|id| id.len() >= CONNECTION_ID),
    }
}

impl Peer {
    /// Sends what may go, as far as the kernel takes it.
    pub(super) fn send(self: &Arc<Self>, state: &mut State, now: Instant) {
        if state.transmit.stalled.is_some_and(|until| until > now) {
            return self.call_me(state);
        }
        if let Some(transmit) = state.transmit.refused.take()
            && !self.hand_over(state, transmit, now)
        {
            return self.call_me(state);
        }
        for _ in 0..BATCHES {
            let most =
                (BATCH / usize::from(state.quic.current_mtu().max(1200))).clamp(1, self.core.socket.most());
            let State { quic, transmit, .. } = state;
            transmit.batch.clear();
            let Some(next) = quic.poll_transmit(now, most, &mut transmit.batch) else {
                return self.call_me(state);
            };
            if !self.hand_over(state, next, now) {
                break;
            }
        }
        self.call_me(state);
    }

    /// Whether the kernel took it.
    fn hand_over(&self, state: &mut State, next: quinn_proto::Transmit, now: Instant) -> bool {
        let transmit = &mut state.transmit;
        transmit.note();
        let ecn = next.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8));
        let contents = &transmit.batch[..next.size];
        match self.core.socket.transmit(next.destination, contents, next.segment_size, ecn) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                transmit.refused = Some(next);
                transmit.stalled = Some(now + PAUSE);
                return false;
            }
            Err(error) if is_outage(&error) => _ = transmit.outage.get_or_insert((now, error)),
            // Longer than the interface carries: as if it were lost, QUIC finds out.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {}
            Err(error) => transmit.failure = Some(error),
            Ok(()) => (transmit.outage, transmit.failure) = (None, None),
        }
        transmit.stalled = None;
        true
    }

    /// Asks to be called in time. While the kernel takes nothing, that is when it is tried again: whatever is due before
    /// could not be sent.
    fn call_me(&self, state: &mut State) {
        let wanted = state.transmit.stalled.or_else(|| state.quic.poll_timeout());
        self.call_in_time(state, wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_found_in_both_kinds_of_packets() {
        let long = [&[0xc0, 0, 0, 0, 1, 8][..], &[7; 8], &[0]].concat();
        assert_eq!(destination(&long), Some(&[7; 8][..]));
        let short = [&[0x40][..], &[9; 8], &[1, 2, 3]].concat();
        assert_eq!(destination(&short), Some(&[9; 8][..]));
        for bytes in [&[][..], &[0x40, 1], &[0xc0, 0, 0, 0, 1, 3, 1, 2, 3], &long[..10]] {
            assert_eq!(destination(bytes), None, "{bytes:?}");
        }
    }
}
