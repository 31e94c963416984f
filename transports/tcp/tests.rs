//! What the conformance suite cannot ask: strangers at the door, peers that are killed, stopped, or lie.

mod ends;
mod idle;
mod killed;

mod owner;
mod panics;
mod rogue;
mod send_blocked;
mod strangers;

use std::time::Duration;

use udeck_via::{Arrival, Cq, Deadline, Error, Listener, NetAddress, Nic, Receive, Vi, ViAttributes};

use crate::{Options, Source};

const SECRET: [u8; 32] = [0x5a; 32];

/// Long enough that only a lost event gets here.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn nic() -> Nic {
    nic_with(|_| {})
}

fn nic_with(settings: impl FnOnce(&mut Options)) -> Nic {
    let mut options = options();
    settings(&mut options);
    crate::open(options).expect("the NIC opens")
}

fn options() -> Options {
    Options { memory: Source::Fresh(64 << 20), ..Options::new(SECRET) }
}

/// A VI that receives lent, and its completion queue.
struct End {
    vi: Vi,
    cq: Cq,
}

impl End {
    fn new(nic: &Nic) -> Self {
        let attributes = ViAttributes { receive: Receive::Lent, ..ViAttributes::new(nic.ptag()) };
        End { vi: Vi::new(nic, attributes).unwrap(), cq: Cq::new(nic).unwrap() }
    }

    fn connect(&mut self, to: &NetAddress) -> udeck_via::Result<Vec<u8>> {
        let cq = self.cq.handle();
        self.vi.connect(to, &cq, &cq, b"", soon())
    }

    fn accept(&mut self, listener: &Listener) {
        let cq = self.cq.handle();
        listener.wait(soon()).unwrap().accept(&mut self.vi, &cq, &cq, b"").unwrap();
    }

    /// The next arrival, or the end of the connection.
    fn next(&mut self) -> udeck_via::Result<Arrival> {
        let deadline = soon();
        loop {
            if let Some(arrival) = self.vi.arrival()? {
                return Ok(arrival);
            }
            assert!(!deadline.passed(), "nothing came");
            self.cq.wait(Deadline::after(Duration::from_millis(100)), || false);
        }
    }

    fn end(&mut self) -> Error {
        loop {
            if let Err(end) = self.next() {
                return end;
            }
        }
    }
}

fn door(nic: &Nic) -> (Listener, NetAddress) {
    let host = nic.attributes().address.clone();
    (Listener::new(nic, b"door").unwrap(), NetAddress { host, discriminator: b"door".to_vec() })
}

/// Two connected ends of two NICs.
fn pair(a: &Nic, b: &Nic) -> (End, End) {
    let (listener, to) = door(b);
    let (mut left, mut right) = (End::new(a), End::new(b));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| left.connect(&to));
        right.accept(&listener);
        asking.join().unwrap().unwrap();
    });
    (left, right)
}

/// A message goes there and back.
fn check(left: &mut End, right: &mut End) {
    let one_way = |from: &mut End, to: &mut End| {
        from.vi.send_inline(Some(7), b"", b"works").unwrap();
        assert_eq!(to.next().unwrap().immediate, Some(7));
    };
    one_way(left, right);
    one_way(right, left);
}
