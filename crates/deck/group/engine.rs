//! One member's end of a group: its mailbox, a postbox to each member that it has sent to, and messages that came early.
//!
//! No step blocks: what cannot go on says what it waits for, and [`super::waiting`] waits. Connections are made there, too.

use std::collections::VecDeque;
use std::task::Poll;

use udeck_via::mem::Fill;
use udeck_via::{Block, Deadline, Home, PollBudget};

use super::failure::{self, Failure};
use super::kind::{Kind, NUMBERS, SYNCHRONIZE, Signature};
use super::meet::{meet, meet_now};
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

/// Messages of another member that a member keeps for later calls. More come only from members that do not keep to the interface.
const MAX_EARLY: usize = 1 << 16;

/// So many calls after its beginning a request has to be over.
const OLDEST: u32 = 2 * SYNCHRONIZE - 1;

/// How often a member yields, where members take turns on processors, before it waits as for any message: then somebody computes.
const TURNS: usize = 100;

pub(crate) struct Engine {
    pub inbox: Mailbox<u8>,
    /// By member.
    out: Vec<Option<Postbox<u8>>>,
    /// By member: what it has sent for calls, or steps, that this member has not come to.
    early: Vec<VecDeque<Received<u8>>>,
    early_count: usize,
    /// Of the next call.
    pub number: u32,
    /// Where members take turns on processors: the one that this member goes to. Neighbours have different ones, so that two that
    /// speak to each other can run at the same time; left where they were started and woken, all may sit on one. And who
    /// waits here yields at once: some of those that it waits for have no other processor than this one.
    pub home: Option<Home>,
    /// Requests whose ends nobody has seen: their calls, by number.
    pub pending: Vec<usize>,
    /// A request before which all members wait for each other, and this one has not seen that they did: by number.
    pub unmet: Option<usize>,
    /// What this member has called, by number: what others send of these calls has to say the same.
    called: Box<[u32; 256]>,
    /// Why the group cannot be used any more, and the number of the first call that has no end.
    failure: Option<(u32, Failure)>,
    /// A barrier that ran out of time.
    pub unfinished: Option<Unfinished>,
    /// What the last step that could not go on waits for.
    pub awaited: Awaited,
    /// Algorithms that the user was told of (`DECK_EXPLAIN`).
    pub explained: Vec<(super::kind::Kind, super::choice::Algorithm)>,
}

/// A barrier of which this member has taken some steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unfinished {
    pub call: Signature,
    /// The step at which it goes on.
    pub at: usize,
    /// Whether it comes before the call that the program has made.
    pub synchronizes: bool,
}

impl Unfinished {
    pub fn new(call: Signature) -> Self {
        Unfinished { call, at: 0, synchronizes: false }
    }
}

