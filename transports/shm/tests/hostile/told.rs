//! Errors that the error callback is told of failing peers, though the program never polls its VIs.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use udeck_via::mem::Fill;
use udeck_via::{Cq, Error, ErrorCode, ErrorEvent, NetAddress, Resource, State, Vi};

use super::attacker::{Attacker, Grip};
use super::victim::{NAME, Victim, soon, vi};
use crate::layout::{BROKEN, CLOSED};
use crate::peer_socket_wire::Datagram;

/// Contexts of the VI under attack, and of the one whose loss ends a test's wait.
const CONTEXT: u64 = 7;
const LAST: u64 = u64::MAX;

struct Scene {
    victim: Victim,
    attacker: Attacker,
    grip: Grip,
    vi: Vi,
    events: Receiver<ErrorEvent>,
}

fn watch(victim: &Victim) -> Receiver<ErrorEvent> {
    let (tell, events) = channel();
    victim.nic.on_error(told(tell)).unwrap();
    events
}

fn told(tell: Sender<ErrorEvent>) -> impl Fn(&ErrorEvent) + Send {
    move |event| drop(tell.send(event.clone()))
}

/// Returns all events until now: it waits for the loss of one more connection, made for that.
fn all(events: &Receiver<ErrorEvent>, victim: &Victim) -> Vec<ErrorEvent> {
    let mut last = Attacker::admitted(victim.address());
    let connection = last.connect_to(victim, LAST);
    drop(last);
    let mut all = Vec::new();
    loop {
        let event = events.recv_timeout(Duration::from_secs(60)).expect("the last one is told");
        if event.context == LAST {
            drop(connection);
            return all;
        }
        all.push(event);
    }
}

impl Scene {
    fn new() -> Self {
        let victim = Victim::new();
        let events = watch(&victim);
        let mut attacker = Attacker::admitted(victim.address());
        let (grip, vi) = attacker.connect_to(&victim, CONTEXT);
        Scene { victim, attacker, grip, vi, events }
    }

    fn say(&self, state: u32) {
        self.grip.direction().sender().state.store(state, Ordering::Release);
    }

    /// Asserts that one event of the connection was reported, for this reason, and none afterwards: neither when its
    /// program polls, nor when the peer is gone.
    fn assert_told_once(mut self, reason: &str) {
        let event = self.events.recv_timeout(Duration::from_secs(60)).expect("told");
        assert_eq!((event.context, event.resource), (CONTEXT, Resource::Vi));
        assert_eq!(event.code, ErrorCode::ConnectionLost);
        assert!(event.why.contains(reason), "{}", event.why);
        // The event is reported first: the end may be visible a moment later.
        let deadline = soon();
        let error = loop {
            match self.vi.send_inline(None, &[], b"more") {
                // Nobody reads, so the ring may be full before the end is visible.
                Ok(()) | Err(Error::Full { .. }) => std::thread::yield_now(),
                Err(error) => break error,
            }
            assert!(!deadline.passed(), "the end is never seen");
        };
        assert!(matches!(error, Error::Lost(_)), "{error}");
        drop(self.attacker);
        assert_eq!(all(&self.events, &self.victim).len(), 0);
        self.victim.serves_the_honest(1);
    }

    /// Asserts that no event was reported, and that none is when the peer is gone.
    fn assert_not_told(mut self) {
        assert_eq!(all(&self.events, &self.victim).len(), 0);
        drop(self.attacker);
        assert_eq!(all(&self.events, &self.victim).len(), 0);
        let error = self.vi.send_inline(None, &[], b"more").unwrap_err();
        assert!(matches!(error, Error::Closed | Error::InvalidState { state: State::Idle, .. }), "{error}");
        assert_eq!(all(&self.events, &self.victim).len(), 0);
    }
}

#[test]
fn a_peer_that_dies() {
    let mut scene = Scene::new();
    let stranger = Attacker::silent(scene.victim.address());
    drop(std::mem::replace(&mut scene.attacker, stranger));
    scene.assert_told_once("closed its connection or died");
}

#[test]
fn a_peer_that_breaks_the_protocol_of_links() {
    let scene = Scene::new();
    scene.attacker.send(&Datagram::Welcome, &[]);
    scene.assert_told_once("second hand-shake on its socket");
}

#[test]
fn a_peer_that_breaks_the_protocol_of_connections() {
    let mut scene = Scene::new();
    scene.grip.push(0, 0, &[]);
    assert_eq!(all(&scene.events, &scene.victim).len(), 0, "nobody has looked at it");
    assert!(matches!(scene.vi.arrival(), Err(Error::Lost(_))));
    scene.assert_told_once("malformed cell");
}

