//! Connections of one process, for tests.

use std::sync::Arc;
use std::time::Duration;

use udeck_via::transport::Body;
use udeck_via::{
    Cq, Deadline, Descriptor, Listener, NetAddress, Nic, Ptag, Receive, Reliability, Vi, ViAttributes,
};

use crate::core::Core;
use crate::{Options, Source, device};

/// Bytes of a long message, which is full of its lowest 8 bits.
pub const LONG: usize = 20_000;

/// A NIC with little memory, and what its objects share.
pub fn open() -> (Arc<Core>, Nic) {
    open_with(|_| {})
}

/// As [`open`], with options that are not the usual ones.
pub fn open_with(change: impl FnOnce(&mut Options)) -> (Arc<Core>, Nic) {
    let mut options = Options::new([7; 32]);
    options.memory = Source::Fresh(8 << 20);
    change(&mut options);
    let device = device::open(&options).unwrap();
    (device.network().clone(), Nic::new(device))
}

/// One side of a connection.
pub struct End {
    pub nic: Nic,
    pub ptag: Ptag,
    pub cq: Cq,
    pub vi: Vi,
}

impl End {
    pub fn new(nic: &Nic, reliability: Reliability) -> Self {
        let ptag = nic.ptag();
        let mut attributes = ViAttributes::new(ptag);
        (attributes.reliability, attributes.receive) = (reliability, Receive::Lent);
        attributes.enable_rdma_write = true;
        let (cq, vi) = (Cq::new(nic).unwrap(), Vi::new(nic, attributes).unwrap());
        End { nic: nic.clone(), ptag, cq, vi }
    }
}

/// Ends a hang; nothing takes so long.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

pub fn connect(a: &mut End, b: &mut End) {
    let host = b.nic.attributes().address.clone();
    connect_to(a, b, host, b"here");
}

/// Connects `a` to `b`, which listens under this name, and is called at this address.
pub fn connect_to(a: &mut End, b: &mut End, host: Vec<u8>, name: &[u8]) {
    let listener = Listener::new(&b.nic, name).unwrap();
    let to = NetAddress { host, discriminator: name.to_vec() };
    let cq = a.cq.handle();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| a.vi.connect(&to, &cq, &cq, b"", soon()));
        let cq = b.cq.handle();
        listener.wait(soon()).unwrap().accept(&mut b.vi, &cq, &cq, b"").unwrap();
        asking.join().unwrap().unwrap();
    });
}

/// A connection works: a short message, and one of several datagrams.
pub fn works(a: &mut End, b: &mut End) {
    for len in [8, LONG] {
        let mut region = a.nic.region(len, a.ptag).unwrap();
        region.fill(len as u8);
        a.vi.post_send(Descriptor::new([region])).unwrap();
        let deadline = soon();
        let arrival = loop {
            if let Some(arrival) = b.vi.arrival().expect("it stands") {
                break arrival;
            }
            assert!(!deadline.passed(), "{len} bytes never came");
        };
        let whole = |bytes: &[u8]| bytes.len() == len && bytes.iter().all(|byte| *byte == len as u8);
        assert!(match &arrival.body {
            Body::Inline(bytes) => whole(bytes.bytes()),
            Body::Lent(_, lent) => whole(lent.as_slice().unwrap()),
            Body::Written(_) => false,
        });
        a.vi.send_wait(soon()).unwrap();
    }
}
