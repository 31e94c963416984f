//! An end point's queues, and its posted operations: they are sent in order, wait at fences, and complete in order.

mod flush;
mod held;
mod matching;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Instant;

use udeck_via::Vi;

use crate::face::{End, Face, Outcome, Request};
use crate::frame::{self, Head, Reason};
use crate::link::{self, Answers, Stop};
use crate::ring::Ring;
use held::Held;

/// The queues of an end point, over a virtual interface.
pub struct QueuePair<F: Face> {
    /// The interface below, if the end point has one.
    pub vi: Option<Vi>,
    /// Operations that have not completed, oldest first.
    posted: VecDeque<Posted<F::Operation>>,
    /// Number of operations at the end of `posted` that have not been sent: they found no room, or are fenced.
    unsent: usize,
    /// Number of reads in flight.
    reads: usize,
    /// Unanswered reads of the peer.
    answers: Answers,
    /// Number of SENDs and WRITEs that were taken since the last TAKEN to the peer.
    taken: u32,
    /// Posted receives, oldest first.
    pub receives: Ring<F::Receive>,
    /// A message that has found no receive yet, and those that came behind it.
    held: VecDeque<Held>,
    /// Time since which the oldest held message is the next one.
    since: Option<Instant>,
}

struct Posted<O> {
    operation: O,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unsent,
    /// Sent, and the peer has not said that it has taken it.
    Untaken,
    /// A read in flight.
    Reading,
    Over(Outcome),
}

impl<F: Face> QueuePair<F> {
    /// The queues of an end point, empty.
    pub fn new(vi: Option<Vi>) -> QueuePair<F> {
        QueuePair {
            vi,
            posted: VecDeque::new(),
            unsent: 0,
            reads: 0,
            answers: Answers::default(),
            taken: 0,
            receives: Ring::default(),
            held: VecDeque::new(),
            since: None,
        }
    }

    /// Number of operations that have not completed.
    #[inline]
    pub fn posted(&self) -> usize {
        self.posted.len()
    }

    /// Number of reads in flight.
    pub fn reads(&self) -> usize {
        self.reads
    }

