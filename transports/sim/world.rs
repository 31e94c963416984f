//! All state of a fabric, under one lock: virtual time, due events, NICs, links.
//!
//! There is one lock because a simulation must repeat itself; it need not be fast.

pub mod turns;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rand_xoshiro::{SplitMix64, rand_core::SeedableRng};
use udeck_via::auth::Keys;
use udeck_via::transport::{OnRequest, PostedBuffer};
use udeck_via::{Ptag, Rights};

use crate::Pace;
use crate::connection::{Connection, Side};
use crate::device::SimDevice;
use crate::link::{Link, Wire, time};
use crate::memory::Memory;
use crate::request::{Answer, Pending, RequestJob};
use crate::trace::{Event, Happening};
use crate::transit::WAS_LOST;
use crate::waiter::Watching;

use turns::Turns;

/// Upper bound of one sleep, so that a missed wake-up only delays.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// A fabric, shared by its handle, its NICs and the buffers lent over it.
pub struct Shared {
    world: Mutex<World>,
    changed: Condvar,
}

pub struct World {
    pub this: Weak<Shared>,
    pub now: Duration,
    pub pace: Pace,
    pub seed: u64,
    /// Random numbers of the fabric: the same everywhere for a seed.
    pub random: SplitMix64,
    pub due: BTreeMap<(Duration, u64), Due>,
    scheduled: u64,
    /// Events that reached the end of a stalled link, in order.
    parked: Vec<((usize, usize), Due)>,
    /// Number of connection requests that listeners are handling. Virtual time stands still meanwhile.
    pub handling: usize,
    pub jobs: mpsc::Sender<RequestJob>,
    pub nodes: Vec<Node>,
    pub default_link: Link,
    pub wires: HashMap<(usize, usize), Wire>,
    pub connections: HashMap<u64, Connection>,
    pub pending: HashMap<u64, Pending>,
    pub waiters: HashMap<u64, Watching>,
    numbers: u64,
    pub trace: Option<Vec<Event>>,
    /// Turns of the ranks, where only one runs at a time.
    pub turns: Option<Turns>,
    /// Counts changes for which other threads may wait.
    epoch: u64,
    /// Objects to drop once the lock is free, because dropping one may take it.
    deferred_drops: Vec<Box<dyn Any + Send>>,
}

/// State of a NIC in the world.
pub struct Node {
    pub name: String,
    pub keys: Keys,
    pub device: Weak<SimDevice>,
    pub outbox: Arc<Memory>,
    pub landing: Arc<Memory>,
    pub windows: HashMap<u32, Exposed>,
    /// Number of its completion queues.
    pub waiters: usize,
    pub listeners: HashMap<Vec<u8>, Arc<Mutex<OnRequest>>>,
    pub copied: Arc<AtomicU64>,
    /// The NIC is closed or dead.
    pub gone: bool,
}

/// A window of a NIC.
#[derive(Clone, Copy)]
pub struct Exposed {
    pub offset: u64,
    pub len: usize,
    pub ptag: Ptag,
    pub rights: Rights,
    /// The window lies in the outbox, not in the landing arena.
    pub in_outbox: bool,
}

/// An event that is due at some moment.
pub enum Due {
    Frame {
        connection: u64,
        to: Side,
        sequence: u64,
        number: u64,
    },
    /// The end of an unreliable connection. Such a connection has no order by which its end would come last.
    End {
        connection: u64,
        to: Side,
        broken: Option<String>,
    },
    /// A reliable connection misses a frame that was lost.
    Missed {
        connection: u64,
        to: Side,
        number: u64,
    },
    Request(u64),
    Answer(u64, Answer),
}

