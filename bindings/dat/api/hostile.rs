//! A hostile peer: it has connected properly, and then sends anything.
//!
//! The peer is a bare virtual interface. Whatever it sends, in whatever order: nothing crashes or hangs, each request of the honest side
//! completes once, and no memory changes but what was opened to it.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use udeck::NicOptions;
use udeck::via::auth::Keys;
use udeck::via::mem::Fill;
use udeck::via::transport::{Body, Inline};
use udeck::via::{Cq, Deadline, Error as ViaError, NetAddress, Nic, Receive, Vi, ViAttributes};
use udeck_rdma::frame::{self, Head};

use super::*;
use crate::core::memory::{self as table, ALL_RIGHTS, Piece, Right};
use crate::core::wire::Greeting;

const LIMIT: Duration = Duration::from_secs(30);
const TRANSPORTS: [&str; 3] = ["shm", "tcp", "udp"];
const RECEIVES: usize = 64;
const READS: usize = 3;
/// Bytes of each region. Every second region of the buffer is registered.
const REGION: usize = 4096;

fn nic(transport: &str) -> Nic {
    udeck::open_nic(&format!("{transport}0"), &NicOptions::new(Keys::from([5; 32]))).unwrap()
}

/// The region that a frame names, by the rights of peers there.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// Read and write it.
    Open,
    ReadOnly,
    /// No remote right.
    Local,
    /// All rights, but only for end points of another zone.
    OtherZone,
    /// A region whose registration has ended.
    Freed,
    /// Any context.
    Any(u32),
}

const REGIONS: [Target; 5] =
    [Target::Open, Target::ReadOnly, Target::Local, Target::OtherZone, Target::Freed];

/// The honest side's memory. The library touches it while the end point lives; the test checks it afterwards.
struct Memory {
    bytes: Box<[u8]>,
    contexts: [u32; REGIONS.len()],
    _other: Pz,
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

impl Memory {
    fn new(ia: &Ia, pz: &Pz) -> Memory {
        let bytes: Box<[u8]> = (0..(2 * REGIONS.len() + 1) * REGION).map(pattern).collect();
        let (start, other) = (bytes.as_ptr().expose_provenance(), Pz::new(ia));
        let contexts = std::array::from_fn(|nth| {
            let start = start + (2 * nth + 1) * REGION;
            let rights = match REGIONS[nth] {
                Target::ReadOnly => Right::RemoteRead as u32,
                Target::Local => Right::LocalRead as u32 | Right::LocalWrite as u32,
                _ => ALL_RIGHTS,
            };
            let pz = if let Target::OtherZone = REGIONS[nth] { other.id() } else { pz.id() };
            let piece = Piece { named: start as u64, start, len: REGION, zone: pz, rights, of: 0 };
            table::add(piece).unwrap()
        });
        table::remove(contexts[4]);
        Memory { bytes, contexts, _other: other }
    }

    /// An address, and the context by which it is named.
    fn place(&self, target: Target, offset: i64) -> (u64, u32) {
        let (nth, context) = match target {
            Target::Any(context) => (0, context),
            Target::Open => (0, self.contexts[0]),
            Target::ReadOnly => (1, self.contexts[1]),
            Target::Local => (2, self.contexts[2]),
            Target::OtherZone => (3, self.contexts[3]),
            Target::Freed => (4, self.contexts[4]),
        };
        let start = self.bytes.as_ptr().expose_provenance() + (2 * nth + 1) * REGION;
        ((start as u64).wrapping_add_signed(offset), context)
    }

    /// Asserts that only the open region has changed.
    fn check(self) {
        self.contexts.into_iter().for_each(table::remove);
        for (at, byte) in self.bytes.iter().enumerate() {
            assert!((REGION..2 * REGION).contains(&at) || *byte == pattern(at), "byte {at} has changed");
        }
    }
}

/// A message of the peer.
#[derive(Clone, Debug)]
enum Frame {
    Write(Target, i64, usize),
    Read(Target, i64, u64),
    /// An answer to a read, with its word.
    Data(u32, usize),
    Broken(u32),
    Send {
        flags: u8,
        invalidates: Target,
        len: usize,
    },
    /// Any head and body.
    Any([u8; 8], usize),
    /// The first bytes of a frame, as many as the number says.
    Cut(usize, Box<Frame>),
    /// The previous frame once more.
    Again,
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        4 => Just(Target::Open),
        6 => prop::sample::select(&REGIONS[..]),
        1 => any::<u32>().prop_map(Target::Any),
    ]
}

