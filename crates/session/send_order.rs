//! Order of sending over a NIC whose service levels have shares (`DECK_LEVELS`).
//!
//! The layer below a link sends in an order of its own: the kernel (data of a socket), or QUIC (data of all streams of a
//! connection). So it is given little. At most two turns of all links together wait in such [buffers](SendBuffer), and at
//! most [`SendOrder::most`] bytes are written and not acknowledged. Posts beyond that stay in the links' streams, and the
//! [arbiter](Arbiter) says whose turn it is. While no link waits and there is room, a post writes by itself, as without
//! levels. Otherwise the [thread that orders](crate::order_thread) writes, one turn at a time. The kernel does not report
//! that the network has taken something; while the thread waits for that, it asks every [`PAUSE`].
//!
//! A buffer whose path or peer takes nothing for [`SLOW`] is *slow*. Bytes that wait in it are not counted any more, so that
//! it holds up no other buffer, and all slow buffers together leave half of the unacknowledged bytes to the others. A link of
//! a slow buffer has a turn when nothing waits in the buffer and there is room for the turn. A buffer whose peer acknowledges
//! nothing for [`SILENT`] is not counted at all.
//!
//! Lock order: the locks of a link and of the layer below it are taken before this one, never after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use udeck_qos::levels::Levels;
use udeck_via::ServiceLevel;

use crate::arbiter::{Arbiter, TURN_BYTES};

/// Interval of the thread's polls of what the network has taken. [`LONG_PAUSE`] follows once it has taken nothing for
/// [`SHORT_WAITS`] polls.
const PAUSE: Duration = Duration::from_micros(50);
const LONG_PAUSE: Duration = Duration::from_millis(1);
const SHORT_WAITS: u32 = 200;

/// Bytes of all links that may wait in the buffers below: one turn on its way out, and the next.
const UNSENT: usize = 2 * TURN_BYTES;
/// Time without progress after which a buffer is slow: much longer than a turn takes on a shared path, short beside what a
/// user notices.
const SLOW: Duration = Duration::from_millis(20);
/// Time without an acknowledgement after which a buffer is silent: longer than a living peer takes, a retransmission included.
const SILENT: Duration = Duration::from_secs(1);

/// The buffer below links: one link's socket, or a connection that carries several.
pub trait SendBuffer: Send + Sync + 'static {
    /// Bytes in the buffer now. Called with a lock held: it takes none.
    fn outstanding(&self) -> Outstanding;
}

/// Bytes that were written and not acknowledged by the peer's host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// All unacknowledged bytes.
    pub all: usize,
    /// The unacknowledged bytes that were not sent yet.
    pub unsent: usize,
}

/// The order in which the links of one NIC send.
pub struct SendOrder<B> {
    /// Upper bound of written and unacknowledged bytes, of all links.
    most: usize,
    state: Mutex<State<B>>,
    changed: Condvar,
}

struct State<B> {
    arbiter: Arbiter,
    links: HashMap<u64, OrderedLink>,
    /// Buffers by [`key`].
    buffers: HashMap<usize, BufferState<B>>,
    /// Unacknowledged bytes of all links, as far as known.
    unacked: usize,
    /// The part of `unacked` that slow buffers have.
    slow_unacked: usize,
    /// Links whose slow buffer has something that waits, or no room.
    parked: Vec<u64>,
    stopped: bool,
}

/// A link and its buffer.
struct OrderedLink {
    /// Key of the link's buffer.
    buffer: usize,
    level: ServiceLevel,
    /// Bytes that the link waits to send.
    wants: usize,
}

/// A buffer and its state.
struct BufferState<B> {
    buffer: Arc<B>,
    /// Number of links above it.
    links: usize,
    /// Unacknowledged bytes of this buffer, as counted in [`State::unacked`].
    unacked: usize,
    /// Bytes written since the buffer was added.
    written: u64,
    /// A turn that was not sent yet, as far as known: its end in bytes written, and since when it waits.
    turn: Option<(u64, Instant)>,
    is_slow: bool,
    /// Bytes that the peer has acknowledged, and the time of the last progress.
    acked: (u64, Instant),
    /// Whether the last progress is longer ago than [`SILENT`].
    is_silent: bool,
}

/// Next action of the thread.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// This link may write.
    Send {
        /// The link's number, as it was added.
        link: u64,
        /// Upper bound of its turn, in bytes.
        bytes: usize,
    },
    /// The thread ends: all links are gone.
    Stop,
}

fn key<B>(buffer: &Arc<B>) -> usize {
    Arc::as_ptr(buffer).addr()
}

impl<B: SendBuffer> SendOrder<B> {
    /// Makes an order without links. `most`: upper bound of written and unacknowledged bytes, of all links.
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

    /// Adds a link, and the buffer below it.
    pub fn add(&self, link: u64, level: ServiceLevel, buffer: &Arc<B>) {
        let mut state = self.state.lock();
        let ordered = OrderedLink { buffer: key(buffer), level, wants: 0 };
        state.buffers.entry(ordered.buffer).or_insert_with(|| BufferState::new(buffer.clone())).links += 1;
        state.links.insert(link, ordered);
    }

