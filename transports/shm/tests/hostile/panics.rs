//! A reactor whose thread panics.

use std::sync::Arc;

use udeck_sys::reactor::Reactor;
use udeck_sys::socket;
use udeck_via::{Cq, Error, Listener, NetAddress};

use super::victim::{SECRET, nic, soon, vi};
use crate::Options;

fn assert_told(error: Error) {
    assert!(error.to_string().contains("has panicked: no luck"), "{error}");
}

#[test]
fn a_reactor_that_panics_is_an_error_of_all_that_its_nic_serves() {
    let reactor = Arc::new(Reactor::start("panics").unwrap());
    let mut options = Options::new(SECRET);
    options.arena_limit = 8 << 20;
    let (failing, other) = (crate::open(options, reactor.clone()).unwrap(), nic());
    let listener = Listener::new(&failing, b"door").unwrap();
    let elsewhere = Listener::new(&other, b"door").unwrap();
    let at = |nic: &udeck_via::Nic| NetAddress {
        host: nic.attributes().address.clone(),
        discriminator: b"door".to_vec(),
    };
    let (mut ours, mut theirs) = (vi(&failing), vi(&other));
    let queues = [Cq::new(&failing).unwrap(), Cq::new(&other).unwrap()];
    let [our_queue, their_queue] = [queues[0].handle(), queues[1].handle()];
    std::thread::scope(|scope| {
        scope.spawn(|| ours.connect(&at(&other), &our_queue, &our_queue, &[], soon()).unwrap());
        elsewhere.wait(soon()).unwrap().accept(&mut theirs, &their_queue, &their_queue, &[]).unwrap();
    });
    let (bomb, fuse) = socket::pair().unwrap();
    reactor.add(&bomb, Box::new(|| panic!("no luck"))).unwrap();
    socket::send(std::os::fd::AsFd::as_fd(&fuse), b"now", &[]).unwrap();
    assert_told(listener.wait(soon()).unwrap_err());
    let deadline = soon();
    let lost = loop {
        match ours.arrival() {
            Err(lost) => break lost,
            Ok(_) => assert!(!deadline.passed(), "nothing is told"),
        }
    };
    assert_told(lost);
    assert_told(Listener::new(&failing, b"later").unwrap_err());
    assert_told(vi(&failing).connect(&at(&other), &our_queue, &our_queue, &[], soon()).unwrap_err());
    assert_told(failing.check().unwrap_err());
    other.check().unwrap();
}