/// What a step waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaited {
    /// A message of this member.
    Message(usize),
    /// This member, to make room for a message, or to give memory back.
    Room(usize),
    /// This member, to make its mailbox.
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
    pub fn new(inbox: Mailbox<u8>, members: usize, home: Option<Home>) -> Self {
        Engine {
            inbox,
            out: (0..members).map(|_| None).collect(),
            early: (0..members).map(|_| VecDeque::new()).collect(),
            early_count: 0,
            number: 0,
            home,
            pending: Vec::new(),
            unmet: None,
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
    /// [`Error::CallMismatch`]: a member is known to have called something else. The group has failed then.
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

    /// # Errors
    /// An earlier call has left the members at different places.
    pub fn check(&self, state: &GroupState) -> Result {
        self.check_number(state, self.number)?;
        if self.unfinished.is_some() {
            return Err(
                state.failed(FailureCause::Deadline, "a barrier ran out of time: call it again first")
            );
        }
        // What is sent for it, and for calls of members that are ahead, has to differ in its number.
        let age = |number: &usize| self.number.wrapping_sub(*number as u32) % NUMBERS;
        if self.pending.iter().any(|number| age(number) >= OLDEST) {
            let whom = format!("a request of the group that began {OLDEST} calls before");
            return Err(Error::WouldBlock { what: "a collective call", whom });
        }
        Ok(())
    }

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

    /// The number of a call that this member has begun and not ended, or begins next, of its lower bits. Such a call is at most 128 calls away
    /// from the next one; calls of other members may be further.
    fn whole_number(&self, number: usize) -> u32 {
        let ahead = (number as u8).wrapping_sub(self.number as u8) as i8;
        self.number.wrapping_add_signed(ahead.into())
    }

    /// The members may be at different places from now on. The others are told, so that none of them waits for this one: in the call,
    /// or in an earlier one that this member has begun and not ended.
    #[cold]
    pub fn fail(&mut self, state: &GroupState, call: Signature, error: &Error) {
        if self.check_call(state, call).is_err() {
            return;
        }
        let unfinished = self.unfinished.map(|unfinished| unfinished.call.number());
        let begun = self.pending.iter().copied().chain(unfinished).chain(self.unmet);
        let first = begun.map(|number| self.whole_number(number)).fold(
            self.whole_number(call.number()),
            |first, other| if is_before(other, first) { other } else { first },
        );
        let failure = Failure::of(state, call, error);
        failure::tell(state, first, &failure, |member| self.out[member].take());
        self.failure = Some((first, failure));
    }

    /// A member has failed. Calls before that one may end all the same: it has done its part of them.
    #[cold]
    fn hear_failure(&mut self, state: &GroupState, member: usize, message: &Received<u8>) {
        let (first, failure) = Failure::told(state, member, message);
        let first = nearby(self.number, first);
        if self.check_number(state, first).is_ok() {
            self.failure = Some((first, failure));
        }
    }

    /// Takes requests out of the group that other threads have dropped.
    #[cold]
    pub fn drop_requests(&mut self, state: &GroupState, dropped: Vec<Signature>) {
        for call in dropped {
            self.pending.retain(|number| *number != call.number());
            let error = state.bad(call, "its request was dropped before its end".into());
            self.fail(state, call, &error);
        }
    }

    /// Whether a message is of a call that this member has made, or will make.
    #[cold]
    fn check_tag(&self, state: &GroupState, member: usize, tag: u32) -> Result {
        let theirs = Signature::of_tag(tag);
        // How many calls it is behind the last one, modulo 256.
        let behind = (self.number as u8).wrapping_sub(1).wrapping_sub(theirs.number() as u8);
        let has_begun = u32::from(behind) < self.number && behind < 128;
        let ours = self.called[theirs.number()];
        if has_begun && ours != tag {
            return Err(state.mismatch(member, tag, Signature::of_tag(ours)));
        }
        // All earlier calls are over: they have had all that they consist of.
        if has_begun && behind > 0 && self.pending.is_empty() {
            return Err(state.left_over(member, theirs));
        }
        Ok(())
    }

    /// Nothing can be done before that has come. `Pending`, unless the group has failed: then nobody sends any more.
    #[cold]
    fn stuck<R>(&mut self, state: &GroupState, call: Signature, awaited: Awaited) -> Poll<Result<R>> {
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
        let Some(postbox) = &self.out[to] else { return self.stuck(state, call, Awaited::Mailbox(to)) };
        match post(postbox.poster()) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => self.not_sent(state, to, call, error),
        }
    }

    #[cold]
    fn not_sent(&mut self, state: &GroupState, to: usize, call: Signature, error: Error) -> Poll<Result> {
        if !matches!(error, Error::WouldBlock { .. }) {
            let error = state.as_ended(error, call);
            return Poll::Ready(Err(self.told_or(state, call, error)));
        }
        // That member may wait for room here.
        match self.take_all(state, call) {
            Ok(()) => self.stuck(state, call, Awaited::Room(to)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// A member that is gone may have heard before this one that the group has failed, and why. So has this one, if it looks.
    #[cold]
    fn told_or(&mut self, state: &GroupState, call: Signature, error: Error) -> Error {
        let _ = self.take_all(state, call);
        self.check_call(state, call).err().unwrap_or(error)
    }

    /// Connects to a member, once it has made its mailbox.
    #[cold]
    pub fn connect(&mut self, state: &GroupState, to: usize, call: Signature, deadline: Deadline) -> Result {
        let channel = meet(state, to, call, deadline).map_err(|error| self.told_or(state, call, error))?;
        self.keep_channel(state, to, channel)
    }

    /// Connects to a member if it has made its mailbox.
    #[cold]
    pub fn connect_now(&mut self, state: &GroupState, to: usize, call: Signature) -> Result<bool> {
        let met = meet_now(state, to, call).map_err(|error| self.told_or(state, call, error))?;
        let Some(channel) = met else { return Ok(false) };
        self.keep_channel(state, to, channel).map(|()| true)
    }

    fn keep_channel(&mut self, state: &GroupState, to: usize, channel: Channel) -> Result {
        let postbox = Postbox::new(state.world(), &state.mailbox_of(to), channel);
        postbox.set_protocol(Protocol::Auto)?; // whatever the program wants for its own messages
        self.out[to] = Some(postbox);
        Ok(())
    }

    /// Memory for a message to a member. `is_piece`: one of many, so that what the group's own messages hold may be all that is missing, and
    /// that comes back.
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
                    Ok(()) => self.stuck(state, call, Awaited::Room(to)),
                    Err(error) => Poll::Ready(Err(error)),
                }
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    // ---- receiving ----

    /// Shows `take` the next message of a member in a call, where it is: each move of a short message costs more than all else that
    /// is done with it. `patient`: it may spin for the moment in which an answer comes.
    #[inline]
    pub fn try_receive<R>(
        &mut self,
        state: &GroupState,
        from: usize,
        call: Signature,
        patient: bool,
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
            match self.next(patient, &mut message) {
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
        self.stuck(state, call, Awaited::Message(from))
    }

    /// The next message of any member, into `place`, which holds nothing.
    #[inline]
    fn next(&mut self, patient: bool, place: &mut Received<u8>) -> Result<bool> {
        if !patient {
            return self.inbox.try_retrieve_in_place(place);
        }
        if self.home.is_none() {
            return self.inbox.retrieve_soon(place);
        }
        for _ in 0..TURNS {
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
    /// [`Error::CallMismatch`]: it is of a call that this member has not made. As [`Engine::check_call`].
    #[cold]
    pub fn keep(&mut self, state: &GroupState, call: Signature, message: Received<u8>) -> Result {
        let member = state.layout().member_of(message.source());
        // Of no other member: it counts for nothing.
        let Some(member) = member.filter(|member| *member != state.layout().me) else { return Ok(()) };
        if Signature::of_tag(message.tag()).kind() == Some(Kind::Failed) {
            self.hear_failure(state, member, &message);
            return self.check_call(state, call);
        }
        self.check_tag(state, member, message.tag())?;
        if self.early[member].len() >= MAX_EARLY {
            return Err(state.flooded(member));
        }
        self.early[member].push_back(message);
        self.early_count += 1;
        Ok(())
    }

    /// Whether a message of this call has come from a member, and was not taken.
    pub fn has_early(&self, from: usize, call: Signature) -> bool {
        self.early[from].iter().any(|message| message.tag() == call.tag())
    }

    /// Takes what there is, so that others have room to post.
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

/// Whether one call comes before another. Numbers go around.
fn is_before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

/// The number of a call that a member has said. No call that is under way is further from this member's next one than all numbers of tags, and
/// a comparison has to hold however many calls this member makes afterwards.
fn nearby(number: u32, said: u32) -> u32 {
    let away = said.wrapping_sub(number) as i32;
    number.wrapping_add_signed(away.clamp(-(NUMBERS as i32), NUMBERS as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_is_near() {
        assert_eq!(nearby(192, 3), 3);
        assert_eq!(nearby(2, u32::MAX - 186), u32::MAX - 186);
        assert_eq!(nearby(3, 195), 195);
        // A call that has failed stays failed, and one that has not fails soon.
        let calls_later = 1 << 30;
        for number in [0_u32, 5, 1 << 31, u32::MAX] {
            assert!(!is_before(
                number.wrapping_add(calls_later),
                nearby(number, number.wrapping_sub(calls_later * 2 - 1))
            ));
            assert!(!is_before(
                number.wrapping_add(NUMBERS),
                nearby(number, number.wrapping_add(calls_later * 2 - 1))
            ));
        }
    }
}
