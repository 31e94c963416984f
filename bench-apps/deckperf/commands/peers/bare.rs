//! Messages without a library, between two threads on the two processors: ping-pong, and windows that are acknowledged, over the
//! two ends of a bare connection ([`sockets`](super::sockets), [`quinn`](super::quinn)). Both threads spin.

use std::{
    io,
    time::{Duration, Instant},
};

use super::request::{Column, PeerTest, WINDOW};
use crate::{experiment::baseline::on_both_cores, named::Named};

/// Time of one measurement: as long as a contender's batch.
pub const BUDGET: Duration = Duration::from_millis(2);
/// Turns before the clock starts.
const WARM_UP: u64 = 4;

/// One end of a bare connection. The other end learns when it is dropped.
pub trait BareEnd {
    /// Time after which no further turn warms the connection up.
    const WARM_UP_LIMIT: Duration;

    /// Is called before each turn.
    fn begin_turn(&mut self) {}

    /// Sends all data; spins while there is no room.
    fn send(&mut self, data: &[u8]) -> io::Result<()>;

    /// Spins until all data have arrived. Returns `false` if the other end is gone.
    fn receive(&mut self, data: &mut [u8]) -> io::Result<bool>;
}

/// Shape of one turn: `messages` of `bytes` there, `answer` bytes back.
#[derive(Clone, Copy)]
struct Turn {
    bytes: usize,
    messages: u64,
    answer: usize,
}

/// Time per message in µs, as [`PeerTest::Latency`] and [`PeerTest::Stream`] count messages. Blocks for some milliseconds, and
/// leaves this thread pinned to the first core.
///
/// # Errors
/// Errors of the system, or the loss of the connection.
///
/// # Panics
/// Panics if asked for a collective operation.
pub fn micros<E: BareEnd + Send>(column: &Column, [near, far]: [E; 2], cores: [usize; 2]) -> io::Result<f64> {
    let (messages, answer) = match column.test {
        PeerTest::Latency => (1, column.bytes),
        PeerTest::Stream => (WINDOW, 1),
        test => panic!("a bare connection has no {}", test.name()),
    };
    let turn = Turn { bytes: column.bytes, messages, answer };
    let (lasted, answered) = on_both_cores(Some(cores), || turn.lead(near), || turn.follow(far))?;
    answered?;
    Ok(lasted? / if column.test == PeerTest::Latency { 2.0 } else { messages as f64 })
}

impl Turn {
    /// Time of a turn in µs.
    fn lead<E: BareEnd>(self, mut end: E) -> io::Result<f64> {
        let (data, mut answer) = (vec![1; self.bytes], vec![0; self.answer]);
        let mut turn = || -> io::Result<()> {
            end.begin_turn();
            for _ in 0..self.messages {
                end.send(&data)?;
            }
            end.receive(&mut answer).map(drop)
        };
        let started = Instant::now();
        for at in 0..WARM_UP {
            if at == 0 || started.elapsed() < E::WARM_UP_LIMIT {
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

    /// Answers until the other end is gone.
    fn follow(self, mut end: impl BareEnd) -> io::Result<()> {
        let (mut data, answer) = (vec![0; self.bytes], vec![1; self.answer]);
        loop {
            end.begin_turn();
            for _ in 0..self.messages {
                if !end.receive(&mut data)? {
                    return Ok(());
                }
            }
            end.send(&answer)?;
        }
    }
}
