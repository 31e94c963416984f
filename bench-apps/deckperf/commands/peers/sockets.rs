//! TCP without a library: the limit of messages over TCP between the two cores. Two threads spin on the two ends of one
//! connection over the loopback device.

use std::{
    hint,
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use super::request::{Column, PeerTest, WINDOW};
use crate::named::Named;

/// Time of one measurement: as long as a contender's batch.
const BUDGET: Duration = Duration::from_millis(2);
/// Turns before the clock starts.
const WARM_UP: u64 = 4;

/// Time per message in µs, as [`PeerTest::Latency`] and [`PeerTest::Stream`] count messages. Blocks for some milliseconds.
///
/// # Errors
/// Errors of the system.
///
/// # Panics
/// Panics if asked for a collective operation.
pub fn micros(column: &Column, cores: [usize; 2]) -> io::Result<f64> {
    let (near, far) = connection()?;
    let (bytes, messages) = match column.test {
        PeerTest::Latency => (column.bytes, 1),
        PeerTest::Stream => (column.bytes, WINDOW),
        test => panic!("sockets know no {}", test.name()),
    };
    let both_ways = column.test == PeerTest::Latency;
    let plan = SocketTurn { bytes, messages, answer: if both_ways { bytes } else { 1 } };
    thread::scope(|scope| {
        let far = scope.spawn(move || -> io::Result<()> {
            udeck::sys::pin_to_cpu(cores[1])?;
            plan.follow(far)
        });
        let near = scope.spawn(move || -> io::Result<f64> {
            udeck::sys::pin_to_cpu(cores[0])?;
            plan.lead(near)
        });
        let failed = |_| io::Error::other("the thread that measures it failed");
        let turn = near.join().map_err(failed)?;
        far.join().map_err(failed)??;
        Ok(turn? / if both_ways { 2.0 } else { messages as f64 })
    })
}

/// Shape of one turn: `messages` of `bytes` there, `answer` bytes back.
#[derive(Clone, Copy)]
struct SocketTurn {
    bytes: usize,
    messages: u64,
    answer: usize,
}

impl SocketTurn {
    /// Time of a turn in µs. Ends the connection.
    fn lead(self, mut stream: TcpStream) -> io::Result<f64> {
        let (data, mut answer) = (vec![1; self.bytes], vec![0; self.answer]);
        let mut turn = || -> io::Result<()> {
            for _ in 0..self.messages {
                send(&mut stream, &data)?;
            }
            receive(&mut stream, &mut answer).map(drop)
        };
        for _ in 0..WARM_UP {
            turn()?;
        }
        let (started, mut turns) = (Instant::now(), 0u64);
        while started.elapsed() < BUDGET {
            turn()?;
            turns += 1;
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / turns as f64)
    }

    /// Answers until the connection ends.
    fn follow(self, mut stream: TcpStream) -> io::Result<()> {
        let (mut data, answer) = (vec![0; self.bytes], vec![1; self.answer]);
        loop {
            for _ in 0..self.messages {
                if !receive(&mut stream, &mut data)? {
                    return Ok(());
                }
            }
            send(&mut stream, &answer)?;
        }
    }
}

fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok((near, far))
}

/// Sends all data; spins while the socket is full.
pub fn send(stream: &mut TcpStream, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        match stream.write(data) {
            Ok(written) => data = &data[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Spins until all data have arrived. Returns `false` if the connection has ended.
pub fn receive(stream: &mut TcpStream, mut data: &mut [u8]) -> io::Result<bool> {
    while !data.is_empty() {
        match stream.read(data) {
            Ok(0) => return Ok(false),
            Ok(read) => data = &mut data[read..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::plan::Payload;

    #[test]
    fn sockets_take_time() {
        let cpus = udeck::sys::usable_cpus();
        let cores = [cpus[0], *cpus.last().expect("this runs somewhere")];
        for test in [PeerTest::Latency, PeerTest::Stream] {
            for bytes in [8, 100_000] {
                let column = Column { test, ranks: 2, payload: Payload::Untouched, bytes };
                assert!(micros(&column, cores).expect("sockets") > 0.0);
            }
        }
    }
}
