//! The NIC's socket, which sends and receives datagrams in batches.
//!
//! `quinn-udp` does the work with the kernel: segmentation offload (GSO), so that one call sends many datagrams to
//! one peer; its counterpart (GRO) and `recvmmsg`, so that one call receives many from all peers; and no
//! fragmentation.

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use udeck_sys::above_stdio;
use udeck_sys::atomic::{AtomicBool, Ordering};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use crate::buffer_pool::BufferPool;
use crate::icmp::{self, PortUnreachable};
#[cfg(test)]
use crate::socket_fault::SocketFault;

/// Upper bound of the messages that one `recvmmsg` receives. With GRO a message holds several datagrams of one sender.
const BATCH_SIZE: usize = 8;
/// Upper bound of such a message in bytes.
const GRO_BUFFER: usize = 64 << 10;
/// Requested size of the socket's buffers in bytes; the system may grant less.
const SOCKET_BUFFER: usize = 4 << 20;

/// Number of attempts of a call on the socket. A pending ICMP error makes the next call fail without doing anything,
/// so the call is repeated. An error of the call itself comes again.
const ATTEMPTS: usize = 4;

/// The NIC's socket.
pub struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Whether the error queue may hold a message.
    error_pending: AtomicBool,
    /// A fault that a test injects.
    #[cfg(test)]
    pub fault: SocketFault,
}

impl Socket {
    /// # Errors
    /// The kernel's error.
    pub fn bind(at: SocketAddr) -> io::Result<(Self, SocketAddr)> {
        let socket = above_stdio(UdpSocket::bind(at))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // The system may grant less. Datagrams that do not fit are lost, and retransmitted.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        // ICMP errors report closed ports. Without them only silence shows that a peer is gone.
        let _ = state.enable_transport_errors(UdpSockRef::from(&socket));
        let at = socket.local_addr()?;
        let socket = Socket {
            socket,
            state,
            error_pending: AtomicBool::new(false),
            #[cfg(test)]
            fault: SocketFault::default(),
        };
        Ok((socket, at))
    }

    /// Sends one datagram, or several of `segment_size` bytes each, of which the last may be shorter.
    ///
    /// # Errors
    /// The kernel's error, [`io::ErrorKind::WouldBlock`] among them.
    pub fn transmit(
        &self,
        destination: SocketAddr,
        contents: &[u8],
        segment_size: Option<usize>,
        ecn: Option<EcnCodepoint>,
    ) -> io::Result<()> {
        #[cfg(test)]
        self.fault.check()?;
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip: None };
        let mut outcome = Ok(());
        for _ in 0..ATTEMPTS {
            outcome = self.state.try_send(UdpSockRef::from(&self.socket), &transmit);
            match &outcome {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => self.set_error_pending(),
                _ => break,
            }
        }
        outcome
    }

    pub fn set_error_pending(&self) {
        self.error_pending.store(true, Ordering::Relaxed);
    }

    pub fn take_error_pending(&self) -> bool {
        self.error_pending.load(Ordering::Relaxed) && self.error_pending.swap(false, Ordering::Relaxed)
    }

    /// Takes the next message of the error queue. Returns `None` if it is empty, `Some(None)` for a message that is
    /// ignored.
    pub fn next_icmp(&self) -> Option<Option<PortUnreachable>> {
        icmp::next(self.as_fd())
    }

    /// Bytes of datagrams that the receive buffer holds: half of its size, because the rest is the kernel's overhead.
    pub fn receive_capacity(&self) -> usize {
        self.state.recv_buffer_size(UdpSockRef::from(&self.socket)).map_or(0, |size| size / 2)
    }

    /// Upper bound of the datagrams in one GSO batch.
    pub fn max_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Whether one call may send several datagrams (GSO), and receive several as one message (GRO).
    pub fn offloads(&self) -> (bool, bool) {
        (self.max_segments() > 1, self.state.gro_segments() > 1)
    }

    /// Receives the messages of one `recvmmsg`.
    pub fn receive<'a>(&self, buffers: &'a mut ReceiveBuffers) -> &'a [RecvMeta] {
        let ReceiveBuffers { bytes, metas, .. } = buffers;
        let mut slices = bytes.chunks_exact_mut(GRO_BUFFER).map(IoSliceMut::new);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| slices.next().expect("there are as many"));
        for _ in 0..ATTEMPTS {
            match self.state.recv(UdpSockRef::from(&self.socket), &mut slices, metas) {
                Ok(count) => return &metas[..count],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.set_error_pending(),
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

/// Receive buffers. The kernel provides their memory on first use.
pub struct ReceiveBuffers {
    bytes: Box<[u8]>,
    metas: [RecvMeta; BATCH_SIZE],
    /// Buffers for the copies that QUIC keeps.
    pool: BufferPool,
}

impl ReceiveBuffers {
    pub fn new() -> Self {
        ReceiveBuffers {
            bytes: vec![0; BATCH_SIZE * GRO_BUFFER].into_boxed_slice(),
            metas: [RecvMeta::default(); BATCH_SIZE],
            pool: BufferPool::new(),
        }
    }

    /// Upper bound of the messages that one call receives.
    pub fn batch_size(&self) -> usize {
        BATCH_SIZE
    }

    /// Returns the datagrams of the first `messages` received messages, and the pool for their copies.
    pub fn datagrams(&mut self, messages: usize) -> (impl Iterator<Item = Datagram<'_>>, &mut BufferPool) {
        let ReceiveBuffers { bytes, metas, pool } = self;
        let (metas, bytes) = (&metas[..messages], bytes.chunks_exact(GRO_BUFFER));
        let datagrams = metas.iter().zip(bytes).flat_map(|(meta, buffer)| {
            let datagrams = buffer[..meta.len.min(GRO_BUFFER)].chunks(meta.stride.max(1));
            datagrams.map(|bytes| Datagram { from: meta.addr, ecn: meta.ecn, bytes })
        });
        (datagrams, pool)
    }

    /// Periodic check of the pool.
    pub fn check(&mut self) {
        self.pool.check();
    }
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    pub from: SocketAddr,
    pub ecn: Option<EcnCodepoint>,
    pub bytes: &'a [u8],
}
