//! Unreliable VIs, whose messages travel on queue pairs that lose some. Each message that arrives is whole, right,
//! and there once; the others are counted and take no room; and the connection stands.

use std::collections::HashSet;
use std::time::Duration;

use udeck_via::transport::Body;
use udeck_via::{
    Cq, Deadline, Descriptor, Error, Listener, NetAddress, Nic, Ptag, Receive, Region, Reliability, State,
    Status, Vi, ViAttributes, Window,
};

use super::{alone, nic, options, soon, standin, unreliable};
use crate::Settings;

/// Loses `per_mille` of a thousand messages from now on. Returns how many were lost before.
fn lose(per_mille: u32, seed: u64) -> u64 {
    let lose = standin(c"standin_lose");
    // SAFETY: the stand-in declares the function so.
    let lose: extern "C" fn(u32, u64) -> u64 = unsafe { std::mem::transmute(lose) };
    lose(per_mille, seed)
}

struct End {
    nic: Nic,
    ptag: Ptag,
    cq: Cq,
    vi: Vi,
}

impl End {
    fn new(nic: Nic) -> Self {
        let ptag = nic.ptag();
        let mut attributes = ViAttributes::new(ptag);
        (attributes.reliability, attributes.receive) = (Reliability::Unreliable, Receive::Lent);
        attributes.enable_rdma_write = true;
        let (cq, vi) = (Cq::new(&nic).unwrap(), Vi::new(&nic, attributes).unwrap());
        End { nic, ptag, cq, vi }
    }

    fn region(&self, bytes: &[u8]) -> Region {
        let mut region = self.nic.region(bytes.len(), self.ptag).unwrap();
        region.copy_from_slice(bytes);
        region
    }

    fn post(&mut self, bytes: &[u8], immediate: u32) {
        let descriptor = Descriptor::new([self.region(bytes)]).immediate(immediate);
        self.vi.post_send(descriptor).map_err(|(error, _)| error).unwrap();
    }

    /// Takes messages until the connection ends. Returns their immediate data, and the error of the end.
    fn rest(&mut self) -> (Vec<u32>, Error) {
        let (mut came, deadline) = (Vec::new(), soon());
        loop {
            match self.vi.arrival() {
                Ok(Some(arrival)) => came.extend(arrival.immediate),
                Ok(None) => _ = self.cq.wait(Deadline::after(Duration::from_millis(20)), || false),
                Err(end) => return (came, end),
            }
            assert!(!deadline.passed(), "it does not end; {came:?} came");
        }
    }

    /// Returns the immediate data of the first message that comes.
    fn first(&mut self) -> u32 {
        let deadline = soon();
        loop {
            if let Some(arrival) = self.vi.arrival().expect("the connection stands") {
                return arrival.immediate.expect("all have some");
            }
            assert!(!deadline.passed(), "nothing comes");
            self.cq.wait(Deadline::after(Duration::from_millis(20)), || false);
        }
    }

    /// Waits until nothing is in flight.
    fn settle(&mut self) {
        let deadline = soon();
        while self.vi.unread().expect("the connection stands") > 0 {
            assert!(!deadline.passed(), "{:?}", self.vi);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn ends() -> (End, End) {
    ends_of(nic(), nic())
}

fn ends_of(a: Nic, b: Nic) -> (End, End) {
    let (mut a, mut b) = (End::new(a), End::new(b));
    let listener = Listener::new(&b.nic, b"lossy").unwrap();
    let to = NetAddress { host: b.nic.attributes().address.clone(), discriminator: b"lossy".to_vec() };
    let cq = a.cq.handle();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| a.vi.connect(&to, &cq, &cq, b"", soon()));
        let request = listener.wait(soon()).unwrap();
        let cq = b.cq.handle();
        request.accept(&mut b.vi, &cq, &cq, b"").unwrap();
        asking.join().unwrap().unwrap();
    });
    (a, b)
}

/// Lengths of messages that fit a descriptor, fit a frame, or are offered.
const LENGTHS: [usize; 7] = [0, 1, 48, 49, 3000, 9000, 60_000];

fn bytes_of(number: u32) -> Vec<u8> {
    let len = LENGTHS[(number.wrapping_mul(2_654_435_761) >> 16) as usize % LENGTHS.len()];
    (0..len).map(|at| (at as u32 ^ (at as u32 >> 8) ^ number.wrapping_mul(101)) as u8).collect()
}

