//! Sends a connection's packets, and arms its timer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use udeck_session::address::is_outage;

use super::{Peer, State};
use crate::path_mtu::LEAST_DATAGRAM;
use crate::tls::CONNECTION_ID;

/// Interval before a send that would have blocked is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Upper bound of a GSO batch in bytes.
const BATCH_BYTES: usize = 63 << 10;
/// Upper bound of the batches that are sent in one call.
const MAX_BATCHES: usize = 64;
/// Number of destination connection ids that are kept, to recognise quotes in ICMP messages.
const MAX_IDS: usize = 4;

/// Sending state of a connection.
#[derive(Default)]
pub struct Transmitter {
    batch: Vec<u8>,
    /// The batch whose send would have blocked.
    blocked: Option<quinn_proto::Transmit>,
    /// When the blocked send is tried again.
    retry_at: Option<Instant>,
    /// When the connection's timer is due.
    pub timer: Option<Instant>,
    /// Destination connection ids of the packets that were sent last.
    recent_ids: Vec<Vec<u8>>,
    /// Since when the kernel has no route, and its error.
    pub outage: Option<(Instant, io::Error)>,
    /// A permanent error of the kernel.
    pub failure: Option<io::Error>,
}

impl Transmitter {
    /// Whether `quote` begins a packet that was sent: it must have one of the peer's connection ids, which only the
    /// path sees.
    pub fn has_sent(&self, quote: &[u8]) -> bool {
        destination(quote).is_some_and(|id| self.recent_ids.iter().any(|sent| sent == id))
    }

    #[cfg(test)]
    pub fn last_sent(&self) -> Vec<u8> {
        self.recent_ids.last().cloned().unwrap_or_default()
    }

    fn record_id(&mut self) {
        let Some(id) = destination(&self.batch) else { return };
        if self.recent_ids.last().is_none_or(|last| last != id) {
            let id = id.to_vec();
            self.recent_ids.retain(|sent| *sent != id);
            if self.recent_ids.len() >= MAX_IDS {
                self.recent_ids.remove(0);
            }
            self.recent_ids.push(id);
        }
    }
}

/// Returns the destination connection id of a QUIC packet (RFC 9000, section 17). In a short header its length is
/// our own.
fn destination(packet: &[u8]) -> Option<&[u8]> {
    const LONG: u8 = 0x80;
    match packet.first()? & LONG {
        0 => packet.get(1..1 + CONNECTION_ID),
        _ => packet.get(6..6 + usize::from(*packet.get(5)?)).filter(|id| id.len() >= CONNECTION_ID),
    }
}

/// Whether the kernel, or the interface's queue, has no room at the moment.
fn is_shortage(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOBUFS | Errno::NOMEM))
}

impl Peer {
    /// Sends packets until QUIC has no more or the socket would block.
    pub(super) fn transmit(self: &Arc<Self>, state: &mut State, now: Instant) {
        if state.transmit.retry_at.is_some_and(|until| until > now) {
            return self.rearm_timer(state);
        }
        if let Some(transmit) = state.transmit.blocked.take()
            && !self.send_batch(state, transmit, now)
        {
            return self.rearm_timer(state);
        }
        for _ in 0..MAX_BATCHES {
            let most = (BATCH_BYTES / usize::from(state.quic.current_mtu().max(1200)))
                .clamp(1, self.core.socket.max_segments());
            let State { quic, transmit, .. } = state;
            transmit.batch.clear();
            let Some(next) = quic.poll_transmit(now, most, &mut transmit.batch) else {
                if let Some(meter) = &self.meter {
                    meter.on_no_transmit();
                }
                return self.rearm_timer(state);
            };
            if !self.send_batch(state, next, now) {
                break;
            }
        }
        self.rearm_timer(state);
    }

    /// Sends a batch. Returns `false` if the socket would have blocked.
    fn send_batch(&self, state: &mut State, next: quinn_proto::Transmit, now: Instant) -> bool {
        let transmit = &mut state.transmit;
        transmit.record_id();
        let ecn = next.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8));
        let contents = &transmit.batch[..next.size];
        match self.core.socket.transmit(next.destination, contents, next.segment_size, ecn) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                transmit.blocked = Some(next);
                transmit.retry_at = Some(now + RETRY_INTERVAL);
                return false;
            }
            // The kernel or the interface's queue has no room for the packet. It is lost, and QUIC retransmits it.
            Err(error) if is_outage(&error) || is_shortage(&error) => {
                _ = transmit.outage.get_or_insert((now, error))
            }
            // The packet is longer than the interface's MTU, and QUIC treats it as lost. QUIC has no packets below
            // its shortest length.
            Err(error)
                if Errno::from_io_error(&error) == Some(Errno::MSGSIZE)
                    && next.segment_size.unwrap_or(next.size) > LEAST_DATAGRAM => {}
            Err(error) => transmit.failure = Some(error),
            Ok(()) => (transmit.outage, transmit.failure) = (None, None),
        }
        transmit.retry_at = None;
        true
    }

    /// Arms the timer for QUIC's timeout. While the socket blocks, arms it for the next attempt: nothing could be
    /// sent before.
    fn rearm_timer(&self, state: &mut State) {
        let wanted = state.transmit.retry_at.or_else(|| state.quic.poll_timeout());
        self.set_timer(state, wanted);
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
