//! Progress of announced messages, in whichever thread has time for it.
//!
//! A channel with announced messages is put into a [`Slot`]. Its poster moves it along when it calls the library, and so
//! does every other waiting call of the same process. If the application computes instead, the helper thread notices
//! that nobody has looked, and does it: a tenth of a millisecond after it was called, or, while the application is seen to
//! look, within a millisecond. The thread starts with the first announced message, and sleeps while none waits, or while the posters of all
//! that do wait for them themselves: programs whose messages need no announcement never pay for it.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use udeck_via::thread;

/// How soon the helper looks whether the application does, after it was called or was of use. Then after twice as long each
/// time, while it is of none: a program that visits all the time is looked at a thousand times a second.
const FIRST_TICK: Duration = Duration::from_micros(100);
/// How often it looks at least.
const TICK: Duration = Duration::from_millis(1);
/// Looks that find nothing to do before the helper sleeps until it is called. It is called whenever a poster leaves messages behind, so a
/// program that posts now and then pays one call for each time that it does.
const QUIET_TICKS: u32 = 1;
/// The helper's pause between two looks while it does the application's work; twice as long each time that nothing moves, up
/// to [`TICK`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);

/// While messages wait for answers, a waiting call of the application sleeps no longer than the first; than the second, once
/// it has rested so often in vain.
const RESTS: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(1)];
const SHORT_RESTS: u32 = 16;

/// What has messages that wait, and can be moved along by whoever has it: a channel.
pub(crate) trait Advance: Send {
    /// Whether messages wait.
    fn has_queued(&self) -> bool;
    /// Moves them along as far as they go without waiting. Whether anything moved.
    fn progress(&mut self) -> bool;
}

/// A channel that more than one thread may move along.
#[derive(Debug)]
pub(crate) struct Slot<C> {
    channel: Mutex<Option<Box<C>>>,
    /// Messages wait in it. Written under the channel's lock, and counted in [`Progress::busy`].
    busy: AtomicBool,
    /// Its postbox is gone: dropped when nothing waits any more.
    orphan: AtomicBool,
}

/// A slot, whatever lies in it.
trait AnySlot: Send + Sync {
    /// Moves the channel along, if nobody holds it.
    fn move_along(&self, counts: &Counts) -> Option<Moved>;
    fn is_orphan(&self) -> bool;
    /// Drops the channel: it ends a connection.
    fn clear(&self);
}

/// What a look at a slot has done.
struct Moved {
    any: bool,
    /// Nobody has the channel any more, and nothing waited in it: it is gone.
    is_gone: bool,
}

impl<C: Advance> Slot<C> {
    /// Says whether messages wait here: whether that is news. Under the channel's lock.
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
    fn move_along(&self, counts: &Counts) -> Option<Moved> {
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
        Some(Moved { any, is_gone })
    }

    fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }

    fn clear(&self) {
        let channel = self.channel.lock().take();
        drop(channel);
    }
}

/// Its poster has the slot, and moves the channel along itself for as long as it waits: the helper has nothing to do there, however long that
/// takes. Made and dropped under the channel's lock.
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

/// Whether these are the same slot.
fn is_same<A: ?Sized, B: ?Sized>(one: &Arc<A>, other: &Arc<B>) -> bool {
    ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(other))
}

/// The slots of a world, and the helper.
#[derive(Default)]
pub(crate) struct Progress {
    slots: Mutex<Vec<Arc<dyn AnySlot>>>,
    counts: Counts,
    /// Grows whenever the application moves things along itself.
    visits: AtomicU64,
    /// Rests of the application since anything moved.
    rests: AtomicU32,
    helper: Mutex<Helper>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Slots in which messages wait.
    busy: AtomicUsize,
    /// And whose poster is elsewhere.
    unattended: AtomicUsize,
}

#[derive(Debug, Default)]
struct Helper {
    is_wanted: bool,
    running: bool,
    /// There was no thread to be had for it.
    is_missing: bool,
    sleep: Sleep,
    stop: bool,
}

/// Whether the helper has to be woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sleep {
    #[default]
    Awake,
    Napping,
    UntilCalled,
}

/// Calls the helper when whoever had a channel leaves it by a panic. Made before the channel is locked.
struct CalledByPanic<'a>(&'a Arc<Progress>);

impl Drop for CalledByPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.call_helper();
        }
    }
}

