//! A NIC whose socket refuses sends for a while, as when an interface is slower than its program: no call exceeds
//! its deadline, and refused data go later.

use std::sync::mpsc;
use std::time::Duration;

use udeck_via::{Deadline, Descriptor, Nic, Reliability};

use crate::fixture::{End, connect, open, soon, works};

/// Runs `test` on a thread of its own, so that one that never returns fails.
fn within_reason(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(120)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a call never returned"),
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => thread.join().unwrap(),
    }
}

fn pair(a: &Nic, b: &Nic) -> (End, End) {
    let mut ends = (End::new(a, Reliability::Delivery), End::new(b, Reliability::Delivery));
    connect(&mut ends.0, &mut ends.1);
    ends
}

/// Whether a message comes before the deadline.
fn comes(end: &mut End, deadline: Deadline) -> bool {
    while end.vi.arrival().expect("it stands").is_none() {
        if deadline.passed() {
            return false;
        }
    }
    true
}

#[test]
fn a_socket_that_refuses_now_and_then_holds_nobody_up() {
    within_reason(|| {
        let ((core_a, a), (core_b, b)) = (open(), open());
        let (mut a, mut b) = pair(&a, &b);
        for core in [&core_a, &core_b] {
            core.socket.fault.block_every(50, Duration::from_millis(3));
        }
        for _ in 0..300 {
            works(&mut a, &mut b);
            works(&mut b, &mut a);
        }
    });
}

#[test]
fn a_socket_that_refuses_everything_keeps_nobody_beyond_its_deadline() {
    within_reason(|| {
        let ((core_a, a), (_, b)) = (open(), open());
        let (mut a, mut b) = pair(&a, &b);
        works(&mut a, &mut b);
        core_a.socket.fault.block_all(true);
        // Each side owes its peer an acknowledgement, and has a message to send.
        for end in [&mut a, &mut b] {
            end.vi.post_send(Descriptor::new([end.nic.region(8, end.ptag).unwrap()])).unwrap();
        }
        assert!(comes(&mut a, soon()));
        assert!(!comes(&mut b, Deadline::after(Duration::from_millis(300))));
        core_a.socket.fault.block_all(false);
        assert!(comes(&mut b, soon()), "what was refused goes later");
    });
}

#[test]
fn a_link_has_one_time_to_be_called_at_however_many_messages_it_carries() {
    let ((core_a, a), (core_b, b)) = (open(), open());
    let mut pairs: Vec<_> = (0..3).map(|_| pair(&a, &b)).collect();
    for _ in 0..50 {
        for (a, b) in &mut pairs {
            works(a, b);
            works(b, a);
        }
        // The links rest in between, so that all acknowledgements are sent.
        std::thread::sleep(Duration::from_millis(2));
        for core in [&core_a, &core_b] {
            core.progress();
            assert!(core.timers.entries() <= 2 * pairs.len(), "{} entries", core.timers.entries());
        }
    }
}
