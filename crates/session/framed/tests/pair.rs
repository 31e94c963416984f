//! The harness: two endpoints, whose frames a test moves byte by byte.

#![allow(unsafe_code, reason = "it implements the transport contract for tests")]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use udeck_sys::segment::{self, Mapping, PeerAccess};
use udeck_via::mem::{Backing, Block, Fill, MemHandle, Ptag, Rights};
use udeck_via::transport::Hello;
use udeck_via::{Arena, Reliability, RemoteBuffer};

use crate::framed::connection::{Connection, Direct, Phase, Pieces, Settings, Side};
use crate::framed::link::{Driver, Link};
use crate::watching::{Announce, Watching};
use crate::{Memory, SessionEndpoint, Windows};

pub const ARENA: usize = 16 << 20;
/// Longest message: longer than the bytes that may be in flight and not taken.
pub const MAX_TRANSFER: usize = 8 << 20;
pub const WINDOW: usize = 64 << 10;

/// A driver that acts only when told, unless it has an appetite.
#[derive(Default)]
pub struct ManualDriver {
    /// Bytes in flight to this side (`pipe`), and the number that has come (`came`).
    pipe: VecDeque<u8>,
    came: u64,
    /// Bytes that it takes in when the program polls, and how many of these go to their direct place.
    pub appetite: (usize, usize),
    /// Stream bytes that went into the pipe (`sent`); those from offset `kept_from` can be gathered again.
    sent: u64,
    kept: VecDeque<u8>,
    kept_from: u64,
}

impl Driver for ManualDriver {
    fn pump(&mut self, _: &mut Connection) {}
    fn poll(&mut self, connection: &mut Connection) {
        let (most, direct) = self.appetite;
        self.receive(connection, most, direct);
    }
    fn is_done(&mut self, connection: &mut Connection) -> bool {
        connection.is_all_sent()
    }
}

impl ManualDriver {
    fn receive(&mut self, connection: &mut Connection, most: usize, direct: usize) -> usize {
        let mut bytes: Vec<u8> = self.pipe.drain(..most.min(self.pipe.len())).collect();
        let most = bytes.len();
        self.came += most as u64;
        let place = connection.direct();
        let behind = bytes.split_off(place.before().min(most));
        let filled = place.len().min(direct).min(behind.len());
        fill(&place, &behind[..filled]);
        bytes.extend(&behind[filled..]);
        connection.on_receive(place, filled, &bytes);
        most
    }
}

#[derive(Default)]
pub struct Told(AtomicUsize);