impl Progress {
    /// With or without a helper. Without, the application's own calls move messages along.
    pub fn new(has_helper: bool) -> Self {
        let helper = Mutex::new(Helper { is_wanted: has_helper, ..Helper::default() });
        Progress { helper, ..Progress::default() }
    }

    /// Whether there is a helper, or will be one when it is needed.
    pub fn has_helper(&self) -> bool {
        let helper = self.helper.lock();
        helper.is_wanted && !helper.is_missing && !helper.stop
    }

    /// Takes a channel in which messages wait.
    pub fn adopt<C: Advance + 'static>(self: &Arc<Self>, channel: Box<C>) -> Arc<Slot<C>> {
        let slot = Arc::new(Slot {
            channel: Mutex::new(Some(channel)),
            busy: AtomicBool::new(true),
            orphan: AtomicBool::new(false),
        });
        count(&self.counts.busy, true);
        count(&self.counts.unattended, true);
        self.slots.lock().push(slot.clone());
        self.rests.store(0, Ordering::Relaxed);
        self.call_helper();
        slot
    }

    /// The poster acts on its channel; gets it back when nothing waits any more.
    pub fn visit<C: Advance, R>(
        self: &Arc<Self>,
        slot: &Arc<Slot<C>>,
        act: impl FnOnce(&mut C) -> R,
    ) -> (R, Option<Box<C>>) {
        self.visits.fetch_add(1, Ordering::Relaxed);
        let _called = CalledByPanic(self);
        let mut place = slot.channel.lock();
        let channel = place.as_mut().expect("only its poster takes a channel out of its slot");
        let attended = Attended::new(&slot.busy, &self.counts.unattended);
        channel.progress();
        let result = act(channel);
        slot.settle(channel.has_queued(), &self.counts.busy);
        drop(attended);
        if channel.has_queued() {
            drop(place);
            self.call_helper(); // it sleeps if the queue was empty for a while
            return (result, None);
        }
        let channel = place.take();
        drop(place);
        self.slots.lock().retain(|other| !is_same(other, slot));
        (result, channel)
    }

    /// The postbox is gone; what waits is still delivered, unless the world is gone too.
    pub fn orphan<C: Advance>(&self, slot: &Arc<Slot<C>>) {
        // Whoever holds the slot right now may have asked for orphans already, so it is waited for: nobody holds the
        // slot of another's postbox for longer than it takes to move it along.
        let place = slot.channel.lock();
        slot.orphan.store(true, Ordering::Release);
        drop(place);
        self.move_along();
        if self.helper.lock().stop {
            self.abandon_orphans();
        }
    }

    /// Nobody will move orphans along any more: drops them.
    fn abandon_orphans(&self) {
        let mut abandoned = Vec::new();
        self.slots.lock().retain(|slot| {
            let orphan = slot.is_orphan();
            if orphan {
                abandoned.push(slot.clone());
            }
            !orphan
        });
        // Outside the list's lock.
        abandoned.iter().for_each(|slot| slot.clear());
    }

    /// Whether any message waits for an answer.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.counts.busy.load(Ordering::Relaxed) != 0
    }

    /// Whether any does whose poster is elsewhere.
    fn is_unattended(&self) -> bool {
        self.counts.unattended.load(Ordering::Relaxed) != 0
    }

    /// A waiting call of the application lends a hand. Whether anything moved.
    pub fn help(&self) -> bool {
        self.visits.fetch_add(1, Ordering::Relaxed);
        let moved = self.move_along();
        if moved {
            self.rests.store(0, Ordering::Relaxed);
        }
        moved
    }

    /// How long a waiting call of the application may sleep before it lends a hand again.
    pub fn rest(&self) -> Duration {
        // Of several threads that count at once some are not counted: then the next rest is short, too.
        let so_far = self.rests.load(Ordering::Relaxed);
        self.rests.store(so_far.saturating_add(1), Ordering::Relaxed);
        RESTS[usize::from(so_far >= SHORT_RESTS)]
    }

    /// Moves every channel along that nobody holds. Returns whether anything moved.
    fn move_along(&self) -> bool {
        let slots: Vec<_> = self.slots.lock().clone();
        let mut moved = false;
        for slot in slots {
            let Some(Moved { any, is_gone }) = slot.move_along(&self.counts) else { continue };
            moved |= any;
            if is_gone {
                self.slots.lock().retain(|other| !is_same(other, &slot));
            }
        }
        moved
    }

    fn call_helper(self: &Arc<Self>) {
        let mut helper = self.helper.lock();
        if helper.sleep != Sleep::Awake {
            self.called.notify_one();
        } else if helper.is_wanted && !helper.running && !helper.stop {
            let weak = Arc::downgrade(self);
            let failing = Weak::clone(&weak);
            let on_panic = move |_: &str| failing.upgrade().into_iter().for_each(|progress| progress.fail());
            let spawned = thread::spawn("deck-progress", move || run(&weak), on_panic);
            // Without a thread, the application's own calls still move messages along.
            (helper.running, helper.is_missing) = (spawned.is_ok(), spawned.is_err());
        }
    }

    /// Ends the helper, soon, and what nobody owns any more.
    pub fn stop(&self) {
        self.helper.lock().stop = true;
        self.called.notify_one();
        self.abandon_orphans();
    }

    /// The helper has panicked. There is no other one, which would do the same: the application's own calls still move messages
    /// along, and have deadlines. What has no owner any more is given up.
    fn fail(&self) {
        let mut helper = self.helper.lock();
        (helper.stop, helper.sleep) = (true, Sleep::Awake);
        drop(helper);
        self.abandon_orphans();
    }

    /// One tick of the helper. `false`: it is to end.
    fn tick(&self, rhythm: &mut Rhythm) -> bool {
        let mut helper = self.helper.lock();
        if helper.stop {
            return false;
        }
        if rhythm.quiet >= QUIET_TICKS && !self.is_unattended() {
            helper.sleep = Sleep::UntilCalled;
            self.called.wait(&mut helper);
            helper.sleep = Sleep::Awake;
            *rhythm = Rhythm::called(self.visits.load(Ordering::Relaxed));
        }
        self.called.wait_for(&mut helper, rhythm.tick);
        drop(helper);
        rhythm.quiet = if self.is_unattended() { 0 } else { rhythm.quiet + 1 };
        let visits = self.visits.load(Ordering::Relaxed);
        rhythm.tick = TICK.min(rhythm.tick * 2);
        if visits == rhythm.visits_seen {
            // Nobody looked for a whole tick: do it, until somebody does or nothing is left.
            while self.is_unattended()
                && self.visits.load(Ordering::Relaxed) == visits
                && !self.helper.lock().stop
            {
                if self.move_along() || self.nap(rhythm.pause) {
                    (rhythm.tick, rhythm.pause) = (FIRST_TICK, FIRST_PAUSE);
                } else {
                    rhythm.pause = TICK.min(rhythm.pause * 2);
                }
            }
        }
        rhythm.visits_seen = visits;
        true
    }

    /// A pause of the helper. Whether it was called.
    fn nap(&self, pause: Duration) -> bool {
        let mut helper = self.helper.lock();
        helper.sleep = Sleep::Napping;
        let called = !self.called.wait_for(&mut helper, pause).timed_out();
        helper.sleep = Sleep::Awake;
        called
    }
}

