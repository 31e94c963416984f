//! A bare QUIC endpoint in place of a NIC: each test decides what it sends.

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionEvent, ConnectionHandle, DatagramEvent, Dir,
    Endpoint, Event, StreamEvent, StreamId,
};

use crate::Options;
use crate::fixture::soon;
use crate::tls::{self, TlsSetup};

/// A bare QUIC endpoint with one connection.
pub struct Raw {
    socket: UdpSocket,
    endpoint: Endpoint,
    client: ClientConfig,
    connection: Option<(ConnectionHandle, Connection)>,
    /// The TLS handshake is complete.
    pub is_connected: bool,
    /// Why the connection has ended.
    pub lost: Option<ConnectionError>,
    control: Option<StreamId>,
    /// Bytes that have come on the control stream.
    heard: VecDeque<u8>,
}

impl Raw {
    pub fn new() -> Raw {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let TlsSetup { endpoint, server, client, .. } =
            tls::setup(&Options::new([0; 32]), &[1; 32], 1 << 20).unwrap();
        let at = socket.local_addr().unwrap();
        let (server, client) = (server.get(at, at).clone(), client.get(at, at).clone());
        let endpoint = Endpoint::new(Arc::new(endpoint), Some(server), true, None);
        let heard = VecDeque::new();
        Raw {
            socket,
            endpoint,
            client,
            connection: None,
            is_connected: false,
            lost: None,
            control: None,
            heard,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    pub fn call(&mut self, to: SocketAddr) {
        let client = self.client.clone();
        self.connection = Some(self.endpoint.connect(Instant::now(), client, to, tls::NAME).unwrap());
    }

    pub fn quic(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().expect("it has called, or was called").1
    }

    /// Sends bytes on the control stream.
    pub fn send_control(&mut self, bytes: &[u8]) {
        let stream = match self.control {
            Some(stream) => stream,
            None => self.quic().streams().open(Dir::Bi).expect("the control stream"),
        };
        self.control = Some(stream);
        assert_eq!(self.quic().send_stream(stream).write(bytes).ok(), Some(bytes.len()));
        self.look();
    }

    /// The control stream.
    pub fn control(&self) -> StreamId {
        self.control.expect("it was opened")
    }

    /// Number of bytes that have come on the control stream.
    pub fn heard(&self) -> usize {
        self.heard.len()
    }

    /// Takes `len` bytes of the control stream.
    pub fn hear(&mut self, len: usize) -> Vec<u8> {
        self.until("bytes on the control stream", |raw| raw.heard.len() >= len);
        self.heard.drain(..len).collect()
    }

    /// Receives and sends until `done` holds.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Raw) -> bool) {
        let limit = soon();
        while !done(self) {
            assert!(!limit.passed(), "never: {what}; lost: {:?}", self.lost);
            self.look();
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }

    /// Receives what has come, and sends what QUIC has to send.
    pub fn look(&mut self) {
        let mut buffer = vec![0; 65536];
        while let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
            let (now, mut answer) = (Instant::now(), Vec::new());
            let bytes = BytesMut::from(&buffer[..len]);
            match self.endpoint.handle(now, from, None, None, bytes, &mut answer) {
                Some(DatagramEvent::ConnectionEvent(_, event)) => self.give(event),
                Some(DatagramEvent::NewConnection(incoming)) => {
                    self.connection = self.endpoint.accept(incoming, now, &mut answer, None).ok();
                }
                Some(DatagramEvent::Response(transmit)) => {
                    let _ = self.socket.send_to(&answer[..transmit.size], transmit.destination);
                }
                None => {}
            }
        }
        self.take_events();
        self.send();
    }

    fn give(&mut self, event: ConnectionEvent) {
        if let Some((_, quic)) = &mut self.connection {
            quic.handle_event(event);
        }
    }

    fn take_events(&mut self) {
        let Some((handle, quic)) = &mut self.connection else { return };
        if quic.poll_timeout().is_some_and(|due| due <= Instant::now()) {
            quic.handle_timeout(Instant::now());
        }
        while let Some(event) = quic.poll_endpoint_events() {
            if let Some(answer) = self.endpoint.handle_event(*handle, event) {
                quic.handle_event(answer);
            }
        }
        while let Some(event) = quic.poll() {
            match event {
                Event::Connected => self.is_connected = true,
                Event::ConnectionLost { reason } => self.lost = Some(reason),
                Event::Stream(StreamEvent::Opened { .. }) => {
                    self.control = self.control.or(quic.streams().accept(Dir::Bi));
                }
                _ => {}
            }
        }
        let Some(stream) = self.control else { return };
        let mut receiving = quic.recv_stream(stream);
        let Ok(mut chunks) = receiving.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            self.heard.extend(chunk.bytes);
        }
        let _ = chunks.finalize();
    }

    fn send(&mut self) {
        let Some((_, quic)) = &mut self.connection else { return };
        let mut packet = Vec::new();
        while let Some(transmit) = quic.poll_transmit(Instant::now(), 1, &mut packet) {
            let _ = self.socket.send_to(&packet[..transmit.size], transmit.destination);
            packet.clear();
        }
    }
}
