//! All state of the process's RDMA, under one lock, and what both sides of it use: tables, completions, events.

use crate::abi::{IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL};
use crate::config::config;
use crate::engine;
use crate::objects::{
    Armed, AsyncEvent, CompletionChannel, Context, Domain, Entry, EventOf, Handle, Obstacle, Pair, Queue,
    Region, Shared, State,
};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

static WORLD: Mutex<Option<World>> = Mutex::new(None);
/// Signals that the engine has something to do.
static WORK: Condvar = Condvar::new();
/// Signals that a program has acknowledged events.
static ACKNOWLEDGED: Condvar = Condvar::new();
/// Longest time that a destroying call waits for acknowledgements. An adapter's library waits for ever, but a test
/// should end.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct World {
    pub contexts: Table<Context>,
    pub domains: Table<Domain>,
    pub regions: Table<Region>,
    pub channels: Table<CompletionChannel>,
    pub queues: Table<Queue>,
    pub pairs: Table<Pair>,
    pub shared: Table<Shared>,
    /// Ports by device.
    pub ports: Vec<Port>,
    /// Next steps of the engine.
    pub tasks: VecDeque<Task>,
    /// Pairs with an obstacle, and some that had one recently.
    pub blocked: BTreeSet<u32>,
    /// Time limits of waiting pairs.
    pub timers: BTreeSet<(Instant, u32)>,
    /// Number of registered bytes, of all regions.
    pub registered: u64,
    pub requests: u64,
    pub bytes: u64,
    pub loss: Loss,
    /// Random numbers for pairs that spoil their messages.
    pub corruption: Loss,
    /// Whether the engine's thread sleeps on [`WORK`].
    asleep: bool,
}

/// State of a device and of its port.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// State of the port, `IBV_PORT_…`.
    pub state: u32,
    /// Whether the device works.
    pub alive: bool,
}

/// Random choice of lost messages of unreliable pairs, repeatable from its seed.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    per_mille: u32,
    state: u64,
    /// Number of lost messages.
    pub lost: u64,
}

impl Loss {
    pub fn new(per_mille: u32, seed: u64) -> Self {
        Loss { per_mille, state: seed, lost: 0 }
    }

    /// Whether the next message is lost.
    pub fn strikes(&mut self) -> bool {
        let strikes = self.draw() % 1000 < self.per_mille;
        self.lost += u64::from(strikes);
        strikes
    }

    /// Draws a pseudo-random number (SplitMix64).
    pub fn draw(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) as u32
    }
}

/// A step of the engine.
#[derive(Clone, Copy, Debug)]
pub enum Task {
    /// Carries out the pair's next request, or flushes.
    Send(u32),
    /// Acknowledges the pair's oldest request that was carried out.
    Acknowledge(u32),
}

/// Objects by number; no number is used twice.
#[derive(Debug)]
pub struct Table<T> {
    first: u32,
    rows: Vec<Option<Box<T>>>,
    pub live: usize,
}

impl<T> Table<T> {
    pub const fn new(first: u32) -> Self {
        Table { first, rows: Vec::new(), live: 0 }
    }

    pub fn insert(&mut self, object: T) -> u32 {
        self.rows.push(Some(Box::new(object)));
        self.live += 1;
        self.first + self.rows.len() as u32 - 1
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.rows.get(number.checked_sub(self.first)? as usize)?.as_deref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.rows.get_mut(number.checked_sub(self.first)? as usize)?.as_deref_mut()
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let object = self.rows.get_mut(number.checked_sub(self.first)? as usize)?.take()?;
        self.live -= 1;
        Some(*object)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = self.rows.iter().enumerate();
        numbered.filter_map(|(index, row)| Some((self.first + index as u32, row.as_deref()?)))
    }

    pub fn numbers(&self) -> Vec<u32> {
        self.iter().map(|(number, _)| number).collect()
    }
}

fn lock() -> MutexGuard<'static, Option<World>> {
    WORLD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `change` with the world, and then ensures that the resulting work is done: here with an inline engine,
/// otherwise by the engine's thread.
pub fn with<R>(change: impl FnOnce(&mut World) -> R) -> R {
    let mut guard = lock();
    let world = guard.get_or_insert_with(World::new);
    let result = change(world);
    if config().inline {
        while let Some(task) = world.tasks.pop_front() {
            engine::step(world, task);
        }
    }
    world.wake();
    result
}

