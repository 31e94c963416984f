//! Posted data that wait for a socket while the program waits for something else. The helper is kept busy in all of
//! these tests, so a polling thread does all the work.

use std::sync::mpsc;
use std::thread;

use udeck_via::mem::Fill;
use udeck_via::transport::Body;
use udeck_via::{Cq, Listener, NetAddress, Nic, Vi, ViAttributes};

use super::{LentEnd, nic, pair, soon};

/// Holds the NIC's helper in a listener's handler until it is dropped.
struct Busy {
    _release: mpsc::Sender<()>,
    _listener: Listener,
}

fn keep_busy(helper_of: &Nic, caller: &Nic) -> Busy {
    let (release, released) = mpsc::channel::<()>();
    let (caught, is_caught) = mpsc::channel();
    let listener = Listener::with_handler(helper_of, b"trap", move |request| {
        // The send may fail: then the caller has given up.
        let _ = caught.send(());
        let _ = released.recv();
        drop(request);
    })
    .unwrap();
    let to = NetAddress { host: helper_of.attributes().address.clone(), discriminator: b"trap".to_vec() };
    let caller = caller.clone();
    thread::spawn(move || {
        let mut vi = Vi::new(&caller, ViAttributes::new(caller.ptag())).unwrap();
        let cq = Cq::new(&caller).unwrap().handle();
        let _ = vi.connect(&to, &cq, &cq, b"", soon());
    });
    is_caught.recv().unwrap();
    Busy { _release: release, _listener: listener }
}

fn post(nic: &Nic, end: &mut LentEnd, len: usize, times: usize) {
    for _ in 0..times {
        let block = nic.outbox().block(len, Fill::Zero).unwrap();
        end.vi.hand_off(None, b"", block).map_err(|(error, _)| error).unwrap();
    }
}

fn take(end: &mut LentEnd, len: usize, times: usize) {
    for _ in 0..times {
        let arrival = end.arrival().unwrap();
        assert!(matches!(&arrival.body, Body::Lent(_, lent) if lent.as_slice().unwrap().len() == len));
    }
}

/// Length of a message in bytes, and the peer's room for messages of this length that are not taken.
const LONG: usize = 256 << 10;
const ROOM: usize = udeck_session::BYTES / LONG;

#[test]
fn a_post_finds_the_room_that_the_peer_has_told_of() {
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    let busy = keep_busy(&a, &b);
    post(&a, &mut left, LONG, ROOM);
    take(&mut right, LONG, ROOM);
    // The peer has announced the room by now, and no thread has polled.
    post(&a, &mut left, LONG, 1);
    take(&mut right, LONG, 1);
    drop(busy);
}

/// Polls a completion queue without this connection until all messages are taken.
fn wait_elsewhere(nic: &Nic, taker: impl FnOnce() + Send) {
    let mut elsewhere = Cq::new(nic).unwrap();
    thread::scope(|scope| {
        let taking = scope.spawn(taker);
        while !taking.is_finished() {
            assert!(elsewhere.poll().is_none());
        }
    });
}

#[test]
fn who_waits_elsewhere_sends_what_the_peer_had_no_room_for() {
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    let busy = keep_busy(&a, &b);
    post(&a, &mut left, LONG, 10 * ROOM);
    wait_elsewhere(&a, || take(&mut right, LONG, 10 * ROOM));
    drop(busy);
}

#[test]
fn who_waits_elsewhere_sends_what_the_kernel_had_no_room_for() {
    const HUGE: usize = 32 << 20;
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    let busy = keep_busy(&a, &b);
    post(&a, &mut left, HUGE, 1);
    wait_elsewhere(&a, || take(&mut right, HUGE, 1));
    drop(busy);
}
