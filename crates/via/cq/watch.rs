//! Waking of tasks: one thread sleeps in the place of many ([`Watcher`]).
//!
//! A task must not block its thread. A task that finds its queue empty arms it ([`Cq::arm`]), leaves its [`Waker`] in a
//! [`Watch`], and returns. A thread of the [`Watcher`] sleeps on the words of all watched queues, and calls the wakers of
//! those whose words have changed. It never polls a queue: that stays with the queue's owner.
//!
//! # No wake-up is lost
//! * The task arms before it leaves its waker. News that come in between have changed the word, which the thread reads before
//!   it sleeps, and which the kernel reads again.
//! * The thread sleeps on a word of its own besides, and sets it before it reads the wakers. A task that leaves a waker
//!   changes it afterwards.
//! * A process that is killed between changing a word and waking its sleepers leaves it changed: so no sleep is longer
//!   than [`MAX_SLEEP`] while a waker waits.
//!
//! The wakers run on the watcher's thread, which is no executor: they should do no more than schedule. One that panics has no
//! effect on the others.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};
use udeck_sys::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use udeck_sys::doorbell::MAX_SLEEP;
use udeck_sys::thread::{self, Callback};
use udeck_sys::{MOST_WORDS, sleep_any, wake_sleepers};

#[cfg(doc)]
use super::Cq;
use super::CqHandle;
use super::handle::Shared;
use crate::error::{Error, Result};
use crate::transport::ARMED;

/// Upper bound of queues that one thread watches: it sleeps on a word of its own besides.
const PER_THREAD: usize = MOST_WORDS - 1;

/// Wakes tasks when their completion queues may have news. It has one thread, `deck-via-watch`, for each 127 watched queues; each
/// starts with its first queue. They end when this is dropped; no task is woken any more then.
#[derive(Debug, Default)]
pub struct Watcher {
    threads: Mutex<Vec<Arc<WatchThread>>>,
}

/// A queue's place at a [`Watcher`]. Dropping it gives the place back.
#[derive(Debug)]
pub struct Watch {
    thread: Arc<WatchThread>,
    number: u64,
}

/// Queues that one thread watches.
struct WatchThread {
    watched: Mutex<WatchedQueues>,
    /// [`ARMED`] while the thread sleeps, or is about to, and has read all watched queues.
    word: AtomicU32,
}

#[derive(Default)]
struct WatchedQueues {
    entries: BTreeMap<u64, WatchedQueue>,
    next: u64,
    stop: bool,
    /// Whether the thread has panicked.
    failed: bool,
}

struct WatchedQueue {
    queue: Arc<Shared>,
    waiting: Option<ArmedWaker>,
}

struct ArmedWaker {
    waker: Waker,
    at_latest: Option<Instant>,
}

impl Watcher {
    /// Takes a place for the queue of `handle`. Nothing is watched before [`Watch::wake`].
    ///
    /// # Errors
    /// [`Error::Os`] when no thread can sleep in this queue's place (transports other than shared memory; before Linux
    /// 5.16), or when no threads are left.
    pub fn watch(&self, handle: &CqHandle) -> Result<Watch> {
        let queue = handle.0.clone();
        if queue.sleep_word().is_none() {
            return Err(unsupported("this NIC's completion queues sleep on no word of memory"));
        }
        let mut threads = self.threads.lock();
        for thread in threads.iter() {
            if let Some(number) = thread.watched.lock().take(&queue) {
                return Ok(Watch { thread: thread.clone(), number });
            }
        }
        let thread = WatchThread::open()?;
        let number = thread.watched.lock().take(&queue).expect("it is empty");
        threads.push(thread.clone());
        Ok(Watch { thread, number })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        for thread in self.threads.lock().drain(..) {
            thread.watched.lock().stop = true;
            thread.rouse();
        }
    }
}

impl Watch {
    /// Wakes `waker`, once, when the queue may have news, or at `at_latest`. The queue has to be armed since its last poll
    /// ([`Cq::arm`]). A waker that was left here before is forgotten.
    pub fn wake(&self, waker: &Waker, at_latest: Option<Instant>) {
        let waiting = ArmedWaker { waker: waker.clone(), at_latest };
        let (failed, before) = {
            let mut watched = self.thread.watched.lock();
            (watched.failed, watched.set(self.number, Some(waiting)))
        };
        if failed {
            // No thread sleeps in the queue's place any more: the task polls by itself, which costs time and loses nothing.
            return waker.wake_by_ref();
        }
        drop(before); // outside the lock: the drop of a waker may run any code
        self.thread.rouse();
    }

