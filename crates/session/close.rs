//! Closing of a connection: by either program, by an error that one side tells the other, or by its loss.

use std::fmt;

use udeck_via::transport::{Refused, TransferStatus};

use crate::Events;

/// State of a connection's end, whatever carries the connection.
#[derive(Debug, Default)]
pub struct Close {
    /// The program has closed it.
    pub closed: bool,
    /// The stream is gone: no more frames come or go.
    pub dead: bool,
    /// The peer's end of the connection; inside, its words if the end was by an error.
    peer_end: Option<Option<String>>,
    lost: Option<String>,
}

impl Close {
    /// How the connection ended for the program, if it did.
    pub fn end(&self) -> Option<Refused> {
        match (&self.peer_end, &self.lost) {
            (Some(Some(why)), _) => Some(Refused::Lost(format!("the peer ended it: {why}"))),
            (Some(None), _) => Some(Refused::Closed),
            (None, Some(why)) => Some(Refused::Lost(why.clone())),
            (None, None) => None,
        }
    }

    /// Checks that the program may post.
    ///
    /// # Errors
    /// How the connection ended.
    #[inline]
    pub fn stands(&self) -> Result<(), Refused> {
        if !self.is_ended() && !self.closed { Ok(()) } else { Err(self.end().unwrap_or(Refused::Closed)) }
    }

    /// Whether the connection has ended for the program.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.peer_end.is_some() || self.lost.is_some()
    }

    /// Whether the peer has ended the connection.
    #[inline]
    pub fn peer_has_ended(&self) -> bool {
        self.peer_end.is_some()
    }

    /// Whether the connection was lost before the peer ended it.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Notes that the peer has ended the connection, with words if by an error.
    pub fn peer_ended(&mut self, words: Option<String>, events: &mut Events) {
        self.peer_end.get_or_insert(words);
        if let (Some(Some(_)), Some(Refused::Lost(why)), false) = (&self.peer_end, self.end(), self.closed) {
            events.lost.get_or_insert(why);
        }
    }

    /// Notes that the connection is lost, unless it had ended before.
    pub fn report_loss(&mut self, why: &str, events: &mut Events) {
        if !self.is_ended() {
            self.lost = Some(why.to_owned());
            if !self.closed {
                events.lost = Some(why.to_owned());
            }
        }
        events.notify_end();
    }

    /// Notes that no more frames come or go, for the reason `why`. Returns the status of everything in flight. After the
    /// peer's end this is an orderly end that no program waits for any longer. `None`: it was known.
    pub fn die(&mut self, why: &str, events: &mut Events) -> Option<TransferStatus> {
        if std::mem::replace(&mut self.dead, true) {
            return None;
        }
        if self.peer_end.is_some() {
            return Some(TransferStatus::Unread);
        }
        self.report_loss(why, events);
        Some(TransferStatus::Lost)
    }
}

/// Words, for the programs of both sides, about a message of `len` bytes for which its receiver has no memory.
pub fn no_memory(len: usize) -> String {
    format!(
        "the receiver has no memory for a message of {len} bytes: let it drop received messages sooner, send less at a \
         time, or give its process or host more memory"
    )
}

/// The longest beginning of a text that fits into `most` bytes.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[..end]
}

/// A peer's violation of the protocol, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
