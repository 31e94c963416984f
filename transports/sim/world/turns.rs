//! Ranks that take turns: one of all threads runs at a time, and virtual time passes when all of them sleep.
//!
//! A thread that sleeps on a completion queue hands its turn on. Ranks with news queue for the turn, in the order in
//! which the news came. When no rank queues, time advances to the next event: a frame arrives, or a sleep has lasted
//! as long as it should. So the order of events depends neither on the system's scheduler nor on how long a
//! computation takes: computing takes no virtual time.
//!
//! Deadlines are moments of virtual time meanwhile: the process uses a clock ([`JobClock`]) that passes as the
//! fabric's time does.
//!
//! Connections are made before the turns, by threads that run in real time, as with name services. Ranks take turns
//! from when all have called `Fabric::enter` until the last [`Turn`] has ended.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Condvar;
use udeck_sys::JobClock;

use super::{Due, LONGEST_SLEEP, Shared, World};

/// Real time that the rank whose turn it is may compute, or wait for something outside the fabric.
const STALL: Duration = Duration::from_secs(120);

/// Decides when frames arrive, in place of the links' delays, while ranks take turns.
pub trait Network: Send {
    /// Starts a frame of `bytes` bytes, without its header, at time `now`. NICs are counted in the order in which
    /// they were opened. `frame` is a number that [`Network::next`] returns when the frame arrives.
    fn send(&mut self, now: Duration, frame: u64, from: usize, to: usize, bytes: usize);

    /// Returns the time and the number of the next frame that arrives, but none after `until`. The network has
    /// simulated everything before that time.
    fn next(&mut self, until: Option<Duration>) -> Option<(Duration, u64)>;
}

/// The turns: which rank runs, and what the others wait for.
pub struct Turns {
    /// State of each rank, by NIC: those that were opened first.
    seats: Vec<Seat>,
    /// Clock of the process, held from when all ranks have entered until all have left.
    clock: Option<StoppedClock>,
    /// Whether a rank runs.
    running: bool,
    ready: VecDeque<usize>,
    alarms: BTreeSet<(Duration, usize)>,
    network: Option<Box<dyn Network>>,
    under_way: HashMap<u64, Due>,
    began: Duration,
    /// Counts turns, so that a turn that lasts is noticed.
    turns: u64,
}

struct Seat {
    state: State,
    bell: Arc<Condvar>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The thread runs when the system lets it.
    Free,
    /// The rank has entered, and waits for the others.
    Entered,
    Ready,
    Running,
    Asleep {
        until: Duration,
    },
    /// The rank has left, and waits for the others.
    Left,
    /// The rank's NIC is closed.
    Gone,
}

impl Turns {
    pub fn new(ranks: usize, network: Option<Box<dyn Network>>) -> io::Result<Self> {
        clock()?;
        let seat = || Seat { state: State::Free, bell: Arc::default() };
        Ok(Turns {
            seats: (0..ranks).map(|_| seat()).collect(),
            clock: None,
            running: false,
            ready: VecDeque::new(),
            alarms: BTreeSet::new(),
            network,
            under_way: HashMap::new(),
            began: Duration::ZERO,
            turns: 0,
        })
    }

    /// Whether all ranks have entered, and not all have left.
    pub fn have_begun(&self) -> bool {
        self.clock.is_some()
    }

    /// Whether all ranks whose NIC is open are in this state. False without any.
    fn all_are(&self, state: State) -> bool {
        let there = || self.seats.iter().filter(|seat| seat.state != State::Gone);
        there().next().is_some() && there().all(|seat| seat.state == state)
    }

    fn set_all(&mut self, state: State) {
        self.seats.iter_mut().filter(|seat| seat.state != State::Gone).for_each(|seat| seat.state = state);
    }
}

/// The process's clock, stopped for a fabric.
struct StoppedClock(&'static JobClock);

static IS_HELD: AtomicBool = AtomicBool::new(false);

/// Returns the clock that the process uses from the first call on. It runs as the machine's clock does, unless a
/// fabric has stopped it.
fn clock() -> io::Result<&'static JobClock> {
    static CLOCK: OnceLock<JobClock> = OnceLock::new();
    if let Some(clock) = CLOCK.get() {
        return Ok(clock);
    }
    let clock = JobClock::new()?;
    match clock.join() {
        Ok(()) => Ok(CLOCK.get_or_init(|| clock)),
        // Another thread was faster, or the process is a rank of a job.
        Err(error) => CLOCK.get().ok_or(error),
    }
}

impl StoppedClock {
    /// # Panics
    /// Another fabric holds the clock.
    fn stop() -> Self {
        let clock = clock().expect("it was made before");
        let is_held = IS_HELD.swap(true, Ordering::Relaxed);
        assert!(!is_held, "ranks of another fabric of this process take turns: one fabric at a time");
        clock.stop();
        StoppedClock(clock)
    }
}

