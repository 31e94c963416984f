//! uDAPL as an interface under test: an end point, its dispatchers, its memory.

use std::iter;
use std::ops::Range;
use std::time::Duration;

use udeck_conformance::both::{Access, End as _, FinishedPost, Interface, Place, PostStatus};
use udeck_conformance::kit::soon;
use udeck_conformance::{Fabric, Options};
use udeck_dat::{
    Completion, Connection, ConnectionRequest, Ep, EpAttributes, Error, Evd, Event, Flags, Ia, Iov, Lmr, Psp,
    Pz, RemoteMemory, Rights, ServiceAddress, SharedLmr, Status,
};
use udeck_via::{Caps, Deadline, Nic};

/// uDAPL: RDMA travels in messages, so every NIC has it.
pub struct Dat;

impl Interface for Dat {
    type End = End;
    const WRITE: &'static [Caps] = &[];
    const READ: &'static [Caps] = &[];
    const BOTH: &'static [Caps] = &[];

    fn pair(fabric: &dyn Fabric) -> (End, End) {
        let pair = Pair::new(fabric);
        (pair.a, pair.b)
    }

    fn reaching(fabric: &dyn Fabric) -> (End, End) {
        Dat::pair(fabric)
    }
}

/// An end point, with a dispatcher for each of its three event streams.
pub struct End {
    pub ia: Ia,
    pub pz: Pz,
    pub requests: Evd,
    pub receives: Evd,
    pub connections: Evd,
    pub ep: Ep,
}

impl End {
    /// An unconnected end point, over an adapter of its own.
    pub fn on(nic: &Nic) -> End {
        End::with(nic, EpAttributes::default())
    }

    pub fn with(nic: &Nic, attributes: EpAttributes) -> End {
        let ia = Ia::on_nic(nic).expect("an adapter");
        let pz = Pz::new(&ia);
        let [requests, receives, connections] = [(); 3].map(|()| Evd::new(&ia, 0));
        let ep = Ep::new(&pz, &requests, &receives, &connections, attributes).expect("an end point");
        End { ia, pz, requests, receives, connections, ep }
    }

    /// Registered memory that holds these bytes.
    pub fn lmr(&self, bytes: &[u8]) -> Lmr {
        Lmr::of(&self.pz, bytes.into()).expect("memory")
    }

    /// Waits for the next event of its connection dispatcher.
    pub fn told(&self) -> Connection {
        match self.connections.wait(soon()).expect("something happens to the connection") {
            Event::Connection { ep, what } => {
                assert_eq!(ep, self.ep.id());
                what
            }
            other => panic!("{other:?}"),
        }
    }

    /// Connects, with the time limit of the cases.
    pub fn request_connection(&self, to: &ServiceAddress, private_data: &[u8]) {
        self.ep.connect(to, soon().remaining(), private_data).expect("it asks");
    }

    /// Private data of the peer's answer.
    pub fn answer(&self) -> Vec<u8> {
        self.ep.peer().expect("somebody has answered").private_data
    }

    /// Waits for the next finished request.
    pub fn request_over(&self) -> Completion {
        completion(self.requests.wait(soon()).expect("a request is over"))
    }

    /// Waits for the next finished receive.
    pub fn receive_over(&self) -> Completion {
        completion(self.receives.wait(soon()).expect("a receive is over"))
    }

    /// Takes all finished requests and receives.
    pub fn drain(&self) {
        while self.requests.dequeue().is_some() || self.receives.dequeue().is_some() {}
    }

    fn pieces(&self, parts: &[&[u8]]) -> Iov {
        iov(parts.iter().map(|part| self.lmr(part)).collect())
    }
}

/// Makes the memory list of one post.
fn iov(pieces: Vec<Lmr>) -> Iov {
    fn array<const N: usize>(pieces: Vec<Lmr>) -> Iov {
        <[Lmr; N]>::try_from(pieces).expect("so many").into()
    }
    match pieces.len() {
        1 => array::<1>(pieces),
        2 => array::<2>(pieces),
        3 => array::<3>(pieces),
        SEGMENTS => array::<SEGMENTS>(pieces),
        other => unreachable!("{other} pieces"),
    }
}

