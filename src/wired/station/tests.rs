//! Stations of a transport that has nothing but its bell.

use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use udeck_sys::atomic::AtomicBool;
use udeck_via::Error;

use super::desk::seat_at;
use super::*;
use crate::link::Announce;

/// Longer than any wake-up takes: only a lost one gets here.
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Silent(AtomicBool);

impl Line for Silent {
    fn has_arrivals(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Which NIC they are of, which queues left, and how many sleeps nobody ended.
struct Bare {
    nic: u32,
    left: Mutex<Vec<(Queue, u32)>>,
    slept_out: AtomicUsize,
}

impl Quarters for Bare {
    type Line = Silent;
    type Tenant = u32;

    fn sleep(&self, bell: &Bell, limit: Duration) {
        let since = Instant::now();
        bell.sleep(None::<&Bell>, limit);
        self.slept_out.fetch_add(usize::from(since.elapsed() >= limit), Ordering::Relaxed);
    }

    fn vacated(&self, queue: Queue, _line: Arc<Silent>, tenant: u32) {
        self.left.lock().push((queue, tenant));
    }
}

fn bare(nic: u32) -> Bare {
    Bare { nic, left: Mutex::default(), slept_out: AtomicUsize::new(0) }
}

fn station() -> Arc<Station<Bare>> {
    Stations::default().open(|_| bare(1)).unwrap()
}

fn occupied(station: &Arc<Station<Bare>>, queue: Queue, context: u64, line: &Arc<Silent>) -> Seat<Bare> {
    let notifier: Arc<dyn Notifier> = station.clone();
    let seat = seat_at(&notifier, |_: &Bare| true).unwrap();
    seat.occupy(Ready { context, queue }, line.clone(), context as u32);
    seat
}

fn named(station: &Station<Bare>) -> Option<u64> {
    station.next().map(|(ready, _)| ready.context)
}

#[test]
fn who_was_announced_is_named_in_turn_until_it_has_nothing() {
    let (station, line) = (station(), Arc::new(Silent::default()));
    let seats = [1, 2, 3].map(|context| occupied(&station, Queue::Receive, context, &line));
    assert_eq!(named(&station), None);
    line.0.store(true, Ordering::Relaxed);
    [&seats[2], &seats[0], &seats[2]].into_iter().for_each(Announce::announce);
    assert_eq!([(); 5].map(|()| named(&station)), [3, 1, 3, 1, 3].map(Some));
    line.0.store(false, Ordering::Relaxed);
    assert_eq!(named(&station), None);
    assert!(!station.has_news());
}

/// There is no arrival to see at a send queue: what was announced there is named once.
#[test]
fn a_send_queue_is_named_once_for_each_time() {
    let (station, line) = (station(), Arc::new(Silent(AtomicBool::new(true))));
    let seat = occupied(&station, Queue::Send, 9, &line);
    for _ in 0..2 {
        seat.announce();
        seat.announce();
        assert_eq!([(); 2].map(|()| named(&station)), [Some(9), None]);
    }
}

#[test]
fn who_has_left_is_named_no_more_and_the_transport_learns_it() {
    let (station, line) = (station(), Arc::new(Silent(AtomicBool::new(true))));
    let seat = occupied(&station, Queue::Receive, 4, &line);
    seat.announce();
    drop(seat);
    assert_eq!(*station.quarters.left.lock(), [(Queue::Receive, 4)]);
    assert_eq!(Arc::strong_count(&line), 1);
    // Nobody was there yet: nothing to learn. And the next has the place to itself, whatever was announced there.
    let notifier: Arc<dyn Notifier> = station.clone();
    drop(seat_at(&notifier, |_: &Bare| true).unwrap());
    assert_eq!(station.quarters.left.lock().len(), 1);
    let next = occupied(&station, Queue::Receive, 5, &line);
    assert_eq!(named(&station), None);
    next.announce();
    assert_eq!(named(&station), Some(5));
}

#[test]
fn places_are_bounded_and_of_one_nic() {
    let station: Arc<dyn Notifier> = station();
    let full: Vec<_> = (0..QUEUES).map(|_| seat_at(&station, |_: &Bare| true).unwrap()).collect();
    assert!(matches!(seat_at(&station, |_: &Bare| true), Err(Error::Full { .. })));
    drop(full);
    assert!(seat_at(&station, |bare: &Bare| bare.nic == 1).is_ok());
    let refused = seat_at(&station, |bare: &Bare| bare.nic == 2).err().expect("it is another NIC's");
    assert!(refused.to_string().contains("another NIC"), "{refused}");
}

#[test]
fn stations_are_bounded_by_those_that_are_there() {
    let stations = Stations::default();
    let open = || stations.open(|_| bare(1));
    let mut full: Vec<_> = (0..STATIONS).map(|_| open().unwrap()).collect();
    assert!(matches!(open(), Err(Error::Full { .. })));
    let gone = full.pop().unwrap().number;
    let next = open().unwrap();
    assert!(stations.get(gone).is_none() && next.number != gone);
    assert!(Arc::ptr_eq(&stations.get(next.number).unwrap(), &next));
    assert_eq!(stations.fold(0, |count, _| count + 1), STATIONS);
}

#[test]
fn nobody_lies_down_on_news() {
    let (station, line) = (station(), Arc::new(Silent::default()));
    let seat = occupied(&station, Queue::Receive, 1, &line);
    for how in [Sleep::Parked, Sleep::Armed] {
        assert!(station.lie_down(how));
        assert_eq!(station.sleeps(), how);
        seat.announce();
        assert_eq!(station.sleeps(), Sleep::Awake);
        assert!(!station.lie_down(how));
        assert_eq!((station.sleeps(), named(&station), named(&station)), (Sleep::Awake, Some(1), None));
        station.wake();
        assert!(!station.lie_down(how));
        station.note_look();
    }
}

/// Each announcement ends the sleep that it finds, however the two fall together.
#[test]
fn no_announcement_is_slept_through() {
    const ROUNDS: u64 = 20_000;
    let (station, line) = (station(), Arc::new(Silent::default()));
    let seat = occupied(&station, Queue::Send, 1, &line);
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                seat.announce();
                while taken.load(Ordering::Acquire) == round {
                    std::hint::spin_loop();
                    std::thread::yield_now();
                }
            }
        });
        let slept_out = || station.quarters.slept_out.load(Ordering::Relaxed) > 0;
        while taken.load(Ordering::Relaxed) < ROUNDS && !slept_out() {
            station.note_look();
            if named(&station).is_some() {
                taken.fetch_add(1, Ordering::Release);
            } else if station.lie_down(Sleep::Parked) {
                station.park(LONG);
            }
        }
        // Nobody is waited for any more.
        taken.store(ROUNDS, Ordering::Release);
    });
    assert_eq!(station.quarters.slept_out.load(Ordering::Relaxed), 0);
}
