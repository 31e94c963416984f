//! What cases are made of: two NICs, a VI on each, and the usual moves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use udeck_via::{
    Block, Completion, Cq, Deadline, Descriptor, Error, Listener, NetAddress, Nic, Ptag, Receive, Region,
    Reliability, RemoteBuffer, Request, Segment, State, Status, Vi, ViAttributes, mem,
};

use crate::{Fabric, Options};

/// The safety net of every wait: long enough that only a lost event gets here.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_millis(PATIENCE_MS.load(Ordering::Relaxed)))
}

static PATIENCE_MS: AtomicU64 = AtomicU64::new(60_000);

/// How long [`soon`] is from now on, and how long it was (60 seconds, unless set). For who expects the net to be used:
/// what shows that a case fails need not wait as long as what shows that it passes.
pub fn set_patience(patience: Duration) -> Duration {
    Duration::from_millis(PATIENCE_MS.swap(patience.as_millis() as u64, Ordering::Relaxed))
}

/// A deadline for what must not happen.
pub fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(30))
}

/// Looks again and again until there is something.
///
/// # Panics
/// When nothing comes.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = soon();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(!deadline.passed(), "{what}: never happened");
        thread::yield_now();
    }
}

/// `len` bytes that differ by position and by `seed`.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(101)) as u8).collect()
}

/// Asserts that `bytes` are `expected`; says where they differ first, not all of them.
///
/// # Panics
/// When they are not.
#[track_caller]
pub fn assert_bytes(bytes: &[u8], expected: &[u8]) {
    assert_eq!(bytes.len(), expected.len(), "lengths");
    if let Some(at) = (0..bytes.len()).find(|&at| bytes[at] != expected[at]) {
        panic!("byte {at} of {}: {:#04x} instead of {:#04x}", bytes.len(), bytes[at], expected[at]);
    }
}

/// Where `discriminator` of `nic` is.
pub fn address(nic: &Nic, discriminator: &[u8]) -> NetAddress {
    NetAddress { host: nic.attributes().address.clone(), discriminator: discriminator.to_vec() }
}

/// One side of a connection: a NIC, a VI, and one completion queue for both of its work queues.
pub struct End {
    /// Its NIC.
    pub nic: Nic,
    /// The tag of its memory.
    pub ptag: Ptag,
    /// Where its work queues report.
    pub cq: Cq,
    /// Its VI.
    pub vi: Vi,
}

impl End {
    /// An idle end on `nic`, whose VI is as `settings` leaves it.
    pub fn new(nic: &Nic, settings: impl FnOnce(&mut ViAttributes)) -> Self {
        let ptag = nic.ptag();
        let mut attributes = ViAttributes::new(ptag);
        settings(&mut attributes);
        let cq = Cq::new(nic).expect("a completion queue");
        End { nic: nic.clone(), ptag, cq, vi: Vi::new(nic, attributes).expect("a VI") }
    }

    /// Asks for a connection, with this end's completion queue.
    pub fn connect(&mut self, to: &NetAddress, private_data: &[u8]) -> udeck_via::Result<Vec<u8>> {
        let cq = self.cq.handle();
        self.vi.connect(to, &cq, &cq, private_data, soon())
    }

    /// Answers a request, with this end's completion queue.
    pub fn accept(&mut self, request: Request, private_data: &[u8]) -> udeck_via::Result {
        let cq = self.cq.handle();
        request.accept(&mut self.vi, &cq, &cq, private_data)
    }

    /// A region that holds `bytes`.
    pub fn region(&self, bytes: &[u8]) -> Region {
        let mut region = self.nic.region(bytes.len(), self.ptag).expect("a region");
        region.copy_from_slice(bytes);
        region
    }

    /// A block that holds `bytes`, for hand-off.
    pub fn block(&self, bytes: &[u8]) -> Block {
        let arena = self.nic.outbox();
        let mut block = arena.block(bytes.len(), mem::Fill::Keep).expect("a block");
        block.bytes_mut().copy_from_slice(bytes);
        block
    }

    /// Posts a receive of one segment of `len` bytes.
    pub fn post_receive(&mut self, len: usize) {
        let region = self.nic.region(len, self.ptag).expect("a region");
        self.vi.post_receive(Descriptor::new([region])).expect("a receive is taken");
    }

    /// Posts a send of one segment.
    pub fn post_send(&mut self, bytes: &[u8]) {
        let descriptor = Descriptor::new([self.region(bytes)]);
        self.vi.post_send(descriptor).expect("a send is taken");
    }

