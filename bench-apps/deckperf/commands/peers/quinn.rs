//! QUIC without a messaging library: two threads, each with a bare quinn endpoint, and one bidirectional stream between them.
//!
//! The measurement uses `quinn-proto` and `quinn-udp`, the crates under `quinn`, driven by loops that spin on the socket.
//! The `quinn` crate itself would sleep in its runtime (tokio) between two datagrams, and hand each of them from one task
//! to another; it was not measured. The cryptography, the socket's buffers, the windows and the longest datagram are those
//! of the UDP transport (`transports/udp/tls.rs`, `socket.rs`).
//!
//! A message is written by `SendStream::write` and read into a buffer of its size, as a user of quinn does: a copy on each side.
//! The endpoints live as long as the run, so that the congestion window of one turn serves the next.
//!
//! | file | what it is |
//! |---|---|
//! | `endpoint` | a socket, its endpoint, and the one connection |
//! | `config` | what quinn is configured with |

mod config;
mod endpoint;

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use endpoint::QuicEnd;

use super::{
    bare::{self, BareEnd},
    request::{Column, PeerTest},
};
use crate::experiment::plan::Payload;

/// Name of the peer.
pub const NAME: &str = "quinn";
/// Version, from the requirement in `Cargo.toml`: the crates do not report theirs.
pub const VERSION: &str = "0.11";
/// Description of the peer, for the report.
pub const FLAGS: &str =
    "quinn-proto and quinn-udp, two threads that spin; one stream; windows, datagrams and AES of ours";

/// Two connected endpoints.
pub struct Quinn {
    near: QuicEnd,
    far: QuicEnd,
}

/// Whether quinn can run this column.
pub fn does(column: &Column) -> bool {
    column.test != PeerTest::Barrier && column.ranks == 2 && column.payload == Payload::Untouched
}

impl Quinn {
    /// Connects two endpoints over the loopback device. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Errors of the system, or a failed hand-shake.
    pub fn connect() -> io::Result<Self> {
        let (mut near, mut far) = (QuicEnd::bind()?, QuicEnd::bind()?);
        near.connect(far.address()?)?;
        let deadline = endpoint::deadline();
        while !(near.has_stream() && far.has_stream()) {
            near.turn(deadline)?;
            far.turn(deadline)?;
        }
        Ok(Quinn { near, far })
    }

    /// Time per message in µs: [`bare::micros`].
    pub fn micros(&mut self, column: &Column, cores: [usize; 2]) -> io::Result<f64> {
        let is_over = AtomicBool::new(false);
        let spinning = |end| Spinning { end, deadline: endpoint::deadline(), is_over: &is_over };
        bare::micros(column, [spinning(&mut self.near), spinning(&mut self.far)], cores)
    }
}

/// An endpoint during one measurement.
struct Spinning<'q> {
    end: &'q mut QuicEnd,
    /// Deadline of the current turn.
    deadline: Instant,
    /// Set when one of the two ends is dropped; the near one is, when the last answer has arrived.
    is_over: &'q AtomicBool,
}

impl BareEnd for Spinning<'_> {
    const WARM_UP_LIMIT: Duration = bare::BUDGET;

    fn begin_turn(&mut self) {
        self.deadline = endpoint::deadline();
    }

    fn send(&mut self, data: &[u8]) -> io::Result<()> {
        self.end.send(data, self.deadline)
    }

    fn receive(&mut self, data: &mut [u8]) -> io::Result<bool> {
        self.end.receive(data, self.deadline, || self.is_over.load(Ordering::Acquire))
    }
}

impl Drop for Spinning<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_take_time_in_one_run_after_another() {
        let cpus = udeck::sys::usable_cpus();
        let cores = [cpus[0], *cpus.last().expect("this runs somewhere")];
        let mut quinn = Quinn::connect().expect("connects");
        for test in [PeerTest::Latency, PeerTest::Stream] {
            for bytes in [8, 100_000] {
                let column = Column { test, ranks: 2, payload: Payload::Untouched, bytes };
                assert!(does(&column) && quinn.micros(&column, cores).expect("runs") > 0.0);
            }
        }
    }
}