    /// Whether something is to be sent.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.unsent + self.answers.len() > 0 || self.taken > 0
    }

    /// Takes what has arrived, until `is_enough`; then sends what waits.
    ///
    /// # Errors
    /// The connection ends.
    #[inline]
    pub fn move_on(&mut self, face: &mut F, is_enough: impl Fn(&F) -> bool) -> Result<(), End> {
        self.take_arrivals(face, is_enough)?;
        if self.has_unsent() { self.send_waiting(face) } else { Ok(()) }
    }

    /// Posts an operation, and sends as far as there is room.
    ///
    /// # Errors
    /// The connection ends.
    pub fn post(&mut self, face: &mut F, operation: F::Operation) -> Result<(), End> {
        self.posted.push_back(Posted { operation, stage: Stage::Unsent });
        self.unsent += 1;
        self.send_waiting(face)
    }

    /// Sends all that waits, as far as there is room: answers to reads first.
    ///
    /// # Errors
    /// The connection ends.
    #[inline(never)]
    fn send_waiting(&mut self, face: &mut F) -> Result<(), End> {
        for attempt in 0..2 {
            match self.send_all(face) {
                Ok(()) => break,
                Err(Stop::Busy) if attempt == 0 => {
                    // Asks for a notification when there may be room, and tries once more.
                    let Some(vi) = &mut self.vi else { break };
                    vi.reclaim();
                    vi.request_send_notify();
                }
                Err(Stop::Busy) => break,
                Err(Stop::Bad) => return Err(End::Local),
                Err(Stop::Ended(error)) => return Err((&error).into()),
            }
        }
        Ok(())
    }

    fn send_all(&mut self, face: &mut F) -> Result<(), Stop> {
        self.answers.send(&mut self.vi, face.nic(), |from, to| face.read(from, to))?;
        if self.taken > 0 {
            self.say_taken()?;
            self.taken = 0;
        }
        while self.unsent > 0 {
            let at = self.posted.len() - self.unsent;
            let posted = &mut self.posted[at];
            if self.reads > 0 && F::is_fenced(&posted.operation) {
                break;
            }
            posted.stage = match send(&mut self.vi, face, &posted.operation) {
                Ok(stage) => stage,
                Err(Stop::Bad) => Stage::Over(Outcome::Local),
                Err(other) => return Err(other),
            };
            let stage = posted.stage;
            self.unsent -= 1;
            self.reads += usize::from(stage == Stage::Reading);
            self.complete_in_order(face);
            if stage == Stage::Over(Outcome::Local) && face.is_reliable() {
                return Err(Stop::Bad);
            }
        }
        Ok(())
    }

    fn complete_in_order(&mut self, face: &mut F) {
        while let Some(&Posted { stage: Stage::Over(outcome), .. }) = self.posted.front()
            && let Some(posted) = self.posted.pop_front()
        {
            face.complete(posted.operation, outcome);
        }
    }

    /// Takes the answer to the oldest read.
    ///
    /// # Errors
    /// The connection ends.
    fn take_data(&mut self, face: &mut F, body: &[u8]) -> Result<(), End> {
        let answer = frame::read_data(body).ok_or(End::Nonsense)?;
        let read = self.posted.iter_mut().find(|posted| posted.stage == Stage::Reading);
        let read = read.ok_or(End::Nonsense)?;
        let (outcome, end) = match answer {
            None => (Outcome::Remote(Reason::BadKey), Err(End::Refused)),
            Some(data) if data.len() != F::len(&read.operation) => return Err(End::Nonsense),
            Some(data) if face.scatter(&read.operation, data) => (Outcome::Success, Ok(())),
            Some(_) => (Outcome::Local, Err(End::Local)),
        };
        read.stage = Stage::Over(outcome);
        self.reads -= 1;
        self.complete_in_order(face);
        end
    }

    // ---- TAKEN, where operations complete when the peer has taken them ----

    /// Counts a message or write of the peer's as taken.
    #[inline]
    fn count_taken(&mut self, face: &F) {
        if face.is_acknowledged() {
            // A peer that goes on without reading TAKEN has sent more than any queue holds: a wrong count does no
            // harm then.
            self.taken = self.taken.saturating_add(1);
        }
    }

    /// Completes as many operations as the peer says it has taken.
    ///
    /// # Errors
    /// Fewer were under way.
    fn take_taken(&mut self, face: &mut F, body: &[u8]) -> Result<(), End> {
        for _ in 0..frame::word(body).ok_or(End::Nonsense)? {
            let oldest = self.posted.iter_mut().find(|posted| posted.stage == Stage::Untaken);
            oldest.ok_or(End::Nonsense)?.stage = Stage::Over(Outcome::Success);
            self.complete_in_order(face);
        }
        Ok(())
    }

    fn say_taken(&mut self) -> Result<(), Stop> {
        link::send(&mut self.vi, Head::plain(frame::TAKEN), &self.taken.to_le_bytes())
    }
}

/// Sends an operation's frame. Returns the operation's next stage.
fn send<F: Face>(vi: &mut Option<Vi>, face: &mut F, operation: &F::Operation) -> Result<Stage, Stop> {
    match face.begin(operation).ok_or(Stop::Bad)? {
        Request::Nothing => Ok(Stage::Over(Outcome::Success)),
        Request::Read(address, key) => {
            let asked = frame::read_request(address, key, F::len(operation));
            link::send(vi, Head::plain(frame::READ), &asked)?;
            Ok(Stage::Reading)
        }
        Request::Data(head, place) => {
            let place = place.map(|(address, key)| frame::write_head(address, key));
            let prefix = place.as_ref().map_or(&[][..], |place| place);
            let gather = |to: &mut [u8]| face.gather(operation, to);
            link::send_filled(vi, face.nic(), head, prefix, F::len(operation), gather)?;
            Ok(if face.is_acknowledged() { Stage::Untaken } else { Stage::Over(Outcome::Success) })
        }
    }
}
