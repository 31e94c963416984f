//! A hostile peer that was admitted to the job and does arbitrary things, generated at random: whatever it sends, lends, writes
//! or reads, the mailbox's owner is not stopped, deceived or exhausted, and other ranks' messages are complete and in order.
//! (`common::honest` and `common::watch` check this, here and in `tests/bytes`.)
//!
//! The peer has a virtual interface of its own to a real world, over each transport (over verbs in a process of its own, usually
//! over the stand-in). `tests/bytes` does the same with the bytes below: a ring's cells, a stream's frames. `PROPTEST_CASES` sets
//! the number of cases.

mod common;

use std::sync::Once;

use common::clock::within_deadline;
use common::honest::{Judge, POLLS, blocks};
use common::liar::{ASK_COPY, ASK_READ, ASK_WRITE, EAGER, FRAGMENT, HAND_OFF, REQUEST};
use common::watch::{Resources, alone, watched};
use common::{LONG, PROTOCOLS, config, over_verbs_apart};
use proptest::prelude::*;
use udeck::via::transport::Body;
use udeck::via::{
    Cq, Deadline, Descriptor, MemHandle, NetAddress, Nic, Receive, Reliability, RemoteBuffer, Vi,
    ViAttributes,
};
use udeck::{NicOptions, World};
use udeck_boot::{Client, local::Job};

/// Message memory of each rank, in bytes.
const ARENA: usize = 8 << 20;
/// Rank of the mailbox's owner, among three; the second rank posts honestly, the third does not.
const SURVIVOR: u32 = 0;
/// Kind of the mailbox's answer to an announcement of a message to be written: `part` is the window.
const READY: u8 = 6;

#[derive(Clone, Debug)]
enum Step {
    /// Sends a header and contents, at most 48 bytes.
    Say {
        kind: u8,
        part: u32,
        immediate: Option<u32>,
        rest: Vec<u8>,
    },
    Announce {
        kind: u8,
        part: u32,
        len: u64,
    },
    Lend {
        kind: u8,
        part: u32,
        len: usize,
    },
    Write {
        window: Window,
        offset: usize,
        len: usize,
        immediate: Option<u32>,
    },
    Read {
        window: Window,
        offset: usize,
        len: usize,
    },
    /// Makes a data VI of this pair, and sends a message on it.
    Data {
        pair: u32,
        len: usize,
    },
    /// Takes the mailbox's answers.
    Listen,
    /// Ends its connection and makes another one, with this introduction.
    Again {
        postbox: u32,
        pair: u32,
        cut: usize,
    },
    /// Lets the honest rank post a message.
    Honest {
        protocol: usize,
        len: usize,
    },
}

/// Window to write or read: one that was granted, or any.
#[derive(Clone, Copy, Debug)]
enum Window {
    Granted,
    Any(u32),
}

fn word() -> impl Strategy<Value = u32> {
    prop_oneof![0..20_u32, any::<u32>(), Just(u32::MAX), Just(1 << 31)]
}

/// Length of a message to be announced: small, so that the memory granted for all of them leaves room for what others announce
/// (docs/internals/peers.md), or longer than any message.
fn length() -> impl Strategy<Value = u64> {
    prop_oneof![0..200_u64, 0..1_u64 << 17, any::<u64>(), Just(u64::MAX), Just(1 << 63), Just(1 << 32)]
}

fn kind() -> impl Strategy<Value = u8> {
    prop_oneof![6 => 1..14_u8, 1 => any::<u8>()]
}

fn window() -> impl Strategy<Value = Window> {
    prop_oneof![2 => Just(Window::Granted), 1 => word().prop_map(Window::Any)]
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = 0..100_000_usize;
    let offset = prop_oneof![Just(0_usize), 0..100_000_usize, any::<usize>()];
    prop_oneof![
        4 => (kind(), word(), prop::option::of(word()), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(kind, part, immediate, rest)| Step::Say { kind, part, immediate, rest }),
        4 => (prop::sample::select(vec![ASK_WRITE, ASK_COPY, ASK_READ, REQUEST]), word(), length())
            .prop_map(|(kind, part, len)| Step::Announce { kind, part, len }),
        3 => (prop_oneof![prop::sample::select(vec![EAGER, HAND_OFF, FRAGMENT]), kind()], word(), bytes.clone())
            .prop_map(|(kind, part, len)| Step::Lend { kind, part, len }),
        3 => (window(), offset.clone(), bytes.clone(), prop::option::of(word()))
            .prop_map(|(window, offset, len, immediate)| Step::Write { window, offset, len, immediate }),
        1 => (window(), offset, bytes.clone())
            .prop_map(|(window, offset, len)| Step::Read { window, offset, len }),
        1 => (0..3_u32, bytes.clone()).prop_map(|(pair, len)| Step::Data { pair, len }),
        3 => Just(Step::Listen),
        1 => (word(), prop_oneof![4 => Just(0_u32), 1 => word()], prop_oneof![4 => Just(8_usize), 1 => 0..8_usize])
            .prop_map(|(postbox, pair, cut)| Step::Again { postbox, pair, cut }),
        4 => (0..PROTOCOLS.len(), bytes).prop_map(|(protocol, len)| Step::Honest { protocol, len }),
    ]
}

