//! Tests that the conformance suite cannot have: one connection for many VIs, attackers on the path, and silence.

mod authentication;
mod panics;
mod raw_peer;
mod relay;
mod socket_blocked;
mod unauthenticated;

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_via::{Deadline, Descriptor, Error, NetAddress, Nic, Reliability};

use crate::core::Core;
use crate::fixture::{End, connect, connect_to, open, open_with, soon, works};
use crate::icmp::PortUnreachable;
use relay::Relay;

fn ends(a: &Nic, b: &Nic) -> (End, End) {
    (End::new(a, Reliability::Delivery), End::new(b, Reliability::Delivery))
}

/// Name long enough never to be found in random bytes.
const NAME: &[u8] = b"a name that nobody may read";

/// Connects by way of a relay.
fn connect_by(relay: &Relay, a: &mut End, b: &mut End) {
    connect_to(a, b, relay.address(), NAME);
}

/// Returns a relay to `b`, and a connection that works by way of it.
fn by_relay(a: &Nic, b: &Nic) -> (Relay, End, End) {
    let relay = Relay::to(b);
    let (mut left, mut right) = ends(a, b);
    connect_by(&relay, &mut left, &mut right);
    works(&mut left, &mut right);
    (relay, left, right)
}

fn call(nic: &Nic, to: &[u8], deadline: Deadline) -> Error {
    let mut end = End::new(nic, Reliability::Delivery);
    let cq = end.cq.handle();
    let to = NetAddress { host: to.to_vec(), discriminator: b"here".to_vec() };
    end.vi.connect(&to, &cq, &cq, b"", deadline).unwrap_err()
}

