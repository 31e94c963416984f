//! Peers that want more than their share: of connections, and of address space.

use std::os::fd::AsFd;
use std::time::Duration;

use udeck_faults::{Disguise, wrapped};
use udeck_sys::segment::PeerAccess;
use udeck_sys::socket;
use udeck_via::{Deadline, Error, MemHandle, NetAddress, RejectKind, State};

use super::attacker::Attacker;
use super::victim::{SECRET, Victim, await_descriptors, descriptors, soon, vi};
use crate::arenas::{MAX_ARENA, Segment};
use crate::peer_socket_wire::Datagram;
use crate::space::MOST;

/// Counts the mapped control segments of attackers.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("attacker-control")).count()
}

/// The attacker says that it stays inside a window, over each connection that it makes, and the victim closes each connection.
#[test]
fn connections_that_a_peer_never_leaves_have_a_bound() {
    const MOST: usize = 1000;
    let mut victim = Victim::with(|nic| wrapped(&nic, Disguise::named("shm0").taking(MOST)));
    let mut attacker = Attacker::admitted(victim.address());
    // The honest peer has no rank either, and uses one connection.
    for _ in 1..MOST {
        let (grip, vi) = attacker.connect(&victim);
        grip.stay_at(MemHandle(0x12345));
        drop((vi, grip));
    }
    let before = mapped();
    for _ in 0..10 {
        let (fd, _) =
            udeck_sys::segment::create("attacker-control", crate::layout::CONTROL_BYTES, PeerAccess::Write)
                .unwrap();
        attacker.request(fd.as_fd());
        match attacker.receive().expect("an answer").datagram {
            Datagram::Refuse { rejection, .. } => {
                assert_eq!(rejection.kind, RejectKind::NoPlace);
                let text = rejection.to_string();
                assert!(text.contains(&format!("{MOST} connections")), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    // (The answer to the last request may be here before the victim has dropped its mapping.)
    let deadline = soon();
    while mapped() > before {
        assert!(!deadline.passed(), "what is refused is not kept");
        std::thread::yield_now();
    }
    victim.serves_the_honest(1);
    drop(attacker);
    // A dead process has left the window.
    let mut next = Attacker::admitted(victim.address());
    let deadline = soon();
    loop {
        victim.nic.reclaim();
        if mapped() < 10 {
            break;
        }
        assert!(!deadline.passed(), "{} are kept", mapped());
        std::thread::yield_now();
    }
    drop(next.connect(&victim));
}

/// The arenas have the greatest length, and no memory.
#[test]
fn the_arenas_of_peers_take_so_much_address_space_and_no_more() {
    let mut victim = Victim::new();
    let before = descriptors();
    let [outbox, landing] = [Segment::outbox(MAX_ARENA).unwrap(), Segment::landing(MAX_ARENA).unwrap()];
    let address = victim.address().to_vec();
    let peer_socket = || {
        let mut attacker = Attacker::silent(&address);
        let board = attacker.board.fd().try_clone_to_owned().unwrap();
        let segments = [board.as_fd(), outbox.fd(), landing.fd()];
        let answer = attacker.meet(SECRET, Some(segments));
        answer.is_some_and(|answer| matches!(answer.datagram, Datagram::Welcome)).then_some(attacker)
    };
    // The honest peer's arenas take some of the address space.
    let room = MOST as usize / (2 * MAX_ARENA) - 1;
    let mut peer_sockets: Vec<_> = (0..room).map(|_| peer_socket().expect("so many are let in")).collect();
    assert!(peer_socket().is_none(), "more than there is room for");
    victim.serves_the_honest(1);
    drop(Attacker::admitted(victim.address()));
    peer_sockets.pop();
    // The victim hears of its end some time later.
    let deadline = soon();
    while peer_sockets.len() < room {
        assert!(!deadline.passed());
        peer_sockets.extend(peer_socket());
    }
    drop((peer_sockets, outbox, landing));
    await_descriptors(before);
    victim.serves_the_honest(2);
}

/// A peer on a busy host may read more slowly than we ask.
#[test]
fn a_request_waits_for_room_in_the_socket_of_its_peer() {
    let victim = Victim::new();
    let host = b"udeck-attacker-that-reads-slowly".to_vec();
    let listener = socket::listen_at(&host).unwrap();
    let (to, queue) = (NetAddress { host, discriminator: b"attacker".to_vec() }, victim.cq.handle());
    let ask = |until| vi(&victim.nic).connect(&to, &queue, &queue, &[], until).unwrap_err();
    let ask_in_vain = || match ask(Deadline::after(Duration::from_millis(1))) {
        error @ Error::Timeout { .. } => error.to_string(),
        error => panic!("a shortage became the end of the peer: {error}"),
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| ask(soon()));
        let (attacker, _control) = Attacker::asked(&listener);
        let is_full = |text: &String| text.contains("to read earlier connection requests");
        assert!((0..100_000).map(|_| ask_in_vain()).any(|text| is_full(&text)), "a socket has a bound");
        attacker.receive().expect("a request");
        let text = ask_in_vain();
        assert!(text.contains("an answer from process"), "{text}");
        drop(attacker);
        let error = first.join().unwrap();
        assert!(matches!(error, Error::Lost(_)), "{error}");
    });
}

/// Number of requests that, with their answers, are more than both directions of a socket hold.
const ASKED: usize = 900;

/// Sends [`ASKED`] requests and reads no answer.
fn ask_many(attacker: &Attacker) {
    let (mut asked, until) = (0, soon());
    while asked < ASKED {
        assert!(!until.passed(), "the victim reads its socket");
        asked += usize::from(attacker.ask_in_vain());
    }
}

/// A peer on a busy host may read its answers late.
#[test]
fn answers_wait_for_room_in_the_socket_of_their_peer() {
    let victim = Victim::new();
    let mut attacker = Attacker::admitted(victim.address());
    let (_grip, vi) = attacker.connect(&victim);
    ask_many(&attacker);
    for _ in 0..ASKED {
        let answer = attacker.receive().expect("an answer").datagram;
        assert!(matches!(answer, Datagram::Refuse { .. }), "{answer:?}");
    }
    assert_eq!(vi.state(), State::Connected);
}

/// A NIC that closes has answered before it says goodbye; a peer that reads too late is not told goodbye at all.
#[test]
fn a_goodbye_comes_behind_the_answers() {
    for reads_late in [false, true] {
        let victim = Victim::new();
        let attacker = Attacker::admitted(victim.address());
        ask_many(&attacker);
        // The victim serves its sockets in turn, so it has read all those requests when it has answered so many others.
        let other = Attacker::admitted(victim.address());
        for _ in 0..ASKED {
            assert!(other.ask_in_vain());
            let _ = other.receive().expect("an answer");
        }
        // Now there is room for a goodbye, but too little for the victim to go on with the answers.
        let (early, is_answer) = (10, |datagram: &Datagram| matches!(datagram, Datagram::Refuse { .. }));
        for _ in 0..early {
            assert!(is_answer(&attacker.receive().expect("an answer").datagram));
        }
        let read = move || -> Vec<_> {
            std::iter::from_fn(|| attacker.receive().map(|received| received.datagram)).collect()
        };
        let heard = if reads_late {
            drop(victim);
            read()
        } else {
            let reads = std::thread::spawn(read);
            drop(victim);
            reads.join().unwrap()
        };
        let answers = early + heard.iter().filter(|datagram| is_answer(datagram)).count();
        assert!(answers == ASKED || !heard.contains(&Datagram::Goodbye), "goodbye after {answers} answers");
    }
}
