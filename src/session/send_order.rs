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
mod tests {
    use super::*;

    #[derive(Default)]
    struct Buffer(Mutex<Outstanding>);

    impl SendBuffer for Buffer {
        fn outstanding(&self) -> Outstanding {
            *self.0.lock()
        }
    }

    impl Buffer {
        fn set(&self, all: usize, unsent: usize) {
            *self.0.lock() = Outstanding { all, unsent };
        }
    }

    fn level(level: u8) -> ServiceLevel {
        ServiceLevel::new(level).unwrap()
    }

    fn known() -> Known<Buffer> {
        Known::new(Arc::default())
    }

    fn order(links: &[(u64, u8, &Arc<Buffer>)]) -> SendOrder<Buffer> {
        let order = SendOrder::new(&"5:50,0:50".parse().unwrap(), 100_000);
        links.iter().for_each(|(link, of, buffer)| order.add(*link, level(*of), buffer));
        order
    }

    fn with(order: &SendOrder<Buffer>, buffer: &Arc<Buffer>, change: impl FnOnce(&mut Known<Buffer>)) {
        change(order.state.lock().buffers.get_mut(&key(buffer)).expect("a link's"));
    }

    #[test]
    fn a_buffer_is_slow_while_its_turns_take_long() {
        let (start, mut buffer) = (Instant::now(), known());
        let at = |ms| start + Duration::from_millis(ms);
        buffer.written = 100;
        buffer.turn = Some((100, start));
        buffer.judge(40, at(19));
        assert!(!buffer.is_slow);
        buffer.judge(60, at(20));
        assert!(buffer.is_slow, "a turn of 20 ms");
        buffer.written = 200;
        buffer.judge(100, at(25));
        assert!(buffer.is_slow && buffer.turn == Some((200, at(25))));
        buffer.judge(200, at(30));
        assert!(!buffer.is_slow && buffer.turn.is_none(), "a quick one");
    }

    #[test]
    fn a_turn_that_is_looked_at_late_was_not_slow_for_that() {
        let mut buffer = known();
        buffer.written = 100;
        buffer.turn = Some((100, Instant::now()));
        buffer.judge(100, Instant::now() + Duration::from_secs(1));
        assert!(!buffer.is_slow && buffer.turn.is_none());
    }

    /// One in which something always waits is not slow as long as each turn leaves in time.
    #[test]
    fn a_busy_buffer_is_not_slow() {
        let (start, mut buffer) = (Instant::now(), known());
        for turn in 0..100_u64 {
            buffer.written += 100;
            let now = start + Duration::from_millis(10 * turn);
            buffer.turn.get_or_insert((buffer.written, now));
            buffer.judge(buffer.written - 50, now);
            assert!(!buffer.is_slow, "turn {turn}");
        }
    }

    /// A process that was stopped acknowledges nothing over QUIC, for as long as it is.
    #[test]
    fn a_silent_peer_does_not_count() {
        let (start, mut buffer) = (Instant::now(), known());
        let at = |ms| start + Duration::from_millis(ms);
        buffer.sent(1000, start);
        buffer.buffer.set(600, 0);
        buffer.look(at(500));
        buffer.look(at(1400));
        assert_eq!(buffer.unacked, 600, "it was heard of 900 ms before");
        buffer.look(at(1500));
        assert_eq!(buffer.unacked, 0);
        buffer.buffer.set(500, 0);
        buffer.look(at(1600));
        assert_eq!(buffer.unacked, 500, "it is back");
        buffer.buffer.set(0, 0);
        buffer.look(at(1700));
        buffer.sent(100, at(9000));
        buffer.buffer.set(100, 0);
        buffer.look(at(9001));
        assert_eq!(buffer.unacked, 100, "it had nothing to acknowledge");
    }

    /// Nobody has written what was lost and waits to be sent again.
    #[test]
    fn a_buffer_is_slow_while_it_recovers_from_loss() {
        let (start, mut buffer) = (Instant::now(), known());
        let at = |ms| start + Duration::from_millis(ms);
        buffer.sent(1000, start);
        buffer.buffer.set(1000, 0);
        assert_eq!(buffer.look(at(1)), 0);
        buffer.buffer.set(1000, 400);
        assert_eq!([2, 21, 22, 23].map(|ms| buffer.look(at(ms))), [400, 400, 0, 0]);
        buffer.buffer.set(600, 0);
        buffer.look(at(24));
        buffer.buffer.set(600, 100);
        assert_eq!([25, 26].map(|ms| buffer.look(at(ms))), [0, 0], "it is seen to be quick first");
        buffer.buffer.set(600, 0);
        buffer.look(at(27));
        assert!(!buffer.is_slow);
    }

    #[test]
    fn slow_buffers_leave_room_to_others_and_have_one_turn_at_a_time() {
        let (slow, quick) = (Arc::default(), Arc::default());
        let order = order(&[(1, 0, &slow), (2, 5, &slow), (3, 0, &quick)]);
        assert!(order.may_send(1, 20_000));
        let a_while_ago = Instant::now() - 2 * SLOW;
        with(&order, &slow, |known| (known.is_slow, known.turn) = (true, Some((20_000, a_while_ago))));
        slow.set(100_000, 0);
        assert!(order.may_send(3, 20_000), "half of what may be in flight is not theirs");
        assert!(!order.may_send(2, 100), "and they have all of theirs");
        slow.set(50_000, 10);
        assert_eq!(order.state.lock().take_turn(100_000), None, "something waits there");
        assert!(!order.may_send(1, 100), "not before link 2");
        slow.set(50_000, 0);
        let Step::Send { link: 2, .. } = order.next_step() else { panic!("link 2 is first") };
    }

    #[test]
    fn what_finds_no_room_waits_for_its_turn() {
        let buffer = Arc::default();
        let order = order(&[(1, 0, &buffer), (2, 5, &buffer)]);
        assert!(
            order.may_send(1, UNSENT) && order.may_send(9, 1 << 30),
            "there is room; and one without a level"
        );
        buffer.set(UNSENT, UNSENT);
        assert!(!order.may_send(1, 40_000) && !order.may_send(2, 100));
        buffer.set(70_000, 0);
        let mut turns: Vec<_> = [(); 2].map(|()| order.next_step()).into();
        turns.sort_by_key(|step| matches!(step, Step::Send { link: 2, .. }));
        assert_eq!(turns[0], Step::Send { link: 1, bytes: TURN_BYTES });
        assert!(matches!(turns[1], Step::Send { link: 2, bytes: 100..200 }), "{turns:?}");
        // Not more in flight than is allowed, of all links together.
        buffer.set(100_000 - 50, 0);
        assert!(!order.may_send(2, 100));
        order.stop();
        assert_eq!(order.next_step(), Step::Stop);
    }

    #[test]
    fn what_is_below_several_links_counts_once() {
        let buffer = Arc::default();
        let order = order(&[(1, 0, &buffer), (2, 5, &buffer)]);
        assert!(order.may_send(1, UNSENT));
        buffer.set(UNSENT, UNSENT);
        assert!(!order.may_send(2, 1));
        order.remove(1);
        assert!(!order.state.lock().has_room(1, 100_000), "what link 1 has left in it waits there still");
        order.remove(2);
        let state = order.state.lock();
        assert!(state.buffers.is_empty() && state.unacked == 0 && state.arbiter.is_empty());
    }
}