/// Repeats `change`, as [`with`] calls it, while it returns `None` and something is acknowledged in time.
pub fn with_acknowledgements<R>(mut change: impl FnMut(&mut World) -> Option<R>) -> Option<R> {
    let until = Instant::now() + PATIENCE;
    let mut guard = lock();
    loop {
        if let Some(result) = change(guard.get_or_insert_with(World::new)) {
            return Some(result);
        }
        let left = until.checked_duration_since(Instant::now())?;
        guard = ACKNOWLEDGED.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Wakes the waiters in [`with_acknowledgements`], which then try again.
pub fn acknowledged() {
    ACKNOWLEDGED.notify_all();
}

/// Runs the engine's thread: after each step the lock is free for others.
pub fn run_engine() -> ! {
    let mut guard = lock();
    loop {
        let world = guard.get_or_insert_with(World::new);
        world.expire(Instant::now());
        if let Some(task) = world.tasks.pop_front() {
            engine::step(world, task);
            drop(guard);
            guard = lock();
            continue;
        }
        world.asleep = true;
        let next = world.timers.first().map(|(at, _)| at.saturating_duration_since(Instant::now()));
        guard = match next {
            Some(time) => WORK.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0,
            None => WORK.wait(guard).unwrap_or_else(PoisonError::into_inner),
        };
        guard.get_or_insert_with(World::new).asleep = false;
    }
}

impl World {
    fn new() -> Self {
        let devices = config().devices.as_deref().unwrap_or_default();
        World {
            contexts: Table::new(1),
            domains: Table::new(1),
            regions: Table::new(1),
            channels: Table::new(1),
            queues: Table::new(1),
            // The numbers 0 and 1 belong to the management.
            pairs: Table::new(17),
            shared: Table::new(1),
            ports: devices.iter().map(|device| Port { state: device.port, alive: true }).collect(),
            tasks: VecDeque::new(),
            blocked: BTreeSet::new(),
            timers: BTreeSet::new(),
            registered: 0,
            requests: 0,
            bytes: 0,
            loss: Loss::new(config().loss, 1),
            corruption: Loss::new(0, config().corrupt_sender.as_ref().map_or(0, |(_, seed)| *seed)),
            asleep: false,
        }
    }

    fn wake(&mut self) {
        // Only an inline engine makes timers that its thread does not know.
        let due = !self.tasks.is_empty() || (config().inline && !self.timers.is_empty());
        if self.asleep && due {
            self.asleep = false;
            WORK.notify_one();
        }
    }

    /// Schedules the pair for the engine.
    pub fn schedule(&mut self, pair: u32) {
        if let Some(found) = self.pairs.get_mut(pair)
            && !found.scheduled
        {
            found.scheduled = true;
            self.tasks.push_back(Task::Send(pair));
        }
    }

    /// Schedules every pair whose first request has such an obstacle.
    pub fn reconsider(&mut self, gone: impl Fn(Obstacle) -> bool) {
        let mut again = Vec::new();
        let pairs = &self.pairs;
        self.blocked.retain(|number| {
            let Some(waiting) = pairs.get(*number).and_then(|pair| pair.waiting) else { return false };
            if gone(waiting.what) {
                again.push(*number);
            }
            true
        });
        again.into_iter().for_each(|pair| self.schedule(pair));
    }

    fn expire(&mut self, now: Instant) {
        while let Some(&(at, pair)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.schedule(pair);
        }
    }

    /// Puts a completion into `queue`. `solicited` is for receives whose sender requested an event, and for
    /// failures.
    pub fn complete(&mut self, queue: u32, entry: Entry, solicited: bool) {
        let Some(found) = self.queues.get_mut(queue).filter(|queue| !queue.failed) else { return };
        if found.entries.len() >= found.capacity {
            if !std::mem::replace(&mut found.overrun, true) {
                self.overrun(queue);
            }
            return;
        }
        found.entries.push_back(entry);
        found.ready.store(found.entries.len(), Ordering::Release);
        let tells = match found.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if !tells || config().silent {
            return;
        }
        found.armed = Armed::No;
        if let Some(channel) = found.channel.and_then(|channel| self.channels.get_mut(channel)) {
            channel.events.push_back(queue);
            give(&channel.fd);
        }
    }

    /// Lets the completion queues of a device fail, and reports it: each poll of them is an error.
    pub fn fail_queues(&mut self, device: usize) {
        for number in self.queues.numbers() {
            let Some(found) = self.queues.get_mut(number) else { continue };
            let (context, handle) = (found.context, found.handle);
            if self.contexts.get(context).is_some_and(|context| context.device == device) {
                found.failed = true;
                // The value makes polls take the lock.
                found.ready.store(1, Ordering::Release);
                self.tell(context, EventOf::Queue(number), Some(handle), IBV_EVENT_CQ_ERR);
            }
        }
    }

    /// Handles a lost completion: the queue, and the pairs that complete there, become unusable.
    fn overrun(&mut self, queue: u32) {
        let Some(found) = self.queues.get(queue) else { return };
        let (context, handle) = (found.context, found.handle);
        self.tell(context, EventOf::Queue(queue), Some(handle), IBV_EVENT_CQ_ERR);
        for number in self.pairs.numbers() {
            let Some(pair) = self.pairs.get_mut(number) else { continue };
            let uses = pair.send_queue == queue || pair.receive_queue == queue;
            if uses && !matches!(pair.state, State::Reset | State::Error) {
                self.fail_pair(number, Some(IBV_EVENT_QP_FATAL));
            }
        }
    }

    /// Moves the pair to the error state; the engine flushes it.
    pub fn fail_pair(&mut self, number: u32, event: Option<u32>) {
        let Some(pair) = self.pairs.get_mut(number) else { return };
        pair.state = State::Error;
        pair.waiting = None;
        if let Some(event) = event {
            self.tell_pair(number, event);
        }
        self.schedule(number);
    }

    pub fn tell_pair(&mut self, number: u32, event: u32) {
        let Some(pair) = self.pairs.get(number) else { return };
        self.tell(pair.context, EventOf::Pair(number), Some(pair.handle), event);
    }

    pub fn tell_shared(&mut self, number: u32, event: u32) {
        let Some(shared) = self.shared.get(number) else { return };
        self.tell(shared.context, EventOf::Shared(number), Some(shared.handle), event);
    }

    /// Reports a device's event to each of its contexts.
    pub fn tell_device(&mut self, device: usize, event: u32) {
        let contexts: Vec<_> =
            self.contexts.iter().filter(|(_, context)| context.device == device).map(|(n, _)| n).collect();
        for context in contexts {
            self.tell(context, EventOf::Device, None, event);
        }
    }

    fn tell(&mut self, context: u32, of: EventOf, about: Option<Handle>, what: u32) {
        let Some(context) = self.contexts.get_mut(context) else { return };
        context.events.push_back(AsyncEvent { of, about, what });
        give(&context.fd);
    }

    /// Drops the asynchronous events that no program has got yet.
    pub fn forget_events(&mut self, context: u32, of: EventOf) {
        let Some(context) = self.contexts.get_mut(context) else { return };
        let before = context.events.len();
        context.events.retain(|event| event.of != of);
        (context.events.len()..before).for_each(|_| take(&context.fd));
    }

    /// Whether the device works.
    pub fn alive(&self, device: usize) -> bool {
        self.ports.get(device).is_some_and(|port| port.alive)
    }
}

/// A descriptor that is readable as many times as units were given.
pub fn semaphore() -> io::Result<OwnedFd> {
    // SAFETY: The call takes numbers only.
    let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: It was just made, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn give(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: Eight bytes are read from `one`. It cannot block before 2^64 events.
    unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Takes a unit back, unless a reader was faster.
pub fn take(fd: &OwnedFd) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: One structure, and no waiting.
    if unsafe { libc::poll(&mut poll, 1, 0) } == 1 {
        let mut unit = [0u8; 8];
        // SAFETY: Eight bytes are written to `unit`.
        unsafe { libc::read(fd.as_raw_fd(), unit.as_mut_ptr().cast(), unit.len()) };
    }
}

/// Waits, unless the descriptor's flags forbid it, and takes a unit.
///
/// # Errors
/// The system's error: `EAGAIN` if the descriptor does not block, `EINTR`.
pub fn wait(fd: i32) -> io::Result<()> {
    let mut unit = [0u8; 8];
    // SAFETY: Eight bytes are written to `unit`.
    match unsafe { libc::read(fd, unit.as_mut_ptr().cast(), unit.len()) } {
        8 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
