//! One end of a QUIC connection: a socket, its endpoint, and the one connection with its one stream.

use std::{
    hint,
    io::{self, ErrorKind, IoSliceMut},
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Endpoint, ReadError, StreamId, WriteError,
};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use super::config;

/// Time limit of a turn, which lasts milliseconds on a machine that does nothing else.
const LIMIT: Duration = Duration::from_secs(10);
/// Most messages that one `recvmmsg` receives; below it, the bytes of each. Both are those of the UDP transport.
const BATCH: usize = 8;
const GRO_BUFFER: usize = 64 << 10;
/// Most bytes of a GSO batch.
const BATCH_BYTES: usize = 63 << 10;
/// Bytes of each buffer of the socket; the system may grant less.
const SOCKET_BUFFER: usize = 4 << 20;

/// One end of the connection.
pub struct QuicEnd {
    socket: UdpSocket,
    state: UdpSocketState,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    stream: Option<StreamId>,
    received: Box<[u8]>,
    batch: Vec<u8>,
}

/// Deadline of a turn that begins now.
pub fn deadline() -> Instant {
    Instant::now() + LIMIT
}

impl QuicEnd {
    /// # Errors
    /// Errors of the system.
    pub fn bind() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // The system may grant less, which is no error.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), SOCKET_BUFFER);
        let capacity = state.recv_buffer_size(UdpSockRef::from(&socket)).map_or(0, |size| size / 2);
        Ok(QuicEnd {
            endpoint: config::endpoint(capacity)?,
            socket,
            state,
            connection: None,
            stream: None,
            received: vec![0; BATCH * GRO_BUFFER].into_boxed_slice(),
            batch: Vec::new(),
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Begins the hand-shake.
    ///
    /// # Errors
    /// The address or the configuration cannot be used.
    pub fn connect(&mut self, to: SocketAddr) -> io::Result<()> {
        let capacity = self.state.recv_buffer_size(UdpSockRef::from(&self.socket)).map_or(0, |size| size / 2);
        let made = self.endpoint.connect(Instant::now(), config::client(capacity)?, to, config::NAME);
        self.connection = Some(made.map_err(io::Error::other)?);
        Ok(())
    }

    /// Whether the stream exists: the side that connected opens it, the other side accepts it.
    pub fn has_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Receives and sends once what is there, during the hand-shake.
    ///
    /// # Errors
    /// Errors of the system, the loss of the connection, or the end of the deadline.
    pub fn turn(&mut self, deadline: Instant) -> io::Result<()> {
        self.poll(deadline)?;
        if self.stream.is_none()
            && let Some((_, connection)) = self.connection.as_mut().filter(|(_, it)| !it.is_handshaking())
        {
            // A stream becomes visible to the peer by its first byte.
            self.stream = match connection.side() {
                quinn_proto::Side::Client => connection.streams().open(Dir::Bi),
                quinn_proto::Side::Server => connection.streams().accept(Dir::Bi),
            };
            if connection.side().is_client() {
                self.send(&[0], deadline)?;
            } else if self.stream.is_some() {
                self.receive(&mut [0], deadline, || false)?;
            }
        }
        self.transmit()
    }

    /// Writes all data, and spins while the stream's windows are full.
    ///
    /// # Errors
    /// The same as [`QuicEnd::turn`]'s.
    pub fn send(&mut self, mut data: &[u8], deadline: Instant) -> io::Result<()> {
        while !data.is_empty() {
            let (connection, stream) = self.stream()?;
            match connection.send_stream(stream).write(data) {
                Ok(written) => data = &data[written..],
                Err(WriteError::Blocked) => _ = self.poll(deadline)?,
                Err(error) => return Err(io::Error::other(error)),
            }
            self.transmit()?;
        }
        Ok(())
    }

    /// Spins until all data have arrived. Returns `false` if `stop` says so and nothing is under way.
    ///
    /// # Errors
    /// The same as [`QuicEnd::turn`]'s.
    pub fn receive(
        &mut self,
        data: &mut [u8],
        deadline: Instant,
        stop: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let mut filled = 0;
        loop {
            filled += self.read(&mut data[filled..])?;
            if filled == data.len() {
                // Acknowledgements travel with the answer, or are sent while the next message is awaited.
                return Ok(true);
            }
            self.transmit()?;
            while !self.poll(deadline)? {
                if stop() {
                    return Ok(false);
                }
                hint::spin_loop();
            }
        }
    }

    /// Copies the data out of the stream.
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        let (connection, stream) = self.stream()?;
        let mut receiving = connection.recv_stream(stream);
        let mut chunks = receiving.read(true).map_err(io::Error::other)?;
        let mut filled = 0;
        while filled < data.len() {
            match chunks.next(data.len() - filled) {
                Ok(Some(chunk)) => {
                    data[filled..filled + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                    filled += chunk.bytes.len();
                }
                Ok(None) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(ReadError::Blocked) => break,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        let _ = chunks.finalize();
        Ok(filled)
    }

    fn stream(&mut self) -> io::Result<(&mut Connection, StreamId)> {
        match (&mut self.connection, self.stream) {
            (Some((_, connection)), Some(stream)) => Ok((connection, stream)),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Receives datagrams by one call, and lets QUIC process them. Returns whether there were any.
    fn poll(&mut self, deadline: Instant) -> io::Result<bool> {
        let (now, mut metas) = (Instant::now(), [RecvMeta::default(); BATCH]);
        let mut buffers = self.received.chunks_exact_mut(GRO_BUFFER).map(IoSliceMut::new);
        let mut buffers: [IoSliceMut<'_>; BATCH] =
            std::array::from_fn(|_| buffers.next().expect("there are as many"));
        let count = match self.state.recv(UdpSockRef::from(&self.socket), &mut buffers, &mut metas) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        for (at, meta) in metas[..count].iter().enumerate() {
            for part in (0..meta.len).step_by(meta.stride.max(1)) {
                let start = at * GRO_BUFFER + part;
                let end = at * GRO_BUFFER + meta.len.min(part + meta.stride);
                let bytes = BytesMut::from(&self.received[start..end]);
                self.take(now, meta, bytes)?;
            }
        }
        let mut timed_out = false;
        if let Some((_, connection)) = &mut self.connection {
            timed_out = connection.poll_timeout().is_some_and(|due| due <= now);
            if timed_out {
                connection.handle_timeout(now);
            }
        }
        if count > 0 || timed_out {
            self.events()?;
        }
        if timed_out {
            self.transmit()?;
        }
        if now > deadline {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(count > 0)
    }

    /// Passes a datagram to QUIC.
    fn take(&mut self, now: Instant, meta: &RecvMeta, bytes: BytesMut) -> io::Result<()> {
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        let mut answer = Vec::new();
        match self.endpoint.handle(now, meta.addr, None, ecn, bytes, &mut answer) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                if let Some((_, connection)) = &mut self.connection {
                    connection.handle_event(event);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut answer, None);
                self.connection = Some(accepted.map_err(|error| io::Error::other(error.cause))?);
            }
            Some(DatagramEvent::Response(_)) | None => {}
        }
        Ok(())
    }

    /// Handles the events of QUIC; only the end of the connection matters here.
    fn events(&mut self) -> io::Result<()> {
        let Some((handle, connection)) = &mut self.connection else { return Ok(()) };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(answer);
            }
        }
        while let Some(event) = connection.poll() {
            if let quinn_proto::Event::ConnectionLost { reason } = event {
                return Err(io::Error::other(reason));
            }
        }
        Ok(())
    }

    /// Sends everything that QUIC has to send now. Spins while the socket is full.
    fn transmit(&mut self) -> io::Result<()> {
        let Some((_, connection)) = &mut self.connection else { return Ok(()) };
        loop {
            let fit = BATCH_BYTES / usize::from(connection.current_mtu().max(1200));
            let segments = fit.clamp(1, self.state.max_gso_segments());
            self.batch.clear();
            let Some(next) = connection.poll_transmit(Instant::now(), segments, &mut self.batch) else {
                return Ok(());
            };
            let transmit = Transmit {
                destination: next.destination,
                ecn: next.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
                contents: &self.batch[..next.size],
                segment_size: next.segment_size,
                src_ip: None,
            };
            while let Err(error) = self.state.try_send(UdpSockRef::from(&self.socket), &transmit) {
                if error.kind() != ErrorKind::WouldBlock {
                    return Err(error);
                }
                hint::spin_loop();
            }
        }
    }
}