/// Takes the next arrival at `end`, and checks its contents by its immediate data. Returns whether there was one.
fn take(end: &mut End, came: &mut HashSet<u32>, windows: &[Window]) -> bool {
    let Some(arrival) = end.vi.arrival().expect("the connection stands") else { return false };
    let number = arrival.immediate.expect("all have immediate data");
    let expected = bytes_of(number);
    match &arrival.body {
        Body::Inline(bytes) => assert_eq!(bytes.bytes(), expected),
        Body::Lent(head, lent) => {
            assert_eq!(head.bytes(), b"");
            assert!(lent.as_slice().unwrap() == expected, "message {number}, of {} bytes", expected.len());
        }
        Body::Written(len) => {
            let mut there = vec![0; *len];
            windows[number as usize % windows.len()].read(0, &mut there).unwrap();
            assert!(there == expected, "write {number}, of {len} bytes");
        }
    }
    assert!(came.insert(number), "{number} came twice");
    true
}

/// Sends messages, and with `writes` every third time a write into a window that no other write in flight uses. Returns
/// how many came, and how many were dropped.
fn exchange(per_mille: u32, seed: u64, count: u32, writes: bool) -> (u32, u64) {
    let _alone = alone();
    let (mut a, mut b) = ends();
    lose(per_mille, seed);
    let windows: Vec<_> = (0..130).map(|_| b.nic.window(60_000, b.ptag).unwrap()).collect();
    let (mut came, mut done, deadline) = (HashSet::new(), 0, soon());
    for number in 0..count {
        let region = a.region(&bytes_of(number));
        let mut descriptor = if writes && number % 3 == 0 {
            Descriptor::rdma_write([region], windows[number as usize % windows.len()].remote())
        } else {
            Descriptor::new([region])
        };
        descriptor = descriptor.immediate(number);
        while let Err((error, back)) = a.vi.post_send(descriptor) {
            assert!(matches!(error, Error::Full { .. }), "{error}");
            assert!(!deadline.passed(), "stuck at {number}: {} came; {:?}", came.len(), a.vi);
            descriptor = back;
            while take(&mut b, &mut came, &windows) {}
            while let Some(completion) = a.vi.send_done() {
                assert_eq!(completion.status, Status::Done);
                done += 1;
            }
        }
    }
    while a.vi.unread().expect("the connection stands") > 0 {
        assert!(!deadline.passed(), "not all over: {} came; {:?}", came.len(), a.vi);
        while take(&mut b, &mut came, &windows) {}
    }
    while done < count {
        assert_eq!(a.vi.send_wait(soon()).unwrap().status, Status::Done);
        done += 1;
    }
    lose(0, 0);
    let dropped = b.nic.messages_dropped();
    a.vi.disconnect();
    let (rest, end) = b.rest();
    assert!(rest.is_empty() && matches!(end, Error::Closed), "{rest:?} {end}");
    (came.len() as u32, dropped)
}

#[test]
fn messages_that_are_lost_are_counted_and_take_up_no_room() {
    for seed in 0..3 {
        let (came, dropped) = exchange(200, seed, 400, false);
        assert_eq!(u64::from(came) + dropped, 400, "arrived, or counted as lost");
        assert!(dropped > 20, "{dropped} of 400 at 20 percent");
    }
}

#[test]
fn writes_that_are_lost_never_complete_with_their_immediate_data() {
    for seed in 0..3 {
        let (came, dropped) = exchange(200, seed, 400, true);
        assert!(u64::from(came) + dropped >= 400 && came < 380, "{came} came, {dropped} did not");
    }
}

#[test]
fn without_losses_everything_comes() {
    assert_eq!(exchange(0, 0, 300, true), (300, 0));
}

/// The peer is told of the end by the other queue pair, which may be faster.
#[test]
fn what_was_sent_before_the_end_comes_before_it() {
    let _alone = alone();
    for count in [1, 30] {
        let (mut a, mut b) = ends();
        (0..count).for_each(|number| a.post(&bytes_of(number), number));
        a.vi.disconnect();
        let (came, end) = b.rest();
        assert!(matches!(end, Error::Closed), "{end}");
        // Offers that were not read by then can no longer be read.
        let short = (0..count).filter(|number| bytes_of(*number).len() < 4000);
        assert!(short.clone().all(|number| came.contains(&number)), "{came:?}");
        assert_eq!(b.nic.messages_dropped(), 0);
    }
}

