//! Waiting for several requests, of one group or of several.
//!
//! All of them are moved on in turn, so members need not wait in the same order. In between the thread sleeps at
//! the mailboxes of the groups.

use std::sync::Arc;
use std::time::Duration;

use udeck_boot::waits::Wait;
use udeck_via::Deadline;

use super::engine::Awaited;
use super::kind::Signature;
use super::membership::Membership;
use super::request::Request;
use super::waiting::{self, ROOM_PAUSE};
use crate::error::{Error, Result};
use crate::long_wait::LongWait;
use crate::select::{Selectable, select_timeout};

/// Longest sleep between two polls of all requests. (News of messages end a sleep at once.)
const MAX_SLEEP: Duration = Duration::from_millis(50);

/// Longest pause between two searches for mailboxes that members have not made. (The name service sends no news of them.)
const MAX_SEARCH_PAUSE: Duration = Duration::from_millis(20);

const WAIT_ANY: &str = "waiting for one of several requests";
const WAIT_ALL: &str = "waiting for several requests";

/// A [`Request`] with any result, for [`wait_any`] on requests of different types.
///
/// Sealed.
pub trait AnyRequest: sealed::SealedRequest {}

impl<R> AnyRequest for Request<'_, R> {}
impl<P: AnyRequest + ?Sized> AnyRequest for &mut P {}

/// State of a request that was moved on.
pub enum Progress {
    /// Over; its result has not been taken.
    Over,
    /// Over, and its result was taken.
    Taken,
    /// Under way. `None`: another thread has its group.
    Running(Option<Awaiting>),
}

/// Place of a request's wait, and the ranks that it waits for.
pub struct Awaiting {
    member: Arc<Membership>,
    call: Signature,
    awaited: Awaited,
}

pub(super) mod sealed {
    use std::time::Duration;

    pub trait SealedRequest {
        /// Moves the request on, without waiting.
        fn progress(&mut self) -> super::Progress;
        /// The usual limit of a wait for this request.
        fn usual_limit(&self) -> Duration;
        /// The call, in words.
        fn title(&self) -> String;
    }

    impl<P: SealedRequest + ?Sized> SealedRequest for &mut P {
        fn progress(&mut self) -> super::Progress {
            (**self).progress()
        }

        fn usual_limit(&self) -> Duration {
            (**self).usual_limit()
        }

        fn title(&self) -> String {
            (**self).title()
        }
    }
}

impl<R> sealed::SealedRequest for Request<'_, R> {
    fn progress(&mut self) -> Progress {
        match (self.is_taken(), self.is_done()) {
            (true, _) => Progress::Taken,
            (_, true) => Progress::Over,
            _ => Progress::Running(self.awaited().map(|awaited| Awaiting {
                member: self.member().clone(),
                call: self.call(),
                awaited,
            })),
        }
    }

    fn usual_limit(&self) -> Duration {
        self.limit()
    }

    fn title(&self) -> String {
        self.call().to_string()
    }
}

impl Awaiting {
    fn rank(&self) -> usize {
        self.member.state.layout().ranks[self.awaited.member()]
    }
}

/// Waits until one of the requests is over, at most the limit of the first one's group. Returns its index in
/// `requests`; [`Request::wait`] on that request returns its result or its error at once. Moves all of them on.
/// Requests whose result has been taken do not count.
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/wait_any.md"))]
///
/// # Errors
/// [`Error::Deadline`] names all requests that are under way, and the ranks that they wait for.
/// [`Error::Interrupted`]; [`Error::InvalidArgument`] if no request is left. A request that fails is over: its own call
/// returns the error.
#[doc(alias = "MPI_Waitany")]
pub fn wait_any<P: AnyRequest>(requests: &mut [P]) -> Result<usize> {
    let limit = requests.first().map_or(Duration::ZERO, |first| first.usual_limit());
    wait_any_timeout(requests, limit)
}

/// Like [`wait_any`], but waits at most `limit`.
///
/// # Errors
/// The errors of [`wait_any`].
#[doc(alias = "MPI_Testany")]
pub fn wait_any_timeout<P: AnyRequest>(requests: &mut [P], limit: Duration) -> Result<usize> {
    let mut wait = Waiting::new(true, limit);
    loop {
        let polled = Polled::of(requests);
        if let Some(over) = polled.over.first() {
            return Ok(*over);
        }
        if polled.running.is_empty() {
            let why = "none of the requests is under way: wait for one at least".into();
            return Err(Error::InvalidArgument { what: WAIT_ANY.into(), why });
        }
        wait.sleep(requests, &polled)?;
    }
}