fn offset() -> impl Strategy<Value = i64> {
    let region = REGION as i64;
    prop_oneof![6 => 0..region, 1 => -64..1_i64, 1 => region - 64..region + 64, 1 => any::<i64>()]
}

fn len() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..48_usize, 2 => 48..2 * REGION, 1 => Just(150_000)]
}

fn frame() -> impl Strategy<Value = Frame> {
    let whole = prop_oneof![
        6 => (target(), offset(), len()).prop_map(|(target, at, len)| Frame::Write(target, at, len)),
        6 => (target(), offset(), prop_oneof![5 => 0..5000_u64, 1 => any::<u64>()])
            .prop_map(|(target, at, len)| Frame::Read(target, at, len)),
        2 => (0..2_u32, prop_oneof![Just(16_usize), len()]).prop_map(|(word, len)| Frame::Data(word, len)),
        1 => prop_oneof![0..4_u32, any::<u32>()].prop_map(Frame::Broken),
        6 => (0..3_u8, target(), len()).prop_map(|(flags, invalidates, len)| Frame::Send { flags, invalidates, len }),
        1 => (any::<[u8; 8]>(), len()).prop_map(|(head, len)| Frame::Any(head, len)),
        1 => Just(Frame::Again),
    ];
    whole.prop_flat_map(|frame| {
        let same = frame.clone();
        prop_oneof![
            9 => Just(same),
            1 => (0..40_usize).prop_map(move |len| Frame::Cut(len, Box::new(frame.clone())))
        ]
    })
}

impl Frame {
    fn bytes(&self, memory: &Memory, before: &[u8]) -> Vec<u8> {
        let framed = |head: Head, body: &[&[u8]]| [&[&head.bytes()[..]], body].concat().concat();
        match self {
            Frame::Write(target, at, len) => {
                let (address, context) = memory.place(*target, *at);
                framed(Head::plain(frame::WRITE), &[&frame::write_head(address, context), &vec![0xee; *len]])
            }
            Frame::Read(target, at, len) => {
                let (address, context) = memory.place(*target, *at);
                let mut request = frame::read_request(address, context, 0);
                request[16..].copy_from_slice(&len.to_le_bytes());
                framed(Head::plain(frame::READ), &[&request])
            }
            Frame::Data(word, len) => {
                framed(Head::plain(frame::DATA), &[&word.to_le_bytes(), &[0; 4], &vec![0xdd; *len]])
            }
            Frame::Broken(word) => framed(Head::plain(frame::BROKEN), &[&word.to_le_bytes()]),
            Frame::Send { flags, invalidates, len } => {
                // Without the flag, a word is nonsense, as are other flags.
                let word = if *flags == 0 { 0 } else { memory.place(*invalidates, 0).1 };
                framed(Head { kind: frame::SEND, flags: *flags, word }, &[&vec![0xcc; *len]])
            }
            Frame::Any(head, len) => [&head[..], &vec![0xbb; *len]].concat(),
            Frame::Cut(len, frame) => {
                let mut bytes = frame.bytes(memory, before);
                bytes.truncate(*len);
                bytes
            }
            Frame::Again => before.to_vec(),
        }
    }
}

/// The peer: no more than a virtual interface.
pub(super) struct Peer {
    pub(super) vi: Vi,
    nic: Nic,
    _cq: Cq,
}

impl Peer {
    pub(super) fn new(nic: &Nic) -> Peer {
        let mut attributes = ViAttributes::new(nic.ptag());
        attributes.receive = Receive::Lent;
        Peer { vi: Vi::new(nic, attributes).unwrap(), nic: nic.clone(), _cq: Cq::new(nic).unwrap() }
    }

    pub(super) fn connect(&mut self, to: &Psp, hello: &[u8]) -> Result<Vec<u8>, ViaError> {
        let host = to.ia().nic().attributes().address.clone();
        let to = NetAddress { host, discriminator: crate::core::service::discriminator(to.qualifier()) };
        let cq = self._cq.handle();
        self.vi.connect(&to, &cq, &cq, hello, Deadline::after(LIMIT))
    }

