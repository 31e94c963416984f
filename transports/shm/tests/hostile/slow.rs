//! Descriptors whose last close takes long, passed where none belong, and where segments do: no thread waits for the
//! close.

use std::io::Write;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use udeck_sys::{boot_id, socket};
use udeck_via::auth::Keys;

use super::attacker::Attacker;
use super::victim::{SECRET, Victim, await_descriptors, descriptors};
use crate::handshake::Handshake;
use crate::peer_socket_wire::Datagram;

/// Longer than an attacker waits for an answer.
const LONG: Duration = Duration::from_secs(90);
const MANY: usize = 100;

/// Returns a socket whose last close waits for its other end, and that other end.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 65536]).is_ok() {}
    set_socket_linger(&socket, Some(LONG)).unwrap();
    (socket, other)
}

fn meet() -> Datagram {
    Handshake::connect(Keys::from(SECRET).call(None).unwrap(), boot_id().unwrap(), [1; 32]).1
}

/// Sends a datagram. Returns whether it was sent: the victim may have hung up.
fn send(attacker: &Attacker, datagram: &Datagram, fds: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    let bytes = datagram.encode();
    sendmsg(attacker.socket(), &[std::io::IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).is_ok()
}

/// Asserts that the descriptors passed by `pass` hold up nobody and are closed.
fn holds_up_nobody(pass: impl FnOnce(&Victim, BorrowedFd<'_>) -> Option<Attacker>) {
    let mut victim = Victim::new();
    let before = descriptors();
    let (slow, other) = lingering();
    let attacker = pass(&victim, slow.as_fd());
    drop(slow);
    let mut honest = Attacker::admitted(victim.address());
    drop(honest.connect(&victim));
    victim.serves_the_honest(1);
    drop((honest, attacker));
    // This does not wait for the socket's other end.
    await_descriptors(before + 1);
    drop(other);
    await_descriptors(before);
}

#[test]
fn a_stranger_passes_one() {
    holds_up_nobody(|victim, slow| {
        let attacker = Attacker::silent(victim.address());
        assert!(send(&attacker, &meet(), &[slow]));
        None
    });
}

#[test]
fn a_stranger_passes_many() {
    holds_up_nobody(|victim, slow| {
        let attacker = Attacker::silent(victim.address());
        assert!(send(&attacker, &meet(), &[slow; MANY]));
        Some(attacker)
    });
}

#[test]
fn a_stranger_passes_some_until_it_is_hung_up_on() {
    holds_up_nobody(|victim, slow| {
        let attacker = Attacker::silent(victim.address());
        while send(&attacker, &Datagram::Goodbye, &[slow]) {}
        None
    });
}

#[test]
fn in_the_place_of_segments() {
    holds_up_nobody(|victim, slow| {
        let mut attacker = Attacker::silent(victim.address());
        assert!(attacker.meet(SECRET, Some([slow; 3])).is_none(), "hung up");
        Some(attacker)
    });
}

#[test]
fn in_the_place_of_a_control_segment() {
    holds_up_nobody(|victim, slow| {
        let mut attacker = Attacker::admitted(victim.address());
        attacker.request(slow);
        Some(attacker)
    });
}

#[test]
fn with_a_datagram_that_carries_none() {
    holds_up_nobody(|victim, slow| {
        let attacker = Attacker::admitted(victim.address());
        assert!(send(&attacker, &Datagram::Goodbye, &[slow]));
        assert!(attacker.receive().is_none(), "hung up");
        Some(attacker)
    });
}

/// The attacker's peer socket is kept for its connection. Datagrams that arrive there are not read, and go with it.
#[test]
fn after_a_lie() {
    let mut victim = Victim::new();
    let before = descriptors();
    let (slow, other) = lingering();
    let mut attacker = Attacker::admitted(victim.address());
    let connection = attacker.connect(&victim);
    attacker.send(&Datagram::Welcome, &[]);
    assert!((0..10).all(|_| send(&attacker, &Datagram::Goodbye, &[slow.as_fd()])));
    drop(slow);
    let mut honest = Attacker::admitted(victim.address());
    drop(honest.connect(&victim));
    drop((honest, attacker));
    // The end of the peer socket is seen behind all those datagrams.
    let (grip, mut vi) = connection;
    while !vi.send_inline(None, &[], b"").is_err_and(|error| matches!(error, udeck_via::Error::Lost(_))) {
        std::thread::yield_now();
    }
    drop((grip, vi));
    victim.serves_the_honest(1);
    await_descriptors(before + 1);
    drop(other);
    await_descriptors(before);
}

/// A process has passed its socket on before it died, and its end is known all the same.
#[test]
fn a_link_is_forgotten_when_its_process_has_died() {
    if let Some(address) = std::env::var_os(LINKS_TO) {
        let [victim, test] = address.to_str().unwrap().split(' ').collect::<Vec<_>>().try_into().unwrap();
        let attacker = Attacker::admitted(victim.as_bytes());
        let heir = socket::connect_to(test.as_bytes()).unwrap();
        assert!(socket::send(heir.as_fd(), b"take this", &[attacker.socket()]).unwrap());
        // The process exits without a drop of its socket, which would be the end of the duplicate, too.
        std::process::exit(1);
    }
    let mut victim = Victim::new();
    let before = descriptors();
    let name = format!("udeck-test-heir-{}", std::process::id());
    let listener = socket::listen_at(name.as_bytes()).unwrap();
    let process = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", DIES, "--nocapture"])
        .env(LINKS_TO, format!("{} {name}", std::str::from_utf8(victim.address()).unwrap()))
        .output()
        .unwrap();
    assert!(!process.status.success(), "it dies");
    let heir = socket::accept_from(listener.as_fd()).unwrap().expect("it has called");
    let mut buffer = [0; 64];
    let socket::Received::Datagram { fds, .. } = socket::receive(heir.as_fd(), &mut buffer).unwrap() else {
        panic!("no word of it")
    };
    assert_eq!(fds.len(), 1);
    // Three descriptors remain: the listener, the connection to it, and the passed socket.
    await_descriptors(before + 3);
    victim.serves_the_honest(1);
}

const DIES: &str = "tests::hostile::slow::a_link_is_forgotten_when_its_process_has_died";
/// Set in the process that dies: the address to which it connects, and the one to which it passes its socket.
const LINKS_TO: &str = "UDECK_TEST_LINKS_AND_DIES";
