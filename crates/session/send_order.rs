//! Who sends next over a NIC, where service levels have shares (`DECK_LEVELS`).
//!
//! What is below a link sends in an order of its own: the kernel, which has a socket's data, or QUIC, which has those of all streams of
//! a connection. So it is given little. At most two turns of all links together wait in such [buffers](SendBuffer), and at most
//! [`SendOrder::most`] bytes are written and not acknowledged. What is posted beyond that stays in the links' streams, and the
//! [arbiter](Arbiter) says whose turn it is. While nobody waits and there is room, a post writes by itself, as without levels. Otherwise
//! the [thread that orders](crate::order_thread) writes, a turn at a time. The kernel tells nobody that the network has taken something;
//! while that is what the thread waits for, it asks every [`PAUSE`].
//!
//! A buffer whose path or peer takes nothing for [`SLOW`] is *slow*: what waits in it does not count any more, so that it holds up
//! nobody, and of what is not acknowledged all slow buffers together leave half to the others. Its links have a turn when nothing waits in it, and
//! there is room for it. One whose peer acknowledges nothing for [`SILENT`] does not count at all.
//!
//! Locks: those of a link and of what is below it are held when this one's is taken, never the other way round.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use udeck_qos::levels::Levels;
use udeck_via::ServiceLevel;

use crate::arbiter::{Arbiter, TURN_BYTES};

/// Between two looks at what the network has taken; the longer one once it has taken nothing for [`SHORT_LOOKS`] looks.
const PAUSE: Duration = Duration::from_micros(50);
const LONG_PAUSE: Duration = Duration::from_millis(1);
const SHORT_LOOKS: u32 = 200;

/// What may wait below, of all links: one turn on its way out, and the next.
const UNSENT: usize = 2 * TURN_BYTES;
/// Much longer than a turn takes on a path that others share; short beside what a user notices.
const SLOW: Duration = Duration::from_millis(20);
/// Longer than a living peer takes to acknowledge something, a retransmission included.
const SILENT: Duration = Duration::from_secs(1);

/// What is below links: one link's socket, or a connection that carries several.
pub trait SendBuffer: Send + Sync + 'static {
    /// What it has now. Called with a lock held: it takes none.
    fn outstanding(&self) -> Outstanding;
}

/// Bytes that were written and that the peer's host has not acknowledged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// All of them.
    pub all: usize,
    /// Those that were not sent yet.
    pub unsent: usize,
}

/// See the module.
pub struct SendOrder<B> {
    /// Bytes that may be written and not acknowledged, of all links.
    most: usize,
    state: Mutex<State<B>>,
    changed: Condvar,
}

struct State<B> {
    arbiter: Arbiter,
    links: HashMap<u64, OrderedLink>,
    /// By [`key`].
    buffers: HashMap<usize, Known<B>>,
    /// Bytes that were written and, as far as known, not acknowledged, of all links.
    unacked: usize,
    /// Those of slow buffers.
    slow_unacked: usize,
    /// Links whose buffer is slow, and has something that waits, or no room.
    parked: Vec<u64>,
    stopped: bool,
}

/// A link.
struct OrderedLink {
    /// What is below it.
    buffer: usize,
    level: ServiceLevel,
    /// What it waits for its turn with.
    wants: usize,
}

/// A buffer.
struct Known<B> {
    buffer: Arc<B>,
    /// Links above it.
    links: usize,
    /// Its part of what is not acknowledged.
    unacked: usize,
    /// Bytes that were written since it was added.
    written: u64,
    /// A turn that was not sent yet, as far as known: up to where, and since when.
    turn: Option<(u64, Instant)>,
    is_slow: bool,
    /// Up to where the peer has acknowledged, and since when no more.
    acked: (u64, Instant),
    /// That was long ago.
    is_silent: bool,
}

/// What the thread does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// That link may write so many bytes.
    Send {
        /// As it was added.
        link: u64,
        /// At most.
        bytes: usize,
    },
    /// All links are gone.
    Stop,
}

