//! The floor of the costs: two processes with a bare TCP connection and a pair of UDP sockets between them, over the
//! loopback device.
//!
//! Rank 0 starts rank 1 as a child, and they tell each other their UDP ports over the TCP connection.
//!
//! UDP drops datagrams that find no room in the receiver's buffer, so these loops do what a program over UDP does. A
//! message begins with its number, and each window is acknowledged with the number of messages that have arrived. A sender
//! that gets no acknowledgement says that its window is over. Lost messages are counted, not sent again.

use std::{
    env, hint,
    io::{self, ErrorKind, Read, Write},
    mem,
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};

use super::{
    batch::{self, End, LIMIT},
    order::{CpuAnswer, CpuOrder, Waiting, Way},
};
use crate::{
    commands::peers::{rank::follow, sockets},
    experiment::{payload, plan::Payload},
    failure::{PerfError, Result},
};

/// Time after which a sender asks how many messages of its window have arrived.
const PATIENCE: Duration = Duration::from_millis(5);
/// Bytes of a note: `[turn, messages that have arrived]`, or `[turn, 0]` to say that a window is over.
const NOTE: usize = 16;
/// Largest payload of a datagram over IPv4, in bytes.
pub const LARGEST_DATAGRAM: usize = 65_507;
/// Smallest message, in bytes. It has its number in the first eight bytes, and is longer than a note, from which its length
/// distinguishes it.
pub const SMALLEST_DATAGRAM: usize = NOTE + 1;
/// Requested receive buffer, in bytes: two windows of 64 messages of 64,000 bytes, as the kernel accounts for them.
const BUFFER: usize = 32 << 20;

/// Follows the conductor until it hangs up. Without a `port` this process is rank 0; rank 1 gets the port of rank 0's listener.
///
/// # Errors
/// Errors of the system.
pub fn serve(port: Option<u16>) -> Result {
    let io = PerfError::system;
    let rank = usize::from(port.is_some());
    let cpu = udeck::sys::usable_cpus().get(rank).copied().ok_or(PerfError::OneProcessor("cpu"))?;
    let (mut ends, child) = connect(port).map_err(io("connecting two processes with bare sockets"))?;
    udeck::sys::pin_to_cpu(cpu).map_err(io("pinning a process with bare sockets"))?;
    let served = follow(rank, 2, |line| {
        let order: CpuOrder = line.parse().map_err(PerfError::BadOrder)?;
        Ok(ends.perform(rank == 0, &order)?.to_string())
    });
    if let Some(mut child) = child {
        // The child sees the end of its orders, too.
        child.wait().map_err(io("waiting for the other process"))?;
    }
    served
}

/// Connects the two processes. If rank 1 fails, the conductor ends this process when its time to start is over.
fn connect(port: Option<u16>) -> io::Result<(Ends, Option<Child>)> {
    if let Some(port) = port {
        return Ok((Ends::meet(TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)?, None));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port().to_string();
    let child = Command::new(env::current_exe()?)
        .args(["cpu-rank", "--sockets", "--port", &port])
        .stdin(Stdio::null())
        .spawn()?;
    Ok((Ends::meet(listener.accept()?.0)?, Some(child)))
}

/// One side's two sockets.
struct Ends {
    stream: TcpStream,
    datagrams: UdpSocket,
    data: Vec<u8>,
}

impl Ends {
    fn meet(mut stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let datagrams = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        // Without the right to force it, the socket gets what the system's limit (net.core.rmem_max) allows.
        set_socket_recv_buffer_size_force(&datagrams, BUFFER)
            .or_else(|_| set_socket_recv_buffer_size(&datagrams, BUFFER))?;
        let mut port = datagrams.local_addr()?.port().to_ne_bytes();
        stream.write_all(&port)?;
        stream.read_exact(&mut port)?;
        datagrams.connect((Ipv4Addr::LOCALHOST, u16::from_ne_bytes(port)))?;
        Ok(Ends { stream, datagrams, data: Vec::new() })
    }

    fn perform(&mut self, leads: bool, order: &CpuOrder) -> Result<CpuAnswer> {
        let mut side = self.prepare(leads, order).map_err(failed())?;
        batch::perform(&mut side, order, leads)
    }

    fn prepare<'e>(&'e mut self, leads: bool, order: &'e CpuOrder) -> io::Result<Side<'e>> {
        let is_polled = order.waiting == Waiting::Polling;
        // One byte more than the expected message, so that a longer datagram is noticed.
        self.data.resize(order.bytes.max(NOTE) + 1, 0);
        self.datagrams.set_nonblocking(true)?;
        while self.datagrams.recv(&mut self.data).is_ok() {} // late notes of the last batch
        self.datagrams.set_nonblocking(is_polled)?;
        self.datagrams.set_read_timeout(Some(if leads { PATIENCE } else { LIMIT }))?;
        self.stream.set_nonblocking(is_polled)?;
        Ok(Side { ends: self, order, is_polled, last: [0; 2] })
    }
}

fn failed() -> impl FnOnce(io::Error) -> PerfError {
    PerfError::system("sending over a bare socket")
}

/// One side of a batch.
struct Side<'e> {
    ends: &'e mut Ends,
    order: &'e CpuOrder,
    is_polled: bool,
    /// The receiver's last note, for the case that the sender asks for it again.
    last: [u64; 2],
}

