//! Completion queues of a transport that has nothing but its bell.

use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use udeck_sys::atomic::AtomicBool;
use udeck_via::Error;

use super::ready_list::slot_at;
use super::*;
use crate::watching::Announce;

/// Longer than any wake-up takes: only a lost wake-up is waited for so long.
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Silent(AtomicBool);

impl HasArrivals for Silent {
    fn has_arrivals(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A backend that notes its NIC, the queues that left, and the number of sleeps that were not ended by a wake-up.
struct Bare {
    nic: u32,
    left: Mutex<Vec<(Queue, u32)>>,
    slept_out: AtomicUsize,
}

impl Backend for Bare {
    type Link = Silent;
    type SlotData = u32;

    fn sleep(&self, bell: &Bell, limit: Duration) {
        let since = Instant::now();
        bell.sleep(None::<&Bell>, limit);
        self.slept_out.fetch_add(usize::from(since.elapsed() >= limit), Ordering::Relaxed);
    }

    fn vacated(&self, queue: Queue, _link: Arc<Silent>, data: u32) {
        self.left.lock().push((queue, data));
    }
}

fn bare(nic: u32) -> Bare {
    Bare { nic, left: Mutex::default(), slept_out: AtomicUsize::new(0) }
}

fn cq() -> Arc<CompletionQueue<Bare>> {
    CompletionQueues::default().open(|_| bare(1)).unwrap()
}

fn occupied(cq: &Arc<CompletionQueue<Bare>>, queue: Queue, context: u64, link: &Arc<Silent>) -> Slot<Bare> {
    let notifier: Arc<dyn Notifier> = cq.clone();
    let slot = slot_at(&notifier, |_: &Bare| true).unwrap();
    slot.occupy(Ready { context, queue }, link.clone(), context as u32);
    slot
}

fn named(cq: &CompletionQueue<Bare>) -> Option<u64> {
    cq.next().map(|ready| ready.context)
}

#[test]
fn who_was_announced_is_named_in_turn_until_it_has_nothing() {
    let (cq, link) = (cq(), Arc::new(Silent::default()));
    let slots = [1, 2, 3].map(|context| occupied(&cq, Queue::Receive, context, &link));
    assert_eq!(named(&cq), None);
    link.0.store(true, Ordering::Relaxed);
    [&slots[2], &slots[0], &slots[2]].into_iter().for_each(Announce::announce);
    assert_eq!([(); 5].map(|()| named(&cq)), [3, 1, 3, 1, 3].map(Some));
    link.0.store(false, Ordering::Relaxed);
    assert_eq!(named(&cq), None);
    assert!(!cq.has_news());
}

/// A send queue has no arrivals, so each announcement there is named once.
#[test]
fn a_send_queue_is_named_once_for_each_time() {
    let (cq, link) = (cq(), Arc::new(Silent(AtomicBool::new(true))));
    let slot = occupied(&cq, Queue::Send, 9, &link);
    for _ in 0..2 {
        slot.announce();
        slot.announce();
        assert_eq!([(); 2].map(|()| named(&cq)), [Some(9), None]);
    }
}

#[test]
fn who_has_left_is_named_no_more_and_the_transport_learns_it() {
    let (cq, link) = (cq(), Arc::new(Silent(AtomicBool::new(true))));
    let slot = occupied(&cq, Queue::Receive, 4, &link);
    slot.announce();
    drop(slot);
    assert_eq!(*cq.backend.left.lock(), [(Queue::Receive, 4)]);
    assert_eq!(Arc::strong_count(&link), 1);
    // An empty place tells the transport nothing when it is left. The next queue has the place to itself, whatever was
    // announced there.
    let notifier: Arc<dyn Notifier> = cq.clone();
    drop(slot_at(&notifier, |_: &Bare| true).unwrap());
    assert_eq!(cq.backend.left.lock().len(), 1);
    let next = occupied(&cq, Queue::Receive, 5, &link);
    assert_eq!(named(&cq), None);
    next.announce();
    assert_eq!(named(&cq), Some(5));
}

#[test]
fn places_are_bounded_and_of_one_nic() {
    let cq: Arc<dyn Notifier> = cq();
    let full: Vec<_> = (0..QUEUES).map(|_| slot_at(&cq, |_: &Bare| true).unwrap()).collect();
    assert!(matches!(slot_at(&cq, |_: &Bare| true), Err(Error::Full { .. })));
    drop(full);
    assert!(slot_at(&cq, |bare: &Bare| bare.nic == 1).is_ok());
    let refused = slot_at(&cq, |bare: &Bare| bare.nic == 2).err().expect("it is another NIC's");
    assert!(refused.to_string().contains("another NIC"), "{refused}");
}

#[test]
fn completion_queues_are_bounded_by_those_that_are_there() {
    let completion_queues = CompletionQueues::default();
    let open = || completion_queues.open(|_| bare(1));
    let mut full: Vec<_> = (0..MAX_COMPLETION_QUEUES).map(|_| open().unwrap()).collect();
    assert!(matches!(open(), Err(Error::Full { .. })));
    let gone = full.pop().unwrap().number;
    let next = open().unwrap();
    assert!(completion_queues.get(gone).is_none() && next.number != gone);
    assert!(Arc::ptr_eq(&completion_queues.get(next.number).unwrap(), &next));
    assert_eq!(completion_queues.fold(0, |count, _| count + 1), MAX_COMPLETION_QUEUES);
}

#[test]
fn nobody_lies_down_on_news() {
    let (cq, link) = (cq(), Arc::new(Silent::default()));
    let slot = occupied(&cq, Queue::Receive, 1, &link);
    for how in [Sleep::Parked, Sleep::Armed] {
        assert!(cq.lie_down(how));
        assert_eq!(cq.sleeps(), how);
        slot.announce();
        assert_eq!(cq.sleeps(), Sleep::Awake);
        assert!(!cq.lie_down(how));
        assert_eq!((cq.sleeps(), named(&cq), named(&cq)), (Sleep::Awake, Some(1), None));
        cq.wake();
        assert!(!cq.lie_down(how));
        cq.note_look();
    }
}

/// Each announcement ends the sleep that it finds, whatever the interleaving.
#[test]
fn no_announcement_is_slept_through() {
    const ROUNDS: u64 = 20_000;
    let (cq, link) = (cq(), Arc::new(Silent::default()));
    let slot = occupied(&cq, Queue::Send, 1, &link);
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                slot.announce();
                while taken.load(Ordering::Acquire) == round {
                    std::hint::spin_loop();
                    std::thread::yield_now();
                }
            }
        });
        let slept_out = || cq.backend.slept_out.load(Ordering::Relaxed) > 0;
        while taken.load(Ordering::Relaxed) < ROUNDS && !slept_out() {
            cq.note_look();
            if named(&cq).is_some() {
                taken.fetch_add(1, Ordering::Release);
            } else if cq.lie_down(Sleep::Parked) {
                cq.park(LONG);
            }
        }
        // No announcement is waited for any more.
        taken.store(ROUNDS, Ordering::Release);
    });
    assert_eq!(cq.backend.slept_out.load(Ordering::Relaxed), 0);
}
