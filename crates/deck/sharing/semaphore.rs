//! Counting semaphores among the ranks of a host.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use udeck_boot::Ranks;
use udeck_boot::waits::Call;
use udeck_via::segments::{MAX_PERMITS, MemberState, Purpose};

use crate::error::{Error, Result, check_process};
use crate::sharing::attach::{Wanted, all_members, checked_members, share};
use crate::sharing::wait::{CheckResult, WaitContext, wait};
use crate::sharing::{IfAbandoned, Shared};
use crate::world::World;

/// Attempts to take a permit while another rank is taking one, which lasts a moment.
const ATTEMPTS: usize = 1000;

/// A counting semaphore among ranks of a host: DECK's *semaph*.
///
/// [`World::semaphore`] makes it, called by all ranks that share it. It is gone with its last user. The
/// permits of a rank that dies come back, like with System V's `SEM_UNDO`; a [`Permit`] that came back in this
/// way reports it ([`Permit::reclaimed_from`]).
///
#[cfg_attr(not(doctest), doc = include_str!("../examples/semaphore.md"))]
pub struct Semaphore {
    shared: Shared,
}

impl World {
    /// Shares a semaphore of `permits` permits among all ranks of this job, which have to be on one host;
    /// [`World::semaphore_of`] shares it among some ranks. Collective: returns when all have called it, with
    /// the same name and number. Waits at most the world's deadline.
    ///
    /// # Errors
    /// The errors of [`World::shared_segment`], and [`Error::TooManyPermits`] above 1,048,576.
    #[doc(alias = "deck_semaph_create")]
    pub fn semaphore(&self, name: &str, permits: u32) -> Result<Semaphore> {
        let wanted = wanted(name, permits);
        self.share_semaphore(all_members(&self.state, &wanted.title())?, &wanted, permits)
    }

    /// Shares a semaphore like [`World::semaphore`], among these ranks of this host ([`World::host_ranks`]
    /// lists all of them). This rank must be one of them.
    ///
    /// # Errors
    /// The errors of [`World::semaphore`], and [`Error::BadMembers`].
    pub fn semaphore_of(&self, ranks: &[usize], name: &str, permits: u32) -> Result<Semaphore> {
        let wanted = wanted(name, permits);
        self.share_semaphore(checked_members(&self.state, &wanted.title(), ranks)?, &wanted, permits)
    }

    fn share_semaphore(&self, ranks: Vec<usize>, wanted: &Wanted<'_>, permits: u32) -> Result<Semaphore> {
        let shared = share(&self.state, ranks, wanted, |memory| match memory.table().add_permits(permits) {
            true => Ok(()),
            false => Err(too_many(&wanted.title(), permits)),
        })?;
        Ok(Semaphore { shared })
    }
}

fn wanted(name: &str, permits: u32) -> Wanted<'_> {
    Wanted { name, purpose: Purpose::Semaphore, kind: "permits", size: 1, len: permits as usize }
}

#[cold]
fn too_many(what: &str, asked: u32) -> Error {
    Error::TooManyPermits { what: what.to_owned(), asked, limit: MAX_PERMITS }
}

/// Result of an attempt to take a permit.
enum Attempt {
    Taken,
    /// No permit is free.
    Empty,
    /// Another rank is taking a permit at this moment.
    Busy,
}

impl Semaphore {
    /// The semaphore's name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The ranks that share the semaphore, in ascending order.
    pub fn ranks(&self) -> &[usize] {
        &self.shared.ranks
    }