fn key<B>(buffer: &Arc<B>) -> usize {
    Arc::as_ptr(buffer).addr()
}

impl<B: SendBuffer> SendOrder<B> {
    /// `most`: bytes that may be written and not acknowledged, of all links.
    pub fn new(levels: &Levels, most: usize) -> Self {
        let state = State {
            arbiter: Arbiter::new(levels),
            links: HashMap::new(),
            buffers: HashMap::new(),
            unacked: 0,
            slow_unacked: 0,
            parked: Vec::new(),
            stopped: false,
        };
        SendOrder { most: most.max(UNSENT), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// A link, and what is below it.
    pub fn add(&self, link: u64, level: ServiceLevel, buffer: &Arc<B>) {
        let mut state = self.state.lock();
        let ordered = OrderedLink { buffer: key(buffer), level, wants: 0 };
        state.buffers.entry(ordered.buffer).or_insert_with(|| Known::new(buffer.clone())).links += 1;
        state.links.insert(link, ordered);
    }

    /// That link sends nothing any more.
    pub fn remove(&self, link: u64) {
        let mut state = self.state.lock();
        let Some(OrderedLink { buffer, .. }) = state.links.remove(&link) else { return };
        state.arbiter.remove(link);
        state.parked.retain(|parked| *parked != link);
        let Some(known) = state.buffers.get_mut(&buffer) else { return };
        known.links -= 1;
        if known.links == 0 {
            let unacked = known.unacked;
            state.unacked -= unacked;
            state.buffers.remove(&buffer);
        }
    }

    /// Whether the link may write so many bytes at once, all that it has. If not, it waits for its turn, and does not ask again before
    /// that. (One that was not added has no order.)
    pub fn may_send(&self, link: u64, bytes: usize) -> bool {
        let mut state = self.state.lock();
        if !state.links.contains_key(&link) {
            return true;
        }
        if state.arbiter.is_empty()
            && state.has_room(bytes, self.most)
            && !state.waits_for_slow(link, self.most)
        {
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
            state.unpark(self.most);
            if state.arbiter.is_empty() && state.parked.is_empty() {
                self.changed.wait(&mut state);
                looks = 0;
            } else if state.arbiter.is_empty() || !state.has_room(TURN_BYTES, self.most) {
                looks += 1;
                self.changed.wait_for(&mut state, if looks < SHORT_LOOKS { PAUSE } else { LONG_PAUSE });
            } else if let Some(step) = state.take_turn(self.most) {
                return step;
            }
        }
    }
}

impl<B: SendBuffer> State<B> {
    fn sent(&mut self, link: u64, bytes: usize) {
        let State { links, buffers, unacked, .. } = self;
        let buffer = links.get(&link).and_then(|link| buffers.get_mut(&link.buffer));
        if let Some(known) = buffer.filter(|_| bytes > 0) {
            known.sent(bytes, Instant::now());
            *unacked += bytes;
        }
    }

    fn wait(&mut self, link: u64, bytes: usize) {
        if let Some(ordered) = self.links.get_mut(&link) {
            ordered.wants = bytes;
            self.arbiter.add(link, ordered.level, bytes);
        }
    }

    /// Whether so many bytes more may be written. Asks the buffers if it does not look so.
    fn has_room(&mut self, bytes: usize, most: usize) -> bool {
        if self.unacked + bytes <= UNSENT {
            return true;
        }
        let now = Instant::now();
        let waiting: usize = self.buffers.values_mut().map(|known| known.look(now)).sum();
        let of = |slow| {
            self.buffers.values().filter(move |known| known.is_slow == slow).map(|known| known.unacked)
        };
        self.slow_unacked = of(true).sum();
        self.unacked = self.slow_unacked + of(false).sum::<usize>();
        let counted = self.unacked - self.slow_unacked + self.slow_unacked.min(most / 2);
        waiting + bytes <= UNSENT && counted + bytes <= most
    }

    /// Whether what is below the link is slow, and cannot have a turn now, or another link waits for it: what was written now would go before.
    fn waits_for_slow(&self, link: u64, most: usize) -> bool {
        let buffer = |link| self.links.get(link).map(|link| link.buffer);
        self.parked.iter().any(|parked| buffer(parked) == buffer(&link))
            || buffer(&link)
                .and_then(|key| self.buffers.get(&key))
                .is_some_and(|known| self.is_held_up(known, most))
    }

    /// Whether what is below a link is slow, and cannot have a turn now.
    fn is_held_up(&self, known: &Known<B>, most: usize) -> bool {
        known.is_slow && (self.unacked + TURN_BYTES > most || known.buffer.outstanding().unsent > 0)
    }

    /// The next turn; `None`: what is below the link is slow, and something waits in it, or there is no room for it.
    fn take_turn(&mut self, most: usize) -> Option<Step> {
        let turn = self.arbiter.next()?;
        let known = self.buffers.get(&self.links.get(&turn.link)?.buffer)?;
        if self.is_held_up(known, most) {
            self.parked.push(turn.link);
            return None;
        }
        Some(Step::Send { link: turn.link, bytes: turn.bytes })
    }

    /// Those that can have a turn now wait for it again.
    fn unpark(&mut self, most: usize) {
        if self.parked.is_empty() {
            return;
        }
        // How much there is room for.
        self.has_room(UNSENT, most);
        for number in std::mem::take(&mut self.parked) {
            let Some(link) = self.links.get(&number) else { continue };
            match self.buffers.get(&link.buffer).is_some_and(|known| self.is_held_up(known, most)) {
                true => self.parked.push(number),
                false => self.arbiter.add(number, link.level, link.wants),
            }
        }
    }
}

impl<B: SendBuffer> Known<B> {
    fn new(buffer: Arc<B>) -> Self {
        let acked = (0, Instant::now());
        Known {
            buffer,
            links: 0,
            unacked: 0,
            written: 0,
            turn: None,
            is_slow: false,
            acked,
            is_silent: false,
        }
    }

    fn sent(&mut self, bytes: usize, now: Instant) {
        if self.unacked == 0 && !self.is_silent {
            self.acked = (self.written, now);
        }
        self.unacked += bytes;
        self.written += bytes as u64;
        self.turn.get_or_insert((self.written, now));
    }

    /// Asks the buffer. Returns what waits there and counts.
    fn look(&mut self, now: Instant) -> usize {
        if self.unacked == 0 && !self.is_slow && !self.is_silent {
            return 0;
        }
        let Outstanding { all, unsent } = self.buffer.outstanding();
        self.judge(self.written - (unsent as u64).min(self.written), now);
        // Posts write meanwhile, so the second answer may be the larger one.
        self.unacked = if self.is_slow { all.saturating_sub(unsent) } else { all };
        self.hear(self.written - (all as u64).min(self.written), now);
        if self.is_silent {
            self.unacked = 0;
        }
        if self.is_slow || self.is_silent { 0 } else { unsent }
    }

    /// All before `sent` has been sent by now.
    fn judge(&mut self, sent: u64, now: Instant) {
        // What was lost waits again, and nobody has written it now.
        let Some((upto, since)) = self.turn.or((sent < self.written).then_some((self.written, now))) else {
            return;
        };
        self.turn = Some((upto, since));
        let is_late = now.saturating_duration_since(since) >= SLOW;
        if sent >= upto {
            // Of one that is seen late it is not known when it was sent.
            self.is_slow &= is_late;
            self.turn = (sent < self.written).then_some((self.written, now));
        } else {
            self.is_slow |= is_late;
        }
    }

    /// The peer has acknowledged all before `acked` by now.
    fn hear(&mut self, acked: u64, now: Instant) {
        let (before, since) = self.acked;
        if acked > before || acked == self.written {
            (self.acked, self.is_silent) = ((acked, now), false);
        } else {
            self.is_silent |= now.saturating_duration_since(since) >= SILENT;
        }
    }
}

#[cfg(test)]
mod tests;
