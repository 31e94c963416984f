//! Building blocks of cases: two NICs, a VI on each, and the usual operations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use udeck_via::{
    Block, Completion, Cq, Deadline, Descriptor, Error, Listener, NetAddress, Nic, Ptag, Receive, Region,
    Reliability, RemoteBuffer, Request, Segment, State, Status, Vi, ViAttributes, mem,
};

use crate::{Fabric, Options};

/// Deadline of every wait, a safety net so long that only a lost event reaches it.
pub fn soon() -> Deadline {
    Deadline::after(Duration::from_millis(PATIENCE_MS.load(Ordering::Relaxed)))
}

static PATIENCE_MS: AtomicU64 = AtomicU64::new(60_000);

/// Sets the patience of [`soon`], and returns the previous one (60 seconds, unless set). It is for tests that expect
/// the deadline to pass: showing that a case fails need not take as long as showing that it passes.
pub fn set_patience(patience: Duration) -> Duration {
    Duration::from_millis(PATIENCE_MS.swap(patience.as_millis() as u64, Ordering::Relaxed))
}

/// Deadline for events that must not happen.
pub fn shortly() -> Deadline {
    Deadline::after(Duration::from_millis(30))
}

/// Polls `look` until it returns something.
///
/// # Panics
/// Panics if nothing comes.
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

/// Asserts that `bytes` are `expected`; reports the first difference, not all of them.
///
/// # Panics
/// Panics if they differ.
#[track_caller]
pub fn assert_bytes(bytes: &[u8], expected: &[u8]) {
    assert_eq!(bytes.len(), expected.len(), "lengths");
    if let Some(at) = (0..bytes.len()).find(|&at| bytes[at] != expected[at]) {
        panic!("byte {at} of {}: {:#04x} instead of {:#04x}", bytes.len(), bytes[at], expected[at]);
    }
}

/// Address of `discriminator` at `nic`.
pub fn address(nic: &Nic, discriminator: &[u8]) -> NetAddress {
    NetAddress { host: nic.attributes().address.clone(), discriminator: discriminator.to_vec() }
}

/// One side of a connection: a NIC, a VI, and one completion queue for both of its work queues.
pub struct End {
    /// The NIC of this end.
    pub nic: Nic,
    /// Protection tag of its memory.
    pub ptag: Ptag,
    /// Completion queue of both work queues.
    pub cq: Cq,
    /// The VI of this end.
    pub vi: Vi,
}

impl End {
    /// An idle end on `nic`, with VI attributes as changed by `settings`.
    pub fn new(nic: &Nic, settings: impl FnOnce(&mut ViAttributes)) -> Self {
        let ptag = nic.ptag();
        let mut attributes = ViAttributes::new(ptag);
        settings(&mut attributes);
        let cq = Cq::new(nic).expect("a completion queue");
        End { nic: nic.clone(), ptag, cq, vi: Vi::new(nic, attributes).expect("a VI") }
    }

    /// Connects, with this end's completion queue.
    pub fn connect(&mut self, to: &NetAddress, private_data: &[u8]) -> udeck_via::Result<Vec<u8>> {
        let cq = self.cq.handle();
        self.vi.connect(to, &cq, &cq, private_data, soon())
    }

    /// Accepts a request, with this end's completion queue.
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

    /// Waits for a send and asserts that it is done.
    pub fn sent(&mut self) -> Completion {
        let completion = self.vi.send_wait(soon()).expect("a completion");
        assert_eq!(completion.status, Status::Done);
        completion
    }

    /// Waits for a receive, asserts that it is done, and returns its bytes.
    pub fn received(&mut self) -> Vec<u8> {
        let completion = self.vi.receive_wait(soon()).expect("a completion");
        assert_eq!(completion.status, Status::Done);
        contents(&completion)
    }

    /// Waits for an arrival on a VI that receives lent.
    pub fn arrival(&mut self) -> udeck_via::Arrival {
        until("an arrival", || self.vi.arrival().expect("the connection stands"))
    }

    /// Sends until the connection has ended, and returns the error. Nobody reads, so the connection may be full before the
    /// news of its end has come from the peer: [`Error::Full`] is not the end.
    pub fn learns_of_the_end(&mut self) -> Error {
        until("the sender learns of the end", || match self.vi.send_inline(None, b"", b"") {
            Ok(()) | Err(Error::Full { .. }) => None,
            Err(error) => Some(error),
        })
    }

