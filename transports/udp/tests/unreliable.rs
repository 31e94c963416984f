//! Unreliable VIs on real sockets, through a thread that loses, doubles and disorders a fifth of the datagrams each: what
//! arrives is whole, right, and there once; what does not is counted; and the connection stands.

mod common;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{Relay, Wild, seeds};
use udeck_session::address;
use udeck_udp::{Dropped, Options, Source};
use udeck_via::transport::Body;
use udeck_via::{
    Cq, Deadline, Descriptor, Error, Listener, NetAddress, Nic, Ptag, Receive, Reliability, Status, Vi,
    ViAttributes, Window,
};

struct End {
    nic: Nic,
    ptag: Ptag,
    cq: Cq,
    vi: Vi,
    dropped: Arc<Dropped>,
}

impl End {
    fn new(max_datagram: usize) -> Self {
        let mut options = Options::new([7; 32]);
        (options.memory, options.max_datagram) = (Source::Fresh(64 << 20), max_datagram);
        let nic = udeck_udp::open(&options).unwrap();
        let ptag = nic.ptag();
        let mut attributes = ViAttributes::new(ptag);
        (attributes.reliability, attributes.receive) = (Reliability::Unreliable, Receive::Lent);
        attributes.enable_rdma_write = true;
        let (cq, vi) = (Cq::new(&nic).unwrap(), Vi::new(&nic, attributes).unwrap());
        End { nic, ptag, cq, vi, dropped: options.dropped }
    }

    fn at(&self) -> SocketAddr {
        std::str::from_utf8(&self.nic.attributes().address).unwrap().parse().unwrap()
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Two ends; `a` has called `b` by way of `relay`.
fn connect(a: &mut End, b: &mut End, by: SocketAddr) {
    let listener = Listener::new(&b.nic, b"lossy").unwrap();
    let to = NetAddress { host: address::encode(by), discriminator: b"lossy".to_vec() };
    let cq = a.cq.handle();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| a.vi.connect(&to, &cq, &cq, b"", soon()));
        let request = listener.wait(soon()).unwrap();
        let cq = b.cq.handle();
        request.accept(&mut b.vi, &cq, &cq, b"").unwrap();
        asking.join().unwrap().unwrap();
    });
}

const LENGTHS: [usize; 8] = [0, 1, 48, 49, 1000, 3000, 9000, 60_000];

fn len_of(number: u32) -> usize {
    LENGTHS[(number.wrapping_mul(2_654_435_761) >> 16) as usize % LENGTHS.len()]
}

fn bytes_of(number: u32) -> Vec<u8> {
    (0..len_of(number)).map(|at| (at as u32 ^ (at as u32 >> 8) ^ number.wrapping_mul(101)) as u8).collect()
}

/// What lies at `end`: the immediate data of each, which say what it has to be.
fn take(end: &mut End, came: &mut HashSet<u32>, windows: &[Window]) -> bool {
    let Some(arrival) = end.vi.arrival().expect("the connection stands") else { return false };
    let number = arrival.immediate.expect("all have immediate data");
    let expected = bytes_of(number);
    match &arrival.body {
        Body::Inline(bytes) => assert_eq!(bytes.bytes(), expected),
        Body::Lent(head, lent) => {
            assert_eq!(head.bytes(), b"");
            assert!(lent.as_slice().unwrap() == expected, "message {number}, of {} bytes", expected.len());
        }
        Body::Written(len) => {
            let mut there = vec![0; *len];
            windows[number as usize % windows.len()].read(0, &mut there).unwrap();
            assert!(there == expected, "write {number}, of {len} bytes");
        }
    }
    assert!(came.insert(number), "{number} came twice");
    true
}

