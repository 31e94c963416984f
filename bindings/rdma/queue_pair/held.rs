//! Messages that wait: one that has found no receive yet, and those that came behind it.
//!
//! Such messages stay in the memory where they arrived, and take no other memory. Hardware has the peer retry instead.

use std::time::Instant;

use udeck_via::Arrival;
use udeck_via::transport::{Body, Inline};

use super::QueuePair;
use super::matching::failed;
use crate::face::{End, Face};
use crate::frame::{self, Head, Reason};
use crate::held_bytes::Account;
use crate::link;

pub(super) enum Message {
    Arrival(Arrival),
    /// The end of the connection.
    End(End),
}

impl Message {
    pub fn short(bytes: Inline) -> Message {
        Message::Arrival(Arrival { immediate: None, body: Body::Inline(bytes) })
    }

    /// Returns the message's length in bytes, and whether it answers an operation of this end.
    fn len_and_is_answer(&self, face: u8) -> (usize, bool) {
        let Message::Arrival(arrival) = self else { return (0, false) };
        let found = link::with_frame(arrival, |first, rest| {
            let is_answer =
                Head::read(first, face).is_some_and(|head| matches!(head.kind, frame::DATA | frame::TAKEN));
            (first.len() + rest.iter().map(|part| part.len()).sum::<usize>(), is_answer)
        });
        found.unwrap_or_default()
    }
}

/// A message that waits.
pub(super) struct Held {
    message: Message,
    _account: Account,
}

impl<F: Face> QueuePair<F> {
    /// Whether a message waits for a receive.
    #[inline]
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Has a message wait until a receive is posted. Messages behind it wait, too, except answers to this end's
    /// operations: the program may post the receive when an operation has completed.
    #[cold]
    pub(super) fn hold(&mut self, face: &mut F, message: Message) -> Result<(), End> {
        let (len, is_answer) = message.len_and_is_answer(F::FLAG);
        if self.is_holding() && is_answer {
            return self.take_message(face, &message).map(drop);
        }
        let Some(account) = face.held().add(len, self.is_holding()) else {
            return failed(face, Reason::NoReceive);
        };
        if !self.is_holding() {
            self.since = Some(Instant::now());
        }
        self.held.push_back(Held { message, _account: account });
        Ok(())
    }

    /// Whether one more arrival may be taken. If not, it stays in the connection, and so does an answer behind it.
    #[inline]
    pub(super) fn may_take_more(&self, face: &F) -> bool {
        !self.is_holding() || self.may_hold_more(face)
    }

    #[cold]
    fn may_hold_more(&self, face: &F) -> bool {
        !matches!(self.held.back(), Some(Held { message: Message::End(_), .. }))
            && !face.held().is_full()
            && F::may_hold_more(self.held.len(), !self.posted.is_empty())
    }

    /// Takes held messages, as far as there are receives, until `is_enough`.
    #[cold]
    pub(super) fn take_held(&mut self, face: &mut F, is_enough: impl Fn(&F) -> bool) -> Result<(), End> {
        while !is_enough(face)
            && let Some(held) = self.held.pop_front()
        {
            if !self.take_message(face, &held.message)? {
                self.since.get_or_insert_with(Instant::now);
                self.held.push_front(held);
                break;
            }
            self.since = None;
        }
        Ok(())
    }
}
