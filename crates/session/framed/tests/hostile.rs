//! Hostile peers: nothing that they send makes us panic, or keep more than the bounds say.
//!
//! `HOSTILE_FRAMES` sets how many frames are tried (20,000), `HOSTILE_SEED` replays one run.

use std::sync::Arc;

use udeck_faults::SplitMix64;
use udeck_via::mem::{Ptag, Rights};
use udeck_via::transport::{PostedBuffer, Refused};
use udeck_via::{Reliability, RemoteBuffer};

use super::pair::{MAX_TRANSFER, WINDOW, connection};
use crate::framed::connection::{Connection, Phase, Pieces, Side};
use crate::framed::wire::{Frame, HEADER, Header};
use crate::{BYTES, MESSAGES, Memory, Windows};

/// Source of random choices.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// A number that is likely to be at some bound.
    fn number(&mut self) -> u64 {
        match self.below(12) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 63,
            3 => 1 << 32,
            4 => MAX_TRANSFER as u64 + self.below(3) - 1,
            5 => BYTES as u64 + self.below(3) - 1,
            6 => WINDOW as u64 + self.below(3) - 1,
            7 | 8 => self.below(100),
            9 => self.below(1 << 20),
            10 => self.below(1 << 40),
            _ => self.next(),
        }
    }
}

struct Target {
    connection: Connection,
    memory: Memory,
    windows: Arc<Windows>,
    handle: u32,
    gathered: u64,
    level: Reliability,
}

impl Target {
    fn new(memory: &Memory, windows: &Arc<Windows>, handle: u32, random: &mut Random) -> Self {
        let levels = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
        let level = levels[random.below(3) as usize];
        let side = if random.one_in(2) { Side::Asked } else { Side::Accepted };
        let mut connection = connection(level, side, memory, windows);
        if level == Reliability::Unreliable && random.one_in(2) {
            connection.go_unreliable();
        }
        let (memory, windows) = (memory.clone(), windows.clone());
        Target { connection, memory, windows, handle, gathered: 0, level }
    }

    /// A frame that is nearly one that keeps the rules.
    fn frame(&self, random: &mut Random) -> Vec<u8> {
        let small = random.below(300);
        let len = if random.one_in(4) { random.number() } else { small };
        let immediate = random.one_in(2).then_some(7);
        let receipt = self.level == Reliability::Reception && random.one_in(2);
        let handle = if random.one_in(8) { random.next() as u32 } else { self.handle };
        let offset = if random.one_in(4) { random.number() } else { random.below(WINDOW as u64 - 300) };
        let number = random.below(4) as u32;
        let status = udeck_via::transport::TransferStatus::Arrived;
        let head = random.below(49) as u8;
        let frame = match random.below(42) {
            40 => Frame::Forget { upto: random.number() },
            41 if self.connection.is_unreliable() => Frame::Ask { when_taken: true },
            0..=9 => Frame::Message { immediate, receipt, lent: true, head, len },
            10..=15 => Frame::Message { immediate, receipt, lent: false, head, len: 0 },
            16..=22 => Frame::Write { immediate, receipt, handle, offset, len },
            23..=27 => Frame::Read { number, handle, offset, len },
            28..=31 => Frame::Data { number, status, len },
            32..=34 => Frame::Receipt { number, status },
            35 | 36 => Frame::Ask { when_taken: random.one_in(2) },
            37 => Frame::Credit,
            38 => Frame::RecvClosed,
            _ if random.one_in(20) => Frame::Over,
            _ if random.one_in(10) => Frame::End { broken: random.one_in(2), len: small },
            _ => Frame::Credit,
        };
        let taken = if random.one_in(3) { random.below(3) as u32 } else { 0 };
        let mut bytes = Header { taken, frame }.encode().to_vec();
        if random.one_in(50) {
            let at = random.below(HEADER as u64) as usize;
            bytes[at] = random.next() as u8;
        }
        let payload = match frame {
            Frame::Message { head, len, .. } => len.saturating_add(head.into()),
            Frame::Write { len, .. } | Frame::Data { len, .. } | Frame::End { len, .. } => len,
            _ => 0,
        };
        bytes.resize(HEADER + payload.min(2000) as usize, 0xAB);
        bytes
    }

    /// Lets our own program act, too.
    fn act(&mut self, random: &mut Random) {
        match random.below(12) {
            0 => drop(self.connection.send(None, b"x", b"y")),
            1 | 2 => {
                let block = self.memory.outbox.block(100, udeck_via::mem::Fill::Zero).unwrap();
                let segments = [(block.offset(), 100)];
                let at = RemoteBuffer { handle: udeck_via::MemHandle(1), offset: 0, len: 100 };
                drop(self.connection.rdma_read(&segments, at, PostedBuffer::Block(block)));
            }
            3 => {
                let block = self.memory.outbox.block(100, udeck_via::mem::Fill::Zero).unwrap();
                let segments = [(block.offset(), 100)];
                // A VI keeps this until `ended`.
                let held = if random.one_in(2) {
                    PostedBuffer::Caller(1)
                } else {
                    PostedBuffer::Owner(Box::new(block))
                };
                drop(self.connection.lend(None, &[], &segments, held));
            }
            4..=8 => {
                if let Ok(Some(taken)) = self.connection.take()
                    && let Some(number) = taken.receipt
                {
                    self.connection.acknowledge(number, udeck_via::transport::TransferStatus::Arrived);
                }
            }
            9 => drop(self.connection.unread()),
            10 => {
                let mut pieces = Pieces::new();
                let from = self.gathered.max(self.connection.released_to());
                let gathered = self.connection.gather(from, 1000, &mut pieces);
                let mut bytes = [0; 1000];
                assert_eq!(pieces.copy_to(&mut bytes), gathered);
                self.gathered = from + gathered as u64;
            }
            _ => self.connection.released(self.gathered.min(self.connection.queued())),
        }
        while self.connection.next_completion().is_some() {}
        drop(self.connection.take_events());
    }

