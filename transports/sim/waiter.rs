//! Waiters and notifiers of completion queues on the fabric.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use udeck_via::transport::{Notifier, Queue, Queues, Ready, Waiter};
use udeck_via::{Error, Result};

use crate::connection::Side;
use crate::world::{Shared, World};

/// Upper bound of the work queues that one completion queue can watch.
pub const QUEUES: usize = 4096;
/// Upper bound of the completion queues of one NIC.
pub const WAITERS: usize = 2048;

/// A work queue's place at a waiter.
pub struct Watch {
    pub waiter: u64,
    pub context: u64,
    /// Is in the waiter's list.
    listed: bool,
    /// Has news that were not reported yet.
    news: bool,
}

impl Watch {
    pub fn new(waiter: u64, context: u64) -> Self {
        Watch { waiter, context, listed: false, news: false }
    }
}

/// State of a waiter in the world.
#[derive(Default)]
pub struct Watching {
    /// The NIC of the waiter.
    node: usize,
    /// Number of places taken.
    queues: usize,
    /// Queues that have news, or had them a moment ago. They are polled in turn.
    list: VecDeque<(u64, Side, Queue)>,
    woken: bool,
}

/// The half of a completion queue to which endpoints attach.
pub struct SimNotifier {
    pub shared: Arc<Shared>,
    pub node: usize,
    pub number: u64,
}

/// The half of a completion queue that polls.
#[derive(Debug)]
pub struct SimWaiter(Arc<SimNotifier>);

impl SimWaiter {
    pub fn new(shared: &Arc<Shared>, node: usize) -> Result<Self> {
        let number = shared.with(|world| {
            let waiters = &mut world.nodes[node].waiters;
            if *waiters == WAITERS {
                let bound = format!("{WAITERS} per NIC");
                return Err(Error::Full { what: "the table of completion queues", bound: bound.into() });
            }
            *waiters += 1;
            let number = world.fresh_number();
            world.waiters.insert(number, Watching { node, ..Watching::default() });
            Ok(number)
        })?;
        Ok(SimWaiter(Arc::new(SimNotifier { shared: shared.clone(), node, number })))
    }
}

impl Waiter for SimWaiter {
    fn poll(&mut self) -> Option<Ready> {
        let number = self.0.number;
        self.0.shared.with(|world| world.look(|world| world.poll(number)))
    }

    fn park(&mut self, limit: Duration) {
        let number = self.0.number;
        self.0.shared.wait(self.0.node, limit, |world| {
            let watching = world.waiters.get_mut(&number)?;
            let woken = std::mem::take(&mut watching.woken);
            (woken || !watching.list.is_empty()).then_some(())
        });
    }

    fn notifier(&self) -> Arc<dyn Notifier> {
        self.0.clone()
    }
}

impl Notifier for SimNotifier {
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn wake(&self) {
        self.shared.with(|world| {
            if let Some(watching) = world.waiters.get_mut(&self.number) {
                watching.woken = true;
            }
            world.wake(self.node);
            world.news();
        });
    }
}

impl Drop for SimNotifier {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.shared.with(|world| {
            world.waiters.remove(&self.number);
            world.nodes[self.node].waiters -= 1;
        });
    }
}

impl std::fmt::Debug for SimNotifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "waiter {}", self.number)
    }
}

/// Index of a queue's [`Watch`].
fn place(queue: Queue) -> usize {
    match queue {
        Queue::Send => 0,
        Queue::Receive => 1,
    }
}

impl World {
    /// Takes a place at the waiter of each queue.
    pub fn reserve(&mut self, waiters: [u64; 2]) -> Result {
        for (taken, waiter) in waiters.iter().enumerate() {
            let watching = self.waiters.entry(*waiter).or_default();
            if watching.queues == QUEUES {
                waiters[..taken].iter().for_each(|waiter| self.release(*waiter));
                let bound = format!("{QUEUES} work queues");
                return Err(Error::Full { what: "the completion queue", bound: bound.into() });
            }
            watching.queues += 1;
        }
        Ok(())
    }

    pub fn release(&mut self, waiter: u64) {
        if let Some(watching) = self.waiters.get_mut(&waiter) {
            watching.queues -= 1;
        }
    }

    /// Attaches the queues of `side` to `waiters`, and its reporter. Announces each queue once, for news that came
    /// before.
    pub fn attach(&mut self, connection: u64, side: Side, waiters: [u64; 2], queues: &Queues<'_>) {
        if let Some(connection) = self.connections.get_mut(&connection) {
            connection.ends[side].watches = waiters.map(|waiter| Some(Watch::new(waiter, queues.context)));
            connection.report_to(side, queues.reporter);
        }
        self.announce(connection, side, Queue::Send);
        self.announce(connection, side, Queue::Receive);
    }

    /// Detaches one queue of `side`.
    pub fn detach(&mut self, connection: u64, side: Side, queue: Queue) {
        let Some(connection) = self.connections.get_mut(&connection) else { return };
        if let Some(watch) = connection.ends[side].watches[place(queue)].take() {
            self.release(watch.waiter);
        }
    }

    /// Announces news of a queue.
    pub fn announce(&mut self, number: u64, side: Side, queue: Queue) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let Some(watch) = &mut connection.ends[side].watches[place(queue)] else { return };
        watch.news = true;
        if let Some(watching) = self.waiters.get_mut(&watch.waiter) {
            if !std::mem::replace(&mut watch.listed, true) {
                watching.list.push_back((number, side, queue));
            }
            let node = watching.node;
            self.wake(node);
        }
        self.news();
    }

    /// Sorts the waiters' lists by the peers' NICs: the order in which threads made the connections is not repeatable.
    pub fn sort_watched(&mut self) {
        let connections = &self.connections;
        let peer = |number: &u64, side: Side| connections.get(number).map(|c| c.ends[1 - side].node);
        for watching in self.waiters.values_mut() {
            watching
                .list
                .make_contiguous()
                .sort_by_key(|(number, side, queue)| (peer(number, *side), *side, place(*queue)));
        }
    }

    /// Returns the next queue in turn that has news.
    fn poll(&mut self, waiter: u64) -> Option<Ready> {
        let watching = self.waiters.get_mut(&waiter)?;
        while let Some((number, side, queue)) = watching.list.pop_front() {
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            let end = &mut connection.ends[side];
            let Some(watch) = &mut end.watches[place(queue)] else { continue };
            let lies_there = queue == Queue::Receive && !end.inbox.is_empty();
            if !lies_there && !watch.news {
                watch.listed = false;
                continue;
            }
            watch.news = false;
            watching.list.push_back((number, side, queue));
            return Some(Ready { context: watch.context, queue });
        }
        None
    }
}
