//! Meter of a QUIC connection: bytes in flight, and bytes that QUIC was given and has not sent.
//! [`udeck_session::SendOrder`] asks for both, where service levels have shares.
//!
//! quinn-proto does not report these numbers. But it tells its congestion controller what it sends and how much is
//! in flight, and asks it for the window each time it has something to send. So the [controller](Metered) of such a
//! connection is the usual one behind a meter.
//!
//! The bytes in flight are QUIC's own number. The meter counts the unsent bytes: the written ones, and lost ones
//! that are sent again, less those that left in packets. It takes the packets' headers for somewhat longer than they
//! are, so the count is never too low for long. It is exact again whenever QUIC has nothing left to send.
//!
//! The caller holds the connection's lock for everything except [`SendMeter::outstanding`].

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::{Connection, RttEstimator};
use udeck_session::{Outstanding, SendBuffer};

/// Upper bound of the bytes of a packet that are not stream data: its header (with a connection id of 8 bytes and 4
/// of its number), a stream frame's header (with a number of 4 bytes and an offset of 8), and the seal.
const OVERHEAD: u64 = 13 + 17 + 16;

/// Counters of a connection.
#[derive(Debug, Default)]
pub struct SendMeter {
    in_flight: AtomicU64,
    unsent: AtomicU64,
    /// QUIC has asked whether it may send an ack-eliciting packet, and has not sent it yet.
    has_asked: AtomicBool,
}

impl SendMeter {
    /// Returns the meter of a connection that was made with a [`MeteredFactory`].
    pub fn of(quic: &Connection) -> Option<Arc<SendMeter>> {
        let controller = quic.congestion_state().clone_box().into_any();
        controller.downcast::<Metered>().ok().map(|metered| metered.meter)
    }

    /// Counts bytes that QUIC was given.
    pub fn on_written(&self, bytes: usize) {
        self.set_unsent(|unsent| unsent + bytes as u64);
    }

    /// Corrects the count: QUIC says that it sends nothing more now.
    pub fn on_no_transmit(&self) {
        if !self.has_asked.load(Ordering::Relaxed) {
            self.unsent.store(0, Ordering::Relaxed);
        }
    }

    fn on_sent(&self, bytes: u64, mtu: u64) {
        // The packet has only acknowledgements, which are never in flight.
        if !self.has_asked.swap(false, Ordering::Relaxed) {
            return;
        }
        let data = bytes.saturating_sub(bytes.div_ceil(mtu.max(1)) * OVERHEAD);
        self.set_unsent(|unsent| unsent.saturating_sub(data));
        self.in_flight.fetch_add(bytes, Ordering::Relaxed);
    }

    fn on_lost(&self, bytes: u64) {
        self.set_unsent(|unsent| unsent + bytes);
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        self.in_flight.store(in_flight.saturating_sub(bytes), Ordering::Relaxed);
    }

    /// Changes the count. The caller holds the lock, so no other thread changes it.
    fn set_unsent(&self, change: impl FnOnce(u64) -> u64) {
        self.unsent.store(change(self.unsent.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

impl SendBuffer for SendMeter {
    fn outstanding(&self) -> Outstanding {
        let unsent = self.unsent.load(Ordering::Relaxed) as usize;
        Outstanding { all: self.in_flight.load(Ordering::Relaxed) as usize + unsent, unsent }
    }
}

/// Makes congestion controllers with a meter.
pub struct MeteredFactory<F>(pub Arc<F>);

impl<F: ControllerFactory + Send + Sync + 'static> ControllerFactory for MeteredFactory<F> {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let inner = self.0.clone().build(now, current_mtu);
        Box::new(Metered { inner, meter: Arc::default(), mtu: current_mtu.into() })
    }
}

/// A congestion controller behind a meter.
struct Metered {
    inner: Box<dyn Controller>,
    meter: Arc<SendMeter>,
    mtu: u64,
}

impl Controller for Metered {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.meter.on_sent(bytes, self.mtu);
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_acked: Option<u64>) {
        self.meter.in_flight.store(in_flight, Ordering::Relaxed);
        self.inner.on_end_acks(now, in_flight, app_limited, largest_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.meter.on_lost(lost_bytes);
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.meter.has_asked.store(true, Ordering::Relaxed);
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Metered { inner: self.inner.clone_box(), meter: self.meter.clone(), mtu: self.mtu })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use udeck_sys::job_time;
    use udeck_via::Reliability;

    use super::*;
    use crate::fixture::{End, connect, open_with, works};

    #[test]
    fn what_is_unsent_is_exact_when_nothing_is_left() {
        let meter = SendMeter::default();
        let ask = || meter.has_asked.store(true, Ordering::Relaxed);
        meter.on_written(10_000);
        assert_eq!(meter.outstanding(), Outstanding { all: 10_000, unsent: 10_000 });
        ask();
        meter.on_sent(6000, 1500);
        let Outstanding { all, unsent } = meter.outstanding();
        assert!((4000..=4000 + 4 * OVERHEAD as usize).contains(&unsent) && all == unsent + 6000);
        ask();
        meter.on_no_transmit();
        assert_eq!(meter.outstanding().unsent, unsent, "the window is full");
        meter.on_sent(4000, 1500);
        meter.on_no_transmit();
        assert_eq!(meter.outstanding(), Outstanding { all: 10_000, unsent: 0 });
        meter.on_sent(40, 1500);
        assert_eq!(meter.outstanding().all, 10_000, "an acknowledgement");
        meter.on_lost(3000);
        assert_eq!(meter.outstanding(), Outstanding { all: 10_000, unsent: 3000 }, "it is sent again");
    }

    /// The connection is one of quinn-proto, which reports no more than the meter relies on.
    #[test]
    fn a_connection_has_what_was_written_until_it_is_acknowledged() {
        let open = || open_with(|options| options.levels = Some("5:50,0:50".parse().unwrap()));
        let ((core_a, a), (core_b, b)) = (open(), open());
        let (mut a, mut b) = (End::new(&a, Reliability::Delivery), End::new(&b, Reliability::Delivery));
        connect(&mut a, &mut b);
        (0..20).for_each(|_| works(&mut a, &mut b));
        let peer = core_a.peers.all()[0].clone();
        let meter = peer.meter.clone().expect("levels have shares");
        let until = job_time() + Duration::from_secs(60);
        while meter.outstanding() != Outstanding::default() {
            assert!(job_time() < until, "{:?} of an idle connection", meter.outstanding());
            core_a.progress();
            core_b.progress();
        }
        let mut state = peer.lock();
        let stream = *state.streams.keys().next().expect("its VI's");
        let len = state.quic.send_stream(stream).write(&[0; 40_000]).expect("flow control takes it");
        meter.on_written(len);
        assert_eq!(meter.outstanding(), Outstanding { all: len, unsent: len });
        peer.drive(&mut state);
        let Outstanding { all, unsent } = meter.outstanding();
        assert!(unsent == 0 && (len..len + len / 10).contains(&all), "{all} bytes of {len}");
    }
}
