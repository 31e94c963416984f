//! Everything of a fabric, under one lock: virtual time, what is due when, NICs, links.
//!
//! One lock, because a simulation is judged by whether it repeats itself, not by how fast it is.

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

/// Longest sleep: nobody trusts a wake-up to come.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// A fabric, shared by its handle, its NICs and what is lent over it.
pub struct Shared {
    world: Mutex<World>,
    changed: Condvar,
}

pub struct World {
    pub this: Weak<Shared>,
    pub now: Duration,
    pub pace: Pace,
    pub seed: u64,
    /// The fabric's dice: the same everywhere for a seed.
    pub random: SplitMix64,
    pub due: BTreeMap<(Duration, u64), Due>,
    scheduled: u64,
    /// What came to a stalled link, in order.
    parked: Vec<((usize, usize), Due)>,
    /// Connection requests in the hands of listeners: time stands still meanwhile.
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
    /// Who runs, where only one does at a time.
    pub turns: Option<Turns>,
    /// Counts what others may wait for.
    epoch: u64,
    /// Dropped once the lock is free: dropping it may come back here.
    graves: Vec<Box<dyn Any + Send>>,
}

/// A NIC as the fabric sees it.
pub struct Node {
    pub name: String,
    pub keys: Keys,
    pub device: Weak<SimDevice>,
    pub outbox: Arc<Memory>,
    pub landing: Arc<Memory>,
    pub windows: HashMap<u32, Exposed>,
    /// Completion queues that it has.
    pub waiters: usize,
    pub listeners: HashMap<Vec<u8>, Arc<Mutex<OnRequest>>>,
    pub copied: Arc<AtomicU64>,
    /// Closed or dead.
    pub gone: bool,
}

/// A window.
#[derive(Clone, Copy)]
pub struct Exposed {
    pub offset: u64,
    pub len: usize,
    pub ptag: Ptag,
    pub rights: Rights,
    /// It lies in the outbox, not in landing memory.
    pub in_outbox: bool,
}

/// What happens at a moment.
pub enum Due {
    Frame {
        connection: u64,
        to: Side,
        sequence: u64,
        number: u64,
    },
    /// The end of an unreliable connection, which has no order that would bring it last.
    End {
        connection: u64,
        to: Side,
        broken: Option<String>,
    },
    /// A reliable connection misses a frame.
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
                graves: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// Works on the world; wakes who waits for changes, and buries the dead, when the lock is free again.
    pub fn with<R>(&self, work: impl FnOnce(&mut World) -> R) -> R {
        let mut world = self.world.lock();
        let epoch = world.epoch;
        let result = work(&mut world);
        let graves = std::mem::take(&mut world.graves);
        if world.epoch != epoch {
            self.changed.notify_all();
        }
        drop(world);
        drop(graves);
        result
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Looks until there is something for a NIC's program, letting virtual time pass, and sleeping when nothing is due. `None` after
    /// `limit`, or sooner: of real time, unless ranks take turns.
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

    /// Waits until no listener is at work, at most until `until`, and lets happen what is due then. Time stands still in a
    /// listener's hands: without this, a thread that the system starts late would decide what the network does.
    pub fn await_listeners(&self, until: Instant) {
        let mut world = self.world.lock();
        while world.handling > 0 && !self.changed.wait_until(&mut world, until).timed_out() {}
        drop(world);
        while self.with(World::step) {}
    }

    /// Lets virtual time pass, and what is due in it happen; waits for listeners that are at work.
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
    /// A number that nothing else on this fabric has.
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

    /// What is due at this moment happens.
    pub fn run_due(&mut self) {
        while self.handling == 0 && self.due.first_key_value().is_some_and(|(&(at, _), _)| at <= self.now) {
            self.step();
        }
    }

    /// Time passes to what is due next, and that happens. `false` when nothing is due, or a listener is at work.
    pub fn step(&mut self) -> bool {
        if self.handling > 0 {
            return false;
        }
        let Some(((at, _), due)) = self.due.pop_first() else { return false };
        self.now = self.now.max(at);
        self.happen(due);
        true
    }

    /// As [`World::step`], but not beyond `until`, where time stays at the end.
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

    /// Looks; while there is nothing, and if that is its pace, time passes: until there is something for whom looks, or
    /// nothing is due.
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

    /// The link that something travels on; `None` when whom it concerns is gone.
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

    /// How long what is not a message takes: it is neither lost nor duplicated nor held back.
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

    /// Connections on which something of this NIC's would be lost if it died now.
    pub fn undelivered(&self, node: usize) -> usize {
        self.connections.values().filter(|connection| connection.has_undelivered(node)).count()
    }

    /// A NIC is no more: by its program's will, or because it was killed.
    pub fn remove_node(&mut self, node: usize, died: bool) {
        if std::mem::replace(&mut self.nodes[node].gone, true) {
            return;
        }
        let listeners = std::mem::take(&mut self.nodes[node].listeners);
        self.bury(listeners);
        self.nodes[node].windows.clear();
        self.gets_up(node);
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
        // How threads come to their first turn, and what they do after the last one, repeats in no order.
        let repeats = self.turns.as_ref().is_none_or(Turns::are_taken);
        if let Some(trace) = self.trace.as_mut().filter(|_| repeats) {
            trace.push(Event { at, link, what });
        }
    }

    /// Something happened that others may wait for.
    pub fn news(&mut self) {
        self.epoch += 1;
    }

    /// Drops it once the lock is free.
    pub fn bury(&mut self, dead: impl Any + Send) {
        self.graves.push(Box::new(dead));
    }

    /// Drops what an endpoint held, once the lock is free.
    pub fn bury_held(&mut self, held: PostedBuffer) {
        match held {
            PostedBuffer::Block(block) => self.bury(block),
            PostedBuffer::Owner(owner) => self.graves.push(owner),
            PostedBuffer::Caller(_) => {}
        }
    }
}
