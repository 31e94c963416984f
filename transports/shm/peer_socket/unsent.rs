//! Datagrams that a peer socket keeps until it can take them.

use std::collections::VecDeque;
use std::io;

use udeck_sys::is_shortage;

/// Whether all kept datagrams were sent, or the reason for which the rest is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// All were sent.
    Nothing,
    /// The socket has no room for the oldest one.
    NoRoom,
    /// The system has no memory for the oldest one.
    Shortage,
}

/// Sends kept datagrams by `send`, oldest first.
pub(super) fn send_all(unsent: &mut VecDeque<Vec<u8>>, send: impl Fn(&[u8]) -> io::Result<bool>) -> Left {
    while let Some(datagram) = unsent.front() {
        match send(datagram) {
            Ok(true) => drop(unsent.pop_front()),
            Ok(false) => return Left::NoRoom,
            Err(error) if is_shortage(&error) => return Left::Shortage,
            // Reading from the socket tells how it ended.
            Err(_) => unsent.clear(),
        }
    }
    Left::Nothing
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn what_the_socket_does_not_take_now_is_kept_in_order() {
        let kept = || VecDeque::from([b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
        for (error, left, count) in [
            (None, Left::NoRoom, 2),
            (Some(Errno::NOBUFS), Left::Shortage, 2),
            (Some(Errno::NOMEM), Left::Shortage, 2),
            (Some(Errno::PIPE), Left::Nothing, 0),
        ] {
            let mut unsent = kept();
            let takes_a = |datagram: &[u8]| match error {
                _ if datagram == b"a" => Ok(true),
                Some(error) => Err(error.into()),
                None => Ok(false),
            };
            assert_eq!((send_all(&mut unsent, takes_a), unsent.len()), (left, count), "{error:?}");
            assert!(unsent.front().is_none_or(|next| next == b"b"), "{error:?}");
        }
        let mut unsent = kept();
        assert_eq!((send_all(&mut unsent, |_| Ok(true)), unsent.len()), (Left::Nothing, 0));
    }
}