impl Shared {
    pub fn new(seed: u64, jobs: mpsc::Sender<RequestJob>) -> Arc<Self> {
        Arc::new_cyclic(|this| Shared {
            world: Mutex::new(World {
                this: this.clone(),
                now: Duration::ZERO,
                pace: Pace::Looks,
                seed,
                random: SplitMix64::seed_from_u64(seed),
                due: BTreeMap::new(),
                scheduled: 0,
                parked: Vec::new(),
                handling: 0,
                jobs,
                nodes: Vec::new(),
                default_link: Link::default(),
                wires: HashMap::new(),
                connections: HashMap::new(),
                pending: HashMap::new(),
                waiters: HashMap::new(),
                numbers: 0,
                trace: None,
                turns: None,
                epoch: 0,
                deferred_drops: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// Runs `work` on the world. Then, outside the lock, wakes the threads that wait for changes, and drops what
    /// `work` has buried.
    pub fn with<R>(&self, work: impl FnOnce(&mut World) -> R) -> R {
        let mut world = self.world.lock();
        let epoch = world.epoch;
        let result = work(&mut world);
        let deferred_drops = std::mem::take(&mut world.deferred_drops);
        if world.epoch != epoch {
            self.changed.notify_all();
        }
        drop(world);
        drop(deferred_drops);
        result
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Polls with `look` until it finds something for a NIC's program. Lets virtual time pass meanwhile, and sleeps
    /// when nothing is due. Returns `None` after `limit` or sooner; `limit` is real time, unless ranks take turns.
    pub fn wait<T>(
        &self,
        node: usize,
        limit: Duration,
        mut look: impl FnMut(&mut World) -> Option<T>,
    ) -> Option<T> {
        if let Some(bell) = self.with(|world| world.bell(node)) {
            return self.wait_in_turn(node, &bell, limit, look);
        }
        let until = Instant::now() + limit.min(LONGEST_SLEEP);
        loop {
            let (found, stepped, epoch) = self.with(|world| {
                let found = look(world);
                let stepped = found.is_none() && world.step();
                (found, stepped, world.epoch)
            });
            if found.is_some() {
                return found;
            }
            if stepped {
                continue;
            }
            let mut world = self.world.lock();
            if world.epoch == epoch && self.changed.wait_until(&mut world, until).timed_out() {
                drop(world);
                return self.with(look);
            }
        }
    }

    /// Waits at most until `until` for listeners that are at work, and then runs the due events. Virtual time stands
    /// still while a listener works: without this wait, a thread that the system starts late would decide what the
    /// network does.
    pub fn await_listeners(&self, until: Instant) {
        let mut world = self.world.lock();
        while world.handling > 0 && !self.changed.wait_until(&mut world, until).timed_out() {}
        drop(world);
        while self.with(World::step) {}
    }

    /// Lets `time` of virtual time pass, with the events that are due in it. Waits for listeners that are at work.
    pub fn advance(&self, time: Duration) {
        let mut world = self.world.lock();
        let until = world.now + time;
        drop(world);
        loop {
            world = self.world.lock();
            while world.handling > 0 {
                self.changed.wait(&mut world);
            }
            drop(world);
            if !self.with(|world| world.step_until(until)) {
                return;
            }
        }
    }
}

impl World {
    /// Returns a number that nothing else on this fabric has.
    pub fn fresh_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    // ---- time ----

    pub fn schedule(&mut self, after: Duration, due: Due) {
        self.scheduled += 1;
        self.due.insert((self.now + after, self.scheduled), due);
        self.news(); // a sleeping thread may be the one that lets time pass
    }

    /// Runs the events that are due at this moment.
    pub fn run_due(&mut self) {
        while self.handling == 0 && self.due.first_key_value().is_some_and(|(&(at, _), _)| at <= self.now) {
            self.step();
        }
    }

    /// Advances the time to the next event, and runs it. Returns `false` when nothing is due, or a listener is at work.
    pub fn step(&mut self) -> bool {
        if self.handling > 0 {
            return false;
        }
        let Some(((at, _), due)) = self.due.pop_first() else { return false };
        self.now = self.now.max(at);
        self.happen(due);
        true
    }

    /// Does [`World::step`] for an event up to `until`. Otherwise advances the time to `until` and returns `false`.
    fn step_until(&mut self, until: Duration) -> bool {
        if self.handling > 0 {
            return true;
        }
        if self.due.first_key_value().is_some_and(|(&(at, _), _)| at <= until) {
            return self.step();
        }
        self.now = self.now.max(until);
        false
    }

    /// Polls with `look`. While it finds nothing, and if the pace is [`Pace::Looks`], lets time pass, until `look`
    /// finds something or nothing is due.
    pub fn look<T>(&mut self, mut look: impl FnMut(&mut World) -> Option<T>) -> Option<T> {
        loop {
            let found = look(self);
            if found.is_some() || self.pace != Pace::Looks || !self.step() {
                return found;
            }
        }
    }

    pub fn happen(&mut self, due: Due) {
        let Some(link) = self.link_of(&due) else { return };
        let on_the_wire = !matches!(due, Due::Missed { .. });
        if on_the_wire && self.wire(link).link.stalled {
            if let Due::Frame { number, .. } = due {
                self.note(link, Happening::Stalled(number));
            }
            self.parked.push((link, due));
            return;
        }
        match due {
            Due::Frame { connection, to, sequence, number } => {
                self.frame_arrives(connection, to, sequence, number);
            }
            Due::End { connection, to, broken } => self.end_arrives(connection, to, broken),
            Due::Missed { connection, number, .. } => {
                let why = self.what_became(number, link, WAS_LOST);
                self.lose(connection, &why);
            }
            Due::Request(number) => self.request_arrives(number),
            Due::Answer(number, answer) => self.answer_arrives(number, answer),
        }
        self.news();
    }

    /// Returns the link on which an event travels; `None` when its connection or request is gone.
    fn link_of(&self, due: &Due) -> Option<(usize, usize)> {
        match due {
            Due::Frame { connection, to, .. }
            | Due::End { connection, to, .. }
            | Due::Missed { connection, to, .. } => Some(self.connections.get(connection)?.link_to(*to)),
            Due::Request(number) => self.pending.get(number).map(|pending| pending.link),
            Due::Answer(_, answer) => Some(answer.link),
        }
    }

    // ---- links ----

    pub fn wire(&mut self, link: (usize, usize)) -> &mut Wire {
        let default = &self.default_link;
        self.wires.entry(link).or_insert_with(|| Wire::new(default.clone()))
    }

    pub fn set_link(&mut self, link: (usize, usize), settings: Link) {
        let stalled = settings.stalled;
        self.wires.insert(link, Wire::new(settings));
        if !stalled {
            for (other, due) in std::mem::take(&mut self.parked) {
                if other == link {
                    self.schedule(Duration::ZERO, due);
                } else {
                    self.parked.push((other, due));
                }
            }
            self.run_due();
        }
    }

    pub fn has_stalled(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Draws the travel time of a transfer that is no message: it is neither lost nor duplicated nor held back.
    pub fn travel_time(&mut self, link: (usize, usize)) -> Duration {
        let default = &self.default_link;
        let wire = self.wires.entry(link).or_insert_with(|| Wire::new(default.clone()));
        let delay = wire.link.delay.clone();
        time(&mut self.random, &delay)
    }

    // ---- NICs ----

    pub fn node(&self, name: &str) -> Option<usize> {
        self.nodes.iter().rposition(|node| node.name == name && !node.gone)
    }

    pub fn count_copied(&self, node: usize, bytes: usize) {
        self.nodes[node].copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Number of connections on which messages of this NIC would be lost if it died now.
    pub fn undelivered(&self, node: usize) -> usize {
        self.connections.values().filter(|connection| connection.has_undelivered(node)).count()
    }

    /// Removes a NIC that was closed by its program, or killed (`died`).
    pub fn remove_node(&mut self, node: usize, died: bool) {
        if std::mem::replace(&mut self.nodes[node].gone, true) {
            return;
        }
        let listeners = std::mem::take(&mut self.nodes[node].listeners);
        self.defer_drop(listeners);
        self.nodes[node].windows.clear();
        self.remove_rank(node);
        if died {
            self.note((node, node), Happening::Died);
            let why = format!("{} died (seed {})", self.nodes[node].name, self.seed);
            let mut hit: Vec<_> =
                self.connections.iter().filter(|(_, c)| c.touches(node)).map(|(&n, _)| n).collect();
            hit.sort_unstable();
            for connection in hit {
                self.lose(connection, &why);
                self.forget_inbox_of(connection, node);
            }
        }
        self.refuse_pending_at(node);
        self.news();
    }

    // ---- bookkeeping ----

    pub fn record_trace(&mut self) {
        self.trace.get_or_insert_default();
    }

    pub fn trace(&self) -> &[Event] {
        self.trace.as_deref().unwrap_or_default()
    }

    pub fn note(&mut self, link: (usize, usize), what: Happening) {
        let at = self.now;
        // The order of events before the ranks' first turns and after their last ones is not repeatable, so they are
        // left out.
        let repeats = self.turns.as_ref().is_none_or(Turns::have_begun);
        if let Some(trace) = self.trace.as_mut().filter(|_| repeats) {
            trace.push(Event { at, link, what });
        }
    }

    /// Notes a change for which other threads may wait.
    pub fn news(&mut self) {
        self.epoch += 1;
    }

    /// Drops `dead` once the lock is free.
    pub fn defer_drop(&mut self, dead: impl Any + Send) {
        self.deferred_drops.push(Box::new(dead));
    }

    /// Drops a buffer that an endpoint held, once the lock is free.
    pub fn defer_drop_held(&mut self, held: PostedBuffer) {
        match held {
            PostedBuffer::Block(block) => self.defer_drop(block),
            PostedBuffer::Owner(owner) => self.deferred_drops.push(owner),
            PostedBuffer::Caller(_) => {}
        }
    }
}
