//! Waiters that name queues without news, or omit queues that have some.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::Plan;
use crate::Connection;
use crate::random::Dice;
use udeck_via::transport::{Armed, Notifier, Queue, Queues, Ready, Waiter};

/// Number of polls in a row that do not name a forgotten queue, after which it counts as empty: a transport with
/// several queues need not check each of them each time.
const EMPTY_POLLS: u32 = 64;

/// Largest number of queues left here by endpoints that are named in a row before the transport is polled.
const DUE_IN_A_ROW: u32 = 16;

/// News queues of a device's waiters.
#[derive(Debug, Default)]
pub struct NewsQueues(Mutex<Vec<Weak<NewsQueue>>>);

/// Place where endpoints leave news of their own making for a waiter.
#[derive(Debug)]
pub struct NewsQueue {
    /// Notifier of the waiter; not kept alive, because its transport relies on its end.
    notifier: Weak<dyn Notifier>,
    state: Mutex<NewsState>,
}

#[derive(Debug, Default)]
struct NewsState {
    /// Queues to be named, with the number of the connection: each queue at most once.
    due: VecDeque<(u64, Ready)>,
    /// Queue that the transport named last, unless its connection has been left.
    last_named: Option<Ready>,
}

/// Connection of a work queue to the news queue of its waiter.
#[derive(Debug)]
pub struct QueueNews {
    news_queue: Arc<NewsQueue>,
    connection: u64,
    ready: Ready,
}

impl NewsQueues {
    fn open(&self, notifier: &Arc<dyn Notifier>) -> Arc<NewsQueue> {
        let news_queue = Arc::new(NewsQueue { notifier: Arc::downgrade(notifier), state: Mutex::default() });
        let mut news_queues = self.0.lock();
        news_queues.retain(|news_queue| news_queue.strong_count() > 0);
        news_queues.push(Arc::downgrade(&news_queue));
        news_queue
    }

    /// The news queue of the waiter behind `notifier`; a news queue that nobody reads, if this waiter is not wrapped.
    fn of(&self, notifier: &Arc<dyn Notifier>) -> Arc<NewsQueue> {
        let is_its = |news_queue: &Arc<NewsQueue>| {
            std::ptr::addr_eq(news_queue.notifier.as_ptr(), Arc::as_ptr(notifier))
        };
        let found = self.0.lock().iter().filter_map(Weak::upgrade).find(is_its);
        found.unwrap_or_else(|| self.open(notifier))
    }

    /// Connections to the news queues for a connection's send and receive queue.
    pub fn news(&self, connection: &Connection<'_>) -> [QueueNews; 2] {
        let Queues { send, receive, context, .. } = connection.queues;
        [(send, Queue::Send), (receive, Queue::Receive)].map(|(notifier, queue)| QueueNews {
            news_queue: self.of(notifier),
            connection: connection.number,
            ready: Ready { context, queue },
        })
    }
}

impl QueueNews {
    /// Makes the waiter name the queue once more, and wake if it sleeps.
    pub fn name(&self) {
        let mut state = self.news_queue.state.lock();
        let entry = (self.connection, self.ready);
        if !state.due.contains(&entry) {
            state.due.push_back(entry);
        }
        drop(state);
        if let Some(notifier) = self.news_queue.notifier.upgrade() {
            notifier.wake();
        }
    }

    /// Forgets the connection: nothing names it any more.
    pub fn forget(&self) {
        let mut state = self.news_queue.state.lock();
        state.due.retain(|(connection, _)| *connection != self.connection);
        state.last_named = state.last_named.filter(|last| *last != self.ready);
    }
}

/// A waiter with a [`Plan`].
#[derive(Debug)]
pub struct FaultyWaiter {
    inner: Box<dyn Waiter>,
    news_queue: Arc<NewsQueue>,
    plan: Plan,
    /// Random decisions about news, and about polls that find none.
    news: Dice,
    polls: Dice,
    forgotten: Vec<Forgotten>,
    /// Number of queues left here by endpoints that were named in a row.
    due_in_a_row: u32,
}

#[derive(Debug)]
struct Forgotten {
    ready: Ready,
    /// Number of polls in a row that did not find it.
    empty_polls: u32,
}

impl FaultyWaiter {
    pub fn new(inner: Box<dyn Waiter>, plan: Plan, seed: u64, number: u64, news_queues: &NewsQueues) -> Self {
        FaultyWaiter {
            news_queue: news_queues.open(&inner.notifier()),
            inner,
            plan,
            news: Dice::new(seed, 4 * number + 2),
            polls: Dice::new(seed, 4 * number + 3),
            forgotten: Vec::new(),
            due_in_a_row: 0,
        }
    }

    /// Whether the inner waiter's news are withheld.
    fn keeps_quiet_about(&mut self, ready: Ready) -> bool {
        if self.forgotten.iter().any(|forgotten| forgotten.ready == ready) {
            return true;
        }
        let [forget] = self.news.throw([&self.plan.forget_wakeup]);
        if forget {
            self.forgotten.push(Forgotten { ready, empty_polls: 0 });
        }
        forget
    }

    /// Next queue that an endpoint has left here.
    fn due(&mut self) -> Option<Ready> {
        let (_, ready) = self.news_queue.state.lock().due.pop_front()?;
        self.due_in_a_row += 1;
        Some(ready)
    }

    /// The queue that the transport names, or a spurious one.
    fn poll_inner(&mut self) -> Option<Ready> {
        let found = self.inner.poll();
        self.note_look(found);
        match found {
            Some(ready) if self.keeps_quiet_about(ready) => None,
            Some(ready) => {
                self.news_queue.state.lock().last_named = Some(ready);
                Some(ready)
            }
            None => {
                let [spurious] = self.polls.throw([&self.plan.spurious_news]);
                self.news_queue.state.lock().last_named.filter(|_| spurious)
            }
        }
    }

    fn note_look(&mut self, found: Option<Ready>) {
        self.forgotten.retain_mut(|forgotten| {
            let polls = mem::take(&mut forgotten.empty_polls);
            forgotten.empty_polls = if found == Some(forgotten.ready) { 0 } else { polls + 1 };
            forgotten.empty_polls < EMPTY_POLLS
        });
    }
}

#[deny(clippy::missing_trait_methods)]
impl Waiter for FaultyWaiter {
    fn poll(&mut self) -> Option<Ready> {
        // An endpoint that always leaves something does not keep the transport from being polled.
        if self.due_in_a_row < DUE_IN_A_ROW
            && let Some(ready) = self.due()
        {
            return Some(ready);
        }
        self.due_in_a_row = 0;
        self.poll_inner().or_else(|| self.due())
    }

    fn poll_all(&mut self) -> Option<Ready> {
        self.poll().or_else(|| self.poll())
    }

    fn sole_active(&mut self) -> Option<Ready> {
        if self.news_queue.state.lock().due.is_empty() { self.inner.sole_active() } else { None }
    }

    fn park(&mut self, limit: Duration) {
        if self.news_queue.state.lock().due.is_empty() {
            // A queue named from now on wakes the waiter: `News::name` does.
            self.inner.park(limit);
        }
    }

    fn arm(&mut self) -> Armed {
        if self.news_queue.state.lock().due.is_empty() { self.inner.arm() } else { Armed::News }
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.inner.notifier()
    }
}