/// Number of segments that the texts need; `limits.rs` tests larger numbers.
const SEGMENTS: usize = 4;

fn completion(event: Event) -> Completion {
    match event {
        Event::Dto(completion) => completion,
        other => panic!("{other:?}"),
    }
}

fn next(evd: &Evd, deadline: Deadline) -> Option<FinishedPost> {
    let event = if deadline.passed() {
        evd.dequeue()?
    } else {
        match evd.wait(deadline) {
            Ok(event) => event,
            Err(Error::Timeout { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
    };
    let Completion { status, length, iov, .. } = completion(event);
    let status = match status {
        Status::Success => PostStatus::Done,
        Status::Flushed => PostStatus::Flushed,
        _ => PostStatus::Failed,
    };
    Some(FinishedPost { status, length, parts: iov.into_vec().into_iter().map(|lmr| lmr.to_vec()).collect() })
}

fn taken(posted: Result<(), (Error, Iov)>) {
    posted.map_err(|(error, _)| error).expect("a post is taken");
}

fn flags(fenced: bool) -> Flags {
    if fenced { Flags::FENCE } else { Flags::NONE }
}

/// Memory that the peer can access.
pub struct Shown(pub SharedLmr);

impl std::ops::Deref for Shown {
    type Target = SharedLmr;

    fn deref(&self) -> &SharedLmr {
        &self.0
    }
}

impl Place for Shown {
    type At = RemoteMemory;

    fn at(&self) -> RemoteMemory {
        self.remote()
    }

    fn part(at: RemoteMemory, part: Range<usize>) -> RemoteMemory {
        at.part(part).expect("within it")
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0xaa; self.len()];
        self.read(0, &mut bytes).expect("within it");
        bytes
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.write(0, bytes).expect("within it");
    }
}

impl udeck_conformance::both::End for End {
    type Place = Shown;

    fn max_segments(&self) -> usize {
        SEGMENTS
    }

    fn post_receive(&mut self, rooms: &[usize]) {
        let pieces = rooms.iter().map(|room| self.lmr(&vec![0; *room])).collect();
        taken(self.ep.post_receive(iov(pieces), 0));
    }

    fn post_send_of(&mut self, parts: &[&[u8]], fenced: bool) {
        // The call without flags has its own implementation, so it is tested, too.
        taken(match fenced {
            false => self.ep.post_send(self.pieces(parts), 0),
            true => self.ep.post_send_with(self.pieces(parts), 0, Flags::FENCE),
        });
    }

    fn post_write(&mut self, parts: &[&[u8]], to: RemoteMemory, fenced: bool) {
        taken(self.ep.post_rdma_write(self.pieces(parts), to, 0, flags(fenced)));
    }

    fn post_read(&mut self, rooms: &[usize], from: RemoteMemory, fenced: bool) {
        let pieces = rooms.iter().map(|room| self.lmr(&vec![0xcc; *room])).collect();
        taken(self.ep.post_rdma_read(iov(pieces), from, 0, flags(fenced)));
    }

    fn request_by(&mut self, deadline: Deadline) -> Option<FinishedPost> {
        next(&self.requests, deadline)
    }

    fn receive_by(&mut self, deadline: Deadline) -> Option<FinishedPost> {
        next(&self.receives, deadline)
    }

    fn place(&self, bytes: &[u8], access: Access) -> Shown {
        let rights = match access {
            Access::Read => Rights::READ,
            Access::Write => Rights::WRITE,
            Access::Both => Rights::READ_WRITE,
        };
        Shown(SharedLmr::of(&self.pz, bytes.into(), rights).expect("memory"))
    }

    fn scribble(&self, len: usize) {
        drop(self.lmr(&vec![0xee; len]));
    }

    fn disconnect(&mut self) {
        self.ep.disconnect(true).expect("it was connected");
    }

    fn is_connected(&self) -> bool {
        self.ep.state() == udeck_dat::EpState::Connected
    }
}

/// Private data of a request that its maker has given up.
const GIVEN_UP: &[u8] = b"given up";

/// A service point with a dispatcher of its own.
pub struct Door {
    pub requests: Evd,
    pub psp: Psp,
}

impl Door {
    /// Makes a service point with this qualifier at the end's adapter.
    pub fn at(end: &End, qualifier: u64) -> Door {
        let requests = Evd::new(&end.ia, 0);
        let psp = Psp::new(qualifier, &requests).expect("nobody else is there");
        Door { requests, psp }
    }

    pub fn address(&self) -> ServiceAddress {
        self.psp.address()
    }

    /// Waits for the next request.
    pub fn request(&self) -> ConnectionRequest {
        self.request_by(soon()).expect("somebody asks")
    }

    pub fn request_by(&self, deadline: Deadline) -> Option<ConnectionRequest> {
        match self.requests.wait(deadline) {
            Ok(Event::Request(request)) => {
                assert_eq!((request.service(), request.qualifier()), (self.psp.id(), self.psp.qualifier()));
                Some(request)
            }
            Ok(other) => panic!("{other:?}"),
            Err(Error::Timeout { .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Connects `asker` to `answerer`.
    pub fn join(&self, asker: &End, answerer: &End) {
        asker.request_connection(&self.address(), b"");
        // A request that was given up before may have arrived only now.
        let request = iter::repeat_with(|| self.request()).find(|request| request.private_data() != GIVEN_UP);
        accept(answerer, request.expect("there is always a next one"), b"");
        assert_eq!((asker.told(), answerer.told()), (Connection::Established, Connection::Established));
    }

    /// Returns an arrived request that its maker has given up.
    pub fn stale(&self, asker: &End) -> ConnectionRequest {
        let net = soon();
        let mut patience = Duration::from_millis(20);
        loop {
            asker.ep.connect(&self.address(), patience, GIVEN_UP).expect("it asks");
            let request = self.request_by(Deadline::after(patience));
            let told = asker.told();
            assert_eq!(told, Connection::TimedOut);
            match request {
                Some(request) => return request,
                None => assert!(!net.passed(), "no request ever came"),
            }
            asker.ep.reset().expect("it may ask again");
            patience *= 2;
        }
    }
}

pub fn accept(end: &End, request: ConnectionRequest, private_data: &[u8]) {
    end.ep.accept(request, private_data).map_err(|(error, _)| error).expect("accepted");
}

/// Two connected ends, on NICs of their own.
pub struct Pair {
    pub a: End,
    pub b: End,
    pub door: Door,
}

impl Pair {
    pub fn new(fabric: &dyn Fabric) -> Pair {
        Pair::with(fabric, EpAttributes::default())
    }

    pub fn with(fabric: &dyn Fabric, attributes: EpAttributes) -> Pair {
        let pair = Pair::idle_with(fabric, attributes);
        pair.connect();
        pair
    }

    /// A pair that is not connected yet.
    pub fn idle(fabric: &dyn Fabric) -> Pair {
        Pair::idle_with(fabric, EpAttributes::default())
    }

    fn idle_with(fabric: &dyn Fabric, attributes: EpAttributes) -> Pair {
        let [a, b] = [(); 2].map(|()| End::with(&fabric.open(&Options::default()), attributes));
        let door = Door::at(&b, 1);
        Pair { a, b, door }
    }

    pub fn connect(&self) {
        self.door.join(&self.a, &self.b);
    }

    /// Waits until both are notified of a broken connection, and makes another one.
    pub fn mend(&mut self) {
        for (end, name) in [(&self.a, "the one"), (&self.b, "the other")] {
            assert_eq!(end.told(), Connection::Broken, "{name}");
            end.drain();
            end.ep.reset().expect("it was connected");
        }
        self.connect();
        self.check();
    }

    /// Checks that the connection works.
    pub fn check(&mut self) {
        udeck_conformance::both::check(&mut self.a, &mut self.b);
        self.a.assert_quiet();
    }
}