/// Returns the end of its connection, and how long that took.
fn end_of(end: &mut End) -> (Error, Duration) {
    let (since, limit) = (Instant::now(), soon());
    loop {
        match end.vi.arrival() {
            Err(error) => return (error, since.elapsed()),
            Ok(_) => assert!(!limit.passed(), "it never ends"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn established(core: &Core) -> usize {
    core.peers.all().iter().filter(|peer| peer.is_established() && !peer.is_over()).count()
}

#[test]
fn all_vis_of_two_nics_share_a_connection_whoever_calls() {
    let ((core_a, a), (core_b, b)) = (open(), open());
    let mut pairs: Vec<_> = (0..20).map(|_| ends(&a, &b)).collect();
    for (nth, (left, right)) in pairs.iter_mut().enumerate() {
        if nth % 2 == 0 {
            connect(left, right)
        } else {
            connect(right, left)
        }
        works(left, right);
        works(right, left);
    }
    assert_eq!((established(&core_a), established(&core_b)), (1, 1));
}

/// Both sides prefer the same one of two connections, so that acknowledgements travel with the data of the other way.
#[test]
fn nics_that_call_each_other_at_the_same_time_use_one_connection() {
    let ((core_a, a), (core_b, b)) = (open(), open());
    let dialled = [core_a.peer_for(host_of(&b), None).unwrap(), core_b.peer_for(host_of(&a), None).unwrap()];
    let deadline = soon();
    while !(established(&core_a) == 2 && established(&core_b) == 2) {
        assert!(!deadline.passed(), "they never get to know each other");
        let _ = [&core_a, &core_b].map(|core| core.progress());
    }
    let mut pairs: Vec<_> = (0..4).map(|_| ends(&a, &b)).collect();
    for (nth, (left, right)) in pairs.iter_mut().enumerate() {
        if nth % 2 == 0 { connect(left, right) } else { connect(right, left) }
    }
    let with_streams = |core: &Core| {
        let peers = core.peers.all();
        peers.iter().filter(|peer| !peer.lock().streams.is_empty()).count()
    };
    assert_eq!((with_streams(&core_a), with_streams(&core_b)), (1, 1));
    drop(dialled);
}

#[test]
fn nothing_that_is_sent_can_be_read_on_the_way() {
    let ((_, a), (_, b)) = (open(), open());
    let relay = Relay::to(&b);
    let (mut left, mut right) = ends(&a, &b);
    connect_by(&relay, &mut left, &mut right);
    let text: Vec<u8> = b"a secret that is told often; ".iter().copied().cycle().take(60_000).collect();
    let mut region = a.region(text.len(), left.ptag).unwrap();
    region.copy_from_slice(&text);
    left.vi.post_send(Descriptor::new([region])).unwrap();
    let deadline = soon();
    while right.vi.arrival().unwrap().is_none() {
        assert!(!deadline.passed(), "it never came");
    }
    let seen = relay.seen();
    let bytes = seen.iter().map(Vec::len).sum::<usize>();
    assert!(bytes > text.len(), "{bytes} bytes in {} datagrams went by the relay", seen.len());
    // The discriminator is not readable either: it would say which program runs.
    for (number, datagram) in seen.iter().enumerate() {
        let readable = |len: usize, is_ours: &dyn Fn(&[u8]) -> bool| {
            let at = datagram.windows(len).position(is_ours)?;
            Some(format!(
                "datagram {number} of {}, {} bytes, at {at}: {datagram:02x?}",
                seen.len(),
                datagram.len()
            ))
        };
        let told = readable(12, &|part| text.windows(12).take(29).any(|told| told == part));
        assert!(told.is_none(), "{told:?}");
        let called = readable(NAME.len(), &|part| part == NAME);
        assert!(called.is_none(), "{called:?}");
    }
}

#[test]
fn what_was_heard_of_a_connection_is_worth_nothing_later() {
    let ((_, a), (core_b, b)) = (open(), open());
    let (relay, mut left, mut right) = by_relay(&a, &b);
    let before = established(&core_b);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = std::str::from_utf8(&b.attributes().address).unwrap().to_owned();
    for datagram in relay.seen() {
        stranger.send_to(&datagram, &to).unwrap();
    }
    works(&mut left, &mut right);
    works(&mut right, &mut left);
    assert_eq!(established(&core_b), before);
}

#[test]
fn messages_come_over_a_network_that_loses_doubles_and_reorders() {
    let ((_, a), (_, b)) = (open(), open());
    let relay = Relay::to(&b);
    let (mut left, mut right) = ends(&a, &b);
    relay.meddle(20);
    connect_by(&relay, &mut left, &mut right);
    for _ in 0..50 {
        works(&mut left, &mut right);
        works(&mut right, &mut left);
    }
    assert!(relay.lost() > 0, "it has lost some");
    let again = |end: &End| {
        let report = end.vi.link_report().and_then(|report| report.upgrade()).expect("a connection");
        report.retransmissions().expect("QUIC counts them").packets
    };
    assert!(again(&left) + again(&right) > 0, "and they were sent again");
}

/// A relay that ends both connections has two sessions, and neither side accepts the other's proof. Two NICs that do
/// not know the secret play the relay; the first one is called in place of the intended NIC.
#[test]
fn a_process_in_the_middle_proves_nothing() {
    let ((_, a), (_, middle)) = (open(), open_with(|options| options.keys = [8; 32].into()));
    let error = call(&a, &middle.attributes().address, soon());
    assert!(matches!(error, Error::Rejected(_)), "{error}");
    assert!(error.to_string().contains("does not know its job's secret"), "{error}");
}

/// Returns an address without a socket.
fn gone() -> std::net::SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, udeck_test_kit::free_port()).into()
}

#[test]
fn where_nobody_is_a_call_says_so_at_once() {
    let (_, a) = open();
    let error = call(&a, gone().to_string().as_bytes(), soon());
    assert!(error.to_string().contains("where no socket is bound"), "{error}");
}

#[test]
fn who_says_nothing_is_waited_for_until_the_deadline() {
    let (_, a) = open();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = silent.local_addr().unwrap().to_string();
    let error = call(&a, to.as_bytes(), Deadline::after(Duration::from_millis(100)));
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
}

fn only_peer(core: &Core) -> Arc<crate::peer::Peer> {
    let [peer] = &core.peers.all()[..] else { panic!("one connection") };
    peer.clone()
}

#[test]
fn icmp_is_believed_where_it_quotes_what_was_sent() {
    let ((core, a), (_, b)) = (open(), open());
    let (mut left, mut right) = ends(&a, &b);
    connect(&mut left, &mut right);
    works(&mut left, &mut right);
    let to = only_peer(&core).at;
    let sent = only_peer(&core).lock().transmit().last_sent();
    let forged = [&[0x40][..], &[7; 8], &[0; 20]].concat();
    core.on_port_unreachable(&PortUnreachable { to, quote: forged });
    core.on_port_unreachable(&PortUnreachable { to: gone(), quote: [&[0x40], &sent[..]].concat() });
    works(&mut left, &mut right);
    core.on_port_unreachable(&PortUnreachable { to, quote: [&[0x40], &sent[..]].concat() });
    let (error, _) = end_of(&mut left);
    assert!(error.to_string().contains("no socket is bound there"), "{error}");
}

const DETECT: Duration = Duration::from_millis(400);

#[test]
fn a_peer_that_is_cut_off_is_lost() {
    let ((_, a), (_, b)) = (open_with(|options| options.detect = DETECT), open());
    let (relay, mut left, _right) = by_relay(&a, &b);
    // Packets to the relay are read, and never answered.
    relay.cut();
    let (error, _) = end_of(&mut left);
    assert!(error.to_string().contains("nothing was heard"), "{error}");
}

#[test]
fn a_peer_of_this_host_that_reads_nothing_is_stopped_and_not_dead() {
    let ((_, a), (_, b)) = (open_with(|options| options.detect = DETECT), open());
    let (relay, mut left, mut right) = by_relay(&a, &b);
    relay.stop(true);
    let until = Instant::now() + 8 * DETECT;
    while Instant::now() < until {
        assert!(left.vi.arrival().expect("its process is there").is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    relay.stop(false);
    works(&mut left, &mut right);
}

#[test]
fn a_nic_that_is_closed_ends_its_connections_in_order_and_can_be_called_again() {
    let (_, a) = open();
    let (core_b, b) = open();
    let (mut left, mut right) = ends(&a, &b);
    connect(&mut left, &mut right);
    works(&mut left, &mut right);
    drop((right, b));
    assert!(matches!(end_of(&mut left).0, Error::Closed));
    drop(core_b);
    let (_, c) = open();
    let (mut left, mut right) = ends(&a, &c);
    connect(&mut left, &mut right);
    works(&mut left, &mut right);
}

/// A process is killed and another one of the job gets its address: the first packet to that address reveals it.
#[test]
fn a_process_that_takes_the_place_of_another_one_says_so_at_once() {
    for killed_calls in [false, true] {
        let never = |options: &mut crate::Options| options.detect = Duration::from_secs(3600);
        let ((_, a), (core_b, b)) = (open_with(never), open_with(never));
        let address = host_of(&b);
        // Without the relay, the kernel would report a closed port while there is no process.
        let relay = Relay::to(if killed_calls { &a } else { &b });
        let (mut left, mut right) = ends(&a, &b);
        if killed_calls {
            connect_by(&relay, &mut right, &mut left)
        } else {
            connect_by(&relay, &mut left, &mut right)
        }
        works(&mut left, &mut right);
        core_b.socket.fault.block_all(true);
        drop((right, b, core_b));
        let (_core_c, c) = open_again_at(address);
        left.vi.post_send(Descriptor::new([a.region(8, left.ptag).unwrap()])).unwrap();
        let (error, _) = end_of(&mut left);
        assert!(error.to_string().contains("does not know this connection"), "{error}");
        let (mut left, mut right) = ends(&a, &c);
        connect(&mut left, &mut right);
        works(&mut left, &mut right);
    }
}

fn host_of(nic: &Nic) -> std::net::SocketAddr {
    std::str::from_utf8(&nic.attributes().address).unwrap().parse().unwrap()
}

/// Opens a NIC at the address of another one, as soon as that NIC is gone.
fn open_again_at(address: std::net::SocketAddr) -> (Arc<Core>, Nic) {
    let limit = soon();
    loop {
        let mut options = crate::Options::new([7; 32]);
        (options.memory, options.bind) = (crate::Source::Fresh(8 << 20), address);
        match crate::device::open(&options) {
            Ok(device) => return (device.network().clone(), Nic::new(device)),
            Err(error) => assert!(!limit.passed(), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Messages that a VI has posted before it was closed are kept for a stopped peer, until the peer has read them.
#[test]
fn what_was_posted_to_a_stopped_peer_comes_although_its_vi_was_closed() {
    let ((_, a), (_, b)) = (open_with(|options| options.detect = DETECT), open());
    let (relay, mut left, mut right) = by_relay(&a, &b);
    relay.stop(true);
    left.vi.post_send(Descriptor::new([a.region(8, left.ptag).unwrap()])).unwrap();
    drop(left);
    let until = Instant::now() + 8 * DETECT;
    while Instant::now() < until {
        assert!(a.drain(Deadline::after(Duration::from_millis(50))).is_err(), "it was given up");
    }
    relay.stop(false);
    let limit = soon();
    while right.vi.arrival().expect("it comes before the end").is_none() {
        assert!(!limit.passed(), "it never came");
    }
    assert!(matches!(end_of(&mut right).0, Error::Closed));
    drop(right);
    a.drain(soon()).unwrap();
}

fn until_it_has_no_links(core: &Core) {
    let limit = soon();
    while core.has_links() {
        assert!(!limit.passed(), "a link is kept");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The peer's transport answers, its program does not.
#[test]
fn a_peer_that_answers_no_end_is_not_waited_for_without_end() {
    let ((core_a, a), (_, b)) = (open_with(|options| options.detect = DETECT), open());
    let (mut left, mut right) = ends(&a, &b);
    connect(&mut left, &mut right);
    works(&mut left, &mut right);
    drop(left);
    until_it_has_no_links(&core_a);
    drop(right);
}

/// Data that QUIC does not take any more, because the peer is stopped, do not keep the NIC's thread alive.
#[test]
fn a_nic_that_is_closed_forgets_a_stopped_peer() {
    let ((core_a, a), (_, b)) = (open_with(|options| options.detect = DETECT), open());
    let (relay, mut left, _right) = by_relay(&a, &b);
    relay.stop(true);
    left.vi.post_send(Descriptor::new([a.region(6 << 20, left.ptag).unwrap()])).unwrap();
    drop((left, a));
    until_it_has_no_links(&core_a);
}