    /// Takes whatever comes. `false`: the connection is over.
    pub(super) fn drain(&mut self) -> bool {
        loop {
            match self.vi.arrival() {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Sends bytes as one message. `false`: the connection is over.
    pub(super) fn say(&mut self, bytes: &[u8]) -> bool {
        let until = Deadline::after(LIMIT);
        while self.drain() && !until.passed() {
            let said = if bytes.len() <= Inline::CAPACITY {
                self.vi.send_inline(Some(0), bytes, &[])
            } else {
                let (head, body) = bytes.split_at(frame::HEAD);
                self.nic.reclaim();
                let Ok(mut block) = self.nic.outbox().block(body.len(), Fill::Keep) else { continue };
                block.bytes_mut().copy_from_slice(body);
                self.vi.hand_off(Some(0), head, block).map_err(|(error, _)| error)
            };
            match said {
                Ok(()) => return true,
                Err(ViaError::Full { .. } | ViaError::NoMemory { .. }) => {
                    self.vi.reclaim();
                    std::thread::yield_now();
                }
                Err(_) => return false,
            }
        }
        assert!(!until.passed(), "there is never room again");
        false
    }
}

/// The honest side.
struct Honest {
    ia: Ia,
    pz: Pz,
    work: Evd,
    connections: Evd,
    psp: Psp,
}

impl Honest {
    fn new(nic: &Nic) -> Honest {
        let ia = Ia::on_nic(nic).unwrap();
        let (pz, work, connections) = (Pz::new(&ia), Evd::new(&ia, 0), Evd::new(&ia, 0));
        let psp = Psp::any(&connections).unwrap();
        Honest { ia, pz, work, connections, psp }
    }

    fn ep(&self) -> Ep {
        Ep::new(&self.pz, &self.work, &self.work, &self.connections, EpAttributes::default()).unwrap()
    }

    /// Returns an end point that is connected with the peer.
    fn accepts(&self, peer: &mut Peer) -> Ep {
        let ep = self.ep();
        self.accepts_with(peer, &ep);
        ep
    }

    fn accepts_with(&self, peer: &mut Peer, ep: &Ep) {
        std::thread::scope(|scope| {
            let greeting = Greeting { host: [0; 16], port: 1, private_data: b"trust me".to_vec() };
            let connecting = scope.spawn(move || peer.connect(&self.psp, &greeting.encode()));
            let Event::Request(request) = self.connections.wait(Deadline::after(LIMIT)).unwrap() else {
                panic!()
            };
            ep.accept(request, b"").map_err(|(error, _)| error).unwrap();
            connecting.join().unwrap().unwrap();
        });
        let Event::Connection { what: Connection::Established, .. } =
            self.connections.wait(Deadline::after(LIMIT)).unwrap()
        else {
            panic!()
        };
    }

    /// Returns an end point that takes its receives from a shared queue.
    fn ep_with(&self, srq: &Srq) -> Ep {
        let attributes = EpAttributes::default();
        Ep::with_srq(&self.pz, &self.work, &self.work, &self.connections, srq, attributes).unwrap()
    }

    fn lmr(&self, len: usize) -> Lmr {
        Lmr::new(&self.pz, len).unwrap()
    }
}

/// One hostile peer, from its connection to its end. Receives are the end point's own, or those of a queue that it shares.
fn meet(honest: &Honest, nic: &Nic, is_shared: bool, receives: usize, frames: &[Frame]) {
    let mut peer = Peer::new(nic);
    let memory = Memory::new(&honest.ia, &honest.pz);
    let srq = is_shared.then(|| Srq::new(&honest.pz, RECEIVES).unwrap());
    let ep = srq.as_ref().map_or_else(|| honest.ep(), |srq| honest.ep_with(srq));
    honest.accepts_with(&mut peer, &ep);
    for nth in 0..receives {
        let posted = match &srq {
            Some(srq) => srq.post_receive(honest.lmr(REGION), nth as u64),
            None => ep.post_receive(honest.lmr(REGION), nth as u64),
        };
        posted.map_err(|(error, _)| error).unwrap();
    }
    // Posts reads, so that some of the peer's answers have a request.
    for nth in 0..READS {
        let remote = RemoteMemory { address: 0, len: 16, context: 1 };
        ep.post_rdma_read(honest.lmr(16), remote, nth as u64, Flags::NONE)
            .map_err(|(error, _)| error)
            .unwrap();
    }
    let mut before = Vec::new();
    for frame in frames {
        let bytes = frame.bytes(&memory, &before);
        if !peer.say(&bytes) {
            break;
        }
        before = bytes;
    }
    peer.vi.disconnect();
    // Messages without receives wait for ten seconds.
    if receives >= frames.len() {
        let end = honest.connections.wait(Deadline::after(LIMIT)).expect("it learns of the end");
        assert!(
            matches!(end, Event::Connection { what: Connection::Disconnected | Connection::Broken, .. }),
            "{end:?}"
        );
    }
    drop(ep);
    while honest.connections.dequeue().is_some() {}
    let mut completions = 0;
    while let Some(event) = honest.work.dequeue() {
        assert!(matches!(event, Event::Dto(_)), "{event:?}");
        completions += 1;
    }
    // Receives that the peer has not taken of a shared queue stay there, for others.
    let left = srq.as_ref().map_or(0, Srq::posted);
    assert_eq!(completions + left, receives + READS);
    drop(srq);
    memory.check();
}

fn cases(transport: &str, default: u32) {
    let (here, there) = (nic(transport), nic(transport));
    let honest = Honest::new(&here);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    runner
        .run(
            &(any::<bool>(), 0..RECEIVES, prop::collection::vec(frame(), 0..40)),
            |(is_shared, receives, frames)| {
                meet(&honest, &there, is_shared, receives, &frames);
                Ok(())
            },
        )
        .unwrap_or_else(|why| panic!("{transport}: {why}"));
}

#[test]
fn prop_a_peer_over_shm_changes_only_what_is_open_to_it() {
    cases("shm", 200);
}

#[test]
fn prop_a_peer_over_tcp_changes_only_what_is_open_to_it() {
    cases("tcp", 100);
}

#[test]
fn prop_a_peer_over_udp_changes_only_what_is_open_to_it() {
    cases("udp", 40);
}

/// Proves that the tests above can fail: this peer writes to the open region.
#[test]
fn a_peer_reaches_what_is_open() {
    for transport in TRANSPORTS {
        let (here, there) = (nic(transport), nic(transport));
        let honest = Honest::new(&here);
        let mut peer = Peer::new(&there);
        let memory = Memory::new(&honest.ia, &honest.pz);
        let ep = honest.accepts(&mut peer);
        ep.post_receive(honest.lmr(16), 1).map_err(|(error, _)| error).unwrap();
        for frame in [
            Frame::Write(Target::Open, 100, 50),
            Frame::Send { flags: 0, invalidates: Target::Any(0), len: 16 },
        ] {
            assert!(peer.say(&frame.bytes(&memory, &[])));
        }
        assert!(matches!(
            honest.work.wait(Deadline::after(LIMIT)),
            Ok(Event::Dto(Completion { length: 16, .. }))
        ));
        drop(ep);
        assert_eq!(
            memory.bytes[REGION + 99..REGION + 151],
            [[pattern(REGION + 99)].as_slice(), &[0xee; 50], &[pattern(REGION + 150)]].concat()
        );
    }
}

/// A peer without a valid greeting is refused, and the program gets no event of it.
#[test]
fn who_does_not_greet_is_refused() {
    let (here, there) = (nic("shm"), nic("shm"));
    let honest = Honest::new(&here);
    let long = Greeting { host: [0; 16], port: 1, private_data: vec![0; MAX_PRIVATE_DATA + 1] }.encode();
    for hello in [&b""[..], b"uDAPL 3\n", b"uDAPL 2\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", &long] {
        let refused = Peer::new(&there).connect(&honest.psp, hello);
        assert!(matches!(refused, Err(ViaError::Rejected(_))), "{refused:?}");
    }
    assert!(honest.connections.dequeue().is_none());
}

/// A peer with more memory for messages may send longer ones than this side: it learns that its read is refused, as by a wrong key.
#[test]
fn a_read_that_no_message_can_answer_is_refused() {
    let (here, there) = (nic("shm"), nic("shm"));
    let honest = Honest::new(&here);
    let mut peer = Peer::new(&there);
    let _read = honest.accepts(&mut peer);
    let place = SharedLmr::new(&honest.pz, 8, Rights::READ).unwrap().remote();
    for len in [honest.pz.ia().core().max_transfer() + 1, usize::MAX] {
        let request = frame::read_request(place.address, place.context, len);
        peer.vi.send_inline(Some(0), &Head::plain(frame::READ).bytes(), &request).unwrap();
        let until = Deadline::after(LIMIT);
        let answer = loop {
            if let Some(answer) = peer.vi.arrival().unwrap() {
                break answer;
            }
            assert!(!until.passed(), "no answer");
            std::thread::yield_now();
        };
        let Body::Inline(bytes) = answer.body else { panic!("{answer:?}") };
        assert_eq!(bytes.bytes(), [Head::plain(frame::DATA).bytes(), frame::data_head(true)].concat());
    }
}

/// A peer that asks for more and more, and takes nothing, does not keep others from their messages.
#[test]
fn a_flood_of_reads_leaves_room_for_others() {
    for transport in TRANSPORTS {
        let (here, there) = (nic(transport), nic(transport));
        let honest = Honest::new(&here);
        let mut peer = Peer::new(&there);
        let flooded = honest.accepts(&mut peer);
        let large = 16 << 20;
        let place = SharedLmr::new(&honest.pz, large, Rights::READ).unwrap();
        let (address, context) = (place.remote().address, place.remote().context);
        let mut request = frame::read_request(address, context, large);
        request[16..].copy_from_slice(&(large as u64).to_le_bytes());
        let frame = [&Head::plain(frame::READ).bytes()[..], &request].concat();
        for _ in 0..2000 {
            if peer.vi.send_inline(Some(0), &frame, &[]).is_err() {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        // Both ends of another connection are here: messages of a size that has to find memory.
        let (one, two) = (honest.ep(), honest.ep());
        one.connect(&honest.psp.address(), LIMIT, b"").unwrap();
        let mut established = 0;
        while established < 2 {
            match honest.connections.wait(Deadline::after(LIMIT)).unwrap() {
                Event::Request(request) => two.accept(request, b"").map_err(|(error, _)| error).unwrap(),
                Event::Connection { ep, what: Connection::Established } => {
                    established += usize::from(ep == one.id() || ep == two.id());
                }
                Event::Connection { ep, .. } if ep == flooded.id() => {}
                other => panic!("{other:?}"),
            }
        }
        for _ in 0..20 {
            two.post_receive(honest.lmr(100_000), 1).map_err(|(error, _)| error).unwrap();
            one.post_send(honest.lmr(100_000), 2).map_err(|(error, _)| error).unwrap();
            for _ in 0..2 {
                let Event::Dto(done) = honest.work.wait(Deadline::after(LIMIT)).unwrap() else { panic!() };
                assert_eq!((done.status, done.length), (Status::Success, 100_000), "{transport}");
            }
        }
        peer.vi.disconnect();
    }
}

/// A peer that takes all receives of a shared queue, and then breaks its connection, leaves others theirs: messages wait for the
/// next receive.
#[test]
fn a_peer_that_empties_a_shared_queue_ends_no_other_connection() {
    for transport in TRANSPORTS {
        let (here, there) = (nic(transport), nic(transport));
        let honest = Honest::new(&here);
        let (mut greedy, mut modest) = (Peer::new(&there), Peer::new(&there));
        let srq = Srq::new(&honest.pz, RECEIVES).unwrap();
        let (first, second) = (honest.ep_with(&srq), honest.ep_with(&srq));
        honest.accepts_with(&mut greedy, &first);
        honest.accepts_with(&mut modest, &second);
        for nth in 0..4 {
            srq.post_receive(honest.lmr(16), nth).map_err(|(error, _)| error).unwrap();
        }
        let message = [&Head::plain(frame::SEND).bytes()[..], &[7; 16]].concat();
        for _ in 0..6 {
            assert!(greedy.say(&message));
        }
        for _ in 0..4 {
            let Event::Dto(taken) = honest.work.wait(Deadline::after(LIMIT)).unwrap() else { panic!() };
            assert_eq!((taken.ep, taken.status), (first.id(), Status::Success), "{transport}");
        }
        assert!(modest.say(&message));
        greedy.say(&Head::plain(99).bytes()); // behind messages that wait
        greedy.vi.disconnect();
        drop(first);
        srq.post_receive(honest.lmr(16), 9).map_err(|(error, _)| error).unwrap();
        let Event::Dto(taken) = honest.work.wait(Deadline::after(LIMIT)).unwrap() else { panic!() };
        assert_eq!((taken.ep, taken.cookie, taken.length), (second.id(), 9, 16), "{transport}");
        assert_eq!((second.state(), srq.posted()), (EpState::Connected, 0));
    }
}