/// Configuration with this number of cases, unless the environment sets another one.
fn cases(cases: u32) -> ProptestConfig {
    let told = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    // Each attempt to shrink takes as long as a job.
    ProptestConfig { cases: told.unwrap_or(cases), max_shrink_iters: 200, ..ProptestConfig::default() }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..40)
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn prop_nothing_that_a_peer_says_stops_fools_or_exhausts_a_world(
        transport in prop::sample::select(vec!["shm", "shm", "tcp", "udp"]),
        steps in steps(),
    ) {
        try_case(transport, &steps);
    }
}

#[test]
fn prop_nothing_that_a_peer_says_over_verbs_stops_fools_or_exhausts_a_world() {
    let process = alone();
    if !over_verbs_apart("prop_nothing_that_a_peer_says_over_verbs_stops_fools_or_exhausts_a_world") {
        return;
    }
    drop(process);
    proptest!(cases(15), |(steps in steps())| try_case("verbs", &steps));
}

fn try_case(transport: &str, steps: &[Step]) {
    let _alone = alone();
    let case = format!("{transport}, {steps:?}");
    let before = Resources::now();
    watched(&case, || play(transport, steps));
    // The first case leaves the resources that a process makes once.
    static FIRST: Once = Once::new();
    let mut is_first = false;
    FIRST.call_once(|| is_first = true);
    if !is_first {
        before.assert_no_growth(&case);
    }
}

fn play(transport: &str, steps: &[Step]) {
    let [survivor, honest, rogue] = worlds(transport);
    let mut judge = Judge::new(&survivor, honest, |_| {});
    let before = blocks(&survivor);
    // The lookup also brings the proof of the liar's identity for the survivor.
    rogue.client().lookup("in", false, soon().instant()).unwrap();
    let mut liar = LyingPeer::new(rogue.nic(), survivor.nic());
    for step in steps {
        match step {
            Step::Honest { protocol, len } => judge.honest(PROTOCOLS[*protocol], *len),
            step => liar.play(step),
        }
        assert!(judge.poll(POLLS), "there is always something");
    }
    drop(liar);
    drop(rogue);
    judge.outlives_the_others(&survivor, before, transport);
    judge.end();
    within_deadline(LONG, "finishing", || survivor.finish_timeout(LONG)).unwrap();
}

fn worlds(transport: &str) -> [World; 3] {
    let (_job, streams) = Job::new(3).expect("a name service");
    let world = |stream| {
        let client = Client::new(stream).unwrap();
        let mut options = NicOptions::new(client.keys());
        options.arena = Some(ARENA);
        let nic = udeck::open_nic(&format!("{transport}0"), &options).unwrap();
        World::new(client, vec![nic], config(), true).unwrap()
    };
    let worlds: Vec<World> = streams.into_iter().map(world).collect();
    worlds.try_into().expect("three of them")
}

/// A peer that sends arbitrary messages to the mailbox "in".
struct LyingPeer<'a> {
    nic: &'a Nic,
    cq: Cq,
    to: NetAddress,
    vi: Vi,
    /// VIs that it has left open.
    others: Vec<Vi>,
    granted: Vec<u32>,
}

impl<'a> LyingPeer<'a> {
    fn new(nic: &'a Nic, survivor: &Nic) -> Self {
        let host = survivor.attributes().address.clone();
        let to = NetAddress { host, discriminator: b"in".to_vec() };
        let (cq, vi) = (Cq::new(nic).unwrap(), control(nic));
        let mut liar = LyingPeer { nic, cq, to, vi, others: Vec::new(), granted: Vec::new() };
        liar.again(99, 0, 8);
        liar
    }

