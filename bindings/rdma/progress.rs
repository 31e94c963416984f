//! Progress of a NIC's end points: the threads that move them on, and how threads wait.
//!
//! Usually the program's own threads move them on, by polling. Threads that wait sleep together on the NIC's one completion queue below: one of
//! them, the leader, sleeps there and moves on the end points that have completions; the others sleep on a bell that it rings. Where nobody polls, the
//! engine's thread does the same, because peers read and write the program's memory at any time. While the program polls by itself,
//! that thread keeps out of the program's way, but for one poll each millisecond.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use udeck_sys::Topology;
use udeck_via::{AtomicSpinHistory, Cq, CqHandle, Deadline, Nic, Pause, Spinner, missed, thread};

use crate::{Bell, HeldBytes};

/// Longest sleep of a leader, a follower or a listener before it checks whether the NIC has closed.
pub const MAX_WAIT: Duration = Duration::from_millis(100);
/// Time that the engine keeps out of the way of a program that polls, and of a peer that has no room.
const ASIDE: Duration = Duration::from_millis(1);
/// Time that a wait polls before it counts for the spin history. The messages of a burst follow each other sooner.
const IN_PLACE: Duration = Duration::from_micros(3);
/// Most completions that one poll serves.
const BOUND: usize = 8;

/// Moves the end point with this number on. (Faces use this file, and not the other way round.)
pub type MoveOn = fn(u64);

/// The completion queue of a NIC's end points, the threads that wait at it, and the engine's thread.
pub struct Progress {
    bell: Arc<Bell>,
    move_on: MoveOn,
    /// Whether a spinning thread keeps the peer from its processor.
    is_oversubscribed: AtomicBool,
    cq: Mutex<Cq>,
    cq_handle: CqHandle,
    /// Number of end points that the engine has to serve.
    served: AtomicUsize,
    /// Number of polls by the program.
    polls: AtomicU64,
    name: &'static str,
    engine: Mutex<Option<JoinHandle<Result<(), String>>>>,
    /// End points that have found no room, or no receive. No event may come when there is some, so they are polled.
    stalled: Mutex<HashSet<u64>>,
    is_any_stalled: AtomicBool,
    is_closed: AtomicBool,
    held: HeldBytes,
}

/// Whether both ends of a connection on this host share its one processor. A process that is pinned to one has others beside it.
fn is_crowded() -> bool {
    Topology::detect().cpus == 1
}

impl Progress {
    /// Makes the progress of the end points on `nic`. The engine's thread is called `name`.
    ///
    /// # Errors
    /// The NIC has no completion queue left.
    pub fn new(nic: &Nic, name: &'static str, move_on: MoveOn) -> udeck_via::Result<Progress> {
        let mut cq = Cq::new(nic)?;
        let is_crowded = is_crowded();
        cq.set_oversubscribed(is_crowded);
        Ok(Progress {
            bell: Arc::new(Bell::new(cq.handle())),
            move_on,
            is_oversubscribed: AtomicBool::new(is_crowded),
            cq_handle: cq.handle(),
            cq: Mutex::new(cq),
            served: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
            name,
            engine: Mutex::default(),
            stalled: Mutex::default(),
            is_any_stalled: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            held: HeldBytes::default(),
        })
    }

    /// The bytes of the end points' messages that wait for receives.
    pub fn held(&self) -> &HeldBytes {
        &self.held
    }

    /// The bell that completions ring.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// The completion queue that end points are connected with.
    pub fn cq_handle(&self) -> &CqHandle {
        &self.cq_handle
    }

    /// Whether the NIC has closed: waits end.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Sets whether a spinning thread keeps others from their processors.
    pub fn set_oversubscribed(&self, oversubscribed: bool) {
        self.is_oversubscribed.store(oversubscribed, Ordering::Relaxed);
        self.bell.ring_all(); // the leader has the queue locked
        self.cq.lock().set_oversubscribed(oversubscribed);
    }

    // ---- waiting ----