/// When the helper looks, and what it has seen.
struct Rhythm {
    tick: Duration,
    /// Between two looks while it does the application's work.
    pause: Duration,
    /// Looks that found nothing to do.
    quiet: u32,
    visits_seen: u64,
}

impl Rhythm {
    fn called(visits: u64) -> Self {
        Rhythm { tick: FIRST_TICK, pause: FIRST_PAUSE, quiet: 0, visits_seen: visits }
    }
}

fn run(progress: &Weak<Progress>) {
    let mut rhythm = Rhythm::called(0);
    while let Some(progress) = progress.upgrade() {
        if !progress.tick(&mut rhythm) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Messages that wait until somebody has looked so often.
    struct Waits(u32);

    impl Advance for Waits {
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

    /// A poster that waits needs no other thread to look, and leaves its messages to one.
    #[test]
    fn the_helper_sleeps_while_a_poster_waits_and_is_called_when_it_leaves() {
        let progress = Arc::new(Progress::new(true));
        let slot = progress.adopt(Box::new(Waits(u32::MAX)));
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

    /// Whoever had the channel left it behind.
    #[test]
    fn a_poster_that_panics_has_its_messages_moved_along() {
        let progress = Arc::new(Progress::new(true));
        let slot = progress.adopt(Box::new(Waits(u32::MAX)));
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