    /// Does a step, which may be refused or not.
    fn play(&mut self, step: &Step) {
        match step {
            Step::Say { kind, part, immediate, rest } => {
                let _ = self.vi.send_inline(*immediate, &head(*kind, *part), rest);
            }
            Step::Announce { kind, part, len } => {
                let _ = self.vi.send_inline(Some(*len as u32), &head(*kind, *part), &len.to_le_bytes());
            }
            Step::Lend { kind, part, len } => {
                if let Some(block) = self.block(*len) {
                    let _ = self.vi.hand_off(Some(*part), &head(*kind, *part), block);
                }
            }
            Step::Write { window, offset, len, immediate } => {
                let to = RemoteBuffer { handle: self.handle(*window), offset: *offset, len: *len };
                if let Some(block) = self.block(*len) {
                    let _ = self.vi.rdma_write(block, to, *immediate);
                }
            }
            Step::Read { window, offset, len } => {
                let from = RemoteBuffer { handle: self.handle(*window), offset: *offset, len: *len };
                if let Some(block) = self.block(*len) {
                    let _ = self.vi.rdma_read(block, from);
                }
            }
            Step::Data { pair, len } => self.data(*pair, *len),
            Step::Listen => self.listen(),
            Step::Again { postbox, pair, cut } => self.again(*postbox, *pair, *cut),
            Step::Honest { .. } => unreachable!("that is somebody else's"),
        }
    }

    fn block(&self, len: usize) -> Option<udeck::via::Block> {
        self.nic.region(len, self.vi.attributes().ptag).ok()?.into_block().ok()
    }

    fn handle(&self, window: Window) -> MemHandle {
        MemHandle(match window {
            Window::Granted => self.granted.last().copied().unwrap_or(1),
            Window::Any(handle) => handle,
        })
    }

    fn data(&mut self, pair: u32, len: usize) {
        let mut attributes = ViAttributes::new(self.nic.ptag());
        attributes.reliability = Reliability::Reception;
        attributes.peer = Some(SURVIVOR);
        let Ok(mut vi) = Vi::new(self.nic, attributes) else { return };
        let queue = self.cq.handle();
        if vi.connect(&self.to, &queue, &queue, &introduction(99, pair), soon()).is_ok()
            && let Ok(region) = self.nic.region(len, self.nic.ptag())
        {
            let _ = vi.post_send(Descriptor::new([region]).immediate(pair));
            self.others.push(vi);
        }
    }

    fn listen(&mut self) {
        // The mailbox's answers are bounded, whatever they are.
        for _ in 0..POLLS {
            let Ok(Some(arrival)) = self.vi.arrival() else { return };
            if let Body::Inline(inline) = arrival.body
                && let Some((&[READY, _, _, _, a, b, c, d], _)) = inline.bytes().split_first_chunk()
            {
                self.granted.push(u32::from_le_bytes([a, b, c, d]));
            }
        }
        panic!("the mailbox answers without end");
    }

    fn again(&mut self, postbox: u32, pair: u32, cut: usize) {
        let mut vi = control(self.nic);
        let queue = self.cq.handle();
        if vi.connect(&self.to, &queue, &queue, &introduction(postbox, pair)[..cut], soon()).is_ok() {
            let before = std::mem::replace(&mut self.vi, vi);
            // Every second VI stays open.
            if self.others.len() < 8 && postbox.is_multiple_of(2) {
                self.others.push(before);
            }
        }
    }
}

fn control(nic: &Nic) -> Vi {
    let mut attributes = ViAttributes::new(nic.ptag());
    attributes.receive = Receive::Lent;
    attributes.enable_rdma_read = true;
    attributes.peer = Some(SURVIVOR);
    Vi::new(nic, attributes).unwrap()
}

/// Introduction of its own rank; other tests show that it cannot pose as another.
fn introduction(postbox: u32, pair: u32) -> Vec<u8> {
    [postbox, pair].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn head(kind: u8, part: u32) -> [u8; 8] {
    let mut head = [kind, 0, 0, 0, 0, 0, 0, 0];
    head[4..].copy_from_slice(&part.to_le_bytes());
    head
}

/// Deadline of a request: it is answered at once, unless the machine is busy.
fn soon() -> Deadline {
    Deadline::after(LONG)
}
