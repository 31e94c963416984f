//! Turns of threads that share mailboxes, each of which is behind a lock.
//!
//! One thread at a time uses a mailbox, and waits at it with the lock held. [`in_turn`] lets the others have it meanwhile:
//!
//! * A thread that *asks* for the lock wakes the thread that waits at the mailbox, whose wait then ends with
//!   [`Error::TurnOver`]. Hence each thread has checked the messages set aside before it rests.
//! * The last of the threads that ask waits at the mailbox, for all. The others *rest*: each until it is
//!   rung, or its own deadline.
//! * A thread that takes another's message out of its ring sets it aside, and rings the threads that the
//!   message is for. The end of a rank concerns all threads.
//! * A thread that leaves rings one that rests, if nobody asks: thus one thread waits at the mailbox for as
//!   long as any thread rests.
//! * A call at several mailboxes rests only briefly: it asks for all of them again, because nobody may wait
//!   at some of them.
//! * A thread that rests for long publishes what it waits for, like a thread that waits at the mailbox.
//!
//! A call that finds its message at once takes none of these steps, and a thread that waits alone asks nobody.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use udeck_boot::waits::{Entry, LONG, Wait, Waits};
use udeck_via::{CqHandle, Deadline, is_forked};

use crate::error::{Error, Result, Titled, check_process};
use crate::interrupt;
use crate::matching::Match;

/// Time that a thread that waits at a mailbox may take to release it: it may have no processor.
const GRACE: Duration = Duration::from_secs(1);
/// How long a call at several mailboxes rests.
const PAUSE_OF_SEVERAL: Duration = Duration::from_millis(10);

/// Turns of the threads that share one mailbox: how they ask the thread that waits at it to release it.
pub struct Turns {
    /// Number of threads that ask for the lock.
    asking: AtomicU32,
    /// Number of entries in `calls`.
    count: AtomicU32,
    calls: Mutex<Vec<Sharer>>,
    queue: CqHandle,
    name: String,
    /// Where long waits are published.
    waits: Waits,
}

/// A call that may rest, and the messages that it is for.
struct Sharer {
    matching: Match,
    bell: Arc<Bell>,
}

/// Bell that is rung when a call has to check again.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    ring: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock() = true;
        self.ring.notify_one();
    }

    /// Waits until the bell is rung, or the deadline.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    fn rest(&self, long: &mut LongRest<'_>, deadline: Deadline) -> Result {
        let mut rung = self.rung.lock();
        while !*rung && !deadline.passed() {
            let until = long.poll_interval().map_or(deadline, |pause| deadline.min(Deadline::after(pause)));
            if self.ring.wait_until(&mut rung, until.instant()).timed_out() {
                // Unlocked first: a signal's handler may do anything, and may ring.
                drop(rung);
                long.check()?;
                rung = self.rung.lock();
            }
        }
        Ok(())
    }
}

/// Rests that may last, of a call that has waited since `since`.
struct LongRest<'a> {
    since: Deadline,
    waits: &'a Waits,
    wait: Box<Wait>,
    /// The published wait, once it has lasted.
    known: Option<Option<Entry>>,
}

impl LongRest<'_> {
    /// Time until the next check.
    fn poll_interval(&self) -> Option<Duration> {
        match self.known {
            None => Some(LONG.saturating_sub(self.since.since())),
            Some(_) => interrupt::is_possible().then_some(LONG),
        }
    }

    /// Checks for a signal, and publishes the wait if it has lasted.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    fn check(&mut self) -> Result {
        if interrupt::is_possible() {
            interrupt::check()?;
            check_process()?;
        }
        let lasted = self.since.since();
        if self.known.is_none() && lasted >= LONG {
            self.known = Some(self.waits.publish(&self.wait, lasted));
        }
        Ok(())
    }
}

impl Turns {
    /// Makes the turns of a mailbox. `queue` is the completion queue that its waiting thread sleeps on.
    pub(crate) fn new(queue: CqHandle, name: &str, waits: &Waits) -> Self {
        let (asking, count, calls) = Default::default();
        Turns { asking, count, calls, queue, name: name.to_owned(), waits: waits.clone() }
    }

    /// Registers a resting call for any message. Returns a function that says whether it was rung.
    #[cfg(test)]
    pub(crate) fn resting_call(&self) -> impl Fn() -> bool {
        let bell = Arc::<Bell>::default();
        self.enter(Sharer { matching: Match::ANY, bell: bell.clone() });
        move || *bell.rung.lock()
    }

    /// Whether the thread that waits at the mailbox has to release it.
    #[inline]
    pub(crate) fn is_requested(&self) -> bool {
        self.asking.load(Ordering::Relaxed) > 0
    }

    /// Rings the calls that a message set aside may be for.
    #[inline]
    pub(crate) fn set_aside(&self, rank: u32, tag: u32) {
        self.ring(|call| call.matching.takes(rank, tag));
    }

    /// Rings all resting calls: what they wait for may have come, or will not come any more.
    #[inline]
    pub fn ring_all(&self) {
        self.ring(|_| true);
    }

    #[inline]
    fn ring(&self, concerns: impl Fn(&Sharer) -> bool) {
        if self.count.load(Ordering::Acquire) > 0 && !is_forked() {
            self.calls.lock().iter().filter(|call| concerns(call)).for_each(|call| call.bell.ring());
        }
    }

