//! What ICMP messages do to a NIC: anybody may send them, whatever they say. One ends a connection only if it says that
//! nobody is at the peer's port, comes from the peer's host, and quotes a datagram by what only the two ends can know.
//!
//! The forger needs raw sockets (`CAP_NET_RAW`); without them the tests are skipped, and say so.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use udeck_session::address;
use udeck_udp::{Options, Source};
use udeck_via::{
    Cq, Deadline, Descriptor, Listener, NetAddress, Nic, Ptag, Receive, Reliability, Vi, ViAttributes,
};

const A: Ipv4Addr = Ipv4Addr::new(127, 44, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(127, 44, 0, 2);
/// Somebody on the way, or elsewhere.
const C: Ipv4Addr = Ipv4Addr::new(127, 44, 0, 3);

const UNREACHABLE: u8 = 3;
const PORT: u8 = 3;
const TOO_BIG: u8 = 4;
/// Of an IP header without options, and of a UDP header.
const IP: usize = 20;
const UDP: usize = 8;
/// What hosts quote of a datagram at most, its headers included.
const QUOTE: usize = 548;

struct End {
    nic: Nic,
    ptag: Ptag,
    cq: Cq,
    vi: Vi,
}

impl End {
    fn new(at: Ipv4Addr) -> Self {
        let mut options = Options::new([7; 32]);
        (options.memory, options.bind) = (Source::Fresh(8 << 20), SocketAddrV4::new(at, 0).into());
        let nic = udeck_udp::open(&options).unwrap();
        let ptag = nic.ptag();
        let mut attributes = ViAttributes::new(ptag);
        (attributes.reliability, attributes.receive) = (Reliability::Delivery, Receive::Lent);
        let (cq, vi) = (Cq::new(&nic).unwrap(), Vi::new(&nic, attributes).unwrap());
        End { nic, ptag, cq, vi }
    }

    fn at(&self) -> SocketAddrV4 {
        std::str::from_utf8(&self.nic.attributes().address).unwrap().parse().unwrap()
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn to(at: SocketAddr) -> NetAddress {
    NetAddress { host: address::encode(at), discriminator: b"icmp".to_vec() }
}

/// `a` calls `b`, which accepts when `meanwhile` is over.
fn connect(a: &mut End, b: &mut End, meanwhile: impl FnOnce()) {
    let listener = Listener::new(&b.nic, b"icmp").unwrap();
    let (to, cq) = (to(b.at().into()), a.cq.handle());
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| a.vi.connect(&to, &cq, &cq, b"", soon()));
        let request = listener.wait(soon()).unwrap();
        meanwhile();
        let cq = b.cq.handle();
        request.accept(&mut b.vi, &cq, &cq, b"").expect("it still asks");
        asking.join().unwrap().expect("it still asks");
    });
}

fn works(a: &mut End, b: &mut End) {
    for len in [8, 5000] {
        let region = a.nic.region(len, a.ptag).unwrap();
        a.vi.post_send(Descriptor::new([region])).unwrap();
        let deadline = soon();
        while b.vi.arrival().expect("it stands").is_none() {
            assert!(!deadline.passed(), "{len} bytes never came");
        }
        a.vi.send_wait(soon()).unwrap();
    }
}

/// Who sends ICMP messages, and reads along.
struct Forger {
    /// What comes to B by UDP.
    ears: OwnedFd,
}

fn raw(protocol: rustix::net::Protocol, at: Ipv4Addr) -> Option<OwnedFd> {
    let socket = match rustix::net::socket(AddressFamily::INET, SocketType::RAW, Some(protocol)) {
        Ok(socket) => socket,
        Err(error) => {
            println!("skipped: needs raw sockets ({error})");
            return None;
        }
    };
    rustix::net::bind(&socket, &SocketAddrV4::new(at, 0)).unwrap();
    Some(socket)
}

impl Forger {
    fn new() -> Option<Self> {
        Some(Forger { ears: raw(ipproto::UDP, B)? })
    }

    /// An IP packet from one port to another that came last, of those that were sent so far.
    fn overheard(&self, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
        let mut buffer = vec![0; 65_536];
        let mut last = None;
        while let Ok((len, _, _)) = rustix::net::recvfrom(&self.ears, &mut buffer[..], RecvFlags::DONTWAIT) {
            let packet = &buffer[..len];
            if packet[IP..IP + 4] == [from.port().to_be_bytes(), to.port().to_be_bytes()].concat() {
                last = Some(packet[..len.min(QUOTE)].to_vec());
            }
        }
        last.expect("it has sent something")
    }

