//! Progress of announced messages, in any thread that has time for it.
//!
//! A channel with announced messages is put into a [`Slot`]. Its poster progresses it when it calls the
//! library, and so does every other waiting call of the same process. If the application computes instead,
//! the helper thread notices that nobody has polled, and progresses the channel: 0.1 ms after it was called,
//! or within 1 ms if the application has been seen to poll. The thread starts with the first announced
//! message. It sleeps while no message waits, or while the posters of all waiting messages wait for them
//! themselves: programs whose messages need no announcement never pay for it.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use udeck_via::thread;

/// First interval after which the helper checks whether the application polls, after it was called or was of
/// use. The interval doubles while the helper is of no use, up to [`TICK`]: a program that polls all the time
/// is checked a thousand times a second.
const FIRST_TICK: Duration = Duration::from_micros(100);
/// Longest interval between two checks of the helper.
const TICK: Duration = Duration::from_millis(1);
/// Checks without work before the helper sleeps until it is called. A poster that leaves messages behind
/// calls it, so a program that posts now and then pays one call each time.
const QUIET_TICKS: u32 = 1;
/// First interval between two polls of the helper while it does the application's work. It doubles each time
/// that nothing moved, up to [`TICK`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);

/// Longest sleeps of a waiting call of the application while messages wait for answers: the first at the
/// beginning, the second after [`SHORT_SLEEPS`] sleeps in vain.
const SLEEPS: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(1)];
const SHORT_SLEEPS: u32 = 16;

/// A holder of waiting messages that any thread can progress: a channel.
pub(crate) trait Advance: Send {
    /// Whether messages wait.
    fn has_queued(&self) -> bool;
    /// Progresses the messages as far as possible without waiting. Returns whether anything moved.
    fn progress(&mut self) -> bool;
}

/// A channel that more than one thread may move along.
#[derive(Debug)]
pub(crate) struct Slot<C> {
    channel: Mutex<Option<Box<C>>>,
    /// Whether messages wait in the channel. Written under the channel's lock, and counted in
    /// [`Progress::busy`].
    busy: AtomicBool,
    /// Whether the postbox is gone: the channel is dropped when nothing waits any more.
    orphan: AtomicBool,
}

/// A slot with any kind of channel.
trait AnySlot: Send + Sync {
    /// Progresses the channel, if no thread holds it.
    fn try_progress(&self, counts: &Counts) -> Option<SlotProgress>;
    fn is_orphan(&self) -> bool;
    /// Drops the channel, which ends a connection.
    fn clear(&self);
}

/// Result of polling a slot.
struct SlotProgress {
    any: bool,
    /// Whether the channel was dropped: it had no owner, and nothing waited in it.
    is_gone: bool,
}

impl<C: Advance> Slot<C> {
    /// Notes whether messages wait here. Returns whether that has changed. Called under the channel's lock.
    fn settle(&self, is_busy: bool, busy: &AtomicUsize) -> bool {
        let is_news = self.busy.swap(is_busy, Ordering::Relaxed) != is_busy;
        if is_news {
            count(busy, is_busy);
        }
        is_news
    }
}

fn count(of: &AtomicUsize, is_one_more: bool) {
    if is_one_more {
        of.fetch_add(1, Ordering::Relaxed);
    } else {
        of.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<C: Advance> AnySlot for Slot<C> {
    fn try_progress(&self, counts: &Counts) -> Option<SlotProgress> {
        let mut place = self.channel.try_lock()?;
        let channel = place.as_mut()?;
        let (any, is_busy) = (channel.progress(), channel.has_queued());
        if self.settle(is_busy, &counts.busy) {
            count(&counts.unattended, is_busy);
        }
        let is_gone = self.is_orphan() && !is_busy;
        if is_gone {
            let channel = place.take();
            drop(place);
            drop(channel);
        }
        Some(SlotProgress { any, is_gone })
    }

    fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }

    fn clear(&self) {
        let channel = self.channel.lock().take();
        drop(channel);
    }
}

/// Guard of a slot whose poster holds it and progresses the channel itself while it waits: the helper has no
/// work there, however long that takes. Made and dropped under the channel's lock.
struct Attended<'a> {
    busy: &'a AtomicBool,
    unattended: &'a AtomicUsize,
}