    /// Removes a link that sends nothing any more.
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

    /// Whether the link may write all that it has, `bytes`, at once. If not, it waits for its turn, and does not ask again
    /// before that. (A link that was not added has no order, and may always write.)
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

    /// Counts the bytes that a turn has written.
    pub fn sent(&self, link: u64, bytes: usize) {
        self.state.lock().sent(link, bytes);
    }

    /// Ends the thread: all links are gone.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Next action of the thread. Blocks until a link has something to send.
    pub fn next_step(&self) -> Step {
        let (mut state, mut polls) = (self.state.lock(), 0);
        loop {
            if state.stopped {
                return Step::Stop;
            }
            state.unpark(self.most);
            if state.arbiter.is_empty() && state.parked.is_empty() {
                self.changed.wait(&mut state);
                polls = 0;
            } else if state.arbiter.is_empty() || !state.has_room(TURN_BYTES, self.most) {
                polls += 1;
                self.changed.wait_for(&mut state, if polls < SHORT_WAITS { PAUSE } else { LONG_PAUSE });
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

    /// Whether `bytes` more may be written. Polls the buffers if there seems to be no room.
    fn has_room(&mut self, bytes: usize, most: usize) -> bool {
        if self.unacked + bytes <= UNSENT {
            return true;
        }
        let now = Instant::now();
        let waiting: usize = self.buffers.values_mut().map(|known| known.poll(now)).sum();
        let of = |slow| {
            self.buffers.values().filter(move |known| known.is_slow == slow).map(|known| known.unacked)
        };
        self.slow_unacked = of(true).sum();
        self.unacked = self.slow_unacked + of(false).sum::<usize>();
        let counted = self.unacked - self.slow_unacked + self.slow_unacked.min(most / 2);
        waiting + bytes <= UNSENT && counted + bytes <= most
    }

    /// Whether the link has to wait because its slow buffer cannot have a turn now, or because another link waits for the
    /// same buffer: a write now would overtake it.
    fn waits_for_slow(&self, link: u64, most: usize) -> bool {
        let buffer = |link| self.links.get(link).map(|link| link.buffer);
        self.parked.iter().any(|parked| buffer(parked) == buffer(&link))
            || buffer(&link)
                .and_then(|key| self.buffers.get(&key))
                .is_some_and(|known| self.is_held_up(known, most))
    }

    /// Whether a slow buffer cannot have a turn now.
    fn is_held_up(&self, known: &BufferState<B>, most: usize) -> bool {
        known.is_slow && (self.unacked + TURN_BYTES > most || known.buffer.outstanding().unsent > 0)
    }

    /// The next turn. `None`: its link's buffer is slow, and something waits in it, or there is no room for the turn.
    fn take_turn(&mut self, most: usize) -> Option<Step> {
        let turn = self.arbiter.next()?;
        let known = self.buffers.get(&self.links.get(&turn.link)?.buffer)?;
        if self.is_held_up(known, most) {
            self.parked.push(turn.link);
            return None;
        }
        Some(Step::Send { link: turn.link, bytes: turn.bytes })
    }

    /// Moves parked links that can have a turn now back to the arbiter.
    fn unpark(&mut self, most: usize) {
        if self.parked.is_empty() {
            return;
        }
        // This updates the counts that `is_held_up` reads.
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

impl<B: SendBuffer> BufferState<B> {
    fn new(buffer: Arc<B>) -> Self {
        let acked = (0, Instant::now());
        BufferState {
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

    /// Polls the buffer. Returns the bytes that wait in it and are counted.
    fn poll(&mut self, now: Instant) -> usize {
        if self.unacked == 0 && !self.is_slow && !self.is_silent {
            return 0;
        }
        let Outstanding { all, unsent } = self.buffer.outstanding();
        self.note_sent(self.written - (unsent as u64).min(self.written), now);
        // Posts go on writing meanwhile, so the second answer may be the larger one.
        self.unacked = if self.is_slow { all.saturating_sub(unsent) } else { all };
        self.note_acked(self.written - (all as u64).min(self.written), now);
        if self.is_silent {
            self.unacked = 0;
        }
        if self.is_slow || self.is_silent { 0 } else { unsent }
    }

    /// Decides whether the buffer is slow, given that all bytes before `sent` have been sent by now.
    fn note_sent(&mut self, sent: u64, now: Instant) {
        // Lost bytes wait again, although no turn has written since.
        let Some((upto, since)) = self.turn.or((sent < self.written).then_some((self.written, now))) else {
            return;
        };
        self.turn = Some((upto, since));
        let is_late = now.saturating_duration_since(since) >= SLOW;
        if sent >= upto {
            // A turn that is found sent too late leaves the time of its sending unknown.
            self.is_slow &= is_late;
            self.turn = (sent < self.written).then_some((self.written, now));
        } else {
            self.is_slow |= is_late;
        }
    }

    /// Decides whether the buffer is silent, given that the peer has acknowledged all bytes before `acked` by now.
    fn note_acked(&mut self, acked: u64, now: Instant) {
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
