//! A relay between two NICs, which changes what one sends before it reaches the other.
//!
//! Over TCP the stream is cut into its units (the handshake's messages, then frames), so that most spoilt units are still
//! understood far enough to do harm. Over UDP the checksum is corrected.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::random::Random;

/// Interval at which a thread checks for the end.
const PAUSE: Duration = Duration::from_millis(5);
/// Largest length of a unit that is kept whole, in bytes.
const UNIT: usize = 1 << 21;
/// Number of earlier units that are kept to be repeated.
const KEPT: usize = 16;

/// A relay: a connection to `address` reaches `target`, as it seems to both.
pub struct Relay {
    pub address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay. `frames`: the handshake is followed by frames of this library.
    pub fn tcp(target: SocketAddr, frames: bool, random: Random) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a socket of ours");
        let address = listener.local_addr().expect("bound");
        Relay::start(address, move |over| accept(&listener, target, frames, random, over))
    }

    pub fn udp(target: SocketAddr, random: Random) -> Relay {
        let door = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = door.local_addr().expect("bound");
        Relay::start(address, move |over| pass_datagrams(door, target, random, over))
    }

    fn start(address: SocketAddr, work: impl FnOnce(&Arc<AtomicBool>) + Send + 'static) -> Relay {
        let over = Arc::<AtomicBool>::default();
        let seen = over.clone();
        let thread =
            thread::Builder::new().name("relay".into()).spawn(move || work(&seen)).expect("a thread");
        Relay { address, over, thread: Some(thread) }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(
    listener: &TcpListener,
    target: SocketAddr,
    frames: bool,
    mut random: Random,
    over: &Arc<AtomicBool>,
) {
    let mut pairs = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let Ok((caller, _)) = listener.accept() else {
            thread::sleep(PAUSE);
            continue;
        };
        let Ok(called) = TcpStream::connect(target) else { continue };
        // Most connections get through the handshake, and some way beyond.
        let sound = [(); 2].map(|()| if random.one_in(6) { random.below(3) } else { 3 + random.below(60) });
        let directions = [(&caller, &called, true), (&called, &caller, false)];
        for ((from, to, asks), sound) in directions.into_iter().zip(sound) {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
            let (random, over) = (random.fork(), over.clone());
            let kept = VecDeque::new();
            let mut direction = Direction { to, random, sound, kept };
            pairs.push(thread::spawn(move || direction.pass(from, asks, frames, &over)));
        }
    }
    for pair in pairs {
        let _ = pair.join();
    }
}

/// A direction of a TCP connection.
struct Direction {
    to: TcpStream,
    random: Random,
    /// Number of units that pass unchanged.
    sound: usize,
    kept: VecDeque<Vec<u8>>,
}

impl Direction {
    fn pass(&mut self, mut from: TcpStream, asks: bool, frames: bool, over: &AtomicBool) {
        let _ = from.set_read_timeout(Some(PAUSE));
        // A peer that does not read delays nothing.
        let _ = self.to.set_write_timeout(Some(Duration::from_millis(500)));
        let _ = self.to.set_nodelay(true);
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        let mut cut = Cut { asks, frames, units: 0 };
        while !over.load(Ordering::Relaxed) {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => bytes.extend(&buffer[..len]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                Err(_) => break,
            }
            while let Some(len) = cut.next(&bytes) {
                let rest = bytes.split_off(len);
                let unit = std::mem::replace(&mut bytes, rest);
                if self.unit(unit).is_err() {
                    let _ = (from.shutdown(Shutdown::Both), self.to.shutdown(Shutdown::Both));
                    return;
                }
            }
        }
        let _ = (from.shutdown(Shutdown::Read), self.to.shutdown(Shutdown::Write));
    }

    fn unit(&mut self, mut unit: Vec<u8>) -> std::io::Result<()> {
        if self.sound > 0 {
            self.sound -= 1;
        } else {
            match self.random.below(24) {
                0..3 => self.random.spoil(&mut unit),
                3 => return Ok(()),
                4 => self.to.write_all(&unit)?,
                5 if !self.kept.is_empty() => {
                    let at = self.random.below(self.kept.len());
                    self.to.write_all(&self.kept[at])?;
                }
                6 if !self.kept.is_empty() => {
                    let mut old = self.kept[self.random.below(self.kept.len())].clone();
                    self.random.spoil(&mut old);
                    self.to.write_all(&old)?;
                }
                7 => {
                    let frame = frame(&mut self.random);
                    self.to.write_all(&frame)?;
                }
                8 => {
                    // The unit goes before the previous one.
                    if let Some(last) = self.kept.pop_back() {
                        self.to.write_all(&unit)?;
                        unit = last;
                    }
                }
                9 if self.random.one_in(8) => {
                    let len = self.random.below(200);
                    let garbage = self.random.bytes(len);
                    self.to.write_all(&garbage)?;
                }
                10 if self.random.one_in(8) => return Err(ErrorKind::ConnectionReset.into()),
                _ => {}
            }
        }
        self.to.write_all(&unit)?;
        if unit.len() < 5000 {
            keep(&mut self.kept, unit);
        }
        Ok(())
    }
}

fn keep(kept: &mut VecDeque<Vec<u8>>, unit: Vec<u8>) {
    kept.push_back(unit);
    if kept.len() > KEPT {
        kept.pop_front();
    }
}