/// Messages, and writes into a window that no other write under way goes to.
fn exchange(wild: Wild, seed: u64, count: u32, max_datagram: usize) -> (usize, u64, u64) {
    let (mut a, mut b) = (End::new(max_datagram), End::new(max_datagram));
    let relay = Relay::new(b.at(), wild, seed);
    connect(&mut a, &mut b, relay.address());
    let windows: Vec<_> = (0..400).map(|_| b.nic.window(60_000, b.ptag).unwrap()).collect();
    let (mut came, deadline) = (HashSet::new(), soon());
    let mut done = 0;
    for number in 0..count {
        let bytes = bytes_of(number);
        let mut region = a.nic.region(bytes.len(), a.ptag).unwrap();
        region.copy_from_slice(&bytes);
        let mut descriptor = match number % 3 {
            0 => {
                let to = windows[number as usize % windows.len()].remote();
                Descriptor::rdma_write([region], to)
            }
            _ => Descriptor::new([region]),
        };
        descriptor = descriptor.immediate(number);
        while let Err((error, back)) = a.vi.post_send(descriptor) {
            assert!(matches!(error, Error::Full { .. }), "{error}");
            assert!(!deadline.passed(), "stuck at {number}: {} came", came.len());
            descriptor = back;
            while take(&mut b, &mut came, &windows) {}
            while let Some(completion) = a.vi.send_done() {
                assert_eq!(completion.status, Status::Done);
                done += 1;
            }
        }
    }
    // All that is still to come has come, or is known to be lost.
    while a.vi.unread().expect("the connection stands") > 0 {
        assert!(!deadline.passed(), "not all over: {} came", came.len());
        while take(&mut b, &mut came, &windows) {}
    }
    while done < count {
        assert_eq!(a.vi.send_wait(soon()).unwrap().status, Status::Done);
        done += 1;
    }
    assert!(a.vi.send_done().is_none());
    assert_eq!(came.len() as u64 + b.nic.messages_dropped(), count.into(), "arrived, or counted as lost");
    // The connection stands, and ends in order.
    a.vi.disconnect();
    let end = loop {
        match b.vi.arrival() {
            Err(end) => break end,
            Ok(_) => assert!(!deadline.passed(), "it never ends"),
        }
    };
    assert!(matches!(end, Error::Closed), "{end}");
    assert_eq!(b.nic.messages_dropped(), b.dropped.messages());
    (came.len(), b.dropped.messages(), relay.lost())
}

#[test]
fn on_a_wild_path_what_arrives_is_right_and_once() {
    seeds(3, |mut random| {
        let max_datagram = random.pick(&[1472, 8952]);
        let wild = Wild { lose: 0.2, double: 0.2, reorder: 0.2 };
        let (came, missed, lost) = exchange(wild, random.next(), 300, max_datagram);
        println!("{came} came, {missed} did not; {lost} datagrams were lost");
        assert!(lost > 0 && missed > 0 && came > 50, "{came} came, {missed} did not, {lost} were lost");
    });
}

#[test]
fn what_is_only_doubled_is_there_once() {
    let wild = Wild { lose: 0.0, double: 1.0, reorder: 0.0 };
    let (came, missed, _) = exchange(wild, 1, 600, 8952);
    assert_eq!((came, missed), (600, 0));
}

/// A receiver that takes nothing: the sender is stopped before it has sent what would have to be dropped.
#[test]
fn a_slow_receiver_is_not_overrun() {
    let (mut a, mut b) = (End::new(8952), End::new(8952));
    let at = b.at();
    connect(&mut a, &mut b, at);
    let mut posted = 0;
    loop {
        let region = a.nic.region(5000, a.ptag).unwrap();
        match a.vi.post_send(Descriptor::new([region]).immediate(posted)) {
            Ok(()) => posted += 1,
            Err((Error::Full { .. }, _)) => break,
            Err((error, _)) => panic!("{error}"),
        }
        while a.vi.send_done().is_some() {}
    }
    assert!((10..=2 * udeck_session::MESSAGES).contains(&posted), "{posted}");
    let deadline = soon();
    let mut came = 0;
    while came < posted {
        assert!(!deadline.passed(), "{came} of {posted} came");
        came += u32::from(b.vi.arrival().unwrap().is_some());
        while a.vi.send_done().is_some() {}
    }
    assert_eq!((b.dropped.messages(), b.dropped.datagrams()), (0, 0));
}