    /// Asks for the lock until the returned guard is dropped.
    fn ask(&self) -> Asking<'_> {
        self.asking.fetch_add(1, Ordering::SeqCst);
        self.queue.wake();
        Asking(self)
    }

    fn enter(&self, call: Sharer) {
        let mut calls = self.calls.lock();
        calls.push(call);
        self.count.store(calls.len() as u32, Ordering::Release);
    }

    fn leave(&self, bell: &Arc<Bell>) {
        if is_forked() {
            return;
        }
        let mut calls = self.calls.lock();
        calls.retain(|call| !Arc::ptr_eq(&call.bell, bell));
        self.count.store(calls.len() as u32, Ordering::Release);
        self.pass_on(&calls);
    }

    /// Rings a resting call, if there is one and nobody asks, so that one thread waits at the mailbox.
    fn pass_on(&self, calls: &[Sharer]) {
        if let Some(next) = calls.first().filter(|_| !self.is_requested()) {
            next.bell.ring();
        }
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turns(at {}, of {} calls)", Titled(&self.name), self.count.load(Ordering::Relaxed))
    }
}

struct Asking<'a>(&'a Turns);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Entries of one call in all the mailboxes.
struct Places<'a> {
    all: &'a [&'a Turns],
    bell: Arc<Bell>,
}

impl<'a> Places<'a> {
    fn take(all: &'a [&'a Turns], matching: Match) -> Self {
        let bell = Arc::<Bell>::default();
        all.iter().for_each(|turns| turns.enter(Sharer { matching, bell: bell.clone() }));
        Places { all, bell }
    }
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        self.all.iter().for_each(|turns| turns.leave(&self.bell));
    }
}

/// Takes the lock of one mailbox or several, or of something without [`Turns`], for a call that does not wait
/// at them. A thread that waits at them releases them. `what` names the object, in words. `lock` waits at
/// most the given time for the lock, and returns `None` if another thread still has it.
///
/// # Errors
/// The errors of `lock`; [`Error::Deadline`]; [`Error::Interrupted`].
pub fn lock_within<G, E: From<Error>>(
    all: &[&Turns],
    what: &dyn fmt::Display,
    limit: Duration,
    mut lock: impl FnMut(Duration) -> std::result::Result<Option<G>, E>,
) -> std::result::Result<G, E> {
    if let Some(locked) = lock(Duration::ZERO)? {
        return Ok(locked);
    }
    check_process()?;
    let locked = ask_for(all, what, limit, lock);
    // The thread that waited at the mailboxes has released them, and rests.
    if !is_forked() {
        all.iter().for_each(|turns| turns.pass_on(&turns.calls.lock()));
    }
    locked
}

fn ask_for<G, E: From<Error>>(
    all: &[&Turns],
    what: &dyn fmt::Display,
    limit: Duration,
    mut lock: impl FnMut(Duration) -> std::result::Result<Option<G>, E>,
) -> std::result::Result<G, E> {
    let (since, deadline) = (Deadline::now(), Deadline::after(limit));
    let _asking: Vec<_> = all.iter().map(|turns| turns.ask()).collect();
    loop {
        if let Some(locked) = lock(LONG.min(deadline.remaining()))? {
            return Ok(locked);
        }
        if deadline.passed() {
            let whom = "another thread of this rank, whose call has not ended".into();
            return Err(
                Error::Deadline { what: format!("waiting for {what}"), waited: since.since(), whom }.into()
            );
        }
        interrupt::check()?;
        check_process()?;
    }
}

/// Formats the names of the mailboxes.
struct Names<'a>(&'a [&'a Turns]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(nth, turns)| {
            write!(f, "{}{}", if nth == 0 { "" } else { ", " }, Titled(&turns.name))
        })
    }
}

/// Makes a call that waits at mailboxes shared by threads. It waits at most `limit`, whatever the other
/// threads wait for.
///
/// `lock` is the same as in [`lock_within`]. `attempt` is the call: it is made with the lock held, waits at
/// most the given time, and may be made several times. `matching`: the messages that it is for.
///
/// For bindings of other languages, whose mailboxes are behind locks. In Rust it serves an
/// `Arc<Mutex<Mailbox<T>>>`.
///
/// # Errors
/// The errors of `lock` and `attempt`; [`Error::Deadline`] also if another thread does not release the lock;
/// [`Error::Interrupted`].
pub fn in_turn<G, R, E: From<Error>>(
    all: &[&Turns],
    matching: Match,
    limit: Duration,
    mut lock: impl FnMut(Duration) -> std::result::Result<Option<G>, E>,
    mut attempt: impl FnMut(&mut G, Duration) -> Result<R>,
) -> std::result::Result<R, E> {
    check_process()?;
    let (since, deadline) = (Deadline::now(), Deadline::after(limit));
    let places = Places::take(all, matching);
    let mut long = None;
    loop {
        // At its deadline the call checks once more, too, and says whom it has waited for.
        let mut locked = match lock(Duration::ZERO)? {
            Some(locked) => locked,
            None => ask_for(all, &Names(all), deadline.remaining().max(GRACE), &mut lock)?,
        };
        // This attempt sees all messages already set aside. Later events ring the bell.
        *places.bell.rung.lock() = false;
        let wait = match attempt(&mut locked, deadline.remaining()) {
            Err(Error::TurnOver { wait, .. }) => wait,
            Err(Error::Deadline { what, whom, .. }) => {
                return Err(Error::Deadline { what, waited: since.since(), whom }.into());
            }
            ended => return Ok(ended?),
        };
        drop(locked);
        // A thread asks for one of them, so the list is not empty.
        let Some(Turns { waits, .. }) = all.first() else { continue };
        let rest = long.get_or_insert_with(|| LongRest { since, waits, wait, known: None });
        if all.len() > 1 {
            // Where others want one of several mailboxes, nobody waits at the rest of them now.
            places.bell.rest(rest, deadline.min(Deadline::after(PAUSE_OF_SEVERAL)))?;
        } else {
            places.bell.rest(rest, deadline)?;
            long = None; // the next attempt publishes its own wait
        }
    }
}