#[test]
fn the_end_comes_although_all_before_it_was_lost() {
    let _alone = alone();
    let (mut a, mut b) = ends();
    lose(1000, 1);
    (0..10).for_each(|number| a.post(&bytes_of(number), number));
    a.vi.disconnect();
    let (came, end) = b.rest();
    lose(0, 0);
    assert!(came.is_empty() && matches!(end, Error::Closed), "{came:?} {end}");
    assert_eq!(b.nic.messages_dropped(), 10);
    b.vi.disconnect();
}

/// The lost offer is the last message, so nothing that comes behind it shows the loss.
#[test]
fn the_memory_of_an_offer_that_is_lost_comes_back() {
    let _alone = alone();
    let (mut a, mut b) = ends();
    lose(1000, 1);
    a.post(&[7; 60_000], 1);
    let sent = a.vi.send_wait(soon()).unwrap();
    lose(0, 0);
    assert_eq!((sent.status, sent.length), (Status::Done, 60_000));
    a.post(&[7; 60_000], 2);
    assert_eq!(b.first(), 2);
    assert_eq!(b.nic.messages_dropped(), 1);
}

/// The lost offer comes back also when its receiver has gone meanwhile.
#[test]
fn the_memory_of_an_offer_that_is_lost_comes_back_from_who_has_gone() {
    let _alone = alone();
    let (mut a, mut b) = ends();
    lose(1000, 1);
    a.post(&[7; 60_000], 1);
    b.vi.disconnect();
    assert_eq!(a.vi.send_wait(soon()).unwrap().length, 60_000);
    lose(0, 0);
    a.vi.disconnect();
    let deadline = soon();
    while a.nic.outbox().usage().blocks > 0 {
        assert!(!deadline.passed(), "{:?}", a.nic.outbox().usage());
        a.nic.reclaim();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_window_that_is_taken_back_breaks_nothing() {
    let _alone = alone();
    let (mut a, mut b) = ends();
    let window = b.nic.window(1000, b.ptag).unwrap();
    let remote = window.remote();
    let write = |a: &mut End, number| {
        let descriptor = Descriptor::rdma_write([a.region(&[7; 1000])], remote).immediate(number);
        a.vi.post_send(descriptor).map_err(|(error, _)| error).unwrap();
        let sent = a.vi.send_wait(soon()).unwrap();
        assert_eq!(sent.status, Status::Done);
    };
    // The first write makes the window's place known, so it is not asked for again.
    write(&mut a, 1);
    assert_eq!(b.first(), 1);
    drop(window);
    for number in 2..10 {
        write(&mut a, number);
    }
    a.settle();
    assert_eq!((a.vi.state(), b.vi.state()), (State::Connected, State::Connected));
    a.post(b"still there", 10);
    assert_eq!(b.first(), 10, "no write to nowhere completes");
    assert!(b.nic.messages_dropped() >= 8);
}

/// Unreliable queue pairs are missing on the device, or at the peer.
#[test]
fn without_unreliable_queue_pairs_nothing_is_lost() {
    let without = [("STANDIN_UC", "no"), ("STANDIN_LOSS", "500")];
    if !unreliable("tests::unreliable::without_unreliable_queue_pairs_nothing_is_lost", &without) {
        return;
    }
    assert_eq!(exchange(500, 1, 100, true), (100, 0));
}

#[test]
fn both_sides_have_unreliable_queue_pairs_or_none() {
    let _alone = alone();
    // The helper may hold the lock, but never for long.
    let has_one = |vi: &Vi| {
        loop {
            let words = format!("{vi:?}");
            if !words.contains("locked") {
                return words.contains(" beside ");
            }
            std::thread::yield_now();
        }
    };
    for (left, right) in [(true, true), (true, false), (false, true), (false, false)] {
        let of = |uc| crate::open(options(Settings { uc, ..Settings::default() })).unwrap();
        let (mut a, mut b) = ends_of(of(left), of(right));
        assert_eq!((has_one(&a.vi), has_one(&b.vi)), (left && right, left && right));
        a.post(b"hello", 1);
        assert_eq!(b.first(), 1);
        b.post(&[1; 60_000], 2);
        assert_eq!(a.first(), 2);
    }
}