    /// Takes news until none are left, so that the next is new.
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

/// Statuses of forbidden RDMA.
const FORBIDDEN: &[Status] = &[Status::RdmaProtectionError];

/// Two connected ends, on NICs of their own.
pub struct Pair {
    /// The side that connected.
    pub a: End,
    /// The side that accepted.
    pub b: End,
}

impl Pair {
    /// A connected pair that receives into posted descriptors.
    pub fn posted(fabric: &dyn Fabric) -> Self {
        Pair::with(fabric, &Options::default(), |_| {})
    }

    /// A connected pair that receives lent.
    pub fn lent(fabric: &dyn Fabric) -> Self {
        Pair::with(fabric, &Options::default(), |attributes| attributes.receive = Receive::Lent)
    }

    /// A connected pair, with VI attributes as changed by `settings`.
    pub fn with(fabric: &dyn Fabric, options: &Options, settings: impl Fn(&mut ViAttributes)) -> Self {
        let mut pair = Pair::idle(fabric, options, settings);
        pair.connect();
        pair
    }

    /// A pair that is not connected yet.
    pub fn idle(fabric: &dyn Fabric, options: &Options, settings: impl Fn(&mut ViAttributes)) -> Self {
        let (a, b) = (fabric.open(options), fabric.open(options));
        Pair { a: End::new(&a, &settings), b: End::new(&b, &settings) }
    }

    /// `a` connects to `b`.
    pub fn connect(&mut self) {
        Door::new(&self.b.nic, b"pair").join(&mut self.a, &mut self.b);
    }

    /// `a` writes where `b` does not allow it: as [`Pair::forbidden`], but below reliable reception the data may have left.
    pub fn forbidden_write(&mut self, bytes: &[u8], to: RemoteBuffer) {
        let write = Descriptor::rdma_write([self.a.region(bytes)], to);
        let has_left = self.a.vi.attributes().reliability != Reliability::Reception;
        self.forbidden(
            write,
            if has_left { &[Status::Done, Status::RdmaProtectionError] } else { FORBIDDEN },
        );
    }

    /// `a` reads memory that `b` does not expose: as [`Pair::forbidden`].
    pub fn forbidden_read(&mut self, len: usize, from: RemoteBuffer) {
        let read = Descriptor::rdma_read([self.a.region(&vec![0xcc; len])], from);
        self.forbidden(read, FORBIDDEN);
    }

    /// `a` posts RDMA that `b` does not allow. If the sender can check, the post is refused, and the connection goes on.
    /// If only the target can, the descriptor ends with one of `ends`, and a reliable connection breaks: then both connect
    /// again.
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

    /// Waits until the connection has broken, and makes another one.
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

    /// Waits until everything that `a` has posted is in place at `b`, which must have no receive posted.
    pub fn drain(&mut self) {
        self.b.post_receive(0);
        self.a.post_send(b"");
        assert!(self.b.received().is_empty());
        self.a.sent();
    }

    /// Checks that the connection works: `a` sends, `b` receives.
    pub fn check(&mut self) {
        let bytes = pattern(77, 1000);
        self.b.post_receive(bytes.len());
        self.a.post_send(&bytes);
        assert_bytes(&self.b.received(), &bytes);
        self.a.sent();
    }
}

/// A listener, and its address.
pub struct Door {
    /// The listener, which receives the requests.
    pub listener: Listener,
    /// Its address, for connects.
    pub address: NetAddress,
}

impl Door {
    /// Listens at `discriminator`.
    pub fn new(nic: &Nic, discriminator: &[u8]) -> Self {
        let listener = Listener::new(nic, discriminator).expect("nobody else listens there");
        Door { listener, address: address(nic, discriminator) }
    }

    /// `end` connects, `answer` handles the request. Returns both results.
    pub fn connect<T>(
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

    /// Returns an arrived request of `end` that its maker has given up. The time that this takes depends on the machine:
    /// each attempt gets more time than the one before, until a request has arrived.
    pub fn stale(&self, end: &mut End) -> Request {
        let (net, cq) = (soon(), end.cq.handle());
        let mut patience = Duration::from_millis(10);
        for attempt in 0u64.. {
            let number = attempt.to_le_bytes();
            let asked = end.vi.connect(&self.address, &cq, &cq, &number, Deadline::after(patience));
            assert!(matches!(asked, Err(Error::Timeout { .. })), "{asked:?}");
            // Requests of one NIC stay in order: late ones of earlier attempts come first.
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
        let (asked, answered) = self.connect(asker, b"", |request| answerer.accept(request, b""));
        answered.expect("accepted");
        asked.expect("connected");
    }
}
