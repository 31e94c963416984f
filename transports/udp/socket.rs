//! The NIC's socket, and datagrams for it in batches.
//!
//! `quinn-udp` does what is the kernel's business: segmentation offload (GSO), so that one call sends many datagrams to one
//! peer; its counterpart (GRO) and `recvmmsg`, so that one call receives many from all; and that nothing is fragmented.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use udeck_sys::atomic::{AtomicBool, Ordering};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use crate::icmp::{self, Report};
#[cfg(test)]
use crate::refusal::Refusal;

/// Datagrams, or runs of them from one sender, that one call receives.
const RUNS: usize = 8;
/// Bytes of a run.
const RUN: usize = 64 << 10;
/// Bytes that the kernel is asked to hold, each way; it may hold less.
const KERNEL: usize = 4 << 20;

/// A call on the socket fails at first by what an ICMP message says of another datagram, then nothing was sent or received.
/// An error of its own comes again.
const ATTEMPTS: usize = 4;

/// See the module.
pub struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Something lies in the error queue, perhaps.
    troubled: AtomicBool,
    /// What a test makes the kernel refuse.
    #[cfg(test)]
    pub refusal: Refusal,
}

impl Socket {
    /// # Errors
    /// The kernel's.
    pub fn bind(at: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let socket = UdpSocket::bind(at)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // As much as the system allows: what it does not hold is lost, and sent again.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), KERNEL);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), KERNEL);
        // That a peer's port is closed is told by its host; without this, only its silence tells.
        let _ = state.enable_transport_errors(UdpSockRef::from(&socket));
        let at = socket.local_addr()?;
        let socket = Socket {
            socket,
            state,
            troubled: AtomicBool::new(false),
            #[cfg(test)]
            refusal: Refusal::default(),
        };
        Ok((socket, at))
    }

    /// Sends datagrams of `segment_size` bytes each, the last of which may be shorter; or one.
    ///
    /// # Errors
    /// The kernel's, [`io::ErrorKind::WouldBlock`] among them.
    pub fn transmit(
        &self,
        destination: SocketAddr,
        contents: &[u8],
        segment_size: Option<usize>,
        ecn: Option<EcnCodepoint>,
    ) -> io::Result<()> {
        #[cfg(test)]
        self.refusal.ask()?;
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip: None };
        let mut outcome = Ok(());
        for _ in 0..ATTEMPTS {
            outcome = self.state.try_send(UdpSockRef::from(&self.socket), &transmit);
            match &outcome {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => self.note_trouble(),
                _ => break,
            }
        }
        outcome
    }

    pub fn note_trouble(&self) {
        self.troubled.store(true, Ordering::Relaxed);
    }

    pub fn take_trouble(&self) -> bool {
        self.troubled.load(Ordering::Relaxed) && self.troubled.swap(false, Ordering::Relaxed)
    }

    /// The next thing that the network says of what was sent. `None`: nothing more. `Some(None)`: nothing of use.
    pub fn next_report(&self) -> Option<Option<Report>> {
        icmp::next(self.as_fd())
    }

    /// Bytes of datagrams that the kernel holds until they are read: half of what it counts, the rest is its own.
    pub fn holds(&self) -> usize {
        self.state.recv_buffer_size(UdpSockRef::from(&self.socket)).map_or(0, |size| size / 2)
    }

    /// Datagrams that one batch may hold.
    pub fn most(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Receives what is there, as much as one call gives; the runs of it.
    pub fn receive<'a>(&self, room: &'a mut Room) -> &'a [RecvMeta] {
        let mut buffers = room.buffers.chunks_exact_mut(RUN).map(IoSliceMut::new);
        let mut buffers: [IoSliceMut<'_>; RUNS] =
            std::array::from_fn(|_| buffers.next().expect("there are as many"));
        for _ in 0..ATTEMPTS {
            match self.state.recv(UdpSockRef::from(&self.socket), &mut buffers, &mut room.metas) {
                Ok(count) => return &room.metas[..count],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.note_trouble(),
            }
        }
        &[]
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Where datagrams are received. The kernel gives memory on first use.
pub struct Room {
    buffers: Box<[u8]>,
    metas: [RecvMeta; RUNS],
}

impl Room {
    pub fn new() -> Self {
        Room { buffers: vec![0; RUNS * RUN].into_boxed_slice(), metas: [RecvMeta::default(); RUNS] }
    }

    /// Runs that one call receives at most.
    pub fn runs(&self) -> usize {
        RUNS
    }

    /// The datagrams of the first `runs` runs that were received.
    pub fn datagrams(&self, runs: usize) -> impl Iterator<Item = Datagram<'_>> {
        self.metas[..runs].iter().zip(self.buffers.chunks_exact(RUN)).flat_map(|(meta, buffer)| {
            let datagrams = buffer[..meta.len.min(RUN)].chunks(meta.stride.max(1));
            datagrams.map(|bytes| Datagram { from: meta.addr, ecn: meta.ecn, bytes })
        })
    }
}

/// One that was received.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    pub from: SocketAddr,
    pub ecn: Option<EcnCodepoint>,
    pub bytes: &'a [u8],
}