/// A frame in the format of `crates/session/framed/wire.rs`, with arbitrary contents.
fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = vec![0; 32];
    frame[0] = 1 + random.below(12) as u8;
    frame[1] = random.below(32) as u8;
    frame[2] = random.below(50) as u8;
    frame[4..8].copy_from_slice(&(random.below(20) as u32).to_le_bytes());
    frame[8..12].copy_from_slice(&(random.value() as u32).to_le_bytes());
    frame[12..16].copy_from_slice(&(random.value() as u32).to_le_bytes());
    frame[16..24].copy_from_slice(&random.value().to_le_bytes());
    let body = random.below(100);
    let len = if random.one_in(4) { random.value() } else { body as u64 };
    frame[24..32].copy_from_slice(&len.to_le_bytes());
    let len = usize::from(frame[2]) + body;
    frame.extend(random.bytes(len));
    frame
}

/// Finds the ends of units; `crates/session/admission/wire.rs` and `crates/session/framed/wire.rs` define their
/// formats.
struct Cut {
    asks: bool,
    frames: bool,
    units: usize,
}

impl Cut {
    fn next(&mut self, bytes: &[u8]) -> Option<usize> {
        if bytes.is_empty() {
            return None;
        }
        let short = |at: usize| Some(usize::from(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
        let len = match (self.units, self.asks) {
            (0, true) => 56,
            (0, false) => 88,
            (1, true) => 32,
            (1, false) => 16 + short(4)? + short(6)?,
            (2, true) => 16 + short(2)? + short(4)? + short(6)?,
            _ if !self.frames => bytes.len(),
            _ => {
                let word = bytes.get(24..32)?.try_into().expect("eight");
                let body = usize::try_from(u64::from_le_bytes(word)).unwrap_or(UNIT);
                let head = if bytes[0] == 1 { usize::from(bytes[2]) } else { 0 };
                32 + head + if bytes[0] == 3 { 0 } else { body.min(UNIT) }
            }
        };
        (bytes.len() >= len).then(|| {
            self.units += 1;
            len
        })
    }
}

/// Relays datagrams both ways, for any number of callers.
fn pass_datagrams(door: UdpSocket, target: SocketAddr, mut random: Random, over: &Arc<AtomicBool>) {
    let _ = door.set_nonblocking(true);
    let stranger = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let _ = stranger.set_nonblocking(true);
    let mut callers: Vec<(SocketAddr, UdpSocket, Tamper, Tamper)> = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    while !over.load(Ordering::Relaxed) {
        let mut quiet = true;
        while let Ok((len, caller)) = door.recv_from(&mut buffer) {
            quiet = false;
            let at = callers.iter().position(|(known, ..)| *known == caller).unwrap_or_else(|| {
                let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
                let _ = (socket.set_nonblocking(true), socket.connect(target));
                callers.push((caller, socket, Tamper::new(&mut random), Tamper::new(&mut random)));
                callers.len() - 1
            });
            let (_, socket, forth, _) = &mut callers[at];
            for datagram in forth.datagram(&buffer[..len]) {
                // The datagram comes from another address.
                if forth.random.one_in(40) {
                    let _ = stranger.send_to(&datagram, target);
                }
                let _ = socket.send(&datagram);
            }
        }
        for (caller, socket, _, back) in &mut callers {
            while let Ok(len) = socket.recv(&mut buffer) {
                quiet = false;
                for datagram in back.datagram(&buffer[..len]) {
                    let _ = door.send_to(&datagram, *caller);
                }
            }
        }
        if random.one_in(20) {
            let _ = stranger.send_to(&forged(&mut random), target);
        }
        if quiet {
            thread::sleep(Duration::from_micros(300));
        }
    }
}

/// Treatment of one direction's datagrams.
struct Tamper {
    random: Random,
    sound: usize,
    kept: VecDeque<Vec<u8>>,
}

impl Tamper {
    fn new(random: &mut Random) -> Self {
        let mut random = random.fork();
        let sound = if random.one_in(6) { random.below(3) } else { 3 + random.below(80) };
        Tamper { random, sound, kept: VecDeque::new() }
    }

    /// The datagrams that arrive instead of this one.
    fn datagram(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let whole = datagram.to_vec();
        keep(&mut self.kept, whole.clone());
        if self.sound > 0 {
            self.sound -= 1;
            return vec![whole];
        }
        let old = self.kept[self.random.below(self.kept.len())].clone();
        match self.random.below(24) {
            0 | 1 => vec![self.spoilt(whole)],
            2 => vec![self.spoilt(whole.clone()), whole],
            3 => Vec::new(),
            4 => vec![whole.clone(), whole],
            5 => vec![whole, old],
            6 => vec![whole, self.spoilt(old)],
            7 => vec![self.spliced(whole, &old)],
            8 => vec![old],
            _ => vec![whole],
        }
    }

    fn spoilt(&mut self, mut datagram: Vec<u8>) -> Vec<u8> {
        self.random.spoil(&mut datagram);
        datagram
    }

    /// Joins the beginning of one datagram and the end of another.
    fn spliced(&mut self, mut datagram: Vec<u8>, other: &[u8]) -> Vec<u8> {
        let at = self.random.below(datagram.len().min(other.len()).max(1));
        datagram.truncate(at);
        datagram.extend(&other[at.min(other.len())..]);
        datagram
    }
}

/// A datagram that looks like a QUIC packet, usually one that begins a connection.
fn forged(random: &mut Random) -> Vec<u8> {
    let len = 1200 + random.below(200);
    let mut datagram = random.bytes(len);
    let version = if random.one_in(4) { random.below(256) as u8 } else { 1 };
    datagram[..6].copy_from_slice(&[0xc0 | random.below(64) as u8, 0, 0, 0, version, random.below(24) as u8]);
    datagram
}
