//! A hundred thousand random writes into all memory that a peer can write, while the victim's program goes on.

use std::collections::VecDeque;

use udeck_sys::atomic::Ordering;
use udeck_sys::ring::{PAYLOAD_WORDS, Storage};
use udeck_sys::window::Exposed;
use udeck_via::mem::Fill;
use udeck_via::transport::{Arrival, Body, Inline, ShortArrival};
use udeck_via::{Deadline, Error, MemHandle, RemoteBuffer, Vi};

use super::attacker::{Attacker, Grip, LANDING, OUTBOX, PTAG};
use super::victim::Victim;
use crate::layout::Direction;

const STEPS: u64 = 100_000;
/// Steps between two checks that the honest peer is served.
const LOOK: u64 = 2_000;

/// Xorshift: the same seed gives the same run.
struct Random(u64);

impl Random {
    fn seeded() -> Self {
        let fresh = || u64::from_ne_bytes(getrandom_bytes());
        let seed =
            std::env::var("DECK_SEED").map_or_else(|_| fresh(), |text| text.parse().expect("a number"));
        println!("replay with DECK_SEED={seed}");
        Random(seed.max(1))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Draws a small number, one near the end of a structure, or any number.
    fn value(&mut self) -> u64 {
        match self.below(5) {
            0 => self.below(130),
            1 => OUTBOX as u64 - self.below(130),
            2 => LANDING as u64 - self.below(130),
            3 => u64::MAX - self.below(130),
            _ => self.next(),
        }
    }
}

fn getrandom_bytes() -> [u8; 8] {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).unwrap();
    bytes
}

/// The connection under attack, and what its program has taken from it.
struct Attack {
    victim: Victim,
    attacker: Attacker,
    grip: Grip,
    vi: Vi,
    taken: VecDeque<Arrival>,
    /// Position of the attacker's next cell.
    position: u32,
    random: Random,
    connections: u32,
    /// Number of messages that were taken several at a time.
    in_runs: usize,
}

#[test]
fn random_words_break_nothing_but_their_own_connection() {
    let random = Random::seeded();
    let mut victim = Victim::new();
    let mut attacker = Attacker::admitted(victim.address());
    let (grip, vi) = attacker.connect(&victim);
    victim.serves_the_honest(0);
    let taken = VecDeque::new();
    let mut attack =
        Attack { victim, attacker, grip, vi, taken, position: 0, random, connections: 1, in_runs: 0 };
    for step in 1..=STEPS {
        match attack.random.below(2) {
            0 => attack.write_something(),
            _ => attack.call_something(),
        }
        if step.is_multiple_of(LOOK) {
            attack.victim.serves_the_honest(step);
        }
    }
    println!("{} connections were broken", attack.connections - 1);
    assert!(attack.connections > 10, "the garbage was not read");
    assert!(attack.in_runs > 100, "only {} messages came in runs", attack.in_runs);
}

impl Attack {
    fn write_something(&mut self) {
        let random = &mut self.random;
        match random.below(16) {
            0 => {
                let (word, value) = (random.next() as usize, random.value());
                self.grip.scribble(word, value);
            }
            1 => self.grip.claim_credit(random.below(3) as u32 + self.position % 3),
            2 => self.grip.returner.give_back(random.below(66) as u16),
            3 => Direction::new(&self.grip.control, 0)
                .sender()
                .state
                .store(random.below(4) as u32, Ordering::Release),
            4 => {
                let handle = random.below(4) as u32 + 512;
                let exposed = Exposed {
                    tag: PTAG.0 + random.below(2) as u32,
                    offset: random.value(),
                    len: random.value(),
                    rights: random.below(4) as u32,
                };
                self.attacker.board.view().window(MemHandle(handle)).expose(handle, exposed);
            }
            5 => {
                let doorbell = self.attacker.victim_board().doorbell(self.grip.doorbells.receive.doorbell);
                doorbell.ring(random.next() as u32);
            }
            6 => self.grip.stay_at(MemHandle(random.value() as u32)),
            _ => self.write_cell(),
        }
    }

