//! Waiting: how a waiting thread spends its time. It spins, then yields, then sleeps.
//!
//! With a processor for every rank, a wait first spins for as long as a sleep would have cost, and then yields. Where waits
//! end in sleep again and again, because the peer computes between its messages, both only burn a processor: then a wait
//! sleeps after a short spin, until news come before the sleep again.
//!
//! With more ranks than processors the peer may be one that cannot run while we spin: then yielding comes first. But it may
//! as well run on another processor at this moment, and answer sooner than a yield comes back. So a wait first spins for the
//! time of a few context switches, if that has paid lately. Two ranks that exchange messages then run at the same time, until
//! one of them is suspended, and the other, whose spinning is in vain, makes place for the next two. No one schedules them;
//! each message decides which rank runs.
//!
//! Source: Arpaci-Dusseau, *Implicit coscheduling: coordinated scheduling with implicit information in distributed
//! systems*, ACM TOCS 2001.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::sync::missed::missed;

/// Next action of a waiter before it polls again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Poll again at once.
    Again,
    /// Sleep until woken, because nothing came for a while (the caller knows on what to sleep).
    Sleep,
}

/// Decides between spinning, yielding and sleeping for one wait.
#[derive(Debug)]
pub struct Spinner {
    looks: u32,
    budget: Budget,
    /// Start of the spinning, and later of the yielding.
    since: Option<Instant>,
    oversubscribed: bool,
    history: SpinHistory,
}

/// Remaining budget of a wait before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Budget {
    spin_for: Duration,
    /// Number of polls per reading of the clock.
    looks_per_clock: u32,
    yields: u32,
}

/// Experience of the waits at one place, kept from wait to wait: whether spinning pays, and whether the last one has spent
/// its budget already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinHistory {
    /// Number of waits whose news came before they slept (with more ranks than processors: while they spun), less those in
    /// vain; 0 to [`SpinHistory::MOST`].
    credit: u8,
    /// Number of all waits, modulo 256.
    waits: u8,
    /// Whether the last wait spun and yielded, and nothing came: the next one sleeps at once. Without this, waits that end
    /// early to poll something else, one after the other, would burn a processor for as long as nothing comes.
    spent: bool,
}

/// A [`SpinHistory`] at a place where several threads may wait, or where the waiting thread owns nothing. Of two waits that
/// end at the same time, one may be forgotten: a history is experience, not a count.
#[derive(Debug)]
pub struct AtomicSpinHistory(AtomicU32);

/// Number of yields of a wait. A yield among runnable ranks costs about a context switch; past this many the machine is
/// waiting, not busy.
const YIELDS: u32 = 200;
/// Longest time that a wait alone on its processor yields. Its yields take a fraction of that, unless another program has the
/// processor meanwhile, for a time slice each. A waiter that sleeps instead is run as soon as it is woken.
const YIELD_FOR: Duration = Duration::from_millis(1);

impl Budget {
    /// About twice the measured cost of a wake-up by futex across cores (22 µs): spinning longer than a sleep would have cost
    /// buys nothing.
    const LONG: Self = Budget { spin_for: Duration::from_micros(50), looks_per_clock: 64, yields: YIELDS };
    /// Time until a peer gets its turn on another processor, with two to four ranks per processor, and answers: a few context
    /// switches, and their cost in the caches. (Measured with 4 and 8 ranks on two processors: with 1.5 µs, ranks seldom come
    /// to run at the same time.)
    const BRIEF: Self = Budget { spin_for: Duration::from_micros(5), looks_per_clock: 16, yields: YIELDS };
    const YIELDING: Self = Budget { spin_for: Duration::ZERO, ..Self::BRIEF };
    /// Budget of a wait that will sleep anyway. A poll may be a system call, so the clock is read after each.
    const GLANCE: Self = Budget { spin_for: Duration::from_micros(5), looks_per_clock: 1, yields: 0 };
    const NONE: Self = Budget { spin_for: Duration::ZERO, looks_per_clock: 1, yields: 0 };

    #[inline]
    fn is_spent(&self) -> bool {
        self.spin_for.is_zero() && self.yields == 0
    }
}

