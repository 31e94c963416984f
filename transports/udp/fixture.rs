//! Test fixture: connections within one process.

use std::sync::Arc;
use std::time::Duration;

use udeck_via::transport::Body;
use udeck_via::{
    Cq, Deadline, Descriptor, Listener, NetAddress, Nic, Ptag, Receive, Reliability, Vi, ViAttributes,
};

use crate::core::Core;
use crate::{Options, Source, device};

/// Bytes of a long message. Each of its bytes is the lowest 8 bits of its number.
pub const LONG: usize = 20_000;

/// Opens a NIC with little memory. Returns its `Core`, too.
pub fn open() -> (Arc<Core>, Nic) {
    open_with(|_| {})
}

/// Opens a NIC as [`open`], with changed options.
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

/// Deadline that ends a hang; nothing takes so long.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

pub fn connect(a: &mut End, b: &mut End) {
    let host = b.nic.attributes().address.clone();
    connect_to(a, b, host, b"here");
}

/// Connects `a` to `b`, which listens under `name` and is called at the address `host`.
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

/// Asserts that a connection works: sends a short message, and one of several datagrams.
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