impl<'a> Attended<'a> {
    fn new(busy: &'a AtomicBool, unattended: &'a AtomicUsize) -> Self {
        unattended.fetch_sub(usize::from(busy.load(Ordering::Relaxed)), Ordering::Relaxed);
        Attended { busy, unattended }
    }
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        self.unattended.fetch_add(usize::from(self.busy.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

/// Whether both are the same slot.
fn is_same<A: ?Sized, B: ?Sized>(one: &Arc<A>, other: &Arc<B>) -> bool {
    ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// The slots of a world, and its helper thread.
#[derive(Default)]
pub(crate) struct Progress {
    slots: Mutex<Vec<Arc<dyn AnySlot>>>,
    counts: Counts,
    /// Number of times that the application has progressed messages itself.
    visits: AtomicU64,
    /// Sleeps of the application since anything moved.
    sleeps: AtomicU32,
    helper: Mutex<Helper>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Number of slots in which messages wait.
    busy: AtomicUsize,
    /// Number of these slots whose poster is elsewhere.
    unattended: AtomicUsize,
}

#[derive(Debug, Default)]
struct Helper {
    is_wanted: bool,
    running: bool,
    /// Whether starting the thread failed.
    is_missing: bool,
    sleep: Sleep,
    stop: bool,
}

/// State of the helper: whether it has to be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sleep {
    #[default]
    Awake,
    Napping,
    UntilCalled,
}

/// Guard that calls the helper if the holder of a channel panics. Made before the channel is locked.
struct WakeOnPanic<'a>(&'a Arc<Progress>);

impl Drop for WakeOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake_helper();
        }
    }
}

impl Progress {
    /// Makes the progress of a world. Without a helper, only the application's own calls progress messages.
    pub fn new(has_helper: bool) -> Self {
        let helper = Mutex::new(Helper { is_wanted: has_helper, ..Helper::default() });
        Progress { helper, ..Progress::default() }
    }

    /// Whether there is a helper, or will be one when it is needed.
    pub fn has_helper(&self) -> bool {
        let helper = self.helper.lock();
        helper.is_wanted && !helper.is_missing && !helper.stop
    }