impl SpinHistory {
    /// Highest credit: this many failures in a row end the spinning.
    const MOST: u8 = 16;
    /// Without credit, one wait in this many spins again. With a processor for every rank (`RETRY_ALONE`) an attempt costs
    /// others nothing.
    const RETRY: u8 = 64;
    const RETRY_ALONE: u8 = 32;

    #[inline]
    fn is_to_spin(&mut self, oversubscribed: bool) -> bool {
        self.waits = self.waits.wrapping_add(1);
        let retry = if oversubscribed { Self::RETRY } else { Self::RETRY_ALONE };
        self.credit > 0 || self.waits.is_multiple_of(retry)
    }

    /// Makes the next wait sleep at once: it is known to be long.
    pub fn for_sleep(self) -> Self {
        Self { spent: true, ..self }
    }

    fn paid(&mut self) {
        self.credit = (self.credit + 1).min(Self::MOST);
    }

    fn was_in_vain(&mut self) {
        self.credit = self.credit.saturating_sub(1);
    }

    /// Notes a wait that ended in sleep. A long wait costs as much as ten wake-ups where a poll is a system call, so five of
    /// these are enough.
    fn ended_in_sleep(&mut self) {
        self.credit /= 2;
    }
}

impl Default for SpinHistory {
    /// Half of the highest credit.
    fn default() -> Self {
        SpinHistory { credit: Self::MOST / 2, waits: 0, spent: false }
    }
}

impl AtomicSpinHistory {
    /// The history so far.
    #[inline]
    pub fn load(&self) -> SpinHistory {
        let [credit, waits, spent, _] = self.0.load(Ordering::Relaxed).to_ne_bytes();
        SpinHistory { credit, waits, spent: spent != 0 }
    }

    /// Keeps the history that [`Spinner::found`] or [`Spinner::gave_up`] returned.
    #[inline]
    pub fn store(&self, history: SpinHistory) {
        self.0.store(Self::packed(history), Ordering::Relaxed);
    }

    fn packed(SpinHistory { credit, waits, spent }: SpinHistory) -> u32 {
        u32::from_ne_bytes([credit, waits, spent.into(), 0])
    }
}

impl Default for AtomicSpinHistory {
    /// The default history.
    fn default() -> Self {
        AtomicSpinHistory(AtomicU32::new(Self::packed(SpinHistory::default())))
    }
}

impl Spinner {
    /// A spinner for a single wait. `oversubscribed`: more ranks run on this host than it has processors for them.
    pub fn new(oversubscribed: bool) -> Self {
        let budget = if oversubscribed { Budget::YIELDING } else { Budget::LONG };
        Self::within(budget, oversubscribed, SpinHistory::default())
    }

    /// A spinner for one of many waits at the same place; [`Spinner::found`] and [`Spinner::gave_up`] return the history.
    #[inline]
    pub fn with_history(oversubscribed: bool, mut history: SpinHistory) -> Self {
        if history.spent {
            return Self::within(Budget::NONE, oversubscribed, history);
        }
        let budget = match (oversubscribed, history.is_to_spin(oversubscribed)) {
            (false, true) => Budget::LONG,
            (false, false) => Budget::GLANCE,
            (true, true) => Budget::BRIEF,
            (true, false) => Budget::YIELDING,
        };
        Self::within(budget, oversubscribed, history)
    }

    /// Adapts the spinner to polls that take long: the clock is read after each.
    pub fn with_long_looks(mut self) -> Self {
        self.budget.looks_per_clock = 1;
        self
    }

    #[inline]
    fn within(budget: Budget, oversubscribed: bool, history: SpinHistory) -> Self {
        Spinner { looks: 0, budget, since: None, oversubscribed, history }
    }

    /// Counts a poll in vain, and decides the next action. Returns [`Pause::Sleep`] when the budget is spent, every time from
    /// then on.
    #[inline]
    pub fn pause(&mut self) -> Pause {
        missed();
        self.looks = self.looks.wrapping_add(1);
        if !self.budget.spin_for.is_zero() {
            if !self.looks.is_multiple_of(self.budget.looks_per_clock) {
                // No `pause` instruction: it takes 140 cycles on recent processors, longer than a cache line takes to come.
                return Pause::Again;
            }
            return self.look_at_clock();
        }
        self.stop_spinning()
    }