impl End for Side<'_> {
    fn meet(&mut self) -> Result {
        self.put(&[1]).and_then(|()| self.get(&mut [0])).map_err(failed())
    }

    fn post(&mut self, number: u64) -> Result {
        self.send_message(number).map_err(failed())
    }

    fn await_acknowledgement(&mut self, turn: u64) -> Result<u64> {
        let lost = match self.order.way {
            Way::Udp => self.await_note(turn),
            _ => self.get(&mut [0]).map(|()| 0),
        };
        lost.map_err(failed())
    }

    fn take_window(&mut self, turn: u64) -> Result<u64> {
        let lost = match self.order.way {
            Way::Udp => self.take_datagrams(turn),
            _ => self.take_stream(turn).map(|()| 0),
        };
        lost.map_err(failed())
    }
}

impl Side<'_> {
    fn send_message(&mut self, number: u64) -> io::Result<()> {
        let mut data = mem::take(&mut self.ends.data);
        let message = &mut data[..self.order.bytes];
        if self.order.payload == Payload::WrittenRead {
            payload::write(message, number);
        } else if self.order.way == Way::Udp {
            message[..8].copy_from_slice(&number.to_ne_bytes());
        }
        let posted = match self.order.way {
            Way::Udp => self.say(message),
            _ => self.put(message),
        };
        self.ends.data = data;
        posted
    }

    fn check(&self, message: &[u8], number: u64) -> io::Result<()> {
        let written = self.order.payload == Payload::WrittenRead;
        if written && payload::sum(message) != payload::expected_sum(message.len(), number) {
            return Err(io::Error::other(format!("message {number} arrived damaged")));
        }
        Ok(())
    }

    fn take_stream(&mut self, turn: u64) -> io::Result<()> {
        let mut data = mem::take(&mut self.ends.data);
        let message = &mut data[..self.order.bytes];
        for slot in 0..self.order.depth {
            self.get(message)?;
            self.check(message, turn * self.order.depth + slot)?;
        }
        self.ends.data = data;
        self.put(&[1])
    }

    fn put(&mut self, data: &[u8]) -> io::Result<()> {
        if self.is_polled {
            sockets::send(&mut self.ends.stream, data)
        } else {
            self.ends.stream.write_all(data)
        }
    }

    /// Reads `data` from the stream. Polling has no deadline but the conductor's, which ends this process.
    fn get(&mut self, data: &mut [u8]) -> io::Result<()> {
        if !self.is_polled {
            return self.ends.stream.read_exact(data);
        }
        let is_there = sockets::receive(&mut self.ends.stream, data)?;
        if is_there { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    /// Receives until the window's last message, or the word that the window is over. Returns how many of its messages did
    /// not arrive.
    fn take_datagrams(&mut self, turn: u64) -> io::Result<u64> {
        let (depth, mut data, mut came) = (self.order.depth, mem::take(&mut self.ends.data), 0);
        loop {
            let len = self.receive(&mut data, LIMIT)?.ok_or_else(overdue)?;
            let number = u64::from_ne_bytes(data[..8].try_into().expect("eight bytes"));
            match len {
                NOTE if number < turn => self.note(self.last)?,
                NOTE => break,
                _ if len != self.order.bytes => {
                    let wanted = self.order.bytes;
                    return Err(io::Error::other(format!("{len} bytes arrived instead of {wanted}")));
                }
                _ => {
                    self.check(&data[..len], number)?;
                    came += 1;
                    if number + 1 == (turn + 1) * depth {
                        break;
                    }
                }
            }
        }
        self.ends.data = data;
        self.last = [turn, came];
        self.note(self.last)?;
        Ok(depth - came)
    }

    fn await_note(&mut self, turn: u64) -> io::Result<u64> {
        let (started, mut note) = (Instant::now(), [0; NOTE]);
        while started.elapsed() < LIMIT {
            let [number, came] = match self.receive(&mut note, PATIENCE)? {
                Some(NOTE) => {
                    [0, 8].map(|at| u64::from_ne_bytes(note[at..at + 8].try_into().expect("eight")))
                }
                Some(len) => return Err(io::Error::other(format!("{len} bytes are no acknowledgement"))),
                None => {
                    self.note([turn, 0])?;
                    continue;
                }
            };
            if number == turn {
                return Ok(self.order.depth.saturating_sub(came));
            }
        }
        Err(overdue())
    }

    fn note(&self, words: [u64; 2]) -> io::Result<()> {
        let mut note = [0; NOTE];
        note[..8].copy_from_slice(&words[0].to_ne_bytes());
        note[8..].copy_from_slice(&words[1].to_ne_bytes());
        self.say(&note)
    }

    fn say(&self, data: &[u8]) -> io::Result<()> {
        loop {
            match self.ends.datagrams.send(data) {
                Ok(_) => return Ok(()),
                Err(error) if is_early(&error) => hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Receives a datagram; `None`: none arrived within `limit`.
    fn receive(&self, data: &mut [u8], limit: Duration) -> io::Result<Option<usize>> {
        let started = Instant::now();
        loop {
            for _ in 0..64 {
                match self.ends.datagrams.recv(data) {
                    Ok(len) => return Ok(Some(len)),
                    // A blocking socket has waited already.
                    Err(error) if is_early(&error) && !self.is_polled => return Ok(None),
                    Err(error) if is_early(&error) => hint::spin_loop(),
                    Err(error) => return Err(error),
                }
            }
            if started.elapsed() > limit {
                return Ok(None);
            }
        }
    }
}

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

fn overdue() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "nothing came from the other process")
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn order(way: Way, waiting: Waiting, bytes: usize) -> CpuOrder {
        let (warm_up, iterations, depth) = (1, 3, 4);
        CpuOrder { payload: Payload::WrittenRead, bytes, warm_up, iterations, depth, rate: 0, waiting, way }
    }

    fn ends() -> [Ends; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("bound");
        let far = thread::spawn(move || Ends::meet(TcpStream::connect(address)?));
        let near = Ends::meet(listener.accept().expect("comes").0).expect("meets");
        [near, far.join().expect("ends").expect("meets")]
    }

    fn play([mut near, mut far]: [Ends; 2], order: CpuOrder) -> [Result<CpuAnswer>; 2] {
        thread::scope(|scope| {
            let far = scope.spawn(|| far.perform(false, &order));
            [near.perform(true, &order), far.join().expect("ends")]
        })
    }

    #[test]
    fn messages_arrive_however_one_waits() {
        for way in [Way::Tcp, Way::Udp] {
            for waiting in [Waiting::Polling, Waiting::Blocking] {
                for bytes in [SMALLEST_DATAGRAM, 64_000] {
                    for rate in [0, 2000] {
                        let order = CpuOrder { rate, ..order(way, waiting, bytes) };
                        let [near, far] = play(ends(), order).map(|side| side.expect("plays"));
                        assert_eq!((near.messages, far.messages), (12, 12 - near.lost), "{order}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_finds_no_room_is_counted_and_ends_no_window() {
        for waiting in [Waiting::Polling, Waiting::Blocking] {
            let ends = ends();
            // The kernel makes the buffer some 2 KiB: room for one datagram, whatever its length.
            set_socket_recv_buffer_size(&ends[1].datagrams, 1).expect("small buffers are allowed");
            let [near, far] = play(ends, order(Way::Udp, waiting, 64_000)).map(|side| side.expect("plays"));
            assert_eq!(far.messages + near.lost, 12);
        }
    }

    #[test]
    fn a_datagram_of_another_length_is_an_error() {
        let [near, far] = ends();
        let order = order(Way::Udp, Waiting::Blocking, 100);
        near.datagrams.send(&[0; 99]).expect("sends");
        let mut far = far;
        far.data.resize(101, 0);
        far.datagrams.set_read_timeout(Some(LIMIT)).expect("sets");
        let mut side = Side { ends: &mut far, order: &order, is_polled: false, last: [0; 2] };
        let error = side.take_datagrams(0).expect_err("too short").to_string();
        assert_eq!(error, "99 bytes arrived instead of 100");
    }
}
