//! Tests of the ring against a queue that cannot be wrong (proptest), under hostile words (proptest), and under every
//! interleaving (loom: `RUSTFLAGS="--cfg loom" cargo test --release loom_`).

use super::*;

#[cfg(loom)]
use loom::sync::Arc;
#[cfg(not(loom))]
use std::sync::Arc;

struct Heap {
    cells: Vec<Cell>,
    line: ConsumerLine,
}

impl Heap {
    fn new(cells: usize) -> Arc<Self> {
        let cells = (0..cells).map(|_| Cell::default()).collect();
        Arc::new(Heap { cells, line: ConsumerLine::default() })
    }
}

impl Storage for Arc<Heap> {
    fn cells(&self) -> u32 {
        self.cells.len() as u32
    }
    fn cell(&self, index: u32) -> &Cell {
        &self.cells[index as usize]
    }
    fn line(&self) -> &ConsumerLine {
        &self.line
    }
}

fn ends(cells: usize) -> (Producer<Arc<Heap>>, Consumer<Arc<Heap>>, Arc<Heap>) {
    let heap = Heap::new(cells);
    (Producer::new(heap.clone()), Consumer::new(heap.clone()), heap)
}

#[cfg(not(loom))]
mod models {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Debug, Clone)]
    enum Step {
        Push(u32, u64, Vec<u64>),
        Pop,
        Batch(u8),
        PopRun(u8),
        Credit,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (any::<u32>(), any::<u64>(), prop::collection::vec(any::<u64>(), 0..=PAYLOAD_WORDS))
                .prop_map(|(meta, aux, payload)| Step::Push(meta, aux, payload)),
            3 => Just(Step::Pop),
            1 => (0..10u8).prop_map(Step::Batch),
            1 => (0..10u8).prop_map(Step::PopRun),
            1 => Just(Step::Credit),
        ]
    }

    proptest! {
        /// Any sequence of pushes and pops gives what a plain queue gives, also across the wrap of the
        /// 32-bit positions, and never holds more than the ring has cells.
        #[test]
        fn prop_ring_is_a_queue(steps in prop::collection::vec(step(), 0..400), start in prop_oneof![Just(0u32), Just(u32::MAX - 5)]) {
            let (mut producer, mut consumer, heap) = ends(8);
            producer.next = Position::START.plus(u64::from(start)); producer.credit = start; consumer.next = start; consumer.advertised = start;
            heap.line.credit.store(start, Ordering::Relaxed);
            if start != 0 {
                // These are leftovers of the lap before; a fresh ring holds zeros and starts at zero.
                for position in (1..=8).map(|back| start - back) {
                    heap.cells[(position & 7) as usize].head.store(u64::from(position + 1), Ordering::Relaxed);
                }
            }
            let mut model = VecDeque::new();
            for step in steps {
                match step {
                    Step::Push(meta, aux, payload) => {
                        if producer.has_room().unwrap() {
                            let _ = producer.push(meta, aux, &payload);
                            model.push_back((meta, aux, payload));
                        } else {
                            // Full means full: at most a quarter ring of credit is outstanding.
                            prop_assert!(model.len() + 2 > 8 - 8 / 4);
                        }
                        prop_assert!(model.len() <= 8);
                    }
                    Step::Pop => {
                        prop_assert_eq!(ready_at(&heap, consumer.position()), !model.is_empty());
                        let taken = consumer.pop();
                        if consumer.owes_credit() { consumer.publish_credit(); }
                        match model.pop_front() {
                            None => prop_assert!(taken.is_none()),
                            Some((meta, aux, payload)) => {
                                let taken = taken.unwrap();
                                prop_assert_eq!((taken.meta, taken.aux), (meta, aux));
                                prop_assert_eq!(&taken.payload[..payload.len()], &payload[..]);
                            }
                        }
                    }
                    Step::Batch(wanted) => {
                        let room = producer.room_for(u32::from(wanted)).unwrap();
                        prop_assert!(room <= u32::from(wanted) && model.len() + room as usize <= 8);
                        prop_assert!(room == u32::from(wanted) || model.len() + room as usize + 2 > 8 - 8 / 4);
                        let mut batch = producer.batch();
                        for number in 0..room {
                            batch.push_with(number, 7, |payload| payload.words(&[9]));
                            model.push_back((number, 7, vec![9]));
                        }
                        let _ = batch.must_ring();
                    }
                    Step::PopRun(most) => {
                        let mut popped = Vec::new();
                        // An odd message stays, and ends the run.
                        let taken = consumer.pop_run(usize::from(most), |number, message| {
                            assert_eq!(number, popped.len());
                            (message.meta % 2 == 0).then(|| popped.push(message.take()))
                        });
                        prop_assert_eq!(taken, popped.len());
                        for taken in popped {
                            let (meta, aux, payload) = model.pop_front().unwrap();
                            prop_assert_eq!((taken.meta, taken.aux), (meta, aux));
                            prop_assert_eq!(&taken.payload[..payload.len()], &payload[..]);
                        }
                        if taken < usize::from(most) {
                            prop_assert!(model.front().is_none_or(|(meta, ..)| meta % 2 == 1));
                        }
                        if consumer.owes_credit() { consumer.publish_credit(); }
                    }
                    Step::Credit => consumer.publish_credit(),
                }
            }
        }

        /// For any words that a hostile peer writes into the shared memory, both ends stay in bounds and finite, and an
        /// impossible credit is reported.
        #[test]
        fn prop_garbage_is_contained(garbage in prop::collection::vec((0usize..8, any::<u64>(), any::<u32>()), 1..100)) {
            let (mut producer, mut consumer, heap) = ends(8);
            let mut popped = 0;
            for (index, word, credit) in garbage {
                heap.cells[index].head.store(word, Ordering::Relaxed);
                heap.line.credit.store(credit, Ordering::Relaxed);
                heap.line.attention.store(credit, Ordering::Relaxed);
                heap.line.read.0.store(credit, Ordering::Relaxed);
                let before = producer.next.narrow();
                match producer.unread() {
                    Ok(unread) => prop_assert!(unread <= 8 && before.wrapping_sub(credit) == unread),
                    Err(Corrupt) => prop_assert!(before.wrapping_sub(credit) > 8),
                }
                if producer.has_room() == Ok(true) { let _ = producer.push(1, 2, &[3]); }
                for _ in 0..16 { popped += usize::from(consumer.pop().is_some()); }
            }
            prop_assert!(popped <= 100 * 16);
        }
    }

    #[test]
    fn attention_tells_the_producer_to_ring() {
        let (mut producer, consumer, _) = ends(4);
        assert!(producer.push(0, 0, &[]), "fresh rings are cold");
        attend(&consumer.storage, HOT);
        assert!(!producer.push(0, 0, &[]));
        attend(&consumer.storage, COLD);
        assert!(producer.push(0, 0, &[]));
    }

    #[test]
    fn a_message_is_read_where_it_lies() {
        let (mut producer, mut consumer, _) = ends(4);
        let _ = producer.push(9, 5, &[1, 2, 3]);
        let read = |message: &CellRef<'_>| (message.meta, message.aux(), message.words().take(3).collect());
        assert_eq!(consumer.pop_with(read), Some((9, 5, vec![1, 2, 3])));
        assert_eq!(consumer.pop_with(read), None);
    }

    #[test]
    fn both_ends_know_how_far_they_came() {
        let (mut producer, mut consumer, heap) = ends(4);
        (0..3).for_each(|i| _ = producer.push(0, i, &[]));
        (0..3).for_each(|_| _ = consumer.pop());
        assert_eq!((producer.position(), consumer.position()), (Position::START.plus(3), 3));
        assert_eq!((producer.unread(), credit_of(&heap)), (Ok(0), 0), "read, and not given back yet");
        consumer.publish_credit();
        assert_eq!(credit_of(&heap), 3);
    }

    #[test]
    fn one_message_touches_one_line_and_an_eighth() {
        // The facade counts by construction: a push writes one cell and reads the consumer's line, which the
        // consumer writes once per quarter ring.
        let (mut producer, mut consumer, heap) = ends(64);
        let mut credit_writes = 0;
        for i in 0..640u64 {
            assert!(producer.has_room().unwrap());
            let _ = producer.push(0, i, &[i]);
            let before = heap.line.credit.load(Ordering::Relaxed);
            assert_eq!(consumer.pop().unwrap().aux, i);
            if consumer.owes_credit() {
                consumer.publish_credit();
            }
            credit_writes += u32::from(heap.line.credit.load(Ordering::Relaxed) != before);
        }
        assert_eq!(credit_writes, 640 / 16, "extra lines per message: 1/16 <= 1/8");
    }
}