/// Waits until all requests are over, at most the limit of the first one's group. Returns their results in the order
/// of the list. Moves all of them on, so members may list them in different orders.
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/wait_all.md"))]
///
/// # Errors
/// [`Error::RequestFailed`] names the first request of the list that failed, or whose result was taken before, and has
/// its error; the results of the others can still be taken by [`Request::wait`]. [`Error::Deadline`] names all requests that are under way, and the
/// ranks that they wait for; no result has been taken then, and the call can be repeated.
#[doc(alias = "MPI_Waitall")]
pub fn wait_all<R>(requests: &mut [Request<'_, R>]) -> Result<Vec<R>> {
    let limit = requests.first().map_or(Duration::ZERO, Request::limit);
    wait_all_timeout(requests, limit)
}

/// Like [`wait_all`], but waits at most `limit`.
///
/// # Errors
/// The errors of [`wait_all`].
#[doc(alias = "MPI_Testall")]
pub fn wait_all_timeout<R>(requests: &mut [Request<'_, R>], limit: Duration) -> Result<Vec<R>> {
    let mut wait = Waiting::new(false, limit);
    loop {
        let polled = Polled::of(requests);
        // Found before any result is taken: the other results stay.
        let failed = (0..requests.len()).find(|at| requests[*at].has_failed() || requests[*at].is_taken());
        if let Some(failed) = failed {
            return Err(take(requests, failed).err().unwrap_or(Error::WorldFinished));
        }
        if polled.running.is_empty() {
            return (0..requests.len()).map(|at| take(requests, at)).collect();
        }
        wait.sleep(requests, &polled)?;
    }
}

/// Takes the result of a request that is over.
fn take<R>(requests: &mut [Request<'_, R>], index: usize) -> Result<R> {
    let count = requests.len();
    requests[index].wait_timeout(Duration::ZERO).map_err(|error| Error::RequestFailed {
        index,
        count,
        call: requests[index].call().to_string(),
        source: Box::new(error),
    })
}

/// Result of one poll of all requests: indices in the list.
#[derive(Default)]
struct Polled {
    over: Vec<usize>,
    running: Vec<(usize, Option<Awaiting>)>,
}

impl Polled {
    fn of<P: AnyRequest>(requests: &mut [P]) -> Polled {
        let mut polled = Polled::default();
        for (at, request) in requests.iter_mut().enumerate() {
            match request.progress() {
                Progress::Over => polled.over.push(at),
                Progress::Taken => {}
                Progress::Running(awaiting) => polled.running.push((at, awaiting)),
            }
        }
        polled
    }

    /// One request of each group whose messages may be news. (While a group connects, its messages stay in its
    /// mailbox.)
    fn groups(&self) -> Vec<&Awaiting> {
        let mut groups: Vec<&Awaiting> = Vec::new();
        let awaiting = self.running.iter().filter_map(|(_, awaiting)| awaiting.as_ref());
        for awaiting in awaiting.filter(|awaiting| !matches!(awaiting.awaited, Awaited::Mailbox(_))) {
            if !groups.iter().any(|known| Arc::ptr_eq(&known.member, &awaiting.member)) {
                groups.push(awaiting);
            }
        }
        groups
    }

    /// Lists what ends the waits of the requests, and the ranks whose mailboxes are missing.
    fn needs(&self) -> Needs {
        let mut missing = Vec::new();
        for (_, awaiting) in &self.running {
            match awaiting {
                Some(Awaiting { awaited: Awaited::Message(_), .. }) => {}
                Some(awaiting @ Awaiting { awaited: Awaited::Mailbox(_), .. }) => {
                    missing.push(awaiting.rank())
                }
                Some(Awaiting { awaited: Awaited::Room(_), .. }) | None => return Needs::Polls,
            }
        }
        if missing.is_empty() { Needs::Messages } else { Needs::Mailboxes(missing) }
    }
}

/// Kinds of news that requests wait for. The kind that needs the shortest pause counts for all of them.
enum Needs {
    /// Messages, whose arrival ends a sleep.
    Messages,
    /// Mailboxes of these ranks, for which somebody has to search; and messages, perhaps.
    Mailboxes(Vec<usize>),
    /// Room, memory or a group that another thread has: whoever waits for them polls.
    Polls,
}

/// Pauses between searches for missing mailboxes. Each is twice as long as the one before it, until a mailbox is found.
struct Searches {
    missing: Vec<usize>,
    pause: Duration,
}

impl Searches {
    fn new() -> Self {
        Searches { missing: Vec::new(), pause: ROOM_PAUSE }
    }

    /// Returns the pause before the next search for the mailboxes of these ranks.
    fn next_pause(&mut self, missing: Vec<usize>) -> Duration {
        self.pause = match missing == self.missing {
            true => (2 * self.pause).min(MAX_SEARCH_PAUSE),
            false => ROOM_PAUSE,
        };
        self.missing = missing;
        self.pause
    }
}

/// A wait for several requests.
struct Waiting {
    /// Whether the end of any request ends the wait; otherwise all have to end.
    any: bool,
    deadline: Deadline,
    wait: LongWait,
    searches: Searches,
}

impl Waiting {
    fn new(any: bool, limit: Duration) -> Self {
        let wait = LongWait::begin("several requests");
        Waiting { any, deadline: Deadline::after(limit), wait, searches: Searches::new() }
    }

    /// Sleeps until there may be news of the requests, which were polled in vain.
    fn sleep<P: AnyRequest>(&mut self, requests: &[P], polled: &Polled) -> Result {
        if self.deadline.passed() {
            return Err(self.too_late(requests, polled));
        }
        let longest = match polled.needs() {
            Needs::Messages => MAX_SLEEP,
            Needs::Mailboxes(missing) => self.searches.next_pause(missing),
            Needs::Polls => ROOM_PAUSE,
        };
        let pause = longest.min(self.deadline.remaining());
        let first = polled.running.iter().find_map(|(_, awaiting)| awaiting.as_ref());
        if let Some(first) = first {
            let (any, world) = (self.any, first.member.state.world());
            self.wait.publish_if_long(world, first.rank() as u64, || waits_for(any, first, polled));
            self.wait.check_interrupt(world)?;
        }
        sleep_at(&polled.groups(), pause)
    }

    #[cold]
    fn too_late<P: AnyRequest>(&self, requests: &[P], polled: &Polled) -> Error {
        let whom = |(at, awaiting): &(usize, Option<Awaiting>)| {
            let title = requests[*at].title();
            match awaiting {
                Some(awaiting) => format!("rank {} (request {at}: {title})", awaiting.rank()),
                None => format!("another thread in the group of request {at} ({title})"),
            }
        };
        let whom: Vec<String> = polled.running.iter().map(whom).collect();
        let what = if self.any { WAIT_ANY } else { WAIT_ALL };
        Error::Deadline { what: what.into(), waited: self.wait.elapsed(), whom: whom.join(", ") }
    }
}

/// Describes a wait for the report of who waits for whom: any of the awaited ranks ends a wait for any request; a
/// wait for all requests needs each, of which one is named.
#[cold]
fn waits_for(any: bool, first: &Awaiting, polled: &Polled) -> Wait {
    let mut wait = waiting::waits_for(&first.member.state, first.call, first.rank());
    if any {
        let others = polled.running.iter().filter_map(|(_, awaiting)| awaiting.as_ref());
        wait.ranks = others.map(|awaiting| awaiting.rank() as u32).collect();
        wait.ranks.sort_unstable();
        wait.ranks.dedup();
    }
    wait
}

/// Sleeps until one of the groups has a message, which the next poll of the requests takes.
fn sleep_at(groups: &[&Awaiting], pause: Duration) -> Result {
    let mut engines = Vec::new();
    for group in groups {
        // A group that another thread has is polled again soon.
        if let Ok(Some(engine)) = group.member.try_enter(group.call) {
            engines.push(engine);
        }
    }
    let pause = if engines.len() < groups.len() { pause.min(ROOM_PAUSE) } else { pause };
    if engines.is_empty() {
        std::thread::sleep(pause);
        return Ok(());
    }
    let borrowed: Vec<_> = engines.iter().map(|engine| engine.borrow()).collect();
    // A message that a poll of another request kept is no news for the mailboxes.
    let has_early = borrowed.iter().any(|engine| engine.has_any_early());
    let pause = if has_early { pause.min(ROOM_PAUSE) } else { pause };
    let inboxes: Vec<&dyn Selectable> =
        borrowed.iter().map(|engine| &engine.inbox as &dyn Selectable).collect();
    match select_timeout(&inboxes, pause) {
        Ok(_) | Err(Error::Deadline { .. }) => Ok(()),
        Err(error @ Error::Interrupted) => Err(error),
        // The requests find the loss of a rank when they are polled, and name it.
        Err(_) => {
            std::thread::sleep(pause.min(ROOM_PAUSE));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_become_rarer_until_a_mailbox_is_found() {
        let mut searches = Searches::new();
        let mut last = searches.next_pause(vec![1, 2]);
        assert_eq!(last, ROOM_PAUSE);
        for _ in 0..20 {
            let next = searches.next_pause(vec![1, 2]);
            assert_eq!(next, (2 * last).min(MAX_SEARCH_PAUSE));
            last = next;
        }
        assert_eq!(last, MAX_SEARCH_PAUSE);
        assert_eq!(searches.next_pause(vec![2]), ROOM_PAUSE, "rank 1's was found");
    }
}