#[test]
fn a_peer_that_ends_by_an_error() {
    let scene = Scene::new();
    scene.say(BROKEN);
    scene.attacker.send(&Datagram::Broken, &[]);
    scene.assert_told_once("no receive descriptor");
}

#[test]
fn a_peer_that_ends_by_an_error_and_does_not_say_so() {
    let mut scene = Scene::new();
    scene.say(BROKEN);
    assert_eq!(all(&scene.events, &scene.victim).len(), 0, "nobody has looked at it");
    assert!(matches!(scene.vi.arrival(), Err(Error::Lost(_))));
    scene.assert_told_once("no receive descriptor");
}

#[test]
fn a_peer_that_says_it_ended_something_and_did_not() {
    let mut scene = Scene::new();
    for _ in 0..50 {
        scene.attacker.send(&Datagram::Broken, &[]);
    }
    scene.vi.send_inline(None, &[], b"the connection stands").unwrap();
    scene.say(CLOSED);
    scene.assert_not_told();
}

#[test]
fn a_peer_that_ends_in_order_and_dies() {
    let scene = Scene::new();
    scene.say(CLOSED);
    scene.assert_not_told();
}

#[test]
fn a_process_that_ends_in_order() {
    let scene = Scene::new();
    scene.attacker.send(&Datagram::Goodbye, &[]);
    scene.assert_not_told();
}

#[test]
fn a_peer_that_dies_after_our_own_end() {
    let mut scene = Scene::new();
    // The peer holds a buffer of ours, so the connection still exists.
    let block = scene.victim.nic.outbox().block(500, Fill::Zero).unwrap();
    scene.vi.hand_off(None, &[], block).unwrap();
    scene.vi.disconnect();
    scene.say(BROKEN);
    scene.attacker.send(&Datagram::Broken, &[]);
    scene.assert_not_told();
}

#[test]
fn a_callback_that_panics_is_called_again() {
    let mut victim = Victim::new();
    let (tell, events) = channel();
    let tell = told(tell);
    let callback = move |event: &ErrorEvent| {
        tell(event);
        assert_ne!(event.context, CONTEXT, "the callback panics, as this test has it");
    };
    victim.nic.on_error(callback).unwrap();
    for _ in 0..3 {
        let mut attacker = Attacker::admitted(victim.address());
        let (_grip, _vi) = attacker.connect_to(&victim, CONTEXT);
        drop(attacker);
        assert_eq!(all(&events, &victim).len(), 1);
    }
    victim.serves_the_honest(1);
}

/// The callback waits for the very thread that found the error.
#[test]
fn a_callback_connects() {
    let mut victim = Victim::new();
    let (nic, address) = (victim.nic.clone(), victim.address().to_vec());
    let (tell, connected) = channel();
    let callback = move |_: &ErrorEvent| {
        let (mut vi, cq) = (vi(&nic), Cq::new(&nic).unwrap());
        let to = NetAddress { host: address.clone(), discriminator: NAME.to_vec() };
        vi.connect(&to, &cq.handle(), &cq.handle(), &[], soon()).unwrap();
        // No further callback is needed, and this one holds the NIC.
        nic.clear_on_error();
        tell.send(vi).unwrap();
    };
    victim.nic.on_error(callback).unwrap();
    let mut attacker = Attacker::admitted(victim.address());
    let (_grip, _vi) = attacker.connect_to(&victim, CONTEXT);
    drop(attacker);
    let mut ours = victim.accept(0);
    let mut theirs = connected.recv_timeout(Duration::from_secs(60)).expect("the callback returns");
    theirs.send_inline(None, &[], b"from the callback").unwrap();
    assert!(ours.arrival().unwrap().is_some());
    victim.serves_the_honest(1);
}

/// Asserts that the callback was dropped, and that no event was reported to it since.
fn assert_dropped(events: &Receiver<ErrorEvent>) {
    let end = events.recv_timeout(Duration::from_secs(60));
    assert!(matches!(end, Err(RecvTimeoutError::Disconnected)), "{end:?}");
}

#[test]
fn a_callback_is_replaced_and_taken_away() {
    let victim = Victim::new();
    let lose_one = || {
        let mut attacker = Attacker::admitted(victim.address());
        drop((attacker.connect_to(&victim, CONTEXT), attacker));
    };
    let first = watch(&victim);
    let second = watch(&victim);
    assert_dropped(&first);
    assert_eq!(all(&second, &victim).len(), 0);
    victim.nic.clear_on_error();
    lose_one();
    assert_dropped(&second);
    let third = watch(&victim);
    assert_eq!(all(&third, &victim).len(), 0, "what was lost meanwhile is told to nobody");
}
