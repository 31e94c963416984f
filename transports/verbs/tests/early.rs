//! Frames that a peer sends before our side of the connection exists.

use std::sync::Arc;
use std::time::Duration;

use udeck_session::Memory;
use udeck_session::TakenBody;
use udeck_session::admission::{Admission, Protocol};
use udeck_via::Reliability;
use udeck_via::transport::Hello;

use super::{SECRET, alone, soon};
use crate::Settings;
use crate::connect_method::ConnectMethod;
use crate::connection::Connection;
use crate::core::Core;
use crate::hca::Hca;
use crate::link::VerbsLink;
use crate::oob::Oob;

pub(super) fn core() -> Arc<Core> {
    core_with(Settings::default())
}

pub(super) fn core_with(settings: Settings) -> Arc<Core> {
    let bind = std::net::Ipv4Addr::LOCALHOST;
    let hca = Hca::open(&settings, bind.into()).unwrap();
    let connect_method = ConnectMethod::open(&settings, &hca, (bind, 0).into()).unwrap();
    let (protocol, detect) = (Protocol::new("test", 1), Duration::from_secs(10));
    let admission = Admission { keys: SECRET.into(), protocol, detect, withdrawal: Vec::new() };
    Core::new(hca, connect_method, settings, admission, Memory::fresh(8 << 20).unwrap(), 16, 1 << 20).unwrap()
}

/// The peer learns of our queue pair before our link is in the table: frames that it sends at once are kept for the link.
#[test]
fn a_message_that_completes_before_its_link_is_there_is_kept() {
    let _alone = alone();
    let (a, b) = (core(), core());
    let level = Reliability::Delivery;
    let hello =
        Hello { reliability: level, writable_ptag: None, readable_ptag: None, private_data: Vec::new() };
    let ((left_number, mut left), (right_number, mut right)) =
        (a.queue(&hello).unwrap(), b.queue(&hello).unwrap());
    a.join(&mut left, &b.parameters(&right)).unwrap();
    b.join(&mut right, &a.parameters(&left)).unwrap();
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();

    let connection = Connection::new(&a.memory, &hello, &hello, 1 << 20);
    let left = VerbsLink::new(&a, left_number, connection, left, Oob::new(one.into()), true);
    a.completions.add(left_number, &left);
    left.with_device(|connection, work| connection.send(work, Some(7), b"", b"early")).unwrap();
    left.with(|connection| connection.close(None));
    let deadline = soon();
    while !left.is_done() {
        assert!(!deadline.passed(), "it does not leave");
        a.completions.take_all();
    }
    b.completions.take_all();

    let connection = Connection::new(&b.memory, &hello, &hello, 1 << 20);
    let right = VerbsLink::new(&b, right_number, connection, right, Oob::new(other.into()), false);
    b.completions.add(right_number, &right);
    assert!(right.has_arrivals());
    let taken = right.with(Connection::take).unwrap().expect("the early message");
    let TakenBody::Inline(bytes) = taken.body else { panic!("a short one") };
    assert_eq!((taken.immediate, bytes.bytes()), (Some(7), &b"early"[..]));
    for link in [left, right] {
        link.give_up("the test is over");
    }
}