impl Announce for Told {
    fn announce(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Told {
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// One side of a pair.
pub struct End {
    pub endpoint: Option<SessionEndpoint<ManualDriver>>,
    pub link: Arc<Link<ManualDriver>>,
    pub memory: Memory,
    pub windows: Arc<Windows>,
    /// The window that the peer may write and read.
    pub window: MemHandle,
    pub told: [Arc<Told>; 2],
}

pub struct Pair {
    pub ends: [End; 2],
    /// Memory is released when the peer has the bytes, not when they are sent.
    acknowledged: bool,
}

pub fn hello(reliability: Reliability) -> Hello {
    let ptag = Some(Ptag(1));
    Hello { reliability, writable_ptag: ptag, readable_ptag: ptag, private_data: Vec::new() }
}

pub fn connection(level: Reliability, side: Side, memory: &Memory, windows: &Arc<Windows>) -> Connection {
    let hello = hello(level);
    let max_transfer = MAX_TRANSFER;
    Connection::new(Settings { memory, windows, ours: &hello, theirs: &hello, side, max_transfer })
}

impl End {
    fn new(level: Reliability, side: Side) -> Self {
        let memory = Memory::fresh(ARENA).unwrap();
        let windows = Windows::new();
        let window = windows.expose(0, WINDOW, Ptag(1), Rights::BOTH).unwrap();
        let link = Link::new(connection(level, side, &memory, &windows), ManualDriver::default());
        let told: [Arc<Told>; 2] = Default::default();
        let watching =
            Watching { send: Some(told[0].clone()), receive: Some(told[1].clone()), reporter: None };
        let endpoint = Some(SessionEndpoint::watched(link.clone(), watching));
        End { endpoint, link, memory, windows, window, told }
    }

    pub fn endpoint(&mut self) -> &mut SessionEndpoint<ManualDriver> {
        self.endpoint.as_mut().expect("the endpoint is there")
    }

    pub fn block(&self, len: usize, seed: u64) -> Block {
        let mut block = self.memory.outbox.block(len, Fill::Keep).unwrap();
        block.bytes_mut().copy_from_slice(&pattern(len, seed));
        block
    }

    pub fn window(&self, offset: usize, len: usize) -> RemoteBuffer {
        RemoteBuffer { handle: self.window, offset, len }
    }

    /// Copies bytes out of the window.
    pub fn look(&self, offset: usize, len: usize) -> Vec<u8> {
        let at = self.memory.landing.place(offset as u64, len).unwrap();
        let mut bytes = vec![0; len];
        // SAFETY: the range is inside the arena, and only this thread accesses it.
        unsafe { udeck_sys::copy_in(&mut bytes, at) };
        bytes
    }

    pub fn fill_window(&self, bytes: &[u8]) {
        let at = self.memory.landing.place(0, bytes.len()).unwrap();
        // SAFETY: the range is inside the arena, and only this thread accesses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.as_ptr(), bytes.len()) };
    }

    pub fn phase(&self) -> Phase {
        self.link.with(|connection, _| connection.phase())
    }
}

impl Pair {
    pub fn new(level: Reliability, acknowledged: bool) -> Self {
        Pair { ends: [End::new(level, Side::Asked), End::new(level, Side::Accepted)], acknowledged }
    }

    /// Moves up to `most` bytes of the frames that `side` has queued into the pipe.
    pub fn send(&mut self, side: usize, most: usize) -> usize {
        let acknowledged = self.acknowledged;
        let bytes = self.ends[side].link.with(|connection, driver| {
            let mut bytes = vec![0; most];
            let mut pieces = Pieces::new();
            let gathered = connection.gather(driver.sent, most, &mut pieces);
            assert_eq!(pieces.copy_to(&mut bytes), gathered);
            bytes.truncate(gathered);
            driver.sent += gathered as u64;
            if !acknowledged {
                connection.released(driver.sent);
            }
            driver.kept.extend(&bytes);
            bytes
        });
        self.ends[1 - side].link.with(|_, driver| driver.pipe.extend(&bytes));
        bytes.len()
    }

    /// Moves up to `most` bytes from the pipe to `side`, at most `direct` of them to their direct place.
    pub fn receive(&mut self, side: usize, most: usize, direct: usize) -> usize {
        self.ends[side].link.with(|connection, driver| driver.receive(connection, most, direct))
    }

    /// Tells `side` how far its peer has come, and that bytes not known to have come can be gathered again.
    pub fn acknowledge(&mut self, side: usize, from: u64) {
        let upto = self.ends[1 - side].link.with(|_, driver| driver.came);
        self.ends[side].link.with(|connection, driver| {
            if connection.phase() == (Phase::Over { abruptly: true })
                && connection.released_to() == connection.queued()
            {
                return;
            }
            connection.released(upto.min(driver.sent));
            let start = connection.released_to();
            if start > driver.kept_from {
                driver.kept.drain(..(start - driver.kept_from) as usize);
                driver.kept_from = start;
            }
            let at = start + if driver.sent > start { from % (driver.sent - start) } else { 0 };
            let mut pieces = Pieces::new();
            let again = connection.gather(at, (driver.sent - at) as usize, &mut pieces);
            let mut bytes = vec![0; again];
            pieces.copy_to(&mut bytes);
            let kept = driver.kept.iter().skip((at - driver.kept_from) as usize);
            assert!(bytes.iter().eq(kept.take(again)), "other bytes at {at} when sent again");
        });
    }

    /// Moves everything that is queued, in both directions. Returns whether anything moved.
    pub fn settle(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut moved = 0;
            for side in [0, 1] {
                moved += self.send(side, 1 << 20);
                moved += self.receive(1 - side, usize::MAX, usize::MAX);
                self.acknowledge(side, 0);
                self.acknowledge(1 - side, 0);
            }
            if moved == 0 {
                return any;
            }
            any = true;
        }
    }
}

pub fn fill(place: &Direct, mut bytes: &[u8]) {
    for piece in place.pieces() {
        let n = bytes.len().min(piece.len);
        // SAFETY: the same access as a driver's read.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), piece.at, n) };
        bytes = &bytes[n..];
    }
    assert!(bytes.is_empty());
}

/// Shared memory, as in a process that also has peers on its own host.
struct Shared {
    fd: OwnedFd,
    mapping: Mapping,
    /// Bytes for which it gives memory.
    most: usize,
}

// SAFETY: a shared mapping of our own segment, zeroed by the kernel; only the arena hands out its addresses.
unsafe impl Backing for Shared {
    fn base(&self) -> NonNull<u8> {
        self.mapping.at(0, 0).unwrap()
    }
    fn len(&self) -> usize {
        self.mapping.len()
    }
    fn commit(&self, offset: usize, len: usize) -> io::Result<()> {
        if offset + len > self.most {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.mapping.commit(self.fd.as_fd(), offset, len)
    }
}

/// An outbox over a segment of `len` bytes, which gives memory for the first `most`; and the segment, for inspection.
pub fn shared(len: usize, most: usize) -> (Arena, File) {
    let (fd, mapping) = segment::create("shared", len, PeerAccess::Read).unwrap();
    let segment = File::from(fd.try_clone().unwrap());
    (Arena::new("outbox", "wait", false, Box::new(Shared { fd, mapping, most })), segment)
}

/// Bytes that show where they come from.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ seed.wrapping_mul(0x9e37_79b9)) as u8).collect()
}