#[cfg(loom)]
mod loom_models {
    use super::*;
    use crate::sync::atomic::AtomicBool;
    use loom::thread;

    /// Payload, order and reuse of cells: a 2-cell ring carries 4 messages. Fails if SYNC POINT `cell` or
    /// `credit` is weakened to Relaxed.
    #[test]
    fn loom_ring_carries_messages_in_order() {
        loom::model(|| {
            let (mut producer, mut consumer, _) = ends(2);
            let sender = thread::spawn(move || {
                for i in 1..=3u64 {
                    while !producer.has_room().unwrap() {
                        thread::yield_now();
                    }
                    let _ = producer.push(i as u32, i * 10, &[i * 100]);
                }
            });
            for i in 1..=3u64 {
                let taken = loop {
                    match consumer.pop() {
                        Some(taken) => break taken,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!((taken.meta, taken.aux, taken.payload[0]), (i as u32, i * 10, i * 100));
                consumer.publish_credit();
            }
            sender.join().unwrap();
        });
    }

    /// A cell is overwritten only after the consumer has read it. Cells are atomics, whose mix-ups loom cannot see (it
    /// has no load that reads a later store), so plain memory beside each cell stands for its payload. Fails if SYNC
    /// POINT `credit` is weakened to Relaxed.
    #[test]
    fn loom_credit_orders_the_reuse_of_cells() {
        use loom::cell::UnsafeCell;
        struct Beside([UnsafeCell<u64>; 2]);
        // SAFETY: the model under test decides who may touch which; loom reports it if it is wrong.
        unsafe impl Sync for Beside {}
        loom::model(|| {
            let (mut producer, mut consumer, _) = ends(2);
            let beside = Arc::new(Beside([UnsafeCell::new(0), UnsafeCell::new(0)]));
            let sender = {
                let beside = beside.clone();
                thread::spawn(move || {
                    for i in 0..3u64 {
                        while !producer.has_room().unwrap() {
                            thread::yield_now();
                        }
                        // SAFETY: there is room, so the consumer is done with this cell.
                        beside.0[(i & 1) as usize].with_mut(|value| unsafe { *value = i });
                        let _ = producer.push(0, i, &[]);
                    }
                })
            };
            for i in 0..3u64 {
                while consumer.pop().is_none() {
                    thread::yield_now();
                }
                // SAFETY: the message is taken, and its cell not given back yet.
                beside.0[(i & 1) as usize].with(|value| assert_eq!(unsafe { *value }, i));
                consumer.publish_credit();
            }
            sender.join().unwrap();
        });
    }

    /// A producer that sees its message read sees the reader's earlier actions. Fails if SYNC POINT `read` is weakened to
    /// Relaxed.
    #[test]
    fn loom_what_was_done_before_reading_is_seen() {
        what_was_done_before_is_seen(|consumer| assert!(consumer.pop().is_some()));
    }

    /// The same for a run. Fails if its SYNC POINT `read` is weakened to Relaxed.
    #[test]
    fn loom_what_was_done_before_reading_a_run_is_seen() {
        what_was_done_before_is_seen(|consumer| assert_eq!(consumer.pop_run(2, |_, _| Some(())), 1));
    }

    fn what_was_done_before_is_seen(read: fn(&mut Consumer<Arc<Heap>>)) {
        use loom::cell::UnsafeCell;
        struct Beside(UnsafeCell<u64>);
        // SAFETY: the model under test decides who may touch it; loom reports it if it is wrong.
        unsafe impl Sync for Beside {}
        loom::model(move || {
            let (mut producer, mut consumer, _) = ends(2);
            let beside = Arc::new(Beside(UnsafeCell::new(0)));
            let _ = producer.push(0, 0, &[]);
            let reader = {
                let beside = beside.clone();
                thread::spawn(move || {
                    // SAFETY: the message was not read yet, so the other side stays away.
                    beside.0.with_mut(|value| unsafe { *value = 1 });
                    read(&mut consumer);
                })
            };
            while producer.unread().unwrap() > 0 {
                thread::yield_now();
            }
            // SAFETY: the message was read, so the reader is done with the cell.
            beside.0.with(|value| assert_eq!(unsafe { *value }, 1));
            reader.join().unwrap();
        });
    }

    /// The same for a batch, which reads `attention` once: the consumer that stops watching sees the first message that it
    /// has not taken, or the producer is told to ring. Fails if either fence of SYNC POINT `attention` is removed.
    #[test]
    fn loom_attention_loses_no_message_of_a_batch() {
        loom::model(|| {
            let (mut producer, mut consumer, _) = ends(2);
            attend(&consumer.storage, HOT);
            let rung = Arc::new(AtomicBool::new(false));
            let sender = {
                let rung = rung.clone();
                thread::spawn(move || {
                    let mut batch = producer.batch();
                    (1..=2).for_each(|i| batch.push_with(i, 0, |payload| payload.words(&[u64::from(i)])));
                    if batch.must_ring() {
                        rung.store(true, Ordering::Release);
                    }
                })
            };
            let first = |_, message: &CellRef<'_>| (message.words().next() != Some(0)).then_some(());
            let taken = consumer.pop_run(2, first);
            attend(&consumer.storage, COLD);
            let seen = ready_at(&consumer.storage, consumer.position());
            sender.join().unwrap();
            assert!(taken == 2 || seen || rung.load(Ordering::Acquire), "neither seen nor announced");
        });
    }

    /// No message is lost between the end of watching and the last poll: either the producer is told to ring,
    /// or the consumer sees the cell. Fails if either fence of SYNC POINT `attention` is removed.
    #[test]
    fn loom_attention_loses_no_message() {
        loom::model(|| {
            let (mut producer, consumer, _) = ends(2);
            attend(&consumer.storage, HOT);
            let rung = Arc::new(AtomicBool::new(false));
            let sender = {
                let rung = rung.clone();
                thread::spawn(move || {
                    if producer.push(1, 1, &[1]) {
                        rung.store(true, Ordering::Release);
                    }
                })
            };
            attend(&consumer.storage, COLD);
            let seen = ready_at(&consumer.storage, consumer.position());
            sender.join().unwrap();
            assert!(seen || rung.load(Ordering::Acquire), "message neither seen nor announced");
        });
    }
}
