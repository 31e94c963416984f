//! One member's engine in a group: its mailbox, a postbox to each member that it has sent to, and messages
//! that came early.
//!
//! No step blocks: a step that cannot go on says what it waits for, and [`super::waiting`] waits. Connections
//! are made there, too.

use std::collections::VecDeque;
use std::task::Poll;

use udeck_via::mem::Fill;
use udeck_via::{Block, Deadline, PollBudget, PreferredCpu};

use super::failure::{self, CallFailure};
use super::join::{connect_member, try_connect_member};
use super::kind::{Kind, NUMBERS, SYNCHRONIZE, Signature};
use super::state::GroupState;
use crate::error::{Error, FailureCause, Result};
use crate::mailbox::Mailbox;
use crate::parcel::Parcel;
use crate::postbox::Postbox;
use crate::protocol::Protocol;
use crate::received::Received;
use crate::send::Channel;
use crate::send::poster::Poster;
use crate::wait_policy::WaitPolicy;

/// Bound of another member's messages that are kept for later calls. Only members that break the interface
/// send more.
const MAX_EARLY: usize = 1 << 16;

/// Number of calls within which a request has to be over.
const MAX_CALL_AGE: u32 = 2 * SYNCHRONIZE - 1;

/// Yields before a member waits as for any message, where members take turns on processors: others compute
/// meanwhile.
const YIELDS: usize = 100;

pub(crate) struct Engine {
    pub inbox: Mailbox<u8>,
    /// Postboxes, by member.
    out: Vec<Option<Postbox<u8>>>,
    /// Messages kept, by member, for calls or steps that this member has not reached.
    early: Vec<VecDeque<Received<u8>>>,
    early_count: usize,
    /// Sequence number of the next collective call.
    pub number: u32,
    /// The processor that this member moves to, where members take turns on processors. Neighbours have
    /// different ones, so that two members that communicate can run at the same time; left where they were
    /// started and woken, all might share one. A member that waits here yields at once: some members that it
    /// waits for have only this processor.
    pub home: Option<PreferredCpu>,
    /// Requests whose end has not been seen, by the number of their call.
    pub pending: Vec<usize>,
    /// Number of the request before which all members wait for each other, if this member has not seen yet
    /// that they did.
    pub unsynchronized: Option<usize>,
    /// Tag of each call that this member has made, by number: messages of the same call must have the same
    /// tag.
    called: Box<[u32; 256]>,
    /// The failure of the group, and the number of the first call that cannot end.
    failure: Option<(u32, CallFailure)>,
    /// A barrier that ran out of time.
    pub unfinished: Option<Unfinished>,
    /// The event that the last pending step waits for.
    pub awaited: Awaited,
    /// Algorithms that were reported to the user (`DECK_EXPLAIN`).
    pub explained: Vec<(super::kind::Kind, super::choice::Algorithm)>,
}

/// A barrier that this member has begun and not passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    pub call: Signature,
    /// Index of the step at which it goes on.
    pub at: usize,
    /// Whether it comes before a call that the program has made.
    pub synchronizes: bool,
}

impl Unfinished {
    pub fn new(call: Signature) -> Self {
        Unfinished { call, at: 0, synchronizes: false }
    }
}

/// The event that a step waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaited {
    /// A message of this member.
    Message(usize),
    /// This member has to make room for a message, or to give memory back.
    Room(usize),
    /// This member has to make its mailbox.
    Mailbox(usize),
}

impl Awaited {
    pub fn member(self) -> usize {
        match self {
            Awaited::Message(member) | Awaited::Room(member) | Awaited::Mailbox(member) => member,
        }
    }
}

impl Engine {
    pub fn new(inbox: Mailbox<u8>, members: usize, home: Option<PreferredCpu>) -> Self {
        Engine {
            inbox,
            out: (0..members).map(|_| None).collect(),
            early: (0..members).map(|_| VecDeque::new()).collect(),
            early_count: 0,
            number: 0,
            home,
            pending: Vec::new(),
            unsynchronized: None,
            called: Box::new([0; 256]),
            failure: None,
            unfinished: None,
            awaited: Awaited::Message(0),
            explained: Vec::new(),
        }
    }