    /// Adopts a channel in which messages wait.
    pub fn adopt<C: Advance + 'static>(self: &Arc<Self>, channel: Box<C>) -> Arc<Slot<C>> {
        let slot = Arc::new(Slot {
            channel: Mutex::new(Some(channel)),
            busy: AtomicBool::new(true),
            orphan: AtomicBool::new(false),
        });
        count(&self.counts.busy, true);
        count(&self.counts.unattended, true);
        self.slots.lock().push(slot.clone());
        self.sleeps.store(0, Ordering::Relaxed);
        self.wake_helper();
        slot
    }

    /// Runs a poster's action on its channel. Returns the channel when nothing waits any more.
    pub fn visit<C: Advance, R>(
        self: &Arc<Self>,
        slot: &Arc<Slot<C>>,
        act: impl FnOnce(&mut C) -> R,
    ) -> (R, Option<Box<C>>) {
        self.visits.fetch_add(1, Ordering::Relaxed);
        let _called = WakeOnPanic(self);
        let mut place = slot.channel.lock();
        let channel = place.as_mut().expect("only its poster takes a channel out of its slot");
        let attended = Attended::new(&slot.busy, &self.counts.unattended);
        channel.progress();
        let result = act(channel);
        slot.settle(channel.has_queued(), &self.counts.busy);
        drop(attended);
        if channel.has_queued() {
            drop(place);
            self.wake_helper(); // asleep if the queue was empty for a while
            return (result, None);
        }
        let channel = place.take();
        drop(place);
        self.slots.lock().retain(|other| !is_same(other, slot));
        (result, channel)
    }

    /// Marks a channel whose postbox is gone. Waiting messages are still delivered, unless the world is gone,
    /// too.
    pub fn orphan<C: Advance>(&self, slot: &Arc<Slot<C>>) {
        // Waits for a thread that holds the slot right now, since it may have checked for orphans already. No
        // thread holds the slot of another's postbox for longer than it takes to progress it.
        let place = slot.channel.lock();
        slot.orphan.store(true, Ordering::Release);
        drop(place);
        self.progress_all();
        if self.helper.lock().stop {
            self.abandon_orphans();
        }
    }

    /// Drops orphans, which nobody will progress any more.
    fn abandon_orphans(&self) {
        let mut abandoned = Vec::new();
        self.slots.lock().retain(|slot| {
            let orphan = slot.is_orphan();
            if orphan {
                abandoned.push(slot.clone());
            }
            !orphan
        });
        // Dropped outside the list's lock.
        abandoned.iter().for_each(|slot| slot.clear());
    }

    /// Whether any message waits for an answer.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.counts.busy.load(Ordering::Relaxed) != 0
    }

    /// Whether a message waits for an answer while its poster is elsewhere.
    fn is_unattended(&self) -> bool {
        self.counts.unattended.load(Ordering::Relaxed) != 0
    }

    /// Progresses messages for a waiting call of the application. Returns whether anything moved.
    pub fn help(&self) -> bool {
        self.visits.fetch_add(1, Ordering::Relaxed);
        let moved = self.progress_all();
        if moved {
            self.sleeps.store(0, Ordering::Relaxed);
        }
        moved
    }

    /// Returns how long a waiting call of the application may sleep before it polls again.
    pub fn sleep_limit(&self) -> Duration {
        // Concurrent increments may be lost: then the next sleep is short, too.
        let so_far = self.sleeps.load(Ordering::Relaxed);
        self.sleeps.store(so_far.saturating_add(1), Ordering::Relaxed);
        SLEEPS[usize::from(so_far >= SHORT_SLEEPS)]
    }

    /// Progresses every channel that no thread holds. Returns whether anything moved.
    fn progress_all(&self) -> bool {
        let slots: Vec<_> = self.slots.lock().clone();
        let mut moved = false;
        for slot in slots {
            let Some(SlotProgress { any, is_gone }) = slot.try_progress(&self.counts) else { continue };
            moved |= any;
            if is_gone {
                self.slots.lock().retain(|other| !is_same(other, &slot));
            }
        }
        moved
    }

    fn wake_helper(self: &Arc<Self>) {
        let mut helper = self.helper.lock();
        if helper.sleep != Sleep::Awake {
            self.wakeup.notify_one();
        } else if helper.is_wanted && !helper.running && !helper.stop {
            let weak = Arc::downgrade(self);
            let failing = Weak::clone(&weak);
            let on_panic = move |_: &str| failing.upgrade().into_iter().for_each(|progress| progress.fail());
            let spawned = thread::spawn("progress", move || run(&weak), on_panic);
            // Without the thread, the application's own calls still progress messages.
            (helper.running, helper.is_missing) = (spawned.is_ok(), spawned.is_err());
        }
    }

    /// Ends the helper, soon, and drops orphans.
    pub fn stop(&self) {
        self.helper.lock().stop = true;
        self.wakeup.notify_one();
        self.abandon_orphans();
    }

    /// Handles a panic of the helper. It is not restarted, since it would panic again: the application's own
    /// calls still progress messages, and have deadlines. Orphans are dropped.
    fn fail(&self) {
        let mut helper = self.helper.lock();
        (helper.stop, helper.sleep) = (true, Sleep::Awake);
        drop(helper);
        self.abandon_orphans();
    }

    /// Runs one tick of the helper. `false`: it has to end.
    fn tick(&self, timing: &mut HelperTiming) -> bool {
        let mut helper = self.helper.lock();
        if helper.stop {
            return false;
        }
        if timing.quiet >= QUIET_TICKS && !self.is_unattended() {
            helper.sleep = Sleep::UntilCalled;
            self.wakeup.wait(&mut helper);
            helper.sleep = Sleep::Awake;
            *timing = HelperTiming::after_call(self.visits.load(Ordering::Relaxed));
        }
        self.wakeup.wait_for(&mut helper, timing.tick);
        drop(helper);
        timing.quiet = if self.is_unattended() { 0 } else { timing.quiet + 1 };
        let visits = self.visits.load(Ordering::Relaxed);
        timing.tick = TICK.min(timing.tick * 2);
        if visits == timing.visits_seen {
            // Nobody polled for a whole tick: do it, until somebody does or nothing is left.
            while self.is_unattended()
                && self.visits.load(Ordering::Relaxed) == visits
                && !self.helper.lock().stop
            {
                if self.progress_all() || self.nap(timing.pause) {
                    (timing.tick, timing.pause) = (FIRST_TICK, FIRST_PAUSE);
                } else {
                    timing.pause = TICK.min(timing.pause * 2);
                }
            }
        }
        timing.visits_seen = visits;
        true
    }

    /// Pauses the helper. Returns whether it was called.
    fn nap(&self, pause: Duration) -> bool {
        let mut helper = self.helper.lock();
        helper.sleep = Sleep::Napping;
        let called = !self.wakeup.wait_for(&mut helper, pause).timed_out();
        helper.sleep = Sleep::Awake;
        called
    }
}

