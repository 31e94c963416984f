//! A TCP stream with one deadline for all of its reads and writes: [`DeadlineStream`].

use std::borrow::Borrow;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A blocking TCP stream whose reads and writes all fail after one deadline, even if bytes come one by one.
///
/// The socket's own timeouts stay set afterwards.
pub struct DeadlineStream<S> {
    stream: S,
    until: Instant,
}

impl<S: Borrow<TcpStream>> DeadlineStream<S> {
    /// Makes the stream; `limit` counts from now.
    pub fn new(stream: S, limit: Duration) -> DeadlineStream<S> {
        DeadlineStream { stream, until: Instant::now() + limit }
    }

    /// Sets the deadline to `limit` from now.
    pub fn renew(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
    }

    fn tcp(&self) -> &TcpStream {
        self.stream.borrow()
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl<S: Borrow<TcpStream>> Read for DeadlineStream<S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.tcp().set_read_timeout(self.left()?)?;
        self.tcp().read(to)
    }
}

impl<S: Borrow<TcpStream>> Write for DeadlineStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp().set_write_timeout(self.left()?)?;
        self.tcp().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp().flush()
    }
}