    /// Takes a permit, and waits for one at most the world's deadline. Waiting ranks are served in no
    /// particular order.
    ///
    /// # Errors
    /// [`Error::Deadline`] names the ranks that hold permits.
    #[doc(alias = "deck_semaph_p")]
    pub fn acquire(&self) -> Result<Permit<'_>> {
        self.acquire_timeout(self.shared.deadline())
    }

    /// Like [`Semaphore::acquire`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`Semaphore::acquire`].
    pub fn acquire_timeout(&self, limit: Duration) -> Result<Permit<'_>> {
        self.shared.check()?;
        let memory = &self.shared.memory;
        let events = &memory.table().head.permits;
        let (seen, was_busy) = (Cell::new(0), Cell::new(false));
        let waits = WaitContext { shared: &self.shared, call: Call::Acquire, what: "acquiring", limit };
        let reclaimed_from = wait(
            &waits,
            |has_slept| {
                seen.set(events.now());
                let attempt = self.attempt(has_slept && was_busy.get());
                was_busy.set(matches!(attempt, Attempt::Busy));
                matches!(attempt, Attempt::Taken).then_some(None)
            },
            |limit| match was_busy.get() {
                true => memory.sleep_on_lock(limit),
                false => memory.sleep_on(events, seen.get(), limit),
            },
            || Ok(self.check_holders()),
        )?;
        Ok(Permit { semaphore: self, reclaimed_from })
    }

    /// Takes a permit if one is free. Does not wait.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] names the ranks that hold permits.
    pub fn try_acquire(&self) -> Result<Permit<'_>> {
        self.shared.check()?;
        let permit = |reclaimed_from| Permit { semaphore: self, reclaimed_from };
        for _ in 0..ATTEMPTS {
            match self.attempt(false) {
                Attempt::Taken => return Ok(permit(None)),
                Attempt::Empty => break,
                Attempt::Busy => std::thread::yield_now(),
            }
        }
        match self.check_holders() {
            CheckResult::Done(reclaimed_from) => Ok(permit(reclaimed_from)),
            CheckResult::Awaits { whom, .. } => {
                Err(Error::WouldBlock { what: "acquiring a semaphore", whom })
            }
        }
    }

    /// Adds permits that nobody holds: DECK's V, for a semaphore by which one rank signals another that
    /// something is there. (A [`Permit`] releases itself.)
    ///
    /// # Errors
    /// [`Error::TooManyPermits`]; [`Error::Deadline`] names a rank that has stopped while taking a permit.
    #[doc(alias = "deck_semaph_v")]
    pub fn release(&self, permits: u32) -> Result {
        let memory = &self.shared.memory;
        let lock = self.shared.lock(self.shared.deadline(), IfAbandoned::Take)?;
        let fits = memory.table().add_permits(permits);
        drop(lock);
        if !fits {
            return Err(too_many(&self.shared.what, permits));
        }
        memory.raise(&memory.table().head.permits);
        Ok(())
    }

    /// Number of permits that are free at this moment.
    pub fn available(&self) -> usize {
        self.shared.memory.table().free_permits().max(0) as usize
    }

    fn attempt(&self, contended: bool) -> Attempt {
        let memory = &self.shared.memory;
        match memory.try_lock(contended) {
            None => Attempt::Busy,
            Some(_lock) if memory.table().take_permit(memory.me()) => Attempt::Taken,
            Some(_lock) => Attempt::Empty,
        }
    }

    /// Checks the holders if no permit was free for a while: a holder may be dead.
    fn check_holders(&self) -> CheckResult<Option<usize>> {
        let memory = &self.shared.memory;
        let table = memory.table();
        let Some(lock) = memory.try_lock(true).or_else(|| memory.steal_lock()) else {
            let holder = memory.lock_holder().map(|holder| self.shared.rank_of(holder));
            let whom = holder.map_or("an unknown rank".into(), |rank| format!("rank {rank}"));
            let ranks = holder.map(|rank| rank as u32).into_iter().collect();
            return CheckResult::Awaits {
                ranks,
                open: false,
                whom: format!("{whom}, which takes a permit at this moment"),
            };
        };
        let (mut reclaimed_from, mut holders) = (None, Vec::new());
        for member in (0..memory.members()).filter(|member| table.holds_permits(*member)) {
            let rank = self.shared.rank_of(member);
            // A rank that has left without releasing its permit has leaked it.
            if matches!(memory.state(member), None | Some(MemberState::Left)) {
                table.reclaim_permits(member);
                reclaimed_from = Some(rank);
            } else {
                holders.push(rank as u32);
            }
        }
        let is_taken = reclaimed_from.is_some() && table.take_permit(memory.me());
        drop(lock);
        if is_taken {
            // More permits may be free, for others.
            memory.raise(&table.head.permits);
            return CheckResult::Done(reclaimed_from);
        }
        let whom = match &holders[..] {
            [] => "a rank to release a permit: no rank holds one".into(),
            [_] => format!("{}, which holds permits", Ranks(&holders)),
            _ => format!("{}, which hold permits", Ranks(&holders)),
        };
        CheckResult::Awaits { ranks: holders, open: true, whom }
    }
}

/// A permit of a [`Semaphore`]; dropping it releases the permit.
#[must_use]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    reclaimed_from: Option<usize>,
}

impl Permit<'_> {
    /// The rank that this permit was reclaimed from, if any: a rank that died while it held the permit, or
    /// ended without releasing it. What the permit stands for may be half used.
    pub fn reclaimed_from(&self) -> Option<usize> {
        self.reclaimed_from
    }

    /// Keeps the permit for good: the semaphore has one permit less, however this rank ends.
    /// [`Semaphore::release`] adds it again.
    ///
    /// # Errors
    /// The errors of [`Semaphore::release`]; the permit is released then.
    pub fn forget(self) -> Result {
        let shared = &self.semaphore.shared;
        let lock = shared.lock(shared.deadline(), IfAbandoned::Take)?;
        shared.memory.table().forget_permit(shared.memory.me());
        drop(lock);
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        // In a forked child the permit is the parent's.
        if check_process().is_ok() {
            self.semaphore.shared.memory.give_permit();
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Semaphore({:?}, {} permits free)", self.shared, self.available())
    }
}

impl fmt::Debug for Permit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit({:?})", self.semaphore.shared)
    }
}
