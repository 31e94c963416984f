//! How a connection is closed: by either program, by an error that one side tells the other, or by its loss.

use std::fmt;

use udeck_via::transport::{Refused, TransferStatus};

use crate::Events;

/// How far the end of a connection is, whatever carries it.
#[derive(Debug, Default)]
pub struct Close {
    /// The program has closed it.
    pub closed: bool,
    /// Nothing comes or goes any more.
    pub dead: bool,
    /// How the peer ended it: `Some` of words when by an error.
    peer_end: Option<Option<String>>,
    lost: Option<String>,
}

impl Close {
    /// How the connection is over for the program, if it is.
    pub fn end(&self) -> Option<Refused> {
        match (&self.peer_end, &self.lost) {
            (Some(Some(why)), _) => Some(Refused::Lost(format!("the peer ended it: {why}"))),
            (Some(None), _) => Some(Refused::Closed),
            (None, Some(why)) => Some(Refused::Lost(why.clone())),
            (None, None) => None,
        }
    }

    /// Whether the program may post.
    ///
    /// # Errors
    /// How the connection is over.
    #[inline]
    pub fn stands(&self) -> Result<(), Refused> {
        if !self.is_ended() && !self.closed { Ok(()) } else { Err(self.end().unwrap_or(Refused::Closed)) }
    }

    /// Whether it is over for the program.
    #[inline]
    pub fn is_ended(&self) -> bool {
        self.peer_end.is_some() || self.lost.is_some()
    }

    /// Whether the peer has ended it.
    #[inline]
    pub fn peer_has_ended(&self) -> bool {
        self.peer_end.is_some()
    }

    /// Whether it was lost before the peer ended it.
    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// The peer has ended it, with words if by an error.
    pub fn peer_ended(&mut self, words: Option<String>, events: &mut Events) {
        self.peer_end.get_or_insert(words);
        if let (Some(Some(_)), Some(Refused::Lost(why)), false) = (&self.peer_end, self.end(), self.closed) {
            events.lost.get_or_insert(why);
        }
    }

    /// It is lost, unless it was over before.
    pub fn report_loss(&mut self, why: &str, events: &mut Events) {
        if !self.is_ended() {
            self.lost = Some(why.to_owned());
            if !self.closed {
                events.lost = Some(why.to_owned());
            }
        }
        events.tell_end();
    }

    /// Nothing comes or goes any more, as `why` says: what becomes of what is under way. After the peer's end this is an
    /// orderly end that nobody waits for any longer. `None`: it was known.
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

/// As much of a text as fits into `most` bytes.
pub fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[..end]
}

/// What a peer has done wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
