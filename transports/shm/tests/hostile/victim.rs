//! The NIC under attack, and an honest peer of it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use udeck_sys::Deadline;
use udeck_sys::reactor::Reactor;
use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body};
use udeck_via::{Cq, Listener, NetAddress, Nic, Receive, Request, Vi, ViAttributes};

use crate::Options;

pub const SECRET: [u8; 32] = [7; 32];
pub const NAME: &[u8] = b"victim";
const ARENA: usize = 8 << 20;

/// Deadline that ends a hang.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// A NIC that accepts connections, and one connection to it that behaves.
pub struct Victim {
    pub nic: Nic,
    pub cq: Cq,
    listener: Listener,
    honest: Honest,
    _alone: MutexGuard<'static, ()>,
}

struct Honest {
    _nic: Nic,
    _queues: [Cq; 2],
    theirs: Vi,
    ours: Vi,
}

pub fn nic() -> Nic {
    let mut options = Options::new(SECRET);
    options.arena_limit = ARENA;
    crate::open(options, Arc::new(Reactor::start("hostile").unwrap())).unwrap()
}

pub fn vi(nic: &Nic) -> Vi {
    let mut attributes = ViAttributes::new(nic.ptag());
    attributes.receive = Receive::Lent;
    attributes.enable_rdma_write = true;
    Vi::new(nic, attributes).unwrap()
}

impl Victim {
    /// Opens the NIC. Only one victim exists at a time: the tests count this process's descriptors.
    pub fn new() -> Self {
        Victim::with(|nic| nic)
    }

    /// Opens the NIC, after `changed` was applied to it.
    pub fn with(changed: impl FnOnce(Nic) -> Nic) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock();
        let nic = changed(nic());
        let listener = Listener::new(&nic, NAME).unwrap();
        let cq = Cq::new(&nic).unwrap();
        let honest = Honest::new(&nic, &listener);
        Victim { nic, cq, listener, honest, _alone: alone }
    }

    pub fn address(&self) -> &[u8] {
        &self.nic.attributes().address
    }

    /// Accepts the next connection request with a VI of this context.
    pub fn accept(&self, context: u64) -> Vi {
        let mut vi = vi(&self.nic);
        vi.set_attributes(ViAttributes { context, ..*vi.attributes() }).unwrap();
        self.accept_by(vi)
    }

    /// Accepts the next connection request with this VI.
    pub fn accept_by(&self, mut vi: Vi) -> Vi {
        let request = self.next_request();
        request.accept(&mut vi, &self.cq.handle(), &self.cq.handle(), &[]).unwrap();
        vi
    }

    /// Returns the next connection request, not answered yet.
    pub fn next_request(&self) -> Request {
        self.listener.wait(soon()).unwrap()
    }

    /// Asserts that the honest connection still carries messages, both ways.
    pub fn serves_the_honest(&mut self, number: u64) {
        let Honest { theirs, ours, .. } = &mut self.honest;
        exchange(theirs, ours, number);
        exchange(ours, theirs, number);
    }
}

/// Sends one message and checks its arrival.
fn exchange(from: &mut Vi, to: &mut Vi, number: u64) {
    let mut block = from.nic().outbox().block(5000, Fill::Keep).unwrap();
    block.bytes_mut().chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&number.to_le_bytes()));
    from.hand_off(None, b"honest", block).unwrap();
    let arrival = to.arrival().unwrap().expect("what was posted is there");
    let Arrival { body: Body::Lent(head, lent), .. } = arrival else { panic!("{arrival:?}") };
    assert_eq!((head.bytes(), lent.len()), (&b"honest"[..], 5000));
    assert!(lent.as_slice().unwrap().chunks_exact(8).all(|word| word == number.to_le_bytes()));
    drop(lent);
    from.reclaim();
}

impl Honest {
    fn new(nic: &Nic, listener: &Listener) -> Self {
        let theirs_nic = self::nic();
        let queues = [Cq::new(&theirs_nic).unwrap(), Cq::new(nic).unwrap()];
        let (mut theirs, mut ours) = (vi(&theirs_nic), vi(nic));
        let to = NetAddress { host: nic.attributes().address.clone(), discriminator: NAME.to_vec() };
        let [their_queue, our_queue] = [queues[0].handle(), queues[1].handle()];
        std::thread::scope(|scope| {
            scope.spawn(|| theirs.connect(&to, &their_queue, &their_queue, &[], soon()).unwrap());
            let request = listener.wait(soon()).unwrap();
            request.accept(&mut ours, &our_queue, &our_queue, &[]).unwrap();
        });
        Honest { _nic: theirs_nic, _queues: queues, theirs, ours }
    }
}

/// Counts the descriptors of this process.
pub fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until at most `before` descriptors are left: the reactor closes them.
pub fn await_descriptors(before: usize) {
    let deadline = soon();
    while descriptors() > before {
        assert!(!deadline.passed(), "{} descriptors, were {before}", descriptors());
        std::thread::yield_now();
    }
}
