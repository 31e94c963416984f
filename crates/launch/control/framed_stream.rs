//! The one TCP connection of a node, as sealed frames in both directions. Never blocks.

use std::{
    io::{self, Read},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use rustix::{event::PollFlags, net::sockopt};
use serde::{Serialize, de::DeserializeOwned};
use udeck_auth::SecureStream;
use udeck_boot::wire::{WireError, decode_payload, encode_payload};

pub(crate) use super::error::ControlError;

pub(crate) struct FramedStream {
    stream: TcpStream,
    secure: SecureStream,
    detect: Duration,
}

impl FramedStream {
    /// Makes the stream of a connection whose sides have proved themselves. `detect` is how long the other side
    /// may be silent before the connection counts as lost.
    pub(crate) fn new(stream: TcpStream, secure: SecureStream, detect: Duration) -> io::Result<FramedStream> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let mut control = FramedStream { stream, secure, detect };
        control.detect_timeout(detect)?;
        Ok(control)
    }

    fn detect_timeout(&mut self, detect: Duration) -> io::Result<()> {
        udeck_boot::detect_silence(&self.stream, detect)?;
        self.detect = detect;
        Ok(())
    }

    /// Turns off the limit for unacknowledged data, while one of the two sides is stopped: its kernel answers,
    /// but it may take nothing for any time.
    pub(crate) fn detect_death_only(&self) -> io::Result<()> {
        Ok(sockopt::set_tcp_user_timeout(&self.stream, 0)?)
    }

    /// Turns on the limit again that [`detect_death_only`](FramedStream::detect_death_only) turned off.
    pub(crate) fn detect_again(&mut self) -> io::Result<()> {
        self.detect_timeout(self.detect)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the events to poll for.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.queued() == 0 { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Returns the number of unsent bytes.
    pub(crate) fn queued(&self) -> usize {
        self.secure.unsent().len()
    }

    /// Queues a message; [`flush`](FramedStream::flush) sends it.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        self.secure.send(&encode_payload(message)?);
        Ok(())
    }

    /// Writes as much as the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), ControlError> {
        match self.secure.write_to(&mut self.stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(self.control_error(error)),
            _ => Ok(()),
        }
    }

    /// Reads once. Returns `false` if there was nothing to read.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Result<bool, ControlError> {
        match self.stream.read(scratch) {
            Ok(0) => Err(ControlError::Closed),
            Ok(length) => {
                self.secure.receive(&scratch[..length])?;
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                Ok(false)
            }
            Err(error) => Err(self.control_error(error)),
        }
    }

    /// Returns the next whole message.
    pub(crate) fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ControlError> {
        Ok(self.secure.next_frame()?.map(decode_payload).transpose()?)
    }

    fn control_error(&self, error: io::Error) -> ControlError {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, NetworkDown, NetworkUnreachable,
            TimedOut,
        };
        match error.kind() {
            // The kernel reports the last three only after all its attempts have failed for this time.
            TimedOut | HostUnreachable | NetworkUnreachable | NetworkDown => {
                ControlError::Silent(self.detect)
            }
            BrokenPipe | ConnectionAborted | ConnectionReset => ControlError::Closed,
            _ => ControlError::Os(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, io::Write, net::TcpListener, sync::Arc, thread};

    use udeck_auth::{DeadlineStream, HostKey};

    use super::*;
    use crate::control::{
        secure,
        wire::{Sink, ToRoot},
    };

    /// Returns a node's side and the root's.
    fn pair() -> (FramedStream, FramedStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let root = listener.accept().unwrap().0;
        let key = HostKey::from_bytes([7; 32]).control_key();
        let prove = |stream: TcpStream, mut secure: SecureStream| {
            let mut limited = DeadlineStream::new(&stream, Duration::from_secs(20));
            secure.handshake(&mut limited).unwrap().unwrap();
            FramedStream::new(stream, secure, Duration::from_secs(1)).unwrap()
        };
        let secured = secure::root(&Arc::from([key])).unwrap();
        let root = thread::spawn(move || prove(root, secured));
        (prove(node, secure::node(0, key).unwrap()), root.join().unwrap())
    }

    #[test]
    fn messages_larger_than_the_sockets_buffers_arrive_whole() {
        let (mut from, mut to) = pair();
        let piece = |n: u8| ToRoot::Output { sink: Sink::Stdout, bytes: vec![n; 100_000] };
        (0..100).for_each(|n| from.send(&piece(n)).unwrap());
        let mut scratch = vec![0; 1 << 16];
        let mut got = Vec::new();
        while got.len() < 100 {
            from.flush().unwrap();
            to.receive(&mut scratch).unwrap();
            while let Some(message) = to.next::<ToRoot>().unwrap() {
                got.push(message);
            }
        }
        assert_eq!(from.queued(), 0);
        assert_eq!(got, (0..100).map(piece).collect::<Vec<_>>());
        drop(from);
        let end = loop {
            match to.receive(&mut scratch) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(end, ControlError::Closed), "{end}");
    }

    /// Takes the bytes that a side is about to write.
    fn taken(from: &mut FramedStream) -> Vec<u8> {
        let mut bytes = Vec::new();
        from.secure.write_to(&mut bytes).unwrap();
        bytes
    }

    /// Returns the error of a root whose node sends these bytes, made from a right frame, and then closes.
    fn end_by(bytes: impl FnOnce(&mut FramedStream, Vec<u8>) -> Vec<u8>) -> ControlError {
        let (mut node, mut root) = pair();
        node.send(&ToRoot::InputEnd).unwrap();
        let frame = taken(&mut node);
        let bytes = bytes(&mut node, frame);
        node.stream.write_all(&bytes).unwrap();
        drop(node);
        let mut read = || -> Result<Infallible, ControlError> {
            loop {
                root.receive(&mut [0; 256])?;
                while root.next::<ToRoot>()?.is_some() {}
            }
        };
        let Err(error) = read();
        error
    }

    #[test]
    fn nonsense_ends_it() {
        use ControlError::{Closed, Forged, Malformed};
        use WireError::{FrameTooLong, Undecodable};
        assert!(matches!(end_by(|_, right| right), Closed));
        assert!(matches!(end_by(|_, right| right[..right.len() / 2].to_vec()), Closed));
        assert!(matches!(end_by(|_, _| vec![0xFF; 64]), Malformed(FrameTooLong { length: 0xFFFF_FFFF })));
        assert!(matches!(end_by(|_, right| [&right[..], &right].concat()), Forged));
        let changed = |_: &mut FramedStream, mut right: Vec<u8>| {
            *right.last_mut().unwrap() ^= 1;
            right
        };
        assert!(matches!(end_by(changed), Forged));
        let no_message = |node: &mut FramedStream, right: Vec<u8>| {
            node.secure.send(&[0xFF; 8]);
            [right, taken(node)].concat()
        };
        assert!(matches!(end_by(no_message), Malformed(Undecodable { length: 8, .. })));
        // The frame of one side, sent back to it, is rejected.
        let (mut node, _root) = pair();
        node.send(&ToRoot::Started).unwrap();
        let own = taken(&mut node);
        node.secure.receive(&own).unwrap();
        assert!(matches!(node.next::<ToRoot>(), Err(Forged)));
    }
}
