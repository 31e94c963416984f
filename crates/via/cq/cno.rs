//! Completion-notification object ([`Cno`]): one wait on several completion queues.
//!
//! Queues whose waiters sleep on a word of memory ([`Waiter::arm`](crate::transport::Waiter::arm)) are slept on together, in
//! the calling thread. Other queues have nothing in common to sleep on: each sleeps in its own way in a thread of its own,
//! and the thread that finds news wakes all others.
//!
//! # No wake-up is lost
//! * On words: the thread arms all queues before it sleeps, and later news have changed a word, on which it would then not
//!   sleep. The other points are about sleeping in threads.
//! * News of a queue are noticed by its own waiter, by its transport's protocol: as always there is exactly one thread
//!   that polls and parks it.
//! * The wait ends once: [`ThreadedSleep::outcome`] changes from `Pending` under its lock, and the thread that changes it
//!   wakes all queues afterwards. A thread reads the outcome, under the lock, before each time that it parks. If that read came after
//!   the change, it does not park; if it came before, the wake-up comes after the read, and a wake-up that finds no sleeper
//!   makes the next park return at once ([`crate::transport::Notifier::wake`]).
//! * An entry is taken off its queue under the same lock, by a thread that has seen `Pending`: so at most one is taken, and
//!   that one is the outcome. Entries of other queues stay there.

use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_sys::doorbell::MAX_SLEEP;
use udeck_sys::{Deadline, MOST_WORDS, Pause, Spinner, sleep_any, thread};

use super::handle::Shared;
use super::{Cq, CqEntry};
use crate::error::{Error, Result};
use crate::transport::{ARMED, Armed};

/// Polls per poll of a queue that is costly to poll ([`Cq::set_costly_poll`]), in a wait that spins.
const COSTLY_POLL_INTERVAL: u32 = 16;

/// Waits on several completion queues at once, of any NICs and transports (uDAPL: CNO). It remembers only where its
/// next scan begins, so that no queue starves another.
#[derive(Clone, Debug, Default)]
pub struct Cno {
    first: usize,
}

impl Cno {
    /// Polls the queues. Returns the index in `queues` of the first with news, and its entry. Begins behind the queue that
    /// was named last.
    pub fn poll(&mut self, queues: &mut [&mut Cq]) -> Option<(usize, CqEntry)> {
        self.poll_some(queues, true)
    }

    /// The same as [`Cno::poll`]; queues that are costly to poll are polled only if `all`.
    fn poll_some(&mut self, queues: &mut [&mut Cq], all: bool) -> Option<(usize, CqEntry)> {
        let count = queues.len();
        for step in 0..count {
            let at = (self.first + step) % count;
            if (all || !queues[at].costly_poll)
                && let Some(entry) = queues[at].poll()
            {
                self.first = at + 1;
                return Some((at, entry));
            }
        }
        None
    }

    /// Waits for an entry as [`Cq::wait`] does: spins, then sleeps. Where the queues cannot be slept on together (more than
    /// 128, other than shared memory's, before Linux 5.16) each but the first has a thread while it sleeps. `None` at the
    /// deadline, or when `until` returns true (it is asked between polls, at least every 100 ms, and after
    /// [`super::CqHandle::wake`] of any of the queues).
    ///
    /// # Errors
    /// [`Error::InvalidParameter`] without queues; [`Error::Os`] when no threads are left. No news is lost.
    pub fn wait(
        &mut self,
        queues: &mut [&mut Cq],
        deadline: Deadline,
        mut until: impl FnMut() -> bool,
    ) -> Result<Option<(usize, CqEntry)>> {
        if queues.is_empty() {
            return Err(Error::InvalidParameter("a wait on no completion queue at all".into()));
        }
        let mut spinner =
            Spinner::with_history(queues.iter().any(|cq| cq.oversubscribed), queues[0].spin_history);
        let (mut polls, mut pause) = (0u32, Pause::Again);
        let found = loop {
            let all = pause == Pause::Sleep || polls.is_multiple_of(COSTLY_POLL_INTERVAL);
            let found = self.poll_some(queues, all);
            if found.is_some() || until() {
                break found;
            }
            polls = polls.wrapping_add(1);
            pause = spinner.pause();
            if (pause == Pause::Sleep || polls.is_multiple_of(256)) && deadline.passed() {
                break None;
            }
            if pause == Pause::Sleep && !sleep_on_words(queues, deadline) {
                let found = sleep(queues, deadline, until)?;
                self.first = found.map_or(self.first, |(at, _)| at + 1);
                break found;
            }
        };
        let late = found.is_none() && deadline.passed();
        queues[0].spin_history = if late { spinner.gave_up() } else { spinner.found() };
        Ok(found)
    }
}

