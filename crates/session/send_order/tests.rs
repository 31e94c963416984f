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

fn known() -> BufferState<Buffer> {
    BufferState::new(Arc::default())
}

fn order(links: &[(u64, u8, &Arc<Buffer>)]) -> SendOrder<Buffer> {
    let order = SendOrder::new(&"5:50,0:50".parse().unwrap(), 100_000);
    links.iter().for_each(|(link, of, buffer)| order.add(*link, level(*of), buffer));
    order
}

fn with(order: &SendOrder<Buffer>, buffer: &Arc<Buffer>, change: impl FnOnce(&mut BufferState<Buffer>)) {
    change(order.state.lock().buffers.get_mut(&key(buffer)).expect("a link's"));
}

#[test]
fn a_buffer_is_slow_while_its_turns_take_long() {
    let (start, mut buffer) = (Instant::now(), known());
    let at = |ms| start + Duration::from_millis(ms);
    buffer.written = 100;
    buffer.turn = Some((100, start));
    buffer.note_sent(40, at(19));
    assert!(!buffer.is_slow);
    buffer.note_sent(60, at(20));
    assert!(buffer.is_slow, "a turn of 20 ms");
    buffer.written = 200;
    buffer.note_sent(100, at(25));
    assert!(buffer.is_slow && buffer.turn == Some((200, at(25))));
    buffer.note_sent(200, at(30));
    assert!(!buffer.is_slow && buffer.turn.is_none(), "a quick one");
}

#[test]
fn a_turn_that_is_looked_at_late_was_not_slow_for_that() {
    let mut buffer = known();
    buffer.written = 100;
    buffer.turn = Some((100, Instant::now()));
    buffer.note_sent(100, Instant::now() + Duration::from_secs(1));
    assert!(!buffer.is_slow && buffer.turn.is_none());
}

/// A buffer in which something always waits is not slow as long as each turn leaves in time.
#[test]
fn a_busy_buffer_is_not_slow() {
    let (start, mut buffer) = (Instant::now(), known());
    for turn in 0..100_u64 {
        buffer.written += 100;
        let now = start + Duration::from_millis(10 * turn);
        buffer.turn.get_or_insert((buffer.written, now));
        buffer.note_sent(buffer.written - 50, now);
        assert!(!buffer.is_slow, "turn {turn}");
    }
}

/// A stopped process acknowledges nothing over QUIC, as long as it is stopped.
#[test]
fn a_silent_peer_does_not_count() {
    let (start, mut buffer) = (Instant::now(), known());
    let at = |ms| start + Duration::from_millis(ms);
    buffer.sent(1000, start);
    buffer.buffer.set(600, 0);
    buffer.poll(at(500));
    buffer.poll(at(1400));
    assert_eq!(buffer.unacked, 600, "it was heard of 900 ms before");
    buffer.poll(at(1500));
    assert_eq!(buffer.unacked, 0);
    buffer.buffer.set(500, 0);
    buffer.poll(at(1600));
    assert_eq!(buffer.unacked, 500, "it is back");
    buffer.buffer.set(0, 0);
    buffer.poll(at(1700));
    buffer.sent(100, at(9000));
    buffer.buffer.set(100, 0);
    buffer.poll(at(9001));
    assert_eq!(buffer.unacked, 100, "it had nothing to acknowledge");
}

/// Lost bytes that wait to be sent again were not written by a turn.
#[test]
fn a_buffer_is_slow_while_it_recovers_from_loss() {
    let (start, mut buffer) = (Instant::now(), known());
    let at = |ms| start + Duration::from_millis(ms);
    buffer.sent(1000, start);
    buffer.buffer.set(1000, 0);
    assert_eq!(buffer.poll(at(1)), 0);
    buffer.buffer.set(1000, 400);
    assert_eq!([2, 21, 22, 23].map(|ms| buffer.poll(at(ms))), [400, 400, 0, 0]);
    buffer.buffer.set(600, 0);
    buffer.poll(at(24));
    buffer.buffer.set(600, 100);
    assert_eq!([25, 26].map(|ms| buffer.poll(at(ms))), [0, 0], "it is seen to be quick first");
    buffer.buffer.set(600, 0);
    buffer.poll(at(27));
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
    // The bytes in flight of all links together stay within the bound.
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