    /// Polls until `poll` returns something, at most until `deadline`. `poll` gets whether it is the last call before a sleep: then it has to
    /// look under a lock. `history` is that of all waits for the same thing: a wait learns from it whether to spin.
    #[inline]
    pub fn wait<T>(
        &self,
        history: &AtomicSpinHistory,
        deadline: Deadline,
        mut poll: impl FnMut(bool) -> Option<T>,
    ) -> Option<T> {
        // News that come at once teach nothing: of a burst only the first message was waited for.
        if let Some(found) = poll(false) {
            return Some(found);
        }
        let oversubscribed = self.is_oversubscribed.load(Ordering::Relaxed);
        if !oversubscribed && let Some(found) = self.poll_in_place(deadline, &mut poll) {
            return Some(found);
        }
        let mut spinner = Spinner::with_history(oversubscribed, history.load());
        let found = self.wait_by(&mut spinner, deadline, &mut poll);
        history.store(if found.is_some() { spinner.found() } else { spinner.gave_up() });
        found
    }

    fn poll_in_place<T>(&self, deadline: Deadline, poll: &mut dyn FnMut(bool) -> Option<T>) -> Option<T> {
        let until = Deadline::after(IN_PLACE).min(deadline);
        while !until.passed() && !self.is_closed() {
            missed();
            if let Some(found) = poll(false) {
                return Some(found);
            }
        }
        None
    }

    fn wait_by<T>(
        &self,
        spinner: &mut Spinner,
        deadline: Deadline,
        poll: &mut dyn FnMut(bool) -> Option<T>,
    ) -> Option<T> {
        while !self.is_closed() {
            let pause = spinner.pause();
            if deadline.passed() {
                return None;
            }
            if pause == Pause::Sleep {
                let limit = deadline.remaining().min(MAX_WAIT);
                if let Some(found) = self.sleep_unless(limit, &mut || poll(true)) {
                    return Some(found);
                }
            }
            if let Some(found) = poll(false) {
                return Some(found);
            }
        }
        None
    }

    /// Sleeps until something may have changed, unless a poll finds something.
    fn sleep_unless<T>(&self, limit: Duration, poll: &mut dyn FnMut() -> Option<T>) -> Option<T> {
        let _sleeper = self.bell.sleeper(true);
        let rings = self.bell.rings();
        let found = poll();
        if found.is_none() {
            self.sleep_or_poll_stalled(limit, rings, true);
        }
        found
    }

    fn sleep_or_poll_stalled(&self, limit: Duration, rings: u64, has_spun: bool) {
        let is_any_stalled = self.is_any_stalled.load(Ordering::Relaxed);
        self.sleep(if is_any_stalled { limit.min(ASIDE) } else { limit }, rings, has_spun);
        if is_any_stalled {
            self.poll_stalled();
        }
    }

    /// Sleeps until the bell rings, or the queue below has news. `has_spun`: the caller has spun for as long as pays, so the queue need not.
    fn sleep(&self, limit: Duration, rings: u64, has_spun: bool) {
        let rung = || self.bell.rings() != rings || self.is_closed();
        match self.cq.try_lock() {
            Some(mut cq) => {
                let leader = self.bell.lead();
                if has_spun {
                    cq.sleep_at_once();
                }
                let news = cq.wait(Deadline::after(limit), rung);
                drop((leader, cq));
                if let Some(entry) = news {
                    (self.move_on)(entry.context);
                }
                // A follower may lead now.
                if self.bell.sleepers() > 1 {
                    self.bell.ring_all();
                }
            }
            None => {
                // Another thread polls, and rings for nobody when it has done: that is soon.
                if !self.bell.is_led() {
                    std::thread::yield_now();
                }
                let limit = if self.bell.is_led() { limit } else { limit.min(ASIDE) };
                self.bell.sleep(limit, || rung() || !self.cq.is_locked());
            }
        }
    }