/// Sleeps briefly on all queues until there may be news. `false`: that is not possible, and it has not slept.
fn sleep_on_words(queues: &mut [&mut Cq], deadline: Deadline) -> bool {
    if queues.len() > MOST_WORDS {
        return false;
    }
    for cq in queues.iter_mut() {
        match cq.arm() {
            Armed::Yes => {}
            Armed::News => return true,
            Armed::Never => return false,
        }
    }
    let words = queues.iter().filter_map(|cq| cq.shared.sleep_word());
    sleep_any(words, ARMED, deadline.remaining().min(MAX_SLEEP)).is_ok()
}

/// One sleep on several queues, each in a thread.
struct ThreadedSleep {
    queues: Vec<Arc<Shared>>,
    outcome: Mutex<SleepOutcome>,
}

enum SleepOutcome {
    Pending,
    Found(usize, CqEntry),
    /// One of the threads has panicked.
    Failed(String),
    Over,
}

fn sleep(
    queues: &mut [&mut Cq],
    deadline: Deadline,
    mut until: impl FnMut() -> bool,
) -> Result<Option<(usize, CqEntry)>> {
    let sleep = ThreadedSleep {
        queues: queues.iter().map(|cq| cq.shared.clone()).collect(),
        outcome: Mutex::new(SleepOutcome::Pending),
    };
    // Read before `until` is asked: a wake-up that `until` does not know of yet is counted later.
    let wakes: Vec<u64> = sleep.queues.iter().map(|shared| shared.wakes()).collect();
    let mut queues = queues.iter_mut().enumerate();
    std::thread::scope(|scope| {
        let _end = EndOnDrop(&sleep);
        let Some((own, cq)) = queues.next() else { return Ok::<(), Error>(()) };
        for (at, cq) in queues {
            let (sleep, wakes) = (&sleep, wakes[at]);
            let sleeping = move || sleep.sleep_on_queue(at, cq, own, wakes, deadline);
            thread::spawn_scoped(scope, "via-cno", sleeping, move |why| {
                sleep.end(SleepOutcome::Failed(why.to_owned()))
            })
            .map_err(|error| Error::os("starting a thread that sleeps on a completion queue", error))?;
        }
        while sleep.poll_one(own, cq).is_continue() && !until() && !deadline.passed() {
            cq.park(deadline.remaining());
        }
        Ok(())
    })?;
    match sleep.outcome.into_inner() {
        SleepOutcome::Found(at, entry) => Ok(Some((at, entry))),
        SleepOutcome::Failed(why) => {
            Err(Error::Lost(format!("a thread that sleeps on a completion queue panicked: {why}")))
        }
        SleepOutcome::Pending | SleepOutcome::Over => Ok(None),
    }
}

impl ThreadedSleep {
    /// Sleeps on queue `at` until the wait is over. A wake-up for another reason than news is for the thread that can ask
    /// `until`, which sleeps on queue `asker`.
    fn sleep_on_queue(&self, at: usize, cq: &mut Cq, asker: usize, mut wakes: u64, deadline: Deadline) {
        while self.poll_one(at, cq).is_continue() && !deadline.passed() {
            // The count is read after the poll, which may take the wake-up that is counted here, and before the park, which then
            // does not see it. A wake-up that is counted later finds the park, or makes it return at once.
            let now = self.queues[at].wakes();
            if now != wakes {
                wakes = now;
                self.queues[asker].rouse();
            }
            cq.park(deadline.remaining());
        }
    }

    /// Takes an entry of queue `at`, if it has one and none was found yet: then the wait is over.
    fn poll_one(&self, at: usize, cq: &mut Cq) -> ControlFlow<()> {
        let mut outcome = self.outcome.lock();
        if !matches!(*outcome, SleepOutcome::Pending) {
            return ControlFlow::Break(());
        }
        let Some(entry) = cq.poll() else { return ControlFlow::Continue(()) };
        *outcome = SleepOutcome::Found(at, entry);
        drop(outcome);
        self.rouse_all();
        ControlFlow::Break(())
    }

    /// Ends the wait, unless it is over.
    fn end(&self, how: SleepOutcome) {
        let mut outcome = self.outcome.lock();
        if matches!(*outcome, SleepOutcome::Pending) {
            *outcome = how;
            drop(outcome);
            self.rouse_all();
        }
    }

    fn rouse_all(&self) {
        self.queues.iter().for_each(|shared| shared.rouse());
    }
}

/// Ends the wait when the thread that asks `until` leaves it, also by a panic.
struct EndOnDrop<'a>(&'a ThreadedSleep);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end(SleepOutcome::Over);
    }
}