    /// Ends the wait: its news came, or it ends for another reason than its time. Returns the history to keep. With more ranks
    /// than processors, news found without a yield came from a peer that runs at the same time.
    #[inline]
    pub fn found(mut self) -> SpinHistory {
        let paid = if self.oversubscribed { self.budget.yields == YIELDS } else { !self.budget.is_spent() };
        if paid {
            self.history.paid();
        }
        self.history.spent = false;
        self.history
    }

    /// Ends the wait: nothing came in time. Returns the history to keep.
    pub fn gave_up(mut self) -> SpinHistory {
        self.history.spent = self.budget.is_spent();
        self.history
    }

    #[cold]
    fn look_at_clock(&mut self) -> Pause {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= self.budget.spin_for {
            (self.budget.spin_for, self.since) = (Duration::ZERO, None);
            // Alone on its processor, a wait has its yields before it has waited in vain.
            if self.oversubscribed {
                self.history.was_in_vain();
            } else if self.budget.is_spent() {
                self.history.ended_in_sleep();
            }
        }
        Pause::Again
    }

    #[cold]
    fn stop_spinning(&mut self) -> Pause {
        if self.budget.yields == 0 {
            return Pause::Sleep;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        std::thread::yield_now();
        self.yielded(since.elapsed());
        Pause::Again
    }

    /// Counts a yield. `lasted`: time since the first yield of this wait began.
    fn yielded(&mut self, lasted: Duration) {
        let is_late = !self.oversubscribed && lasted >= YIELD_FOR;
        self.budget.yields = if is_late { 0 } else { self.budget.yields - 1 };
        if self.budget.is_spent() && !self.oversubscribed {
            self.history.ended_in_sleep();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_in_sleep_and_stays_there() {
        let spinners = [
            Spinner::new(false),
            Spinner::new(true),
            Spinner::with_history(false, SpinHistory::default()),
            Spinner::with_history(true, SpinHistory::default()),
        ];
        for mut spinner in spinners {
            let mut looks = 0u64;
            while spinner.pause() == Pause::Again {
                looks += 1;
            }
            // Alone on its processor it yields for a limited time, all of which another program may have taken.
            let yields = if spinner.oversubscribed { YIELDS } else { 1 };
            assert!(looks >= u64::from(yields), "yields come before sleep");
            assert_eq!(spinner.pause(), Pause::Sleep);
        }
    }

    #[test]
    fn who_has_waited_in_vain_sleeps_at_once_until_something_comes() {
        for oversubscribed in [false, true] {
            let mut spinner = Spinner::with_history(oversubscribed, SpinHistory::default());
            while spinner.pause() == Pause::Again {}
            let mut again = Spinner::with_history(oversubscribed, spinner.gave_up());
            assert_eq!(again.pause(), Pause::Sleep);
            let mut third = Spinner::with_history(oversubscribed, again.gave_up());
            assert_eq!(third.pause(), Pause::Sleep);
            let mut fresh = Spinner::with_history(oversubscribed, third.found());
            assert_eq!(fresh.pause(), Pause::Again);
            let unspent = Spinner::with_history(oversubscribed, fresh.gave_up());
            assert!(!unspent.history.spent, "it did not wait for long");
        }
    }

    #[test]
    fn a_shared_history_keeps_all_of_it() {
        let shared = AtomicSpinHistory::default();
        assert_eq!(shared.load(), SpinHistory::default());
        for spent in [false, true] {
            let history = SpinHistory { credit: SpinHistory::MOST, waits: 255, spent };
            shared.store(history);
            assert_eq!(shared.load(), history);
        }
    }

    /// Waits until it has yielded once, or only for one poll. Returns whether it spun, and the history.
    fn wait(history: SpinHistory, in_vain: bool) -> (bool, SpinHistory) {
        let mut spinner = Spinner::with_history(true, history);
        let spins = !spinner.budget.spin_for.is_zero();
        spinner.pause();
        while in_vain && spinner.budget.yields == YIELDS {
            spinner.pause();
        }
        (spins, spinner.found())
    }

    #[test]
    fn what_never_pays_is_tried_seldom() {
        let mut history = SpinHistory::default();
        let mut spun = 0;
        for _ in 0..1000 {
            let (spins, after) = wait(history, true);
            spun += usize::from(spins);
            history = after;
        }
        assert!((15..=30).contains(&spun), "spun {spun} times of 1000");
    }

    #[test]
    fn what_pays_again_is_done_again() {
        let mut history = SpinHistory { credit: 0, waits: 0, spent: false };
        let spun: usize = (0..1000)
            .map(|_| {
                let (spins, after) = wait(history, false);
                history = after;
                usize::from(spins)
            })
            .sum();
        assert!(spun > 900, "spun {spun} times of 1000");
        assert_eq!(history.credit, SpinHistory::MOST);
    }

    /// Waits alone on its processor until it would sleep, or only for one poll. Returns the history.
    fn wait_alone(history: SpinHistory, in_vain: bool) -> SpinHistory {
        let mut spinner = Spinner::with_history(false, history);
        let mut pause = spinner.pause();
        while in_vain && pause == Pause::Again {
            pause = spinner.pause();
        }
        spinner.found()
    }

    #[test]
    fn who_always_ends_in_sleep_sleeps_soon() {
        let mut history = SpinHistory::default();
        let mut long = 0;
        for nth in 0..200 {
            long += usize::from(
                nth >= SpinHistory::MOST && Spinner::with_history(false, history).budget == Budget::LONG,
            );
            history = wait_alone(history, true);
        }
        assert_eq!(history.credit, 0);
        assert!(
            (5..=7).contains(&long),
            "one in {} tries again, not {long} of 184",
            SpinHistory::RETRY_ALONE
        );
    }

    #[test]
    fn who_finds_news_before_it_sleeps_spins_again() {
        let mut history = SpinHistory { credit: 0, waits: 0, spent: false };
        for _ in 0..SpinHistory::MOST {
            history = wait_alone(history, false);
        }
        assert_eq!(history.credit, SpinHistory::MOST);
        assert_eq!(Spinner::with_history(false, history).budget, Budget::LONG);
        // A wait that polled in vain for all of its time has learned that, and no more.
        assert_eq!(wait_alone(history, true).credit, SpinHistory::MOST / 2);
    }

    /// A message that is found after a yield which gave a time slice away would have come sooner by a wake-up.
    #[test]
    fn who_yields_to_another_program_sleeps_soon() {
        let mut history = SpinHistory::default();
        let mut yielded = 0;
        for _ in 0..200 {
            let mut spinner = Spinner::with_history(false, history);
            spinner.budget.spin_for = Duration::ZERO;
            if spinner.budget.yields > 0 {
                spinner.yielded(YIELD_FOR);
                yielded += 1;
            }
            assert_eq!(spinner.budget.yields, 0);
            history = spinner.found();
        }
        assert!(
            yielded <= 200 / usize::from(SpinHistory::RETRY_ALONE) + 6,
            "yielded in {yielded} waits of 200"
        );
    }

    #[test]
    fn long_looks_spin_no_longer_than_short_ones() {
        let mut spinner = Spinner::with_history(false, SpinHistory::default()).with_long_looks();
        spinner.pause();
        std::thread::sleep(Budget::LONG.spin_for);
        spinner.pause();
        assert!(spinner.budget.spin_for.is_zero(), "it yields now");
    }

    /// Among ranks that share processors, a yield lets another rank work.
    #[test]
    fn who_yields_to_other_ranks_goes_on() {
        let mut spinner = Spinner::with_history(true, SpinHistory::default());
        spinner.yielded(YIELD_FOR);
        assert_eq!(spinner.budget.yields, YIELDS - 1);
    }

    #[test]
    fn what_was_there_at_once_would_have_paid() {
        let before = SpinHistory { credit: 0, waits: 0, spent: false };
        assert_eq!(Spinner::with_history(true, before).found().credit, 1);
    }
}