    /// Begins the group's next call.
    ///
    /// # Errors
    /// [`Error::CallMismatch`]: a member is known to have made another call. The group has failed then.
    pub fn begin(&mut self, state: &GroupState, call: Signature) -> Result<Signature> {
        let call = call.numbered(self.number);
        self.called[call.number()] = call.tag();
        self.number = self.number.wrapping_add(1);
        if self.early_count > 0 {
            let early = self.early.iter().enumerate();
            let mut of_others =
                early.flat_map(|(member, all)| all.iter().map(move |message| (member, message.tag())));
            let checked = of_others.try_for_each(|(member, tag)| self.check_tag(state, member, tag));
            checked.inspect_err(|error| self.fail(state, call, error))?;
        }
        Ok(call)
    }

    /// Checks that the next call may begin.
    ///
    /// # Errors
    /// An earlier call has left the members at different calls.
    pub fn check(&self, state: &GroupState) -> Result {
        self.check_number(state, self.number)?;
        if self.unfinished.is_some() {
            return Err(
                state.failed(FailureCause::Deadline, "a barrier ran out of time: call it again first")
            );
        }
        // Messages of that request and of calls of members that are ahead must differ in their numbers.
        let age = |number: &usize| self.number.wrapping_sub(*number as u32) % NUMBERS;
        if self.pending.iter().any(|number| age(number) >= MAX_CALL_AGE) {
            let whom = format!("a request of the group that began {MAX_CALL_AGE} calls before");
            return Err(Error::WouldBlock { what: "a collective call", whom });
        }
        Ok(())
    }

    /// Checks that a call may go on.
    ///
    /// # Errors
    /// The group has failed, at this call or before.
    #[inline]
    pub fn check_call(&self, state: &GroupState, call: Signature) -> Result {
        self.check_number(state, self.whole_number(call.number()))
    }

    #[inline]
    fn check_number(&self, state: &GroupState, number: u32) -> Result {
        match &self.failure {
            Some((first, failure)) if !is_before(number, *first) => Err(failure.error(state)),
            _ => Ok(()),
        }
    }

    /// Reconstructs the number of a call from its lower bits. The call is one that this member has begun and
    /// not ended, or begins next: at most 128 calls away from the next one. Calls of other members may be
    /// further.
    fn whole_number(&self, number: usize) -> u32 {
        let ahead = (number as u8).wrapping_sub(self.number as u8) as i8;
        self.number.wrapping_add_signed(ahead.into())
    }

    /// Fails the group: the members may be at different calls from now on. Tells the others, so that none of
    /// them waits for this member in the call, or in an earlier one that this member has begun and not ended.
    #[cold]
    pub fn fail(&mut self, state: &GroupState, call: Signature, error: &Error) {
        if self.check_call(state, call).is_err() {
            return;
        }
        let unfinished = self.unfinished.map(|unfinished| unfinished.call.number());
        let begun = self.pending.iter().copied().chain(unfinished).chain(self.unsynchronized);
        let first = begun.map(|number| self.whole_number(number)).fold(
            self.whole_number(call.number()),
            |first, other| if is_before(other, first) { other } else { first },
        );
        let failure = CallFailure::of(state, call, error);
        failure::report(state, first, &failure, |member| self.out[member].take());
        self.failure = Some((first, failure));
    }

    /// Notes that a member has failed. Calls before its first failed one may still end: it has done its part
    /// of them.
    #[cold]
    fn receive_failure(&mut self, state: &GroupState, member: usize, message: &Received<u8>) {
        let (first, failure) = CallFailure::decode_message(state, member, message);
        let first = clamp_call_number(self.number, first);
        if self.check_number(state, first).is_ok() {
            self.failure = Some((first, failure));
        }
    }

    /// Removes requests from the group that other threads have dropped.
    #[cold]
    pub fn drop_requests(&mut self, state: &GroupState, dropped: Vec<Signature>) {
        for call in dropped {
            self.pending.retain(|number| *number != call.number());
            let error = state.broken_call(call, "its request was dropped before its end".into());
            self.fail(state, call, &error);
        }
    }

    /// Checks that a message belongs to a call that this member has made, or will make.
    #[cold]
    fn check_tag(&self, state: &GroupState, member: usize, tag: u32) -> Result {
        let theirs = Signature::of_tag(tag);
        // Number of calls by which `theirs` is behind the last one, modulo 256.
        let behind = (self.number as u8).wrapping_sub(1).wrapping_sub(theirs.number() as u8);
        let has_begun = u32::from(behind) < self.number && behind < 128;
        let ours = self.called[theirs.number()];
        if has_begun && ours != tag {
            return Err(state.mismatch(member, tag, Signature::of_tag(ours)));
        }
        // All earlier calls are over: they have received all their messages.
        if has_begun && behind > 0 && self.pending.is_empty() {
            return Err(state.too_many_parts(member, theirs));
        }
        Ok(())
    }

