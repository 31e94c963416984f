//! Strangers that connect to the NIC's socket: without the secret, with nonsense, with wrong segments.

use std::ffi::OsStr;
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use udeck_sys::segment::{self, CHUNK, PeerAccess};
use udeck_sys::{boot_id, socket};

use udeck_via::auth::{Claim, Keys};
use udeck_via::transport::Hello;
use udeck_via::{Cq, Error, NetAddress, RejectKind, Reliability};

use super::attacker::{Attacker, LANDING, OUTBOX};
use super::victim::{NAME, SECRET, Victim, await_descriptors, descriptors, soon, vi};
use crate::arenas::MAX_ARENA;
use crate::board::BOARD_BYTES;
use crate::connection::Loss;
use crate::device::MAX_PEER_SOCKETS;
use crate::handshake::Handshake;
use crate::layout::CONTROL_BYTES;
use crate::peer_socket::{Event, PeerSocket};
use crate::peer_socket_wire::{Datagram, DoorbellBit, Doorbells, MAX_DATAGRAM, VERSION};

const ANOTHER_USER: &str = "tests::hostile::strangers::another_user_is_no_way";
/// Set in the process of the other user: the address to which it connects.
const CONNECTS_TO: &str = "UDECK_TEST_OTHER_USER_CONNECTS_TO";

const LINKS_OFTEN: &str = "tests::hostile::strangers::an_admitted_process_has_so_many_links_and_no_more";
/// Set in the process that makes many peer sockets: the address.
const LINKS_TO: &str = "UDECK_TEST_LINKS_TO";

fn meet() -> Datagram {
    Datagram::Meet { version: VERSION, boot_id: boot_id().unwrap(), nonce: [1; 32], claim: Claim::NOBODY }
}

/// Asserts that `act` changes nothing for others and leaves no descriptor behind.
fn leaves_no_trace(act: impl FnOnce(&Victim)) {
    let mut victim = Victim::new();
    let before = descriptors();
    act(&victim);
    victim.serves_the_honest(1);
    await_descriptors(before);
}

/// The error does not say "rejected", because the two may meet by another transport.
#[test]
fn another_user_is_no_way() {
    if let Some(address) = std::env::var_os(CONNECTS_TO) {
        let nic = super::victim::nic();
        let to = NetAddress { host: address.into_vec(), discriminator: NAME.to_vec() };
        let queue = Cq::new(&nic).unwrap();
        let (mut vi, queue) = (vi(&nic), queue.handle());
        let error = vi.connect(&to, &queue, &queue, &[], soon()).unwrap_err();
        assert!(matches!(&error, Error::Unavailable { why, .. } if why.contains("another user")), "{error}");
        return;
    }
    if socket::own_uid() != 0 {
        return println!("skipped: needs root, to run a process as another user");
    }
    leaves_no_trace(|victim| {
        let other = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", ANOTHER_USER, "--nocapture"])
            .env(CONNECTS_TO, OsStr::from_bytes(victim.address()))
            .uid(65_534)
            .output();
        match other {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                println!("skipped: another user may not run this program where it lies");
            }
            other => {
                let other = other.unwrap();
                assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
            }
        }
    });
}

/// The process knows the secret, and each of its peer sockets takes descriptors and address space here. When some
/// end, others are let in.
#[test]
fn an_admitted_process_has_so_many_links_and_no_more() {
    if let Some(address) = std::env::var_os(LINKS_TO) {
        return link_often(address.as_encoded_bytes());
    }
    leaves_no_trace(|victim| {
        let other = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", LINKS_OFTEN, "--nocapture"])
            .env(LINKS_TO, OsStr::from_bytes(victim.address()))
            .output()
            .unwrap();
        assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    });
}

/// Runs in the child process.
fn link_often(address: &[u8]) {
    let peer_socket = || {
        let mut attacker = Attacker::silent(address);
        attacker.meet(SECRET, None).is_some().then_some(attacker)
    };
    let mut peer_sockets: Vec<_> =
        (0..MAX_PEER_SOCKETS).map(|_| peer_socket().expect("so many are let in")).collect();
    assert!((0..3).all(|_| peer_socket().is_none()), "more than {MAX_PEER_SOCKETS}");
    peer_sockets.truncate(MAX_PEER_SOCKETS / 2);
    // The victim hears of their end some time later.
    let deadline = soon();
    while peer_sockets.len() < MAX_PEER_SOCKETS {
        assert!(!deadline.passed(), "{} are let in again", peer_sockets.len());
        peer_sockets.extend(peer_socket());
    }
    assert!(peer_socket().is_none(), "more than {MAX_PEER_SOCKETS} again");
}

