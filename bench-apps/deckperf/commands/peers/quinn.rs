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
    thread,
    time::{Duration, Instant},
};

use endpoint::QuicEnd;

use super::request::{Column, PeerTest, WINDOW};
use crate::{experiment::plan::Payload, named::Named};

/// Name of the peer.
pub const NAME: &str = "quinn";
/// Version, from the requirement in `Cargo.toml`: the crates do not report theirs.
pub const VERSION: &str = "0.11";
/// Description of the peer, for the report.
pub const FLAGS: &str =
    "quinn-proto and quinn-udp, two threads that spin; one stream; windows, datagrams and AES of ours";
/// Time of one measurement: as long as a contender's batch.
const BUDGET: Duration = Duration::from_millis(2);
/// Turns before the clock starts; fewer where one takes longer than a batch should.
const WARM_UP: u64 = 4;

/// Two connected endpoints.
pub struct Quinn {
    near: QuicEnd,
    far: QuicEnd,
}

/// Shape of one turn: `messages` of `bytes` there, `answer` bytes back.
#[derive(Clone, Copy)]
struct QuicTurn {
    bytes: usize,
    messages: u64,
    answer: usize,
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

    /// Time per message in µs, as [`PeerTest::Latency`] and [`PeerTest::Stream`] count messages. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Errors of the system, or the loss of the connection.
    ///
    /// # Panics
    /// Panics if asked for a collective operation.
    pub fn micros(&mut self, column: &Column, cores: [usize; 2]) -> io::Result<f64> {
        let messages = match column.test {
            PeerTest::Latency => 1,
            PeerTest::Stream => WINDOW,
            test => panic!("quinn has no {}", test.name()),
        };
        let both_ways = column.test == PeerTest::Latency;
        let plan =
            QuicTurn { bytes: column.bytes, messages, answer: if both_ways { column.bytes } else { 1 } };
        let (Quinn { near, far }, stop) = (self, AtomicBool::new(false));
        thread::scope(|scope| {
            let far = scope.spawn(|| -> io::Result<()> {
                udeck::sys::pin_to_cpu(cores[1])?;
                plan.follow(far, &stop)
            });
            let near = scope.spawn(|| -> io::Result<f64> {
                let turn = udeck::sys::pin_to_cpu(cores[0]).and_then(|()| plan.lead(near));
                stop.store(true, Ordering::Release);
                turn
            });
            let failed = |_| io::Error::other("the thread that measures it failed");
            let turn = near.join().map_err(failed)?;
            far.join().map_err(failed)??;
            Ok(turn? / if both_ways { 2.0 } else { messages as f64 })
        })
    }
}

impl QuicTurn {
    /// Time of a turn in µs.
    fn lead(self, end: &mut QuicEnd) -> io::Result<f64> {
        let (data, mut answer) = (vec![1; self.bytes], vec![0; self.answer]);
        let mut turn = || -> io::Result<()> {
            let deadline = endpoint::deadline();
            for _ in 0..self.messages {
                end.send(&data, deadline)?;
            }
            end.receive(&mut answer, deadline, || false).map(drop)
        };
        let started = Instant::now();
        for at in 0..WARM_UP {
            if at == 0 || started.elapsed() < BUDGET {
                turn()?;
            }
        }
        let (started, mut turns) = (Instant::now(), 0u64);
        while started.elapsed() < BUDGET {
            turn()?;
            turns += 1;
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / turns as f64)
    }

    /// Answers until `stop` is set, which happens when the last answer has arrived.
    fn follow(self, end: &mut QuicEnd, stop: &AtomicBool) -> io::Result<()> {
        let (mut data, answer) = (vec![0; self.bytes], vec![1; self.answer]);
        loop {
            let deadline = endpoint::deadline();
            for _ in 0..self.messages {
                if !end.receive(&mut data, deadline, || stop.load(Ordering::Acquire))? {
                    return Ok(());
                }
            }
            end.send(&answer, deadline)?;
        }
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
