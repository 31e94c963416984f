//! An accept that takes its time: its own peer's events wait for it, and nobody else's.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

use parking_lot::Mutex;
use udeck_faults::{Call, Trace, Who, wrapped};
use udeck_rdma::frame::{self, Head};

use super::super::hostile::Peer;
use super::*;
use crate::core::wire::Greeting;

/// Holds up the first accept: the transport has answered the peer, and its call does not return.
struct Gate {
    reached: Receiver<()>,
    open: Sender<()>,
}

fn slow(transport: &str) -> (Nic, Gate) {
    let ((arrives, reached), (open, opened)) = (channel(), channel());
    let opened = Mutex::new(opened);
    let trace = Trace::new(move |event| {
        if let (Who::Connection(0), Call::Connect { .. }) = (event.who, event.call) {
            let _ = (arrives.send(()), opened.lock().recv_timeout(LIMIT)); // a test that has failed does not listen
        }
    });
    (wrapped(&nic(transport), trace), Gate { reached, open })
}

impl Gate {
    fn wait(&self) {
        self.reached.recv_timeout(LIMIT).unwrap();
    }
}

/// The side that accepts: all events go to one dispatcher.
struct Accepting {
    pz: Pz,
    evd: Evd,
    psp: Psp,
}

impl Accepting {
    fn new(nic: &Nic) -> Accepting {
        let ia = Ia::on_nic(nic).unwrap();
        let (pz, evd) = (Pz::new(&ia), Evd::new(&ia, 0));
        let psp = Psp::any(&evd).unwrap();
        Accepting { pz, evd, psp }
    }

    /// Returns an end point with one posted receive.
    fn ep(&self) -> Ep {
        let ep = Ep::new(&self.pz, &self.evd, &self.evd, &self.evd, EpAttributes::default()).unwrap();
        ep.post_receive(Lmr::of(&self.pz, vec![0; 8].into()).unwrap(), 1)
            .map_err(|(error, _)| error)
            .unwrap();
        ep
    }

    /// Waits until `count` unanswered requests have come.
    fn has_requests(&self, count: usize) {
        let (until, evd) = (Deadline::after(LIMIT), self.evd.core());
        while evd.requests.load(std::sync::atomic::Ordering::Relaxed) < count {
            assert!(!until.passed(), "no request has come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn message(&self, to: &Ep) {
        match next(&self.evd) {
            Event::Dto(done) => {
                assert_eq!((done.ep, done.status, done.length), (to.id(), Status::Success, 2))
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Starts a peer that claims to be this process: it asks for a connection, and sends a message over it.
fn asks<'scope>(
    scope: &'scope Scope<'scope, '_>,
    to: &'scope Psp,
    mut peer: Peer,
    process: u64,
    words: &'static [u8],
) -> ScopedJoinHandle<'scope, Peer> {
    scope.spawn(move || {
        let greeting = Greeting { host: [0; 16], port: process << 32 | 1, private_data: words.to_vec() };
        if peer.connect(to, &greeting.encode()).is_ok() {
            assert!(peer.say(&[&Head::plain(frame::SEND).bytes()[..], b"hi"].concat()));
        }
        peer
    })
}

#[test]
fn a_slow_accept_holds_up_no_other_process() {
    for transport in TRANSPORTS {
        let ((slow, gate), near) = (slow(transport), nic(transport));
        let there = Accepting::new(&slow);
        let (first, second, third) = (there.ep(), there.ep(), there.ep());
        std::thread::scope(|scope| {
            let one = asks(scope, &there.psp, Peer::new(&near), 1, b"one");
            let asked = request(&there.evd);
            scope.spawn(|| first.accept(asked, b"").map_err(|(error, _)| error).unwrap());
            gate.wait();
            // The peer knows of its connection, which this side has not reported yet, and asks for another one.
            let _one = one.join().unwrap();
            let again = asks(scope, &there.psp, Peer::new(&near), 1, b"again");
            there.has_requests(1);
            let other = asks(scope, &there.psp, Peer::new(&near), 2, b"other");
            let asked = request(&there.evd);
            assert_eq!(asked.private_data(), b"other", "{transport}");
            second.accept(asked, b"").map_err(|(error, _)| error).unwrap();
            assert_eq!(told(&there.evd, &second), Connection::Established, "{transport}");
            there.message(&second);
            assert!(there.evd.dequeue().is_none(), "{transport}: the peer's before its connection is told");
            assert_eq!(first.state(), EpState::PassivePending);

            gate.open.send(()).unwrap();
            assert_eq!(told(&there.evd, &first), Connection::Established, "{transport}");
            let asked = request(&there.evd);
            assert_eq!(asked.private_data(), b"again", "{transport}");
            there.message(&first);
            third.accept(asked, b"").map_err(|(error, _)| error).unwrap();
            assert_eq!(told(&there.evd, &third), Connection::Established, "{transport}");
            there.message(&third);
            let _others = (again.join().unwrap(), other.join().unwrap());
        });
    }
}

/// Disconnecting an end point does not wait for its accept, and no connection is reported.
#[test]
fn an_end_point_that_accepts_slowly_can_be_disconnected() {
    for transport in TRANSPORTS {
        let ((slow, gate), near) = (slow(transport), nic(transport));
        let there = Accepting::new(&slow);
        let (first, second) = (there.ep(), there.ep());
        std::thread::scope(|scope| {
            let one = asks(scope, &there.psp, Peer::new(&near), 1, b"one");
            let asked = request(&there.evd);
            let accepting = scope.spawn(|| first.accept(asked, b"").map_err(|(error, _)| error).unwrap());
            gate.wait();
            let mut peer = one.join().unwrap();
            assert!(matches!(
                first.connect(&there.psp.address(), LIMIT, b""),
                Err(Error::InvalidState { state: EpState::PassivePending, .. })
            ));
            first.disconnect(false).unwrap();
            let Event::Dto(flushed) = next(&there.evd) else { panic!("{transport}: the receive is flushed") };
            assert_eq!((flushed.ep, flushed.status), (first.id(), Status::Flushed));
            assert_eq!(told(&there.evd, &first), Connection::Disconnected, "{transport}");
            // Events of this peer wait no more.
            let again = asks(scope, &there.psp, Peer::new(&near), 1, b"again");
            let asked = request(&there.evd);
            assert_eq!(asked.private_data(), b"again", "{transport}");
            second.accept(asked, b"").map_err(|(error, _)| error).unwrap();
            assert_eq!(told(&there.evd, &second), Connection::Established, "{transport}");
            there.message(&second);

            gate.open.send(()).unwrap();
            accepting.join().unwrap();
            assert_eq!(first.state(), EpState::Disconnected, "{transport}");
            let until = Deadline::after(LIMIT);
            while peer.drain() {
                assert!(!until.passed(), "{transport}: the peer has a connection to nobody");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(there.evd.dequeue().is_none(), "{transport}");
            let _again = again.join().unwrap();
        });
    }
}
