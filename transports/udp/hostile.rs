//! A NIC that is thrown datagrams at: by strangers, and by a peer that keeps to nothing. Nothing panics, memory stays within
//! bounds, and whom it does not concern is not disturbed.
//!
//! `HOSTILE_FRAMES` sets how many datagrams (1,000,000), `HOSTILE_SEED` replays one run as far as threads allow.

mod panics;

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use udeck_faults::SplitMix64;
use udeck_session::{BYTES, Content, MESSAGES};
use udeck_via::auth::Claim;
use udeck_via::transport::Body;
use udeck_via::{Error, Nic, Reliability, State, Window};

use crate::core::Core;
use crate::device;
use crate::fixture::{End, LONG, connect, works};
use crate::flow::LEAST_WINDOW;
use crate::greeting::OURS;
use crate::wire::greeting::{Ask, Exchange, Greeting, Meet, Process, Prove, Withdraw};
use crate::wire::{AckRanges, Flags, Kind, NUMBERS, Packet, PacketHeader, Piece, PieceHeader, VERSION, seal};
use crate::{Options, Source};

const ARENA: usize = 8 << 20;
/// The window that the peer may write.
const WINDOW: usize = 60_000;

/// What is thrown, by chance.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.next() as u8).collect()
    }

    fn array(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.next() as u8)
    }
}

/// The NIC, a connection of it that is attacked, and others that are not.
struct Victim {
    core: Arc<Core>,
    peer: Nic,
    attacked: (End, End),
    /// What the victim calls that connection.
    number: u64,
    /// Packets that were sent to it.
    packets: u64,
    bystanders: Vec<(End, End)>,
    window: Window,
    /// The last datagrams.
    last: VecDeque<Vec<u8>>,
    /// Times that the attacked connection was made again.
    broken: u64,
    /// Messages that it took for a peer's.
    taken: u64,
}

impl Victim {
    fn new() -> Self {
        let open = || {
            let mut options = Options::new([7; 32]);
            options.memory = Source::Fresh(ARENA);
            let device = device::open(&options).unwrap();
            (device.network().clone(), Nic::new(device))
        };
        let ((core, nic), (_, peer)) = (open(), open());
        let pair = |level| {
            let (mut a, mut b) = (End::new(&peer, level), End::new(&nic, level));
            connect(&mut a, &mut b);
            (a, b)
        };
        let attacked = pair(Reliability::Unreliable);
        let number = core.numbers()[0];
        let bystanders = vec![pair(Reliability::Unreliable), pair(Reliability::Delivery)];
        let window = nic.window(WINDOW, attacked.1.ptag).unwrap();
        let (packets, last, broken, taken) = (10, VecDeque::new(), 0, 0);
        Victim { core, peer, attacked, number, packets, bystanders, window, last, broken, taken }
    }

    /// What a stranger sends.
    fn strange(&self, random: &mut Random) -> Vec<u8> {
        let number = if random.one_in(2) { 0 } else { random.next() };
        let claim = if random.one_in(2) { Claim::NOBODY } else { Claim::decode(random.next().to_le_bytes()) };
        let exchange = Exchange { number, nonce: random.array(), cookie: random.array(), claim };
        let hello = udeck_via::transport::Hello {
            reliability: Reliability::Unreliable,
            writable_ptag: None,
            readable_ptag: None,
            private_data: random.bytes(100),
        };
        let (kind, body) = match random.below(6) {
            0 => (Kind::Meet, Meet { versions: OURS, number, nonce: random.array(), claim }.encode()),
            1 => (Kind::Prove, Prove { versions: OURS, cookie: random.array() }.encode()),
            2 => {
                let (round_trip, discriminator) = (Duration::from_micros(random.below(99)), b"here".to_vec());
                (
                    Kind::Ask,
                    Ask { exchange, round_trip, process: Process::default(), discriminator, hello }.encode(),
                )
            }
            3 => (Kind::Withdraw, Withdraw(exchange).encode()),
            4 => (Kind::Answer, random.bytes(200)),
            _ => return random.bytes(300),
        };
        let mut datagram = Greeting { kind, connection: number, proof: random.array(), body: &body }.encode();
        if random.one_in(3) {
            datagram[0] = random.next() as u8;
            seal(&mut datagram, []);
        }
        datagram
    }

