//! Out-of-band connection: the socket over which a connection was agreed on. It stays open as long as the
//! connection, and carries reports that a queue pair cannot: that the peer is ready, that it is done, why it broke
//! off. Its end shows that the peer's process has died.
//!
//! ```text
//! byte 0      1     3
//!      +------+-----+-------+
//!      | kind | len | words |        1 ready, 2 done, 3 broken (words: why)
//!      +------+-----+-------+
//! ```
//!
//! A requester that gives up waiting for its answer sends *done* without *ready*.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use udeck_session::admission::reset_when_closed;

use crate::wire::MAX_WORDS;
use udeck_session::cut;

const HEAD: usize = 3;
/// Upper bound of the words that one peer may send. A correct peer sends three at most.
const MOST_WORDS: u32 = 8;

/// A report on the out-of-band connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// The sender's queue pair is ready to receive.
    Ready,
    /// The sender has sent everything, and waits for nothing.
    Done,
    /// The sender has ended it by an error.
    Broken(String),
}

/// End of an out-of-band connection.
#[derive(Debug)]
pub enum End {
    /// The peer has closed it.
    HungUp,
    /// The kernel reported an error.
    Failed(io::Error),
    /// The peer sent an invalid word, or too many words.
    Nonsense,
}

/// An out-of-band connection.
#[derive(Debug)]
pub struct Oob {
    socket: OwnedFd,
    received: Vec<u8>,
    words: u32,
}

impl Word {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, words) = match self {
            Word::Ready => (1, ""),
            Word::Done => (2, ""),
            Word::Broken(words) => (3, cut(words, MAX_WORDS)),
        };
        let mut bytes = vec![kind];
        bytes.extend((words.len() as u16).to_le_bytes());
        bytes.extend(words.as_bytes());
        bytes
    }

    /// Decodes the first word if it is complete. Returns also its length in bytes.
    fn decode(bytes: &[u8]) -> Result<Option<(Word, usize)>, End> {
        let Some(([kind, low, high], rest)) = bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let most = if *kind == 3 { MAX_WORDS } else { 0 };
        if !(1..=3).contains(kind) || len > most {
            return Err(End::Nonsense);
        }
        let Some(words) = rest.get(..len) else { return Ok(None) };
        let word = match kind {
            1 => Word::Ready,
            2 => Word::Done,
            _ => Word::Broken(String::from_utf8_lossy(words).into_owned()),
        };
        Ok(Some((word, HEAD + len)))
    }
}

impl Oob {
    pub fn new(socket: OwnedFd) -> Self {
        Oob { socket, received: Vec::new(), words: 0 }
    }

    /// Sends a word. A peer that is gone is found by the reader; the few words always find room.
    pub fn send(&self, word: &Word) {
        let _ = send(&self.socket, &word.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Returns the next word, if one has come. Never waits.
    ///
    /// # Errors
    /// How the connection ended.
    pub fn receive(&mut self) -> Result<Option<Word>, End> {
        loop {
            if let Some((word, len)) = Word::decode(&self.received)? {
                self.received.drain(..len);
                self.words += 1;
                let is_endless = self.words > MOST_WORDS;
                return if is_endless { Err(End::Nonsense) } else { Ok(Some(word)) };
            }
            let mut buffer = [0; 256];
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(End::HungUp),
                Ok((_, len)) => self.received.extend(&buffer[..len]),
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(End::HungUp),
                Err(error) => return Err(End::Failed(error.into())),
            }
        }
    }

    /// Makes the end of the socket a reset, so that nothing lingers in the kernel. For the time when both sides have
    /// sent and received everything.
    pub fn reset_when_closed(&self) {
        reset_when_closed(self.socket.as_fd());
    }
}

impl AsFd for Oob {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn prop_words_round_trip(words in "\\PC{0,100}", behind: Vec<u8>) {
            for word in [Word::Ready, Word::Done, Word::Broken(words.clone())] {
                let mut bytes = word.encode();
                let len = bytes.len();
                prop_assert!(matches!(Word::decode(&bytes[..len - 1]), Ok(None)));
                bytes.extend(&behind);
                let (decoded, used) = Word::decode(&bytes).unwrap().unwrap();
                prop_assert_eq!((decoded, used), (word, len));
            }
        }

        #[test]
        fn prop_nonsense_is_found_before_it_is_waited_for(kind: u8, len: u16) {
            let [low, high] = len.to_le_bytes();
            let most = match kind { 1 | 2 => 0, 3 => MAX_WORDS as u16, _ => 0 };
            let sound = (1..=3).contains(&kind) && len <= most;
            prop_assert_eq!(Word::decode(&[kind, low, high]).is_ok(), sound);
        }
    }
}