impl Drop for StoppedClock {
    fn drop(&mut self) {
        self.0.resume();
        IS_HELD.store(false, Ordering::Relaxed);
    }
}

/// Guard of a rank that takes turns with the others.
pub struct Turn {
    pub(crate) shared: Arc<Shared>,
    pub(crate) node: usize,
    left: bool,
}

impl Turn {
    /// Waits until all ranks have entered, and it is this one's turn.
    pub(crate) fn enter(shared: &Arc<Shared>, node: usize) -> Self {
        shared.with(|world| world.enter_rank(node));
        shared.await_state(node, |state| state == State::Running);
        Turn { shared: shared.clone(), node, left: false }
    }

    /// Ends this rank's part, and waits until all ranks have left. Returns the virtual time since all had entered.
    pub fn leave(mut self) -> Duration {
        self.end()
    }

    fn end(&mut self) -> Duration {
        self.left = true;
        let took = self.shared.with(|world| world.leave_rank(self.node));
        self.shared.await_state(self.node, |state| matches!(state, State::Free | State::Gone));
        took
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        match self.left {
            // A panicking rank waits for no other, and the others do not wait for it.
            false if std::thread::panicking() => self.shared.with(|world| world.remove_rank(self.node)),
            false => {
                self.end();
            }
            true => {}
        }
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Turn of NIC {}", self.node)
    }
}

impl Shared {
    /// Waits as [`Shared::wait`], for a rank that takes turns.
    pub fn wait_in_turn<T>(
        &self,
        node: usize,
        bell: &Condvar,
        limit: Duration,
        mut look: impl FnMut(&mut World) -> Option<T>,
    ) -> Option<T> {
        let until = Instant::now() + limit.min(LONGEST_SLEEP);
        loop {
            let (found, stepped, sleeps) = self.with(|world| {
                let found = look(world);
                let sleeps = found.is_none() && world.sleep_in_turn(node, limit);
                let stepped = found.is_none() && !sleeps && world.step();
                (found, stepped, sleeps)
            });
            if found.is_some() {
                return found;
            }
            if sleeps {
                self.await_state(node, |state| state == State::Running);
                return self.with(look);
            }
            if stepped {
                continue;
            }
            let mut world = self.lock();
            let found = look(&mut world);
            if found.is_some() || bell.wait_until(&mut world, until).timed_out() {
                return found.or_else(|| look(&mut world));
            }
        }
    }

    /// # Panics
    /// When nothing moves for [`STALL`].
    fn await_state(&self, node: usize, mut is_it: impl FnMut(State) -> bool) {
        let mut world = self.lock();
        loop {
            let turns = world.turns.as_ref().expect("set before");
            if is_it(turns.seats[node].state) {
                return;
            }
            let (bell, before) = (turns.seats[node].bell.clone(), turns.turns);
            let is_late = bell.wait_for(&mut world, STALL).timed_out();
            let turns = world.turns.as_ref().expect("set before");
            if is_late && turns.turns == before && !is_it(turns.seats[node].state) {
                let why = turns.blocker();
                drop(world);
                panic!("nothing has moved for {STALL:?}: {why}");
            }
        }
    }
}

impl Turns {
    fn blocker(&self) -> String {
        let at = |state: State| self.seats.iter().position(|seat| seat.state == state);
        match (at(State::Running), at(State::Free)) {
            (Some(node), _) => format!("it is the turn of NIC {node}, which neither sleeps nor leaves"),
            (None, Some(node)) => format!("NIC {node} has not entered"),
            (None, None) => "nobody runs".into(),
        }
    }
}

impl World {
    /// Returns the condition variable that wakes the thread of a NIC that takes turns.
    pub fn bell(&self, node: usize) -> Option<Arc<Condvar>> {
        Some(self.turns.as_ref()?.seats.get(node)?.bell.clone())
    }

    /// Wakes the rank of a NIC: it has news.
    pub fn wake(&mut self, node: usize) {
        let Some(turns) = &mut self.turns else { return };
        let Some(seat) = turns.seats.get_mut(node) else { return };
        match seat.state {
            State::Free => {
                seat.bell.notify_all();
            }
            State::Asleep { until } => {
                seat.state = State::Ready;
                turns.alarms.remove(&(until, node));
                turns.ready.push_back(node);
            }
            _ => {}
        }
    }

    /// Sends a frame on its way. The event `due` happens when it arrives.
    pub fn send_frame(&mut self, link: (usize, usize), bytes: usize, delay: Duration, due: Due) {
        let number = self.fresh_number();
        if let Some(turns) = &mut self.turns
            && let (Some(network), Some(_)) = (&mut turns.network, &turns.clock)
            && link.0 != link.1
        {
            network.send(self.now, number, link.0, link.1, bytes);
            turns.under_way.insert(number, due);
            return;
        }
        self.schedule(delay, due);
    }