    fn next_packet(&mut self, random: &mut Random) -> u64 {
        self.packets += 1 + random.below(2);
        if random.one_in(100_000) { random.below(NUMBERS) } else { self.packets - random.below(4) }
    }

    /// What a peer sends that keeps to the form and to nothing else.
    fn piece(&mut self, random: &mut Random) -> Vec<u8> {
        let end = self.core.link(self.number).map_or(0, |link| link.with(|it, _| it.unreliable_end()));
        // Most near the first that is not over: so that something gets through.
        let base = end.saturating_sub(MESSAGES.into());
        let message = match random.below(20) {
            0 => random.below(NUMBERS),
            1..=9 => base + random.below(280),
            _ => base + random.below(4),
        };
        let payload = vec![0xab; random.pick(&[0, 1, 8, 48, 100, 1000])];
        let rest = random.pick(&[0, 0, 1, 500, 100_000, u64::from(u32::MAX)]);
        let offset = random.below(rest / 2 + 1) as u32;
        let total =
            (u64::from(offset) + payload.len() as u64 + random.below(rest + 1)).min(u32::MAX.into()) as u32;
        let immediate = random.one_in(2).then_some(7);
        let remote = self.window.remote();
        let content = match random.below(5) {
            0 if random.one_in(2) => {
                Content::Message { immediate, lent: false, head: random.below(60) as u8 }
            }
            0 => Content::Message { immediate, lent: false, head: payload.len() as u8 },
            1 => Content::Write { immediate, handle: random.next() as u32, offset: random.next() },
            2 => {
                Content::Write { immediate, handle: remote.handle.0, offset: random.below(2 * WINDOW as u64) }
            }
            _ => Content::Message { immediate, lent: true, head: random.below(49) as u8 },
        };
        let (connection, number) = (self.number, self.next_packet(random));
        let last = random.one_in(2);
        let piece =
            Piece { connection, number, message, offset, total, content, last, acks: None, payload: &[] };
        let largest = random.below(8);
        let acks = random.one_in(4).then(|| AckRanges {
            delay: Duration::from_micros(random.next() >> 40),
            ranges: std::iter::once(largest.saturating_sub(random.below(3))..=largest),
        });
        let mut header = PieceHeader::new(&piece, acks);
        header.seal([&payload[..]]);
        [header.bytes(), &payload].concat()
    }

    fn packet(&mut self, random: &mut Random) -> Vec<u8> {
        let flags = random.next();
        let packet = Packet {
            connection: self.number,
            number: self.next_packet(random),
            offset: random.pick(&[0, 1, 32, 1000, LEAST_WINDOW as u64, 1 << 20, 1 << 40]),
            window: random.below(1 << 30),
            flags: Flags {
                ping: flags & 1 != 0,
                probe: flags & 2 != 0,
                close: random.one_in(2000),
                last: flags & 8 != 0,
            },
            acks: None,
            payload: &[],
        };
        // What lies in the right place breaks the connection, mostly: not too often.
        let payload = if random.one_in(20) { random.bytes(100) } else { Vec::new() };
        let mut header = PacketHeader::new(&packet, None::<AckRanges<std::iter::Empty<_>>>);
        header.seal([&payload[..]]);
        [header.bytes(), &payload].concat()
    }

    fn datagram(&mut self, random: &mut Random) -> Vec<u8> {
        let mut datagram = match random.below(10) {
            0..=1 => self.strange(random),
            2..=6 => self.piece(random),
            7 => self.packet(random),
            _ if self.last.is_empty() => self.strange(random),
            _ => self.last[random.below(self.last.len() as u64) as usize].clone(),
        };
        if random.one_in(3) && !datagram.is_empty() {
            for _ in 0..=random.below(4) {
                let at = random.below(datagram.len().min(100) as u64) as usize;
                let any = random.next() as u8;
                datagram[at] = random.pick(&[0, 1, 0x7f, 0x80, 0xff, any]);
            }
            if random.one_in(4) {
                datagram.truncate(random.below(datagram.len() as u64) as usize);
            }
            if datagram.len() >= 16 && random.one_in(2) {
                datagram[0] = VERSION;
                seal(&mut datagram, []);
            }
        }
        self.last.push_back(datagram.clone());
        if self.last.len() > 64 {
            self.last.pop_front();
        }
        datagram
    }

