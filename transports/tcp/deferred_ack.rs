//! Deferred acknowledgements: a short message is acknowledged after the program has answered it.
//!
//! A mailbox's messages come by a connection on which nothing goes back, so no answer carries TCP's acknowledgement.
//! The kernel therefore sends an acknowledgement of its own for every second message, before the read that takes the
//! message returns. This packet passes both ends' stacks while the program waits for its message. The kernel does so
//! only when the socket has been emptied. A thread that waits for a short message therefore peeks at it, and takes
//! it out of the socket at its next poll: by then the program has answered, and waits.
//!
//! Until then the socket still looks readable. Whoever is told of that takes the message out: an epoll, the helper
//! if the program does not poll again, a thread that goes to sleep. Meanwhile the kernel's timer may acknowledge.
//!
//! Peeking pays only where messages are answered: a stream of messages would need a second call for each. So a
//! thread peeks only if this NIC has sent data since the message before.

use std::io;
use std::os::fd::BorrowedFd;

use crate::sys;

/// Upper bound in bytes of a read that may be peeked and stay with the kernel. For more bytes, a second copy costs
/// what is won.
const SHORT: usize = 16 << 10;

/// ACK-deferral state of one socket.
#[derive(Default)]
pub struct DeferredAck {
    /// Bytes that were peeked and are still with the kernel.
    peeked: usize,
    /// The last read was short.
    short: bool,
    /// The last message was answered: a poll found nothing since, so there is time for one more call, and the NIC
    /// had sent data between the poll that found nothing before and that one.
    answered: bool,
    /// The caller is busy-polling this socket.
    hot: bool,
    /// The NIC's send counter ([`crate::core::Core::sends`]) when a poll last found nothing new.
    sends: u32,
}

impl DeferredAck {
    pub fn expect(&mut self, hot: bool) {
        self.hot = hot;
    }

    /// Whether the next read should be a peek.
    #[inline]
    pub fn may_peek(&self) -> bool {
        self.hot & self.answered & self.short
    }

    /// Takes the peeked bytes out of the socket. Called before every read.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn settle(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while self.peeked > 0 {
            match sys::consume(socket, self.peeked)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => self.peeked = self.peeked.saturating_sub(len),
            }
        }
        Ok(())
    }

    /// Notes a read of `len` bytes.
    #[inline]
    pub fn on_read(&mut self, by_peek: bool, len: usize) {
        self.peeked = if by_peek { len } else { 0 };
        (self.short, self.answered) = (len <= SHORT, false);
    }

    /// Notes a poll that found nothing. `sends` is the NIC's send counter.
    #[inline]
    pub fn on_idle(&mut self, sends: u32) {
        if self.sends != sends {
            (self.sends, self.answered) = (sends, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use udeck_session::Direct;

    use super::*;
    use crate::sys::Read;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        near.set_nodelay(true).unwrap();
        far.set_nonblocking(true).unwrap();
        (near, far)
    }

    /// Returns the bytes of the next read, whenever they come.
    fn read(far: &TcpStream, peek: bool) -> Vec<u8> {
        loop {
            let mut bytes = Vec::new();
            match sys::receive(far.as_fd(), peek, Direct::default(), |_, _, came| bytes.extend(came)) {
                Ok(Read::All | Read::Some) => return bytes,
                Ok(Read::End) => panic!("the end"),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }

    /// The test asks this of most messages only: a timer, or a kernel that takes the connection for a new one, may
    /// acknowledge some at once.
    #[test]
    fn what_was_peeked_at_is_acknowledged_when_it_is_settled() {
        const MESSAGES: u32 = 200;
        let (mut near, far) = pair();
        let (mut early, mut late) = (0, 0);
        for number in 0..MESSAGES {
            let mut deferred_ack =
                DeferredAck { peeked: 0, short: true, answered: true, hot: true, sends: 0 };
            assert!(deferred_ack.may_peek());
            let message = number.to_ne_bytes();
            near.write_all(&message).unwrap();
            assert_eq!(read(&far, true), message);
            deferred_ack.on_read(true, message.len());
            early += u32::from(!sys::liveness(near.as_fd()).unwrap().outstanding);
            deferred_ack.settle(far.as_fd()).unwrap();
            late += u32::from(!sys::liveness(near.as_fd()).unwrap().outstanding);
        }
        assert!(early < MESSAGES / 2 && late > early + MESSAGES / 4, "{early} before, {late} behind");
    }

    #[test]
    fn what_was_peeked_at_is_not_read_again() {
        let (mut near, far) = pair();
        let mut deferred_ack = DeferredAck::default();
        near.write_all(b"one").unwrap();
        assert_eq!(read(&far, true), b"one");
        deferred_ack.on_read(true, 3);
        near.write_all(b"another").unwrap();
        deferred_ack.settle(far.as_fd()).unwrap();
        assert_eq!(read(&far, false), b"another");
    }

    #[test]
    fn it_peeks_while_it_waits_for_short_messages_only() {
        let mut deferred_ack = DeferredAck::default();
        deferred_ack.expect(true);
        deferred_ack.on_read(false, 8);
        assert!(!deferred_ack.may_peek(), "there may be more already");
        deferred_ack.on_idle(1);
        assert!(deferred_ack.may_peek());
        deferred_ack.on_idle(1);
        assert!(deferred_ack.may_peek(), "it still waits");
        deferred_ack.expect(false);
        assert!(!deferred_ack.may_peek(), "who knows when it looks again");
        deferred_ack.expect(true);
        deferred_ack.on_read(false, SHORT + 1);
        deferred_ack.on_idle(2);
        assert!(!deferred_ack.may_peek());
    }

    #[test]
    fn it_does_not_peek_at_messages_that_nobody_answers() {
        let mut deferred_ack = DeferredAck::default();
        deferred_ack.expect(true);
        deferred_ack.on_idle(7);
        for _ in 0..3 {
            deferred_ack.on_read(false, 8);
            deferred_ack.on_idle(7);
            assert!(!deferred_ack.may_peek(), "nothing was sent since the one before");
        }
        deferred_ack.on_idle(8);
        assert!(deferred_ack.may_peek(), "the last one was answered");
    }
}
