//! Failures of devices and peers.

use udeck_via::mem::Fill;
use udeck_via::{Error, NetAddress, Nic, State};

use super::{LentEnd, alone, check, inject, nic, options, pair, unreliable};
use crate::Settings;
use crate::ffi::codes::event;

/// Returns the reasons that both ends give for the loss of their connection.
fn both_lost(is_temporary: bool, break_it: impl FnOnce(&str)) -> [String; 2] {
    let _alone = alone();
    let (a, b) = (nic(), nic());
    let (mut left, mut right) = pair(&a, &b);
    check(&mut left, &mut right);
    break_it(&format!("{:?}", left.vi));
    let ends = [&mut left, &mut right].map(|end| match end.end() {
        Error::Lost(why) => {
            assert_eq!(end.vi.state(), State::Error);
            why
        }
        other => panic!("{other}"),
    });
    if is_temporary {
        // The NICs are usable as before.
        let (mut left, mut right) = pair(&a, &b);
        check(&mut left, &mut right);
    }
    ends
}

/// Number of the queue pair, as `Debug` prints it.
fn queue_pair(printed: &str) -> u32 {
    let (_, behind) = printed.split_once("Queue(").expect("a queue pair");
    behind.split(',').next().and_then(|number| number.parse().ok()).expect("its number")
}

#[test]
fn a_failed_queue_pair_is_lost_at_both_ends_with_its_reason() {
    for why in both_lost(true, |vi| inject(event::QP_FATAL, queue_pair(vi))) {
        assert!(why.contains("failure of the queue pair"), "{why}");
    }
}

#[test]
fn a_peer_that_goes_where_it_may_not_is_told_so() {
    for why in both_lost(true, |vi| inject(event::QP_ACCESS_ERR, queue_pair(vi))) {
        assert!(why.contains("exposed to this peer"), "{why}");
    }
}

#[test]
fn a_port_that_goes_down_takes_its_connections_along() {
    if unreliable("tests::failures::a_port_that_goes_down_takes_its_connections_along", &[]) {
        for why in both_lost(false, |_| inject(event::PORT_ERR, 0)) {
            assert!(why.contains("port 1 of standin0 went down"), "{why}");
        }
    }
}

#[test]
fn a_device_that_fails_takes_its_connections_along() {
    if unreliable("tests::failures::a_device_that_fails_takes_its_connections_along", &[]) {
        for why in both_lost(false, |_| inject(event::DEVICE_FATAL, 0)) {
            assert!(why.contains("standin0 has failed or was removed"), "{why}");
        }
    }
}

/// The limit on locked memory is reached: the error names it, and what to do.
#[test]
fn memory_that_cannot_be_pinned_says_what_to_do() {
    let limit = [("STANDIN_MEMLOCK", "100000")];
    if !unreliable("tests::failures::memory_that_cannot_be_pinned_says_what_to_do", &limit) {
        return;
    }
    let (a, b) = (nic(), nic());
    let host = b.attributes().address.clone();
    let to = NetAddress { host, discriminator: b"nobody".to_vec() };
    let error = LentEnd::new(&a).connect(&to).unwrap_err().to_string();
    for words in ["RLIMIT_MEMLOCK", "ulimit -l", "making a queue pair on standin0"] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_host_without_a_device_says_so() {
    for devices in ["none", "enosys", "standin0:port=down"] {
        if unreliable("tests::failures::a_host_without_a_device_says_so", &[("STANDIN_DEVICES", devices)]) {
            let words = match std::env::var("STANDIN_DEVICES").as_deref() {
                Ok("none") => "no such device",
                Ok("enosys") => "lists no devices",
                _ => "1 (not active)",
            };
            let error = crate::open(options(Settings::default())).unwrap_err();
            assert!(matches!(&error, Error::Unavailable { why, .. } if why.contains(words)), "{error}");
            return;
        }
    }
}

/// Objects may be dropped in any order: the rest is torn down in order, and lent buffers stay readable.
#[test]
fn objects_go_in_any_order() {
    let _alone = alone();
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]];
    for order in orders {
        let (a, b) = (nic(), nic());
        let (mut left, mut right) = pair(&a, &b);
        let mut block = a.outbox().block(100_000, Fill::Keep).unwrap();
        block.bytes_mut().fill(7);
        left.vi.hand_off(None, b"", block).unwrap();
        let udeck_via::transport::Body::Lent(_, message) = right.arrival().unwrap().body else {
            panic!("lent")
        };
        let mut parts: [Option<Part>; 4] = [
            Some(Part::Nic(a)),
            Some(Part::Nic(b)),
            Some(Part::End(left.into())),
            Some(Part::End(right.into())),
        ];
        for at in order {
            drop(parts[at].take());
            assert!(message.as_slice().unwrap().iter().all(|&byte| byte == 7));
        }
    }
}

#[allow(dead_code, reason = "dropped, not read")]
enum Part {
    Nic(Nic),
    End(Box<LentEnd>),
}
