//! The one TCP connection of a node, as frames in both directions. Never blocks.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use rustix::{event::PollFlags, net::sockopt};
use serde::{Serialize, de::DeserializeOwned};
use udeck_boot::wire::WireError;

pub(crate) use super::error::ControlError;
use super::seal::{Direction, Keys, Opener};

pub(crate) struct FramedStream {
    stream: TcpStream,
    frames: Opener,
    sealing: Direction,
    out: VecDeque<u8>,
    detect: Duration,
}

impl FramedStream {
    /// Makes the stream. `detect` is how long the other side may be silent before the connection counts as
    /// lost.
    pub(crate) fn new(stream: TcpStream, keys: Keys, detect: Duration) -> io::Result<FramedStream> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let Keys { outgoing: sealing, incoming } = keys;
        let mut control =
            FramedStream { stream, frames: Opener::new(incoming), sealing, out: VecDeque::new(), detect };
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
        if self.out.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Returns the number of unsent bytes.
    pub(crate) fn queued(&self) -> usize {
        self.out.len()
    }

    /// Queues a message; [`flush`](FramedStream::flush) sends it.
    pub(crate) fn send<T: Serialize>(&mut self, message: &T) -> Result<(), WireError> {
        self.out.extend(self.sealing.seal(message)?);
        Ok(())
    }

    /// Writes as much as the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), ControlError> {
        while !self.out.is_empty() {
            match self.stream.write(self.out.as_slices().0) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(self.control_error(error)),
            }
        }
        Ok(())
    }

    /// Reads once. Returns `false` if there was nothing to read.
    pub(crate) fn receive(&mut self, scratch: &mut [u8]) -> Result<bool, ControlError> {
        match self.stream.read(scratch) {
            Ok(0) => Err(ControlError::Closed),
            Ok(length) => {
                self.frames.push(&scratch[..length]);
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
        self.frames.decode()
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
    use std::net::TcpListener;

    use super::*;
    use crate::control::wire::{Sink, ToRoot};

    fn pair() -> (FramedStream, FramedStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let theirs = listener.accept().unwrap().0;
        let keys = |outgoing, incoming| Keys {
            outgoing: Direction::new([outgoing; 32]),
            incoming: Direction::new([incoming; 32]),
        };
        (
            FramedStream::new(ours, keys(1, 2), Duration::from_secs(1)).unwrap(),
            FramedStream::new(theirs, keys(2, 1), Duration::from_secs(1)).unwrap(),
        )
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

    #[test]
    fn nonsense_ends_it() {
        let (mut from, mut to) = pair();
        from.out.extend([0xFF; 64]);
        from.flush().unwrap();
        let mut scratch = [0; 64];
        while !to.receive(&mut scratch).unwrap() {}
        assert!(matches!(to.next::<ToRoot>(), Err(ControlError::Malformed(_))));
        let (mut from, mut to) = pair();
        from.send(&ToRoot::Started).unwrap();
        // The frame of one side, sent back to it, is rejected.
        let (mut stranger, own) = (Vec::new(), from.out.iter().copied().collect::<Vec<_>>());
        stranger.extend(own);
        from.frames.push(&stranger);
        assert!(matches!(from.next::<ToRoot>(), Err(ControlError::Forged)));
        from.flush().unwrap();
        while !to.receive(&mut scratch).unwrap() {}
        assert_eq!(to.next::<ToRoot>().unwrap(), Some(ToRoot::Started));
    }
}