    /// Waits for a send and expects it to be done.
    pub fn sent(&mut self) -> Completion {
        let completion = self.vi.send_wait(soon()).expect("a completion");
        assert_eq!(completion.status, Status::Done);
        completion
    }

    /// Waits for a receive and expects it to be done: its bytes.
    pub fn received(&mut self) -> Vec<u8> {
        let completion = self.vi.receive_wait(soon()).expect("a completion");
        assert_eq!(completion.status, Status::Done);
        contents(&completion)
    }

    /// Waits for an arrival on a VI that receives lent.
    pub fn arrival(&mut self) -> udeck_via::Arrival {
        until("an arrival", || self.vi.arrival().expect("the connection stands"))
    }

    /// Sends until the connection has ended: how it did. Nobody reads, so the connection may be full before word of its end
    /// has come from the peer: [`Error::Full`] is no end.
    pub fn learns_of_the_end(&mut self) -> Error {
        until("the sender learns of the end", || match self.vi.send_inline(None, b"", b"") {
            Ok(()) | Err(Error::Full { .. }) => None,
            Err(error) => Some(error),
        })
    }

    /// Takes news until there are none, so that the next is new.
    pub fn drain_news(&mut self) {
        while self.cq.poll().is_some() {}
    }
}

/// The bytes that a receive put into its segments.
pub fn contents(completion: &Completion) -> Vec<u8> {
    let descriptor = completion.descriptor.as_ref().expect("posted with a descriptor");
    let mut bytes: Vec<u8> = descriptor.segments().iter().flat_map(Segment::bytes).copied().collect();
    bytes.truncate(completion.length);
    bytes
}

/// The memory of a descriptor that came back.
pub fn regions(descriptor: Descriptor) -> Vec<Region> {
    descriptor.into_segments().into_iter().map(Segment::into_region).collect()
}

/// Two NICs of one job.
pub fn nics(fabric: &dyn Fabric) -> (Nic, Nic) {
    (fabric.open(&Options::default()), fabric.open(&Options::default()))
}

/// How RDMA ends that is not allowed.
const FORBIDDEN: &[Status] = &[Status::RdmaProtectionError];

/// Two connected ends, on NICs of their own.
pub struct Pair {
    /// The side that connected.
    pub a: End,
    /// The side that accepted.
    pub b: End,
}

impl Pair {
    /// Both receive into posted descriptors.
    pub fn posted(fabric: &dyn Fabric) -> Self {
        Pair::with(fabric, &Options::default(), |_| {})
    }

    /// Both receive lent.
    pub fn lent(fabric: &dyn Fabric) -> Self {
        Pair::with(fabric, &Options::default(), |attributes| attributes.receive = Receive::Lent)
    }

    /// Both VIs are as `settings` leaves them.
    pub fn with(fabric: &dyn Fabric, options: &Options, settings: impl Fn(&mut ViAttributes)) -> Self {
        let mut pair = Pair::idle(fabric, options, settings);
        pair.connect();
        pair
    }

    /// Not connected yet.
    pub fn idle(fabric: &dyn Fabric, options: &Options, settings: impl Fn(&mut ViAttributes)) -> Self {
        let (a, b) = (fabric.open(options), fabric.open(options));
        Pair { a: End::new(&a, &settings), b: End::new(&b, &settings) }
    }

    /// `a` connects to `b`.
    pub fn connect(&mut self) {
        Door::new(&self.b.nic, b"pair").join(&mut self.a, &mut self.b);
    }

    /// `a` writes to where `b` does not let it: as [`Pair::forbidden`], but below reliable reception the data may have left.
    pub fn forbidden_write(&mut self, bytes: &[u8], to: RemoteBuffer) {
        let write = Descriptor::rdma_write([self.a.region(bytes)], to);
        let has_left = self.a.vi.attributes().reliability != Reliability::Reception;
        self.forbidden(
            write,
            if has_left { &[Status::Done, Status::RdmaProtectionError] } else { FORBIDDEN },
        );
    }

    /// `a` reads what `b` does not let it: as [`Pair::forbidden`].
    pub fn forbidden_read(&mut self, len: usize, from: RemoteBuffer) {
        let read = Descriptor::rdma_read([self.a.region(&vec![0xcc; len])], from);
        self.forbidden(read, FORBIDDEN);
    }