#[test]
fn without_the_secret() {
    leaves_no_trace(|victim| {
        let mut stranger = Attacker::silent(victim.address());
        assert!(stranger.meet([8; 32], None).is_none(), "hung up");
    });
}

#[test]
fn ten_thousand_random_datagrams() {
    leaves_no_trace(|victim| {
        let before = descriptors();
        let mut bytes = [0; 200];
        for number in 0..10_000usize {
            getrandom::fill(&mut bytes).unwrap();
            // Half of the datagrams begin like valid ones.
            bytes[0] = if number.is_multiple_of(2) { (number / 2 % 9) as u8 } else { bytes[0] };
            let len = 1 + usize::from(bytes[199]);
            let socket = loop {
                match socket::connect_to(victim.address()) {
                    Ok(socket) => break socket,
                    // The backlog is full.
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
                }
                std::thread::yield_now();
            };
            assert!(socket::send(socket.as_fd(), &bytes[..len.min(200)], &[]).unwrap());
            drop(socket);
            if number.is_multiple_of(100) {
                // Each stranger holds a few descriptors of the victim until the victim has read its datagram.
                await_descriptors(before);
            }
        }
    });
}

#[test]
fn more_descriptors_than_a_datagram_carries() {
    leaves_no_trace(|victim| {
        const MANY: usize = 16;
        let stranger = Attacker::silent(victim.address());
        let carried = [stranger.socket(); MANY];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&carried)));
        let bytes = meet().encode();
        sendmsg(stranger.socket(), &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
        assert!(stranger.receive().is_none(), "hung up");
    });
}

#[test]
fn oversized_datagrams() {
    leaves_no_trace(|victim| {
        for len in [MAX_DATAGRAM + 1, 10 * MAX_DATAGRAM] {
            let stranger = Attacker::silent(victim.address());
            assert!(socket::send(stranger.socket(), &vec![1; len], &[]).unwrap());
            assert!(stranger.receive().is_none(), "hung up");
        }
    });
}

#[test]
fn a_second_hand_shake_ends_the_link() {
    leaves_no_trace(|victim| {
        let attacker = Attacker::admitted(victim.address());
        attacker.send(&meet(), &[]);
        assert!(attacker.receive().is_none(), "hung up");
    });
}

/// Nobody watches such a peer socket any more, so nobody would see the peer inside a window. The peer must not learn
/// of a window over it.
#[test]
fn a_request_over_a_link_that_has_ended_is_not_accepted() {
    leaves_no_trace(|victim| {
        let mut attacker = Attacker::admitted(victim.address());
        let (fd, _control) = segment::create("attacker-control", CONTROL_BYTES, PeerAccess::Write).unwrap();
        attacker.request(fd.as_fd());
        let request = victim.next_request();
        attacker.send(&meet(), &[]);
        // The same reactor thread admitted this second attacker, so it has handled the earlier datagram.
        drop(Attacker::admitted(victim.address()));
        let (mut vi, queue) = (vi(&victim.nic), victim.cq.handle());
        let error = request.accept(&mut vi, &queue, &queue, &[]).unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{error}");
        assert!(attacker.receive().is_none(), "it hears nothing of being accepted");
    });
}

/// A peer socket can go down (its greeting was not sent, its hand-shake took too long) between the check whether it
/// is down and the handling of a datagram that the reactor has read. No such datagram may count, and none may need
/// the segments that only a proof brings.
#[test]
fn nothing_counts_over_a_link_that_went_down_before_it_was_up() {
    let bit = DoorbellBit { doorbell: 0, bit: 0 };
    let doorbells = Doorbells { send: bit, receive: bit };
    let hello = Hello {
        reliability: Reliability::Delivery,
        writable_ptag: None,
        readable_ptag: None,
        private_data: Vec::new(),
    };
    let request = |hello| Datagram::Request { id: 0, doorbells, hello, discriminator: NAME.to_vec() };
    let datagrams = [
        Datagram::Accept { id: 77, doorbells, hello: hello.clone() },
        meet(),
        request(hello),
        Datagram::Refuse { id: 77, rejection: RejectKind::NoListener.into() },
        Datagram::Broken,
        Datagram::Goodbye,
        Datagram::Welcome,
    ];
    let name = format!("went-down-{}", std::process::id()).into_bytes();
    let listener = socket::listen_at(&name).unwrap();
    let ours = [listener.as_fd(); 3];
    for datagram in datagrams {
        let socket = socket::connect_to(&name).unwrap();
        let pair = Keys::from(SECRET).call(None).unwrap();
        let (handshake, _) = Handshake::connect(pair, boot_id().unwrap(), [1; 32]);
        let peer_socket = PeerSocket::new(socket, None, handshake, &Arc::default());
        peer_socket.down("its greeting was not sent", Loss::Unresponsive);
        let text = format!("{datagram:?}");
        let event = peer_socket.input(datagram, Vec::new(), ours);
        assert!(matches!(event, Ok(Event::Nothing)), "{text}");
    }
}

