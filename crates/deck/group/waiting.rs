//! Blocking calls: they drive a member's part of an algorithm to its end, and wait at the group's mailbox in
//! between.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use udeck_boot::Ranks;
use udeck_boot::waits::{Call as Waiting, LONG, Wait};
use udeck_via::Deadline;

use super::engine::{Awaited, Engine};
use super::kind::{Kind, Signature};
use super::state::GroupState;
use crate::error::{Error, Result};
use crate::long_wait::LongWait;
use crate::world_state::WorldState;

/// Interval at which a waiting member checks whether the awaited member has finished, and whether other
/// threads have dropped requests. (News of lost members wake it at once.)
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Poll interval for room or memory, which send no notification.
pub(super) const ROOM_PAUSE: Duration = Duration::from_micros(200);

/// Limit of a call's waiting. The clock is read only when there is something to wait for.
pub(super) struct Clock {
    limit: Duration,
    began: Option<(LongWait, Deadline)>,
}

impl Clock {
    pub fn new(limit: Duration) -> Self {
        Clock { limit, began: None }
    }

    /// Whether the call may spin. A call without any time to wait polls once, and keeps its processor.
    pub fn may_spin(&self) -> bool {
        !self.limit.is_zero()
    }

    pub fn elapsed(&mut self) -> Duration {
        self.began().0.elapsed()
    }

    fn deadline(&mut self) -> Deadline {
        self.began().1
    }

    pub fn has_passed(&mut self) -> bool {
        self.deadline().passed()
    }

    /// Time to wait before the next check for a signal.
    pub fn pause(&mut self) -> Duration {
        LONG.min(self.deadline().remaining())
    }

    pub fn check_interrupt(&mut self, world: &WorldState) -> Result {
        self.began().0.check_interrupt(world)
    }

    fn began(&mut self) -> &mut (LongWait, Deadline) {
        self.began.get_or_insert_with(|| (LongWait::begin("a member"), Deadline::after(self.limit)))
    }
}

/// Drives `future` to its end, waiting in between.
pub(super) fn drive<T>(
    state: &GroupState,
    call: Signature,
    clock: &mut Clock,
    future: impl Future<Output = Result<T>>,
    engine: &RefCell<Engine>,
) -> Result<T> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
        engine.borrow_mut().wait(state, call, clock, &one_missing)?;
    }
}

/// The member that could end a wait for one member.
pub(super) fn one_missing(engine: &Engine) -> Vec<usize> {
    vec![engine.awaited.member()]
}

impl Engine {
    /// Waits for a message, or for room, according to [`Engine::awaited`]. Returns when there may be news.
    #[cold]
    pub(super) fn wait(
        &mut self,
        state: &GroupState,
        call: Signature,
        clock: &mut Clock,
        missing: &dyn Fn(&Engine) -> Vec<usize>,
    ) -> Result {
        if state.deferred().is_any() {
            self.drop_requests(state, state.deferred().take_dropped());
        }
        self.check_call(state, call)?;
        let rank = state.layout().ranks[self.awaited.member()];
        let deadline = clock.deadline();
        let pause = match self.awaited {
            Awaited::Message(_) => EXIT_CHECK_INTERVAL,
            Awaited::Room(_) => ROOM_PAUSE,
            Awaited::Mailbox(to) => return self.connect(state, to, call, deadline),
        };
        // Messages that do not serve this call may come without end: they do not delay its deadline.
        let is_late = deadline.passed();
        // Read before: a member's messages from before its end are found, unless its connection is still
        // being accepted.
        let has_finished = state.world().exit_log().has_finished(rank as u32) && !self.inbox.is_admitting();
        match self.inbox.retrieve_timeout(pause.min(deadline.remaining())) {
            Ok(message) => {
                self.keep(state, call, message)?;
                if is_late { Err(too_late(state, call, clock, &missing(self))) } else { Ok(()) }
            }
            Err(Error::Deadline { .. }) if has_finished => Err(state.ended(rank, call)),
            Err(Error::Deadline { .. }) if deadline.passed() => {
                Err(too_late(state, call, clock, &missing(self)))
            }
            // The loss of any member ends the wait: without it no member can complete the call.
            Err(Error::Deadline { .. }) => {
                let (wait, _) = clock.began();
                wait.publish_if_long(state.world(), rank as u64, || waits_for(state, call, rank));
                wait.check_interrupt(state.world())?;
                state.lost().map_or(Ok(()), |(rank, how)| Err(Error::PeerLost { rank, how }))
            }
            Err(Error::NobodyLeft { .. }) => Err(state.ended(rank, call)),
            Err(error) => Err(error),
        }
    }
}

/// Time to receive the last messages of a member that has finished.
const LAST_MESSAGES: Duration = Duration::from_millis(1);

impl Engine {
    /// Like [`Engine::wait`], without waiting. Returns whether there may be news.
    ///
    /// # Errors
    /// A member is lost, or has finished, so that the call cannot go on.
    pub(super) fn poll_news(&mut self, state: &GroupState, call: Signature) -> Result<bool> {
        let member = self.awaited.member();
        if let Awaited::Mailbox(_) = self.awaited {
            return self.connect_now(state, member, call);
        }
        let (rank, log) = (state.layout().ranks[member], state.world().exit_log());
        if log.version() == 0 {
            return Ok(false);
        }
        // Read before: a member's messages from before its end are found, unless its connection is still
        // being accepted.
        let has_finished = log.has_finished(rank as u32) && !self.inbox.is_admitting();
        match self.inbox.retrieve_timeout(if has_finished { LAST_MESSAGES } else { Duration::ZERO }) {
            Ok(message) => self.keep(state, call, message).map(|()| true),
            Err(Error::Deadline { .. }) if has_finished => Err(state.ended(rank, call)),
            Err(Error::Deadline { .. }) => state.check_members().map(|()| false),
            Err(Error::NobodyLeft { .. }) => Err(state.ended(rank, call)),
            Err(error) => Err(error),
        }
    }
}

/// Describes a wait in a call for the report of who waits for whom.
pub(super) fn waits_for(state: &GroupState, call: Signature, rank: usize) -> Wait {
    let is_barrier = state.is_world() && call.kind() == Some(Kind::Barrier);
    let (waiting, name) = match is_barrier {
        true => (Waiting::Barrier, String::new()),
        false => (Waiting::Collective, state.title(call)),
    };
    Wait { call: waiting, name, ranks: vec![rank as u32], open: false }
}

/// The error of a passed deadline. It names all members that the call waits for.
#[cold]
fn too_late(state: &GroupState, call: Signature, clock: &mut Clock, missing: &[usize]) -> Error {
    let mut ranks: Vec<u32> = missing.iter().map(|member| state.layout().ranks[*member] as u32).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let those = if ranks.len() == 1 { "a rank that it waits for" } else { "ranks that they wait for" };
    let whom = format!("{} (or {those})", Ranks(&ranks));
    Error::Deadline { what: state.title(call), waited: clock.elapsed(), whom }
}
