//! Two connected VIs on a fabric, driven by one thread.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::mpsc;
use std::time::Duration;

use udeck_sim::trace::Happening;
use udeck_sim::{Fabric, Options};
use udeck_via::mem::Fill;
use udeck_via::transport::Body;
use udeck_via::{
    Cq, Deadline, Descriptor, Error, Listener, NetAddress, Receive, Reliability, State, Status, Vi,
    ViAttributes,
};

pub const MILLISECOND: Duration = Duration::from_millis(1);

/// Deadline of every wait, as a safety net.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Counts the recorded events that match `what`.
pub fn happened(fabric: &Fabric, what: impl Fn(Happening) -> bool) -> usize {
    fabric.trace().iter().filter(|event| what(event.what)).count()
}

/// Two connected VIs: `a` requested, `b` accepted. Both receive lent, and allow RDMA. Messages carry their number as
/// immediate data.
pub struct Pair {
    pub a: Vi,
    pub b: Vi,
    pub a_cq: Cq,
    pub b_cq: Cq,
}

impl Pair {
    /// Makes NICs `a` and `b` on perfect links, and starts the trace before they connect.
    pub fn new(seed: u64, reliability: Reliability) -> (Fabric, Self) {
        let fabric = Fabric::new(seed);
        fabric.record_trace();
        let [a, b] = ["a", "b"].map(|name| fabric.nic(name, Options::default()).expect("the name is free"));
        let vi = |nic: &udeck_via::Nic| {
            let attributes = ViAttributes {
                receive: Receive::Lent,
                reliability,
                enable_rdma_write: true,
                enable_rdma_read: true,
                ..ViAttributes::new(nic.ptag())
            };
            Vi::new(nic, attributes).expect("a VI")
        };
        let (mut asker, mut answerer) = (vi(&a), Some(vi(&b)));
        let (a_cq, b_cq) = (Cq::new(&a).expect("a queue"), Cq::new(&b).expect("a queue"));
        let (give, take) = mpsc::channel();
        let handle = b_cq.handle();
        let listener = Listener::with_handler(&b, b"pair", move |request| {
            let mut vi = answerer.take().expect("asked once");
            request.accept(&mut vi, &handle, &handle, b"").expect("accepted");
            give.send(vi).expect("awaited");
        });
        let listener = listener.expect("nobody else listens there");
        let to = NetAddress { host: b"b".to_vec(), discriminator: b"pair".to_vec() };
        let cq = a_cq.handle();
        asker.connect(&to, &cq, &cq, b"", soon()).expect("connected");
        drop(listener);
        (fabric, Pair { a: asker, b: take.recv().expect("accepted"), a_cq, b_cq })
    }

    /// Sends a message inline.
    pub fn send(&mut self, number: u32) {
        self.a.send_inline(Some(number), b"", &body(number, 8)).expect("there is room");
    }

    /// Sends a message by hand-off.
    pub fn hand_off(&mut self, number: u32, len: usize) {
        let mut block = self.a.nic().outbox().block(len, Fill::Keep).expect("memory");
        block.bytes_mut().copy_from_slice(&body(number, len));
        self.a.hand_off(Some(number), b"", block).expect("there is room");
    }

    /// Posts a send descriptor with message `number`.
    pub fn post_numbered(&mut self, number: u32, len: usize) {
        let mut region = self.a.nic().region(len, self.a.attributes().ptag).expect("memory");
        region.copy_from_slice(&body(number, len));
        self.a.post_send(Descriptor::new([region]).immediate(number)).expect("there is room");
    }

    /// Returns the status of the next completed send of `a`.
    pub fn end_of_send(&mut self) -> Status {
        self.a.send_wait(soon()).expect("every send is reported").status
    }

    /// Posts a send descriptor with `bytes`.
    pub fn post(&mut self, bytes: &[u8]) {
        let mut region = self.a.nic().region(bytes.len(), self.a.attributes().ptag).expect("memory");
        region.copy_from_slice(bytes);
        self.a.post_send(Descriptor::new([region])).expect("there is room");
    }

    /// Returns the numbers of all messages that have come to `b`, and checks their contents.
    pub fn numbers(&mut self) -> Vec<u32> {
        let arrivals = std::iter::from_fn(|| self.b.arrival().expect("the connection stands"));
        let number = |arrival: udeck_via::Arrival| {
            let number = arrival.immediate.expect("all have one");
            match &arrival.body {
                Body::Inline(bytes) => assert_eq!(bytes.bytes(), body(number, bytes.bytes().len())),
                Body::Lent(_, lent) => assert_eq!(lent.as_slice().unwrap(), body(number, lent.len())),
                Body::Written(_) => panic!("nothing is written here"),
            }
            number
        };
        arrivals.map(number).collect()
    }

    /// Asserts that both ends have learnt why their connection is lost.
    pub fn assert_lost(&mut self, why: &str) {
        for vi in [&mut self.a, &mut self.b] {
            let error = vi.arrival().unwrap_err();
            assert!(matches!(&error, Error::Lost(words) if words.contains(why)), "{error}");
            assert_eq!(vi.state(), State::Error);
        }
    }
}

/// Returns the contents of message `number`.
pub fn body(number: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32 ^ number.wrapping_mul(31)) as u8).collect()
}
