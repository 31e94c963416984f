//! Who sends next over this NIC, where service levels have shares (`DECK_LEVELS`).
//!
//! The kernel sends what it has in an order of its own. So it is given little: at most two turns of all links together wait in the
//! kernel, and at most [`SendOrder::most`] bytes are written and not acknowledged. What is posted beyond that stays in the links'
//! streams, and the [arbiter](Arbiter) says whose turn it is. While nobody waits and there is room, a post writes to the socket
//! itself, as without levels. Otherwise the thread `tcp-order-PORT` writes, a turn at a time. The kernel tells nobody that the network
//! has taken something; while that is what the thread waits for, it asks every [`PAUSE`].
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

/// Between two looks at what the network has taken; the longer one once it has taken nothing for [`SHORT_LOOKS`] looks.
const PAUSE: Duration = Duration::from_micros(50);
const LONG_PAUSE: Duration = Duration::from_millis(1);
const SHORT_LOOKS: u32 = 200;

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
    /// Bytes that were written since it was added.
    written: u64,
    /// A turn that the kernel has not sent yet, as far as known: up to where, and since when.
    turn: Option<(u64, Instant)>,
    is_slow: bool,
}

/// What the thread does next.
pub enum Step {
    Send { link: u64, bytes: usize },
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
        let known = Known { socket, level, wants: 0, unacked: 0, written: 0, turn: None, is_slow: false };
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
        let (mut state, mut looks) = (self.state.lock(), 0);
        loop {
            if state.stopped {
                return Step::Stop;
            }
            state.unpark();
            if state.arbiter.is_empty() && state.parked.is_empty() {
                self.changed.wait(&mut state);
                looks = 0;
            } else if state.arbiter.is_empty() || !state.has_room(TURN_BYTES, self.most) {
                looks += 1;
                self.changed.wait_for(&mut state, if looks < SHORT_LOOKS { PAUSE } else { LONG_PAUSE });
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
            known.written += bytes as u64;
            known.turn.get_or_insert_with(|| (known.written, Instant::now()));
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
        self.judge(self.written - (unsent as u64).min(self.written), now);
        // Posts write meanwhile, so the second answer may be the larger one.
        self.unacked = if self.is_slow { all.saturating_sub(unsent) } else { all };
        if self.is_slow { 0 } else { unsent }
    }

    /// The kernel has sent all before `sent` by now.
    fn judge(&mut self, sent: u64, now: Instant) {
        let Some((upto, since)) = self.turn else { return };
        let is_late = now.saturating_duration_since(since) >= SLOW;
        if sent >= upto {
            // Of one that is seen late it is not known when it was sent.
            self.is_slow &= is_late;
            self.turn = (sent < self.written).then_some((self.written, now));
        } else {
            self.is_slow |= is_late;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let (ours, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = Arc::new(Socket::new(ours.into(), 0));
        let level = ServiceLevel::default();
        Known { socket, level, wants: 0, unacked: 0, written: 0, turn: None, is_slow: false }
    }

    #[test]
    fn a_link_is_slow_while_its_turns_take_long() {
        let (start, mut link) = (Instant::now(), known());
        let at = |ms| start + Duration::from_millis(ms);
        link.written = 100;
        link.turn = Some((100, start));
        link.judge(40, at(19));
        assert!(!link.is_slow);
        link.judge(60, at(20));
        assert!(link.is_slow, "a turn of 20 ms");
        link.written = 200;
        link.judge(100, at(25));
        assert!(link.is_slow && link.turn == Some((200, at(25))));
        link.judge(200, at(30));
        assert!(!link.is_slow && link.turn.is_none(), "a quick one");
    }

    #[test]
    fn a_turn_that_is_looked_at_late_was_not_slow_for_that() {
        let mut link = known();
        link.written = 100;
        link.turn = Some((100, Instant::now()));
        link.judge(100, Instant::now() + Duration::from_secs(1));
        assert!(!link.is_slow && link.turn.is_none());
    }

    /// A link that always has something in the kernel is not slow as long as each turn leaves in time.
    #[test]
    fn a_busy_link_is_not_slow() {
        let (start, mut link) = (Instant::now(), known());
        for turn in 0..100_u64 {
            link.written += 100;
            let now = start + Duration::from_millis(10 * turn);
            link.turn.get_or_insert((link.written, now));
            link.judge(link.written - 50, now);
            assert!(!link.is_slow, "turn {turn}");
        }
    }
}