    /// Forgets the waker: no task waits.
    pub fn rest(&self) {
        let before = self.thread.watched.lock().set(self.number, None);
        drop(before);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let queue = self.thread.watched.lock().entries.remove(&self.number);
        drop(queue);
    }
}

impl WatchedQueues {
    fn take(&mut self, queue: &Arc<Shared>) -> Option<u64> {
        if self.entries.len() >= PER_THREAD || self.failed {
            return None;
        }
        self.next += 1;
        self.entries.insert(self.next, WatchedQueue { queue: queue.clone(), waiting: None });
        Some(self.next)
    }

    fn set(&mut self, number: u64, waiting: Option<ArmedWaker>) -> Option<ArmedWaker> {
        let queue = self.entries.get_mut(&number)?;
        std::mem::replace(&mut queue.waiting, waiting)
    }
}

/// Next action of the thread.
enum NextAction {
    Wake(Vec<Waker>),
    Sleep(Vec<Arc<Shared>>, Duration),
    Stop,
}

impl WatchThread {
    fn open() -> Result<Arc<Self>> {
        let thread = Arc::new(WatchThread { watched: Mutex::default(), word: AtomicU32::new(0) });
        // This call returns at once, because the word is not armed.
        if sleep_any([&thread.word], ARMED, Duration::ZERO).is_err() {
            return Err(unsupported("sleeping on several words of memory needs Linux 5.16"));
        }
        let (theirs, failing) = (thread.clone(), thread.clone());
        let spawned = thread::spawn("via-watch", move || theirs.run(), move |_| failing.fail());
        spawned.map_err(|error| Error::os("starting a thread that watches completion queues", error))?;
        Ok(thread)
    }

    /// Fails the watcher, because the thread has panicked: waiting tasks are woken, and poll by themselves.
    fn fail(&self) {
        let mut watched = self.watched.lock();
        watched.failed = true;
        let wakers: Vec<_> = watched.entries.values_mut().filter_map(|queue| queue.waiting.take()).collect();
        drop(watched);
        let callback = Callback::new("a task's waker");
        wakers.into_iter().for_each(|waiting| _ = callback.call(|| waiting.waker.wake()));
    }

    fn run(&self) {
        let callback = Callback::new("a task's waker");
        loop {
            // Set before the watched queues are read: a thread that changes something later changes the word, too.
            self.word.store(ARMED, Ordering::SeqCst);
            match self.next_action() {
                // A waker that panics has no effect on the others.
                NextAction::Wake(wakers) => {
                    wakers.into_iter().for_each(|waker| _ = callback.call(|| waker.wake()));
                }
                NextAction::Sleep(queues, limit) => {
                    let words = queues.iter().filter_map(|queue| queue.sleep_word());
                    // The call cannot fail: it was possible when the thread was started.
                    let _ = sleep_any(words.chain([&self.word]), ARMED, limit);
                }
                NextAction::Stop => return,
            }
        }
    }

    fn next_action(&self) -> NextAction {
        let mut watched = self.watched.lock();
        if watched.stop {
            return NextAction::Stop;
        }
        let now = Instant::now();
        let (mut wakers, mut queues, mut limit) = (Vec::new(), Vec::new(), Duration::MAX);
        for queue in watched.entries.values_mut() {
            let due = queue.is_due(now);
            let Some(waiting) = &queue.waiting else { continue };
            if due {
                wakers.extend(queue.waiting.take().map(|waiting| waiting.waker));
                continue;
            }
            let remaining = waiting.at_latest.map_or(MAX_SLEEP, |at| at.saturating_duration_since(now));
            limit = limit.min(remaining).min(MAX_SLEEP);
            queues.push(queue.queue.clone());
        }
        if wakers.is_empty() { NextAction::Sleep(queues, limit) } else { NextAction::Wake(wakers) }
    }

    /// Makes the thread read all watched queues again.
    fn rouse(&self) {
        if self.word.swap(0, Ordering::SeqCst) == ARMED {
            wake_sleepers(&self.word);
        }
    }
}

impl WatchedQueue {
    fn is_due(&self, now: Instant) -> bool {
        let Some(waiting) = &self.waiting else { return false };
        let armed = self.queue.sleep_word().is_some_and(|word| word.load(Ordering::Acquire) == ARMED);
        !armed || waiting.at_latest.is_some_and(|at| at <= now)
    }
}

impl fmt::Debug for WatchThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchThread({} of {PER_THREAD} queues)", self.watched.lock().entries.len())
    }
}

#[cold]
fn unsupported(why: &str) -> Error {
    let source = io::Error::new(io::ErrorKind::Unsupported, why);
    Error::os("waking a task by a completion queue", source)
}