/// Each stranger holds a descriptor or two while it is there, and holds up nobody.
#[test]
fn many_that_stop_in_the_middle_of_the_hand_shake() {
    let mut victim = Victim::new();
    let before = descriptors();
    let sockets: Vec<_> = (0..100).map(|_| socket::connect_to(victim.address()).unwrap()).collect();
    for socket in &sockets {
        assert!(socket::send(socket.as_fd(), &meet().encode(), &[]).unwrap());
    }
    let mut admitted = Attacker::admitted(victim.address());
    drop(admitted.connect(&victim));
    victim.serves_the_honest(1);
    drop((sockets, admitted));
    await_descriptors(before);
}

/// Creates a segment of this size, with the seals of `access` or with none.
fn segment(len: usize, access: Option<PeerAccess>) -> OwnedFd {
    match access {
        Some(access) => segment::create("attacker", len, access).unwrap().0,
        None => {
            let fd = memfd_create("attacker", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&fd, len as u64).unwrap();
            fd
        }
    }
}

#[test]
fn segments_that_are_not_what_they_should_be() {
    use PeerAccess::{Read, Write};
    let good = [(BOARD_BYTES, Some(Write)), (OUTBOX, Some(Read)), (LANDING, Some(Write))];
    let bad = [
        (0, (BOARD_BYTES - 4096, Some(Write))),
        (0, (BOARD_BYTES + 4096, Some(Write))),
        (0, (BOARD_BYTES, None)),
        // The segment is not sealed against writing: its owner could hand out descriptors that write it.
        (1, (OUTBOX, Some(Write))),
        (1, (OUTBOX, None)),
        (2, (LANDING, None)),
        // The segment is larger than any arena: each costs address space, and a bit for each chunk.
        (1, (MAX_ARENA + CHUNK, Some(Read))),
        (2, (1 << 44, Some(Write))),
        // Peers could not write this one.
        (2, (LANDING, Some(Read))),
    ];
    leaves_no_trace(|victim| {
        let meets = |kinds: [(usize, Option<PeerAccess>); 3]| {
            let segments = kinds.map(|(len, access)| segment(len, access));
            let fds = [segments[0].as_fd(), segments[1].as_fd(), segments[2].as_fd()];
            Attacker::silent(victim.address()).meet(SECRET, Some(fds)).is_some()
        };
        assert!(meets(good), "let in");
        for (at, kind) in bad {
            let mut kinds = good;
            kinds[at] = kind;
            assert!(!meets(kinds), "let in with {kind:?} as segment {at}");
        }
    });
}

#[test]
fn descriptors_that_are_no_segments() {
    leaves_no_trace(|victim| {
        let (pipe, _) = std::io::pipe().unwrap();
        let fds: [BorrowedFd<'_>; 3] = [pipe.as_fd(); 3];
        assert!(Attacker::silent(victim.address()).meet(SECRET, Some(fds)).is_none());
    });
}

#[test]
fn control_segments_that_are_not_what_they_should_be() {
    leaves_no_trace(|victim| {
        for (len, access) in [
            (CONTROL_BYTES - 4096, Some(PeerAccess::Write)),
            (CONTROL_BYTES + 4096, Some(PeerAccess::Write)),
            (CONTROL_BYTES, None),
        ] {
            let mut attacker = Attacker::admitted(victim.address());
            attacker.request(segment(len, access).as_fd());
            assert!(attacker.receive().is_none(), "hung up on {len} bytes, {access:?}");
        }
    });
}