    /// Writes a cell of any contents at the next position.
    fn write_cell(&mut self) {
        let random = &mut self.random;
        // Most cells could be true, so that a connection lives long enough for the others to meet it in many states.
        let odd = random.below(16) == 0;
        let kind = if odd { random.below(6) } else { 1 + random.below(4) } as u8;
        // Inline cells count bytes: as many as a header has, or more.
        let usual = if kind == 1 { 7 + random.below(42) as u8 } else { 1 };
        let (count, head) =
            if odd { (random.next() as u8, random.next() as u8) } else { (usual, random.below(33) as u8) };
        let meta = u32::from_le_bytes([kind, count, head, random.next() as u8]);
        let at = (self.position % Direction::new(&self.grip.control, 0).cells()) as usize * 8;
        self.grip.scribble(at + 1, random.next());
        for word in 0..PAYLOAD_WORDS {
            let value = match word {
                _ if odd => random.value(),
                // First byte of a header.
                0 if kind == 1 => random.below(3),
                _ => random.below(4096),
            };
            self.grip.scribble(at + 2 + word, value);
        }
        self.position = self.position.wrapping_add(1);
        self.grip.scribble(at, u64::from(meta) << 32 | u64::from(self.position));
    }

    fn call_something(&mut self) {
        let block = |attack: &Self, len| attack.victim.nic.outbox().block(len, Fill::Zero);
        let result = match self.random.below(16) {
            0..=4 => self.take(),
            5 | 6 => {
                self.take_run();
                Ok(())
            }
            7 => self.vi.send_inline(Some(1), b"head", b"body"),
            8 => match block(self, 300) {
                Ok(block) => self.vi.hand_off(None, b"head", block).map_err(|(error, _)| error),
                Err(error) => Err(error),
            },
            9 => {
                let handle = MemHandle(self.random.below(4) as u32 + 512);
                let offset = self.random.value() as usize;
                let to = RemoteBuffer { handle, offset, len: self.random.value() as usize };
                block(self, 300)
                    .and_then(|block| self.vi.rdma_write(block, to, Some(1)).map_err(|(error, _)| error))
            }
            10 => self.vi.unread().map(drop),
            11 => {
                self.vi.request_send_notify();
                self.vi.reclaim();
                Ok(())
            }
            12 => {
                let _ = self.victim.cq.poll();
                Ok(())
            }
            13 => {
                self.taken.pop_front();
                Ok(())
            }
            14 if self.random.below(100) == 0 => {
                let tag = self.vi.attributes().ptag;
                self.victim.nic.window(64, tag).and_then(|window| window.revoke(Deadline::now()).map(drop))
            }
            _ => Ok(()),
        };
        match result {
            Ok(())
            | Err(
                Error::Full { .. }
                | Error::NoMemory { .. }
                | Error::RdmaProtection { .. }
                // A window is revoked while the attacker says that it is writing.
                | Error::Timeout { .. },
            ) => {}
            Err(Error::Closed | Error::Lost(_)) => self.connect_again(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Takes an arrival, and reads all of its bytes.
    fn take(&mut self) -> udeck_via::Result {
        let Some(arrival) = self.vi.arrival()? else { return Ok(()) };
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        std::hint::black_box(match &arrival.body {
            Body::Inline(bytes) => sum(bytes.bytes()),
            Body::Lent(head, lent) => sum(head.bytes()) + lent.parts().map(sum).sum::<u64>(),
            Body::Written(len) => *len as u64,
        });
        self.taken.push_back(arrival);
        self.taken.truncate(100);
        Ok(())
    }

    /// Takes short messages of one kind by one call.
    fn take_run(&mut self) {
        let mut run = [ShortArrival::NONE; 16];
        let (first, most) = (self.random.below(3) as u8, self.random.below(17) as usize);
        let taken = self.vi.arrival_short_run(first, &mut run[..most]);
        assert!(taken <= most);
        for ShortArrival { message, .. } in &run[..taken] {
            assert!((8..=Inline::CAPACITY).contains(&message.len()) && message.first() == first);
        }
        self.in_runs += taken;
    }

    fn connect_again(&mut self) {
        let (grip, vi) = self.attacker.connect(&self.victim);
        (self.grip, self.vi) = (grip, vi);
        self.position = 0;
        self.connections += 1;
    }
}