    /// `a` posts RDMA that `b` does not allow. Where the sender can look, the post is refused, and all goes on. Where only
    /// the target can, the descriptor ends as one of `ends`, and a reliable connection breaks: then both connect again.
    pub fn forbidden(&mut self, descriptor: Descriptor, ends: &[Status]) {
        let bytes = |descriptor: &Descriptor| -> Vec<u8> {
            descriptor.segments().iter().flat_map(Segment::bytes).copied().collect()
        };
        let before = bytes(&descriptor);
        let (refusal, back) = match self.a.vi.post_send(descriptor) {
            Err((error, back)) => (Some(error), back),
            Ok(()) => {
                let ended = self.a.vi.send_wait(soon()).expect("every send is reported");
                assert!(ends.contains(&ended.status), "RDMA that is not allowed ended as {:?}", ended.status);
                (None, ended.descriptor.expect("posted with a descriptor"))
            }
        };
        assert!(bytes(&back) == before, "the memory comes back untouched");
        match refusal {
            Some(error) => {
                assert!(matches!(error, Error::RdmaProtection { .. }), "{error}");
                assert_eq!((self.a.vi.state(), self.b.vi.state()), (State::Connected, State::Connected));
            }
            None if self.a.vi.attributes().reliability == Reliability::Unreliable => {}
            None => self.mend(),
        }
    }

    /// Waits until the connection has broken, and makes another.
    pub fn mend(&mut self) {
        for vi in [&mut self.a.vi, &mut self.b.vi] {
            until("the connection breaks at both ends", || {
                let _ = match vi.attributes().receive {
                    Receive::Posted => vi.receive_done().is_some(),
                    Receive::Lent => vi.arrival().is_ok(),
                };
                (vi.state() == State::Error).then_some(())
            });
        }
        for vi in [&mut self.a.vi, &mut self.b.vi] {
            vi.disconnect();
            while vi.receive_done().is_some() {}
        }
        self.connect();
    }

    /// Returns when what `a` has posted before is in place at `b`, which has no receive posted.
    pub fn settle(&mut self) {
        self.b.post_receive(0);
        self.a.post_send(b"");
        assert!(self.b.received().is_empty());
        self.a.sent();
    }

    /// `a` sends, `b` receives: the connection works.
    pub fn check(&mut self) {
        let bytes = pattern(77, 1000);
        self.b.post_receive(bytes.len());
        self.a.post_send(&bytes);
        assert_bytes(&self.b.received(), &bytes);
        self.a.sent();
    }
}

/// A listener, and where it is.
pub struct Door {
    /// Takes the requests.
    pub listener: Listener,
    /// For those who ask.
    pub address: NetAddress,
}

impl Door {
    /// Listens at `discriminator`.
    pub fn new(nic: &Nic, discriminator: &[u8]) -> Self {
        let listener = Listener::new(nic, discriminator).expect("nobody else listens there");
        Door { listener, address: address(nic, discriminator) }
    }

    /// `end` asks, `answer` answers: what both got.
    pub fn ask<T>(
        &self,
        end: &mut End,
        private_data: &[u8],
        answer: impl FnOnce(Request) -> T,
    ) -> (udeck_via::Result<Vec<u8>>, T) {
        thread::scope(|scope| {
            let asker = scope.spawn(|| end.connect(&self.address, private_data));
            let answered = answer(self.listener.wait(soon()).expect("a request"));
            (asker.join().expect("no panic"), answered)
        })
    }

    /// A request of `end` that has come, and that its maker has given up. How long that takes depends on the machine: so
    /// each is given more time than the one before, until one has come.
    pub fn stale(&self, end: &mut End) -> Request {
        let (net, cq) = (soon(), end.cq.handle());
        let mut patience = Duration::from_millis(10);
        for attempt in 0u64.. {
            let number = attempt.to_le_bytes();
            let asked = end.vi.connect(&self.address, &cq, &cq, &number, Deadline::after(patience));
            assert!(matches!(asked, Err(Error::Timeout { .. })), "{asked:?}");
            // Requests of one NIC stay in order: those of earlier attempts that come late are in front.
            while let Ok(request) = self.listener.wait(Deadline::after(patience)) {
                if request.private_data() == number {
                    return request;
                }
            }
            assert!(!net.passed(), "no request ever came");
            patience *= 2;
        }
        unreachable!("attempts do not run out")
    }

    /// Connects `asker` to `answerer`.
    pub fn join(&self, asker: &mut End, answerer: &mut End) {
        let (asked, answered) = self.ask(asker, b"", |request| answerer.accept(request, b""));
        answered.expect("accepted");
        asked.expect("connected");
    }
}