    /// Its program goes on: takes what came, and calls again if the connection broke (`again`: also if not).
    fn live(&mut self, again: bool) {
        let end = &mut self.attacked.1;
        let stands = loop {
            match end.vi.arrival() {
                Ok(Some(arrival)) => {
                    self.taken += 1;
                    // Whole means whole: no memory that a bystander's message lay in before shows through.
                    if let Body::Lent(_, lent) = &arrival.body {
                        let secret = |bytes: &[u8]| bytes.iter().all(|byte| *byte == LONG as u8);
                        assert!(!lent.as_slice().unwrap().chunks_exact(8).any(secret), "what nobody sent it");
                    }
                }
                Ok(None) => break end.vi.state() == State::Connected,
                Err(Error::Closed | Error::Lost(_)) => break false,
                Err(error) => panic!("{error}"),
            }
        };
        if !again && stands && self.core.link(self.number).is_some() {
            return;
        }
        self.broken += 1;
        let (a, b) = &mut self.attacked;
        a.vi.disconnect();
        b.vi.disconnect();
        let before = self.core.numbers();
        connect(a, b);
        let mut new = self.core.numbers().into_iter().filter(|number| !before.contains(number));
        self.number = new.next_back().expect("a connection");
        self.packets = 10;
    }

    fn check(&mut self) {
        let used = self.core.memory.outbox.usage().used;
        let most = 2 * (ARENA + 2 * BYTES);
        assert!(used <= most, "{used} bytes of the outbox, {most} are the bound");
        assert_eq!(self.core.door.pending(), 0, "who proved nothing is not remembered");
        for (a, b) in &mut self.bystanders {
            works(a, b);
            works(b, a);
        }
    }
}

/// Bytes that this process has in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

#[test]
fn nothing_that_is_thrown_at_a_nic_disturbs_others() {
    let from = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let datagrams = from("HOSTILE_FRAMES").unwrap_or(1_000_000);
    let seed = from("HOSTILE_SEED").unwrap_or_else(|| getrandom::u64().unwrap());
    println!("HOSTILE_SEED={seed} HOSTILE_FRAMES={datagrams}");
    let (mut random, mut victim) = (Random(SplitMix64::new(seed)), Victim::new());
    // Answers go there, and nobody reads them.
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from: SocketAddr = sink.local_addr().unwrap();
    let mut warm = 0;
    let mut thrown = 0;
    while thrown < datagrams {
        let burst: Vec<_> = (0..1 + random.below(8)).map(|_| victim.datagram(&mut random)).collect();
        thrown += burst.len() as u64;
        victim.core.give(burst.iter().map(|datagram| (from, &datagram[..])));
        if random.one_in(20) {
            let again = random.one_in(30);
            victim.live(again);
        }
        if random.one_in(2000) {
            victim.check();
        }
        if warm == 0 && thrown > datagrams / 10 {
            warm = resident();
        }
    }
    victim.live(true);
    victim.check();
    let grown = resident().saturating_sub(warm);
    let dropped = (victim.core.dropped.messages(), victim.core.dropped.datagrams());
    println!(
        "{thrown} datagrams; {} connections; {} messages taken; {dropped:?} messages and datagrams dropped; grown by {grown} bytes",
        victim.broken, victim.taken
    );
    assert!(grown < 128 << 20, "grown by {grown} bytes");
    assert!(dropped.0 > 0 && dropped.1 > 0 && victim.taken > 0, "nothing got through");
    // Whoever calls now is heard.
    let (mut a, mut b) = (
        End::new(&victim.peer, Reliability::Reception),
        End::new(&victim.attacked.1.nic, Reliability::Reception),
    );
    connect(&mut a, &mut b);
}