    /// Notes whether an end point is stalled: it has found no room or no receive.
    #[cold]
    pub fn set_stalled(&self, end_point: u64, is_stalled: bool) {
        let mut stalled = self.stalled.lock();
        if is_stalled {
            stalled.insert(end_point);
        } else {
            stalled.remove(&end_point);
        }
        let is_any = !stalled.is_empty();
        let was_any = self.is_any_stalled.swap(is_any, Ordering::Relaxed);
        drop(stalled);
        if is_any && !was_any {
            // A sleeper that began without stalled end points would poll this one only at the end of its sleep, and nothing else may end that sleep.
            self.bell.ring_all();
        }
    }

    fn poll_stalled(&self) {
        let stalled: Vec<u64> = self.stalled.lock().iter().copied().collect();
        stalled.into_iter().for_each(self.move_on);
    }

    /// Moves on the end points that have completions, without waiting.
    #[inline]
    pub fn poll(&self) {
        self.poll_until(|| false);
    }

    /// Like [`Progress::poll`], but stops when `is_found`: the completion queue below is fair, so the next poll begins with others.
    #[inline]
    pub fn poll_until(&self, is_found: impl Fn() -> bool) {
        self.count_poll();
        self.serve(is_found);
    }

    /// Counts a poll by the program.
    #[inline]
    pub fn count_poll(&self) {
        // Not counted exactly: the engine only checks whether the number has changed.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    #[inline]
    fn serve(&self, is_found: impl Fn() -> bool) {
        let Some(mut cq) = self.cq.try_lock() else { return };
        for _ in 0..BOUND {
            let Some(entry) = cq.poll() else { return };
            (self.move_on)(entry.context);
            if is_found() {
                return;
            }
        }
    }

    // ---- the engine's thread ----

    /// Has the engine serve one more end point. The first one starts its thread; `panicked` is called if that panics.
    ///
    /// # Errors
    /// The system has no thread left: end points are served while the program polls or waits.
    #[cold]
    pub fn begin_serving(self: &Arc<Self>, panicked: impl FnOnce(&str) + Send + 'static) -> io::Result<()> {
        self.served.fetch_add(1, Ordering::Relaxed);
        let mut engine = self.engine.lock();
        if engine.is_none() && !self.is_closed() {
            let serving = self.clone();
            *engine = Some(thread::spawn(self.name, move || serving.run(), panicked)?);
        }
        drop(engine);
        self.bell.ring_all();
        Ok(())
    }

    /// Has the engine serve one end point fewer.
    pub fn end_serving(&self) {
        self.served.fetch_sub(1, Ordering::Relaxed);
    }

    fn run(&self) {
        let mut polls = 0;
        while !self.is_closed() {
            let now = self.polls.load(Ordering::Relaxed);
            let is_idle = self.served.load(Ordering::Relaxed) == 0;
            if is_idle || now != polls {
                polls = now;
                // An end point is counted before the bell rings for it.
                let is_needed = || is_idle && self.served.load(Ordering::Relaxed) > 0;
                self.bell.sleep(if is_idle { MAX_WAIT } else { ASIDE }, || self.is_closed() || is_needed());
                if !is_idle {
                    // The program may poll one end point, and peers reach its memory by another.
                    self.serve(|| false);
                    if self.is_any_stalled.load(Ordering::Relaxed) {
                        self.poll_stalled();
                    }
                }
                continue;
            }
            // Completions of the program's do not concern the engine.
            let _sleeper = self.bell.sleeper(false);
            self.sleep_or_poll_stalled(MAX_WAIT, self.bell.rings(), false);
        }
    }

    /// Ends the waits, and the engine's thread.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        if udeck_via::is_forked() {
            return; // the thread is the parent's
        }
        self.bell.ring_all();
        let engine = self.engine.lock().take();
        if let Some(running) = engine
            && running.thread().id() != std::thread::current().id()
        {
            let _ = running.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn progress() -> Progress {
        let nic = udeck_sim::Fabric::new(1).nic("a", udeck_sim::Options::default()).unwrap();
        Progress::new(&nic, "engine", |_| {}).unwrap()
    }

    /// A rank that is pinned to a processor has its peer on another one: yielding for it would only give time to other programs.
    #[test]
    fn a_pinned_process_does_not_take_the_host_for_one_of_one_processor() {
        let host = is_crowded();
        let pinned = std::thread::spawn(|| {
            udeck_sys::pin_to_cpu(udeck_sys::usable_cpus()[0]).unwrap();
            progress().is_oversubscribed.into_inner()
        });
        assert_eq!(pinned.join().unwrap(), host);
    }

    /// The leader rings when it wakes; a thread that only polls does not.
    #[test]
    fn nobody_follows_a_thread_that_only_polls() {
        let progress = Arc::new(progress());
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let polls = progress.cq.lock();
            std::thread::scope(|scope| {
                scope.spawn(|| progress.sleep(Duration::from_secs(600), progress.bell.rings(), true));
            });
            drop(polls);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(20)).expect("it sleeps for all of its time");
    }

