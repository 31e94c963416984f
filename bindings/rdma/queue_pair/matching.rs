//! Arrivals of an end point: each finds its receive, its memory or its operation.

use udeck_via::transport::{Found, Inline};

use super::QueuePair;
use super::held::Message;
use crate::face::{End, Face};
use crate::frame::{self, Head, Reason};
use crate::link;
use crate::memory::Segment;

/// Most arrivals that one move takes, so that a peer that only sends does not keep the thread here.
const BOUND: usize = 64;

impl<F: Face> QueuePair<F> {
    /// Takes what has arrived, until `is_enough`.
    ///
    /// # Errors
    /// The connection ends.
    #[inline]
    pub(super) fn take_arrivals(&mut self, face: &mut F, is_enough: impl Fn(&F) -> bool) -> Result<(), End> {
        if self.is_holding() {
            self.take_held(face, &is_enough)?;
        }
        let mut short = Inline::EMPTY;
        for _ in 0..BOUND {
            if is_enough(face) || !self.may_take_more(face) {
                break;
            }
            let Some(vi) = &mut self.vi else { break };
            match vi.arrival_short(&mut short) {
                Found::Short(_) => self.take_short(face, &short)?,
                Found::Nothing => break,
                Found::Other => match vi.arrival() {
                    Ok(Some(arrival)) => self.take_or_hold(face, Message::Arrival(arrival))?,
                    Ok(None) => break,
                    Err(error) => return self.take_or_hold(face, Message::End((&error).into())),
                },
            }
        }
        Ok(())
    }

    /// Takes a message that is shorter than [`Inline::CAPACITY`].
    ///
    /// # Errors
    /// The connection ends.
    #[inline]
    pub fn take_short(&mut self, face: &mut F, short: &Inline) -> Result<(), End> {
        if self.is_holding() || !self.take(face, short.bytes(), &[])? {
            self.hold(face, Message::short(*short))?;
        }
        Ok(())
    }

    fn take_or_hold(&mut self, face: &mut F, message: Message) -> Result<(), End> {
        if self.is_holding() || !self.take_message(face, &message)? {
            self.hold(face, message)?;
        }
        Ok(())
    }

    /// Takes a message. `false`: one without a receive, which is not taken.
    pub(super) fn take_message(&mut self, face: &mut F, message: &Message) -> Result<bool, End> {
        match message {
            Message::End(end) => Err(*end),
            Message::Arrival(arrival) => {
                let taken = link::with_frame(arrival, |first, rest| self.take(face, first, rest));
                taken.unwrap_or(Err(End::Nonsense))
            }
        }
    }

    /// Takes a frame: `first` has its head and the beginning of its body, `rest` the rest of the body. `false`: a
    /// message without a receive, which is not taken.
    #[inline]
    fn take(&mut self, face: &mut F, first: &[u8], rest: &[&[u8]]) -> Result<bool, End> {
        let head = Head::read(first, F::FLAG).ok_or(End::Nonsense)?;
        let body = &first[frame::HEAD..];
        if head.kind != frame::SEND {
            return self.take_other(face, head, body, rest);
        }
        let Some(receive) = face.next_receive(&mut self.receives) else {
            return self.without_receive(face);
        };
        match face.receive(receive, head, body, rest) {
            Ok(()) => self.count_taken(face),
            Err(reason) => failed(face, reason)?,
        }
        Ok(true)
    }

    #[cold]
    fn without_receive(&self, face: &mut F) -> Result<bool, End> {
        if face.may_wait(self.since) {
            return Ok(false);
        }
        failed(face, Reason::NoReceive)?;
        Ok(true)
    }

    #[cold]
    fn take_other(&mut self, face: &mut F, head: Head, body: &[u8], rest: &[&[u8]]) -> Result<bool, End> {
        let mut whole = Vec::new();
        let flat = link::flat(body, rest, &mut whole);
        match head.kind {
            frame::WRITE => return self.take_write(face, head.immediate(), flat),
            frame::READ => self.take_read(face, flat),
            frame::DATA => self.take_data(face, flat),
            frame::TAKEN if face.is_acknowledged() => self.take_taken(face, flat),
            frame::BROKEN => Err(Reason::read(flat).map_or(End::Nonsense, End::Broken)),
            _ => Err(End::Nonsense),
        }?;
        Ok(true)
    }

    /// Takes a write of the peer to memory here. `false`: its immediate data wait for a receive, and it with them.
    fn take_write(&mut self, face: &mut F, immediate: Option<u32>, body: &[u8]) -> Result<bool, End> {
        if immediate.is_some() && self.receives.is_empty() && face.may_wait(self.since) {
            return Ok(false);
        }
        let (address, key, data) = frame::read_write(body).ok_or(End::Nonsense)?;
        let len = u32::try_from(data.len()).map_err(|_| End::Nonsense)?;
        if !face.write(Segment { address, len, key }, data) {
            failed(face, Reason::BadKey)?;
            return Ok(true);
        }
        if let Some(immediate) = immediate {
            let Some(receive) = face.next_receive(&mut self.receives) else {
                failed(face, Reason::NoReceive)?;
                return Ok(true);
            };
            face.receive_immediate(receive, immediate, data.len());
        }
        self.count_taken(face);
        Ok(true)
    }

    /// Takes the peer's request to read memory here.
    fn take_read(&mut self, face: &mut F, body: &[u8]) -> Result<(), End> {
        let (address, key, len) = frame::read_read(body).ok_or(End::Nonsense)?;
        // Longer than any message, if it does not fit: the face refuses that.
        let from = Segment { address, len: u32::try_from(len).unwrap_or(u32::MAX), key };
        let from = face.may_read(from).then_some(from);
        if self.answers.push(from, F::MAX_POSTED) { Ok(()) } else { Err(End::Nonsense) }
    }
}

/// Ends a reliable connection: an arrival found no place. An unreliable connection stands.
#[cold]
pub(super) fn failed<F: Face>(face: &F, reason: Reason) -> Result<(), End> {
    if face.is_reliable() { Err(End::Arrival(reason)) } else { Ok(()) }
}
