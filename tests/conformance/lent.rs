//! Two ends that receive lent: the transports' own tests of failures connect them.

use std::time::Duration;

use udeck_via::{Arrival, Cq, Deadline, Error, Listener, NetAddress, Nic, Receive, Result, Vi, ViAttributes};

use crate::kit::soon;

/// A VI that receives lent, and its completion queue.
pub struct LentEnd {
    /// The VI of this end.
    pub vi: Vi,
    /// Completion queue of both work queues.
    pub cq: Cq,
}

impl LentEnd {
    /// An idle end on `nic`.
    pub fn new(nic: &Nic) -> Self {
        let attributes = ViAttributes { receive: Receive::Lent, ..ViAttributes::new(nic.ptag()) };
        LentEnd { vi: Vi::new(nic, attributes).unwrap(), cq: Cq::new(nic).unwrap() }
    }

    /// Connects to a listener.
    pub fn connect(&mut self, to: &NetAddress) -> Result<Vec<u8>> {
        let cq = self.cq.handle();
        self.vi.connect(to, &cq, &cq, b"", soon())
    }

    /// Accepts the listener's next request.
    pub fn accept(&mut self, listener: &Listener) {
        let cq = self.cq.handle();
        listener.wait(soon()).unwrap().accept(&mut self.vi, &cq, &cq, b"").unwrap();
    }

    /// Waits for the next arrival, or the end of the connection.
    pub fn arrival(&mut self) -> Result<Arrival> {
        let deadline = soon();
        loop {
            if let Some(arrival) = self.vi.arrival()? {
                return Ok(arrival);
            }
            assert!(!deadline.passed(), "nothing came");
            self.cq.wait(Deadline::after(Duration::from_millis(100)), || false);
        }
    }

    /// Waits for the end of the connection, after all arrivals before it.
    pub fn end(&mut self) -> Error {
        loop {
            if let Err(end) = self.arrival() {
                return end;
            }
        }
    }
}

/// A listener of `nic`, and its address.
pub fn listen(nic: &Nic) -> (Listener, NetAddress) {
    let host = nic.attributes().address.clone();
    (Listener::new(nic, b"door").unwrap(), NetAddress { host, discriminator: b"door".to_vec() })
}

/// Makes two connected ends on two NICs.
pub fn pair(a: &Nic, b: &Nic) -> (LentEnd, LentEnd) {
    let (listener, to) = listen(b);
    let (mut left, mut right) = (LentEnd::new(a), LentEnd::new(b));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| left.connect(&to));
        right.accept(&listener);
        asking.join().unwrap().unwrap();
    });
    (left, right)
}

/// Checks that a message goes to the other end and back.
pub fn check(left: &mut LentEnd, right: &mut LentEnd) {
    let one_way = |from: &mut LentEnd, to: &mut LentEnd| {
        from.vi.send_inline(Some(7), b"", b"works").unwrap();
        assert_eq!(to.arrival().unwrap().immediate, Some(7));
    };
    one_way(left, right);
    one_way(right, left);
}