/// Timing of the helper's checks, and what it has seen.
struct HelperTiming {
    tick: Duration,
    /// Interval between two polls while it does the application's work.
    pause: Duration,
    /// Number of checks that found no work.
    quiet: u32,
    visits_seen: u64,
}

impl HelperTiming {
    fn after_call(visits: u64) -> Self {
        HelperTiming { tick: FIRST_TICK, pause: FIRST_PAUSE, quiet: 0, visits_seen: visits }
    }
}

fn run(progress: &Weak<Progress>) {
    let mut timing = HelperTiming::after_call(0);
    while let Some(progress) = progress.upgrade() {
        if !progress.tick(&mut timing) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A channel whose messages wait until they have been polled this many times.
    struct Pending(u32);

    impl Advance for Pending {
        fn has_queued(&self) -> bool {
            self.0 > 0
        }

        fn progress(&mut self) -> bool {
            self.0 = self.0.saturating_sub(1);
            true
        }
    }

    fn comes_true(what: impl Fn() -> bool) -> bool {
        let limit = Instant::now() + Duration::from_secs(20);
        while !what() && Instant::now() < limit {
            std::thread::sleep(Duration::from_micros(100));
        }
        what()
    }

    /// A poster that waits needs no helper, and calls it when it leaves its messages.
    #[test]
    fn the_helper_sleeps_while_a_poster_waits_and_is_called_when_it_leaves() {
        let progress = Arc::new(Progress::new(true));
        let slot = progress.adopt(Box::new(Pending(u32::MAX)));
        let (slept, back) = progress.visit(&slot, |channel| {
            let slept = comes_true(|| progress.helper.lock().sleep == Sleep::UntilCalled);
            channel.0 = 5;
            slept
        });
        assert!(slept && back.is_none());
        assert!(comes_true(|| !progress.is_busy()), "somebody has looked five times");
        assert!(!progress.is_unattended());
        let (_, back) = progress.visit(&slot, |_| ());
        assert!(back.is_some() && !progress.is_unattended() && !progress.is_busy());
        progress.stop();
    }

    /// A panic leaves the channel to the helper.
    #[test]
    fn a_poster_that_panics_has_its_messages_moved_along() {
        let progress = Arc::new(Progress::new(true));
        let slot = progress.adopt(Box::new(Pending(u32::MAX)));
        let panics = || {
            progress.visit(&slot, |channel| {
                assert!(
                    comes_true(|| progress.helper.lock().sleep == Sleep::UntilCalled),
                    "its poster waits"
                );
                channel.0 = 5;
                std::panic::resume_unwind(Box::new("in a post"))
            })
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert!(comes_true(|| !progress.is_busy()), "somebody has looked five times");
        progress.stop();
    }
}