    /// Waits until it would sleep, and finds something then. Returns how often it polled.
    fn wait_until_it_sleeps(progress: &Progress, history: &AtomicSpinHistory) -> usize {
        let mut polls = 0;
        let found = progress.wait(history, Deadline::after(Duration::from_secs(600)), |is_last| {
            polls += 1;
            is_last.then_some(())
        });
        found.expect("it finds something before it sleeps");
        polls
    }

    /// Yields on a busy host take a time slice each: waits learn to do without, as those of mailboxes.
    #[test]
    fn waits_that_end_in_sleep_learn_to_sleep_soon() {
        let (progress, history) = (progress(), AtomicSpinHistory::default());
        progress.set_oversubscribed(false);
        for _ in 0..4 {
            assert!(has_credit(&history), "a few waits are enough: {history:?}");
            wait_until_it_sleeps(&progress, &history);
        }
        assert!(!has_credit(&history), "{history:?}");
    }

    /// A burst of messages takes one wait. The others are found at once or soon, and would make up for it.
    #[test]
    fn news_that_come_at_once_teach_nothing() {
        let (progress, history) = (progress(), AtomicSpinHistory::default());
        progress.set_oversubscribed(false);
        // A test that is suspended between two polls finds the second one late.
        for _ in 0..1000 {
            wait_until_it_sleeps(&progress, &history);
            for polls_in_vain in [0, 1].repeat(30) {
                let mut polls = 0..polls_in_vain;
                let limit = Deadline::after(Duration::from_secs(600));
                progress.wait(&history, limit, |_| polls.next().is_none().then_some(()));
            }
            if !has_credit(&history) {
                return;
            }
        }
        panic!("{history:?}");
    }

    fn has_credit(history: &AtomicSpinHistory) -> bool {
        !format!("{:?}", history.load()).contains("credit: 0")
    }

    #[test]
    fn the_queue_below_does_not_spin_after_a_wait_that_has() {
        let progress = progress();
        assert!(format!("{:?}", progress.cq.lock()).contains("spent: false"));
        progress.sleep(Duration::ZERO, progress.bell.rings(), true);
        assert!(format!("{:?}", progress.cq.lock()).contains("spent: true"), "it slept at once, in vain");
    }

    /// The first end point that stalls wakes sleepers: one polls it within a millisecond, and not at the end of its sleep.
    #[test]
    fn the_first_end_point_that_stalls_wakes_sleepers() {
        let progress = progress();
        let rings = |end_point, is_stalled| {
            let before = progress.bell.rings();
            progress.set_stalled(end_point, is_stalled);
            progress.bell.rings() - before
        };
        assert_eq!(
            [rings(1, true), rings(2, true), rings(1, false), rings(2, false), rings(1, true)],
            [1, 0, 0, 0, 1]
        );
    }

    #[test]
    fn only_listeners_are_rung_for() {
        let progress = progress();
        let rings = |listens| {
            let _sleeper = progress.bell.sleeper(listens);
            let before = progress.bell.rings();
            progress.bell.ring();
            progress.bell.rings() - before
        };
        assert_eq!([rings(false), rings(true)], [0, 1]);
    }
}