    /// Notes what a step waits for. `Pending`, unless the group has failed: then nobody sends any more.
    #[cold]
    fn blocked_on<R>(&mut self, state: &GroupState, call: Signature, awaited: Awaited) -> Poll<Result<R>> {
        self.awaited = awaited;
        match self.check_call(state, call) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    // ---- sending ----

    /// Posts to a member by `post`, which does not wait. `Pending`: there is no room, or no memory.
    #[inline]
    pub fn try_send(
        &mut self,
        state: &GroupState,
        to: usize,
        call: Signature,
        post: impl FnOnce(&Poster) -> Result,
    ) -> Poll<Result> {
        let Some(postbox) = &self.out[to] else { return self.blocked_on(state, call, Awaited::Mailbox(to)) };
        match post(postbox.poster()) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => self.send_failed(state, to, call, error),
        }
    }

    #[cold]
    fn send_failed(&mut self, state: &GroupState, to: usize, call: Signature, error: Error) -> Poll<Result> {
        if !matches!(error, Error::WouldBlock { .. }) {
            let error = state.as_ended(error, call);
            return Poll::Ready(Err(self.failure_or(state, call, error)));
        }
        // The receiving member may be waiting for room at this member.
        match self.take_all(state, call) {
            Ok(()) => self.blocked_on(state, call, Awaited::Room(to)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Replaces an error by the group's failure, if it has failed: a member that is gone may have heard of
    /// the failure, and so can this one by receiving its messages.
    #[cold]
    fn failure_or(&mut self, state: &GroupState, call: Signature, error: Error) -> Error {
        let _ = self.take_all(state, call);
        self.check_call(state, call).err().unwrap_or(error)
    }

    /// Connects to a member, once it has made its mailbox.
    #[cold]
    pub fn connect(&mut self, state: &GroupState, to: usize, call: Signature, deadline: Deadline) -> Result {
        let channel =
            connect_member(state, to, call, deadline).map_err(|error| self.failure_or(state, call, error))?;
        self.keep_channel(state, to, channel)
    }

    /// Connects to a member if it has made its mailbox.
    #[cold]
    pub fn connect_now(&mut self, state: &GroupState, to: usize, call: Signature) -> Result<bool> {
        let connected =
            try_connect_member(state, to, call).map_err(|error| self.failure_or(state, call, error))?;
        let Some(channel) = connected else { return Ok(false) };
        self.keep_channel(state, to, channel).map(|()| true)
    }

    fn keep_channel(&mut self, state: &GroupState, to: usize, channel: Channel) -> Result {
        let postbox = Postbox::new(state.world(), &state.mailbox_of(to), channel);
        postbox.set_protocol(Protocol::Auto)?; // whatever the program sets for its own messages
        self.out[to] = Some(postbox);
        Ok(())
    }

    /// Allocates memory for a message to a member. `is_piece`: the message is one of many, so that all
    /// missing memory may be held by the group's own messages, and comes back.
    pub fn try_block(
        &mut self,
        state: &GroupState,
        to: usize,
        call: Signature,
        (len, fill): (usize, Fill),
        is_piece: bool,
    ) -> Poll<Result<Block>> {
        match state.world().block_for_message(len, fill, WaitPolicy::None) {
            Ok(block) => Poll::Ready(Ok(block)),
            Err(error)
                if matches!(error, Error::WouldBlock { .. })
                    || (is_piece && matches!(error, Error::NoMemory { .. })) =>
            {
                match self.take_all(state, call) {
                    Ok(()) => self.blocked_on(state, call, Awaited::Room(to)),
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    // ---- receiving ----

    /// Passes the next message of a member in a call to `take`, in place: each move of a short message costs
    /// more than everything else that is done with it. `may_spin`: the call may spin for the moment in which
    /// an answer comes.
    #[inline]
    pub fn try_receive<R>(
        &mut self,
        state: &GroupState,
        from: usize,
        call: Signature,
        may_spin: bool,
        take: impl FnOnce(&mut Received<u8>) -> R,
    ) -> Poll<Result<R>> {
        if self.early_count > 0
            && let Some(found) = self.take_early(from, call)
        {
            let mut found = found;
            return Poll::Ready(Ok(take(&mut found)));
        }
        let mut budget = PollBudget::once();
        while budget.take() {
            let mut message = Received::new(Parcel::NONE);
            match self.next(may_spin, &mut message) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Poll::Ready(Err(state.as_ended(error, call))),
            }
            if message.tag() == call.tag() && state.layout().ranks[from] == message.source() {
                return Poll::Ready(Ok(take(&mut message)));
            }
            if let Err(error) = self.keep(state, call, message) {
                return Poll::Ready(Err(error));
            }
        }
        self.blocked_on(state, call, Awaited::Message(from))
    }

    /// Receives the next message of any member into `place`, which must be empty.
    #[inline]
    fn next(&mut self, may_spin: bool, place: &mut Received<u8>) -> Result<bool> {
        if !may_spin {
            return self.inbox.try_retrieve_in_place(place);
        }
        if self.home.is_none() {
            return self.inbox.retrieve_soon(place);
        }
        for _ in 0..YIELDS {
            if self.inbox.try_retrieve_in_turn(place)? {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    #[cold]
    fn take_early(&mut self, from: usize, call: Signature) -> Option<Received<u8>> {
        let early = &mut self.early[from];
        let at = early.iter().position(|message| message.tag() == call.tag())?;
        self.early_count -= 1;
        early.remove(at)
    }

    /// Keeps a message for later.
    ///
    /// # Errors
    /// [`Error::CallMismatch`]: the message belongs to a call that this member has not made. The errors of
    /// [`Engine::check_call`].
    #[cold]
    pub fn keep(&mut self, state: &GroupState, call: Signature, message: Received<u8>) -> Result {
        let member = state.layout().member_of(message.source());
        // A message that is not from another member is ignored.
        let Some(member) = member.filter(|member| *member != state.layout().me) else { return Ok(()) };
        if Signature::of_tag(message.tag()).kind() == Some(Kind::Failed) {
            self.receive_failure(state, member, &message);
            return self.check_call(state, call);
        }
        self.check_tag(state, member, message.tag())?;
        if self.early[member].len() >= MAX_EARLY {
            return Err(state.too_many_early(member));
        }
        self.early[member].push_back(message);
        self.early_count += 1;
        Ok(())
    }

    /// Whether a message of this call has come from a member and was not taken.
    pub fn has_early(&self, from: usize, call: Signature) -> bool {
        self.early[from].iter().any(|message| message.tag() == call.tag())
    }

    /// Whether messages that have come wait for a call or a step of this member.
    pub fn has_any_early(&self) -> bool {
        self.early_count > 0
    }

    /// Receives all messages that have come, so that others have room to post.
    pub fn take_all(&mut self, state: &GroupState, call: Signature) -> Result {
        let mut budget = PollBudget::once();
        while budget.take()
            && let Some(message) = self.inbox.try_retrieve()?
        {
            self.keep(state, call, message)?;
        }
        Ok(())
    }
}

/// Whether one call comes before another. Numbers wrap around.
fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

/// Limits the number of a call that a member has sent. No call under way is further from this member's next
/// one than all numbers of tags, and a comparison has to hold however many calls this member makes
/// afterwards.
fn clamp_call_number(number: u32, said: u32) -> u32 {
    let away = said.wrapping_sub(number) as i32;
    number.wrapping_add_signed(away.clamp(-(NUMBERS as i32), NUMBERS as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_is_near() {
        assert_eq!(clamp_call_number(192, 3), 3);
        assert_eq!(clamp_call_number(2, u32::MAX - 186), u32::MAX - 186);
        assert_eq!(clamp_call_number(3, 195), 195);
        // A failed call stays failed, and the next calls fail soon.
        let calls_later = 1 << 30;
        for number in [0_u32, 5, 1 << 31, u32::MAX] {
            assert!(!is_before(
                number.wrapping_add(calls_later),
                clamp_call_number(number, number.wrapping_sub(calls_later * 2 - 1))
            ));
            assert!(!is_before(
                number.wrapping_add(NUMBERS),
                clamp_call_number(number, number.wrapping_add(calls_later * 2 - 1))
            ));
        }
    }
}