    fn turns_mut(&mut self) -> &mut Turns {
        self.turns.as_mut().expect("ranks take turns")
    }

    fn enter_rank(&mut self, node: usize) {
        let seat = &mut self.turns_mut().seats[node];
        assert_eq!(seat.state, State::Free, "NIC {node} enters once at a time");
        seat.state = State::Entered;
        self.turns_mut().turns += 1;
        self.begin_if_all_entered();
    }

    /// Begins the turns if all ranks have entered.
    fn begin_if_all_entered(&mut self) {
        let now = self.now;
        let turns = self.turns_mut();
        if turns.clock.is_some() || !turns.all_are(State::Entered) {
            return;
        }
        turns.clock = Some(StoppedClock::stop());
        turns.began = now;
        turns.set_all(State::Ready);
        let there = turns.seats.iter().enumerate().filter(|(_, seat)| seat.state == State::Ready);
        turns.ready = there.map(|(node, _)| node).collect();
        self.sort_watched();
        self.trace.iter_mut().for_each(Vec::clear);
        self.run_next();
    }

    /// Puts a rank to sleep if it is its turn. Returns whether it was.
    fn sleep_in_turn(&mut self, node: usize, limit: Duration) -> bool {
        let until = self.now.saturating_add(limit);
        let turns = self.turns_mut();
        if turns.seats[node].state != State::Running {
            return false;
        }
        turns.seats[node].state = State::Asleep { until };
        turns.alarms.insert((until, node));
        turns.running = false;
        self.run_next();
        true
    }

    fn leave_rank(&mut self, node: usize) -> Duration {
        let now = self.now;
        let turns = self.turns_mut();
        let took = now.saturating_sub(turns.began);
        if turns.seats[node].state == State::Running {
            turns.seats[node].state = State::Left;
            turns.running = false;
        }
        self.end_if_all_left();
        self.run_next();
        took
    }

    /// Ends the turns if all ranks have left: frames in transit arrive, and the threads run freely.
    fn end_if_all_left(&mut self) {
        if !self.turns_mut().all_are(State::Left) {
            return;
        }
        while self.deliver_next(None) {}
        let turns = self.turns_mut();
        turns.clock = None;
        turns.set_all(State::Free);
        for seat in &turns.seats {
            seat.bell.notify_all();
        }
    }

    /// Takes the rank of a closed NIC out: nobody waits for it to enter, or to leave.
    pub fn remove_rank(&mut self, node: usize) {
        let Some(turns) = &mut self.turns else { return };
        let Some(seat) = turns.seats.get_mut(node) else { return };
        let state = std::mem::replace(&mut seat.state, State::Gone);
        seat.bell.notify_all();
        turns.ready.retain(|other| *other != node);
        turns.alarms.retain(|(_, other)| *other != node);
        turns.running &= state != State::Running;
        self.begin_if_all_entered();
        if self.turns_mut().clock.is_some() {
            self.end_if_all_left();
            self.run_next();
        }
    }

    /// Gives the turn to the next rank. Virtual time passes until there is one.
    pub fn run_next(&mut self) {
        while self.handling == 0 {
            let Some(turns) = &mut self.turns else { return };
            if turns.running || turns.clock.is_none() {
                return;
            }
            if let Some(node) = turns.ready.pop_front() {
                turns.turns += 1;
                turns.running = true;
                let seat = &mut turns.seats[node];
                seat.state = State::Running;
                seat.bell.notify_all();
                return;
            }
            let Some(&(alarm, node)) = turns.alarms.first() else { return };
            let due = self.due.first_key_value().map(|((at, _), _)| *at).filter(|at| *at <= alarm);
            if self.deliver_next(Some(due.unwrap_or(alarm))) {
                continue;
            }
            self.advance_to(due.unwrap_or(alarm));
            if due.is_some() {
                self.step();
            } else {
                self.wake(node);
            }
        }
    }

    /// Delivers the next frame, unless it arrives after `until`. Returns whether there was one.
    fn deliver_next(&mut self, until: Option<Duration>) -> bool {
        let turns = self.turns_mut();
        let next = turns.network.as_mut().and_then(|network| network.next(until));
        let Some((at, number)) = next else { return false };
        let due = turns.under_way.remove(&number).expect("a network brings what was sent");
        self.advance_to(at);
        self.happen(due);
        true
    }

    fn advance_to(&mut self, until: Duration) {
        let passed = until.saturating_sub(self.now);
        self.now = self.now.max(until);
        if let Some(StoppedClock(clock)) = &self.turns_mut().clock {
            clock.pass(passed);
        }
    }
}