    /// Says to who sent the packet `quoted`, in the name of `by`, that it did not arrive.
    fn say(&self, by: Ipv4Addr, (kind, code): (u8, u8), mtu: u16, quoted: &[u8]) {
        let mouth = raw(ipproto::ICMP, by).unwrap();
        let mut message = [&[kind, code, 0, 0, 0, 0], &mtu.to_be_bytes()[..], quoted].concat();
        let sum = message
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| (*low).into()));
        let sum = sum.sum::<u32>();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let to = Ipv4Addr::new(quoted[12], quoted[13], quoted[14], quoted[15]);
        rustix::net::sendto(&mouth, &message, SendFlags::empty(), &SocketAddrV4::new(to, 0)).unwrap();
    }

    /// Everything that must have no effect, about a packet that was really sent.
    fn lie(&self, quoted: &[u8]) {
        // Who forwards it, or a filter: nothing of it says that the process is dead.
        for code in [0, 1, 2, 5, 9, 10, 13] {
            self.say(C, (UNREACHABLE, code), 0, quoted);
            self.say(B, (UNREACHABLE, code), 0, quoted);
        }
        for (kind, code) in [(11, 0), (11, 1), (12, 0), (4, 0)] {
            self.say(C, (kind, code), 0, quoted);
        }
        for mtu in [0, 68, 576, 1300, 1500, 65_535] {
            self.say(C, (UNREACHABLE, TOO_BIG), mtu, quoted);
        }
        // The port is the peer's host's business.
        self.say(C, (UNREACHABLE, PORT), 0, quoted);
        // Who does not see the packets can only guess what was in them.
        for known in [IP + UDP, IP + UDP + 8, IP + UDP + 15] {
            self.say(B, (UNREACHABLE, PORT), 0, &quoted[..known]);
        }
        for at in [8, 15] {
            let mut guessed = quoted.to_vec();
            guessed[IP + UDP + at] ^= 1;
            self.say(B, (UNREACHABLE, PORT), 0, &guessed);
        }
        let mut greeting = quoted[..IP + UDP + 16].to_vec();
        greeting[IP + UDP + 8..].fill(0);
        self.say(B, (UNREACHABLE, PORT), 0, &greeting);
    }
}

#[test]
fn what_icmp_says_ends_no_connection_unless_nobody_is_at_the_peers_port() {
    let Some(forger) = Forger::new() else { return };
    let (mut a, mut b) = (End::new(A), End::new(B));
    connect(&mut a, &mut b, || {});
    for _ in 0..5 {
        works(&mut a, &mut b);
        forger.lie(&forger.overheard(a.at(), b.at()));
        works(&mut a, &mut b);
        works(&mut b, &mut a);
    }
    let quoted = forger.overheard(a.at(), b.at());
    forger.say(B, (UNREACHABLE, PORT), 0, &quoted);
    let deadline = soon();
    let ended = loop {
        match a.vi.arrival() {
            Ok(_) => assert!(!deadline.passed(), "the kernel's word that nobody is there was not heard"),
            Err(error) => break error,
        }
    };
    assert!(ended.to_string().contains("nobody is there"), "{ended}");
}

#[test]
fn what_icmp_says_fails_no_call() {
    let Some(forger) = Forger::new() else { return };
    let (mut a, mut b) = (End::new(A), End::new(B));
    let (from, at) = (a.at(), b.at());
    connect(&mut a, &mut b, || {
        for _ in 0..5 {
            let quoted = forger.overheard(from, at);
            forger.lie(&quoted);
            // Right at the beginning, wrong where only the caller knows what it said.
            let mut guessed = quoted.clone();
            guessed[IP + UDP + 16..].iter_mut().for_each(|byte| *byte ^= 1);
            forger.say(B, (UNREACHABLE, PORT), 0, &guessed);
            forger.say(B, (UNREACHABLE, PORT), 0, &quoted[..IP + UDP + 16]);
            // Until it has asked again: errors that wait at its socket are told then.
            let again = soon();
            while !heard_again(&forger, from, at) {
                assert!(!again.passed(), "it does not ask any more");
                std::thread::sleep(Duration::from_millis(5));
            }
            forger.lie(&quoted);
        }
    });
    works(&mut a, &mut b);
}

fn heard_again(forger: &Forger, from: SocketAddrV4, to: SocketAddrV4) -> bool {
    let mut buffer = vec![0; 65_536];
    let peek = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    while let Ok((len, _, _)) = rustix::net::recvfrom(&forger.ears, &mut buffer[..], peek) {
        if buffer[..len][IP..IP + 4] == ports {
            return true;
        }
        let _ = rustix::net::recvfrom(&forger.ears, &mut buffer[..], RecvFlags::DONTWAIT);
    }
    false
}

#[test]
fn who_calls_where_nobody_is_learns_it_from_the_kernel() {
    let mut a = End::new(A);
    // A port that was free a moment ago.
    let free = UdpSocket::bind((B, 0)).unwrap().local_addr().unwrap();
    let cq = a.cq.handle();
    let error = a.vi.connect(&to(free), &cq, &cq, b"", soon()).expect_err("nobody is there");
    assert!(error.to_string().contains("nobody is"), "{error}");
}

#[test]
fn a_flood_of_icmp_keeps_no_call_from_returning() {
    let Some(forger) = Forger::new() else { return };
    let (mut a, mut b) = (End::new(A), End::new(B));
    connect(&mut a, &mut b, || {});
    works(&mut a, &mut b);
    let mut quoted = forger.overheard(a.at(), b.at());
    // Of another connection of that peer.
    quoted[IP + UDP + 8] ^= 1;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                forger.say(B, (UNREACHABLE, PORT), 0, &quoted);
            }
        });
        let _stop = Stop(&over);
        for _ in 0..100 {
            a.cq.wait(Deadline::after(Duration::from_millis(1)), || false);
            works(&mut a, &mut b);
        }
    });
}

/// Ends the flood, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