    fn check(&self) {
        // The bound covers messages that arrived and were not taken, the message that is coming, and the posts of our own
        // program.
        let most = BYTES + MAX_TRANSFER + (BYTES + MAX_TRANSFER) / 2 + 4 * MESSAGES as usize * 128;
        let used = self.memory.outbox.usage().used;
        assert!(used <= most, "{used} bytes of the outbox for one connection, {most} are the bound");
        let queued = self.connection.frames();
        assert!(queued <= 8 * MESSAGES as usize, "{queued} frames wait");
    }
}

#[test]
fn nothing_that_a_peer_sends_makes_us_panic_or_hoard() {
    let from = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let frames = from("HOSTILE_FRAMES").unwrap_or(20_000);
    let seed = from("HOSTILE_SEED").unwrap_or_else(|| u64::from(getrandom::u32().unwrap()));
    println!("HOSTILE_SEED={seed} HOSTILE_FRAMES={frames}");
    let mut random = Random(SplitMix64::new(seed));
    let (memory, windows) = (Memory::fresh(16 << 20).unwrap(), Windows::new());
    let handle = windows.expose(0, WINDOW, Ptag(1), Rights::BOTH).unwrap();
    let mut target = Target::new(&memory, &windows, handle.0, &mut random);
    let mut broken = 0u64;
    for _ in 0..frames {
        let bytes = if random.one_in(200) {
            (0..random.below(200)).map(|_| random.next() as u8).collect()
        } else {
            target.frame(&mut random)
        };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at((1 + random.below(rest.len() as u64)) as usize);
            let direct = target.connection.direct();
            target.connection.on_receive(direct, 0, now);
            rest = later;
            if random.one_in(3) {
                target.act(&mut random);
            }
        }
        target.check();
        let over = target.connection.phase() != Phase::Open || random.one_in(500);
        if over {
            broken += 1;
            if random.one_in(2) {
                target.connection.lost("the test");
                assert!(target.connection.end().is_some());
            }
            let windows = target.windows.clone();
            target = Target::new(&memory, &windows, handle.0, &mut random);
            assert_eq!(memory.outbox.usage().used, 0, "memory is not home");
        }
    }
    println!("{broken} connections");
    assert!(broken > 0 || frames < 1000);
}

/// Returns the error that the program gets when a peer sends these frames.
fn words(level: Reliability, frames: &[Frame]) -> String {
    let (memory, windows) = (Memory::fresh(4 << 20).unwrap(), Windows::new());
    let mut connection = connection(level, Side::Asked, &memory, &windows);
    for &frame in frames {
        let direct = connection.direct();
        let mut bytes = Header { taken: 0, frame }.encode().to_vec();
        if let Frame::Message { head, lent: false, .. } = frame {
            bytes.resize(HEADER + usize::from(head), 1);
        }
        connection.on_receive(direct, 0, &bytes);
    }
    assert_eq!(memory.outbox.usage().used, 0, "it was allocated before it was checked");
    assert_eq!(connection.phase(), Phase::Broken);
    // The peer is told, too.
    let mut told = Vec::new();
    while (told.len() as u64) < connection.queued() {
        let mut pieces = Pieces::new();
        let mut bytes = vec![0; connection.gather(told.len() as u64, 4096, &mut pieces)];
        pieces.copy_to(&mut bytes);
        told.extend(bytes);
    }
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("you broke the protocol"), "{told}");
    loop {
        match connection.take() {
            Ok(Some(_)) => {}
            Err(Refused::Lost(why)) => {
                return why.strip_prefix("the peer broke the protocol: it sent ").unwrap().into();
            }
            Ok(None) | Err(_) => panic!("it goes on"),
        }
    }
}

#[test]
fn the_words_say_what_the_peer_did() {
    let message = |len| Frame::Message { immediate: None, receipt: false, lent: true, head: 0, len };
    let short = Frame::Message { immediate: None, receipt: false, lent: false, head: 1, len: 0 };
    let level = Reliability::Delivery;
    let long = words(level, &[message(1 << 63)]);
    assert_eq!(long, "a message of 9223372036854775808 bytes, at most 8388608");
    let write = Frame::Write { immediate: None, receipt: false, handle: 1, offset: 0, len: 1 << 63 };
    assert_eq!(words(level, &[write]), "a write of 9223372036854775808 bytes at 0 of a window");
    let many = words(level, &vec![short; MESSAGES as usize + 1]);
    assert_eq!(many, "more than 256 messages before one of them was taken");
    let receipt = Frame::Message { immediate: None, receipt: true, lent: true, head: 0, len: 1 };
    assert_eq!(words(level, &[receipt]), "a receipt is wanted on a connection that has none");
    let data = Frame::Data { number: 3, status: udeck_via::transport::TransferStatus::Arrived, len: 9 };
    assert_eq!(words(level, &[data]), "an answer to read 3 that was not requested");
    let nothing = Frame::Receipt { number: 5, status: udeck_via::transport::TransferStatus::Arrived };
    assert_eq!(words(level, &[nothing]), "a receipt for message 5 that was not requested");
    let read = Frame::Read { number: 0, handle: 1, offset: 0, len: 1 };
    let greedy = words(level, &vec![read; 4 * MESSAGES as usize + 2]);
    assert_eq!(greedy, "more than 1024 answers that it does not take");
}
