//! Who sends next over this NIC, where service levels have shares (`DECK_LEVELS`).
//!
//! The kernel sends what it has in an order of its own. So it is given little: at most two turns of all links together wait in the
//! kernel, and at most [`SendOrder::most`] bytes are written and not acknowledged. What is posted beyond that stays in the links'
//! streams, and the [arbiter](Arbiter) says whose turn it is. While nobody waits and there is room, a post writes to the socket
//! itself, as without levels. Otherwise the thread `tcp-order-PORT` writes, a turn at a time. The kernel tells nobody that the network
//! has taken something; while that is what the thread waits for, it asks every 50 µs (`order_thread`).
//!
//! A link whose path or peer takes nothing for [`SLOW`] is *slow*: what the kernel has of it does not count any more, so that it
//! holds up nobody. It has its next turn when the kernel has nothing of it left.
//!
//! Locks: a link's is held when this one's is taken, never the other way round.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use udeck_session::{Arbiter, Levels, TURN_BYTES};
use udeck_via::ServiceLevel;

use crate::socket::Socket;
use crate::sys::{self, Unacked};

/// What may wait in the kernel, of all links: one turn on its way out, and the next.
const IN_KERNEL: usize = 2 * TURN_BYTES;
/// Much longer than a turn takes on a path that others share; short beside what a user notices.
const SLOW: Duration = Duration::from_millis(20);

/// See the module.
pub struct SendOrder {
    /// Bytes that may be written and not acknowledged, of all links.
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    arbiter: Arbiter,
    links: HashMap<u64, Known>,
    /// Bytes that were written and, as far as known, not acknowledged, of all links.
    unacked: usize,
    /// Slow links of which something waits in the kernel.
    parked: Vec<u64>,
    stopped: bool,
}

/// A link.
struct Known {
    socket: Arc<Socket>,
    level: ServiceLevel,
    /// What it waits for its turn with.
    wants: usize,
    /// Its part of what is not acknowledged.
    unacked: usize,
    /// Since when the kernel has had something of it to send.
    unsent_since: Option<Instant>,
    is_slow: bool,
}

/// What the thread does next.
pub enum Step {
    Send { link: u64, bytes: usize },
    Pause,
    Stop,
}

impl SendOrder {
    pub fn new(levels: &Levels, most: usize) -> Self {
        let state = State {
            arbiter: Arbiter::new(levels),
            links: HashMap::new(),
            unacked: 0,
            parked: Vec::new(),
            stopped: false,
        };
        SendOrder { most: most.max(IN_KERNEL), state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn add(&self, link: u64, level: ServiceLevel, socket: &Arc<Socket>) {
        let socket = socket.clone();
        let known = Known { socket, level, wants: 0, unacked: 0, unsent_since: None, is_slow: false };
        self.state.lock().links.insert(link, known);
    }

    /// That link sends nothing any more.
    pub fn remove(&self, link: u64) {
        let mut state = self.state.lock();
        if let Some(known) = state.links.remove(&link) {
            state.unacked -= known.unacked;
            state.arbiter.remove(link);
            state.parked.retain(|parked| *parked != link);
        }
    }

    /// Whether the link may write so many bytes at once, all that it has. If not, it waits for its turn, and does not ask again before
    /// that.
    pub fn may_send(&self, link: u64, bytes: usize) -> bool {
        let mut state = self.state.lock();
        if state.arbiter.is_empty() && state.has_room(bytes, self.most) {
            state.sent(link, bytes);
            return true;
        }
        state.wait(link, bytes);
        drop(state);
        self.changed.notify_one();
        false
    }

    /// A turn has written so many bytes.
    pub fn sent(&self, link: u64, bytes: usize) {
        self.state.lock().sent(link, bytes);
    }

    /// All links are gone: the thread ends.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }

    /// What the thread is to do. Waits until somebody has something to send.
    pub fn next_step(&self) -> Step {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return Step::Stop;
            }
            state.unpark();
            if state.arbiter.is_empty() && state.parked.is_empty() {
                self.changed.wait(&mut state);
            } else if state.arbiter.is_empty() || !state.has_room(TURN_BYTES, self.most) {
                return Step::Pause;
            } else if let Some(step) = state.take_turn() {
                return step;
            }
        }
    }
}

impl State {
    fn sent(&mut self, link: u64, bytes: usize) {
        if let Some(known) = self.links.get_mut(&link) {
            known.unacked += bytes;
            known.unsent_since.get_or_insert_with(Instant::now);
            self.unacked += bytes;
        }
    }

    fn wait(&mut self, link: u64, bytes: usize) {
        if let Some(known) = self.links.get_mut(&link) {
            known.wants = bytes;
            self.arbiter.add(link, known.level, bytes);
        }
    }

    /// Whether so many bytes more may be written. Asks the kernel if it does not look so.
    fn has_room(&mut self, bytes: usize, most: usize) -> bool {
        if self.unacked + bytes <= IN_KERNEL {
            return true;
        }
        let now = Instant::now();
        let waiting: usize = self.links.values_mut().map(|known| known.look(now)).sum();
        self.unacked = self.links.values().map(|known| known.unacked).sum();
        waiting + bytes <= IN_KERNEL && self.unacked + bytes <= most
    }

    /// The next turn; `None`: the link is slow, and the kernel has something of it.
    fn take_turn(&mut self) -> Option<Step> {
        let turn = self.arbiter.next()?;
        let known = self.links.get(&turn.link)?;
        if known.is_slow && sys::unacked(&*known.socket).unsent > 0 {
            self.parked.push(turn.link);
            return None;
        }
        Some(Step::Send { link: turn.link, bytes: turn.bytes })
    }

    /// Those whose kernel has sent what it had wait for a turn again.
    fn unpark(&mut self) {
        let State { parked, links, arbiter, .. } = self;
        parked.retain(|link| {
            let Some(known) = links.get(link) else { return false };
            let still = sys::unacked(&*known.socket).unsent > 0;
            if !still {
                arbiter.add(*link, known.level, known.wants);
            }
            still
        });
    }
}

impl Known {
    /// Asks the kernel. Returns what waits there and counts.
    fn look(&mut self, now: Instant) -> usize {
        if self.unacked == 0 && !self.is_slow {
            return 0;
        }
        let Unacked { all, unsent } = sys::unacked(&*self.socket);
        let lasted = self.unsent_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if unsent == 0 {
            self.is_slow = lasted >= SLOW;
            self.unsent_since = None;
        } else {
            self.is_slow |= lasted >= SLOW;
        }
        self.unacked = if self.is_slow { all - unsent } else { all };
        if self.is_slow { 0 } else { unsent }
    }
}
