//! Short messages that lie in the driver's scratch as a whole are taken in one step, past the parser's stages. Two
//! connections are given the same bytes and calls, one of them by the stages only: they behave alike.

use udeck_faults::SplitMix64;
use udeck_via::Reliability;
use udeck_via::transport::{Found, Inline};

use super::pair::connection;
use crate::framed::connection::{Connection, Pieces, Side};
use crate::framed::wire::{Frame, HEADER, Header};
use crate::{Memory, Windows};

/// Number of connections (`CONNECTIONS`), and bound of reads on each (`ROUNDS`).
const CONNECTIONS: u64 = 300;
const ROUNDS: usize = 120;

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }

    /// Returns true once in `times` on average.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// Makes a frame: mostly a short message; sometimes any other frame, allowed or not.
fn frame(random: &mut Random, level: Reliability) -> Frame {
    let immediate = random.once_in(2).then_some(random.below(3) as u32);
    match random.below(40) {
        0 => Frame::Credit,
        1 => Frame::Ask { when_taken: random.once_in(2) },
        2 if random.once_in(40) => Frame::End { broken: random.once_in(2), len: 0 },
        3 if random.once_in(60) => Frame::Over,
        4 if random.once_in(3) => {
            let receipt = level == Reliability::Reception;
            Frame::Message { immediate: None, receipt, lent: false, head: 3, len: 0 }
        }
        5 => Frame::Message { immediate, receipt: false, lent: true, head: 5, len: random.below(60) },
        6 if random.once_in(4) => Frame::RecvClosed,
        7 if random.once_in(9) => {
            Frame::Read { number: random.below(3) as u32, handle: 1, offset: 0, len: 8 }
        }
        8 if random.once_in(12) => Frame::Write { immediate, receipt: false, handle: 77, offset: 0, len: 0 },
        _ => {
            let head = random.below(Inline::CAPACITY as u64 + 1) as u8;
            Frame::Message { immediate, receipt: false, lent: false, head, len: 0 }
        }
    }
}

/// Encodes a frame. Now and then it counts more of our messages as taken than have left, or is damaged.
fn encoded(random: &mut Random, frame: Frame, taken: u32) -> Vec<u8> {
    let taken = match random.below(2000) {
        0 => taken.wrapping_add(1),
        1 => taken.wrapping_add(random.0.next_u64() as u32),
        _ => taken,
    };
    let mut bytes = Header { taken, frame }.encode().to_vec();
    if random.once_in(2500) {
        bytes[random.below(HEADER as u64) as usize] ^= 1 << random.below(8);
    }
    if let Frame::Message { head, len, .. } = frame {
        // With zeros, the bytes behind the first ones of a header may look like another header.
        let values = random.pick(&[1, 256]);
        bytes.extend((0..len + u64::from(head)).map(|_| random.below(values) as u8));
    }
    bytes
}

/// Call of the program between two reads.
#[derive(Clone, Copy)]
enum Call {
    Take(u64),
    Send,
    Release,
    Close(Option<&'static str>),
    Lose,
    WantRoom,
    Nothing,
}

impl Call {
    fn any(random: &mut Random, flooded: bool) -> Self {
        let ends = random.once_in(160);
        match random.below(10) {
            0 => Call::Take(random.below(40)),
            1 | 2 if !flooded => Call::Take(random.below(40)),
            3 => Call::Send,
            4 => Call::Release,
            5 if ends => Call::Close(None),
            6 if ends => Call::Close(Some("why")),
            7 if ends => Call::Lose,
            8 => Call::WantRoom,
            _ => Call::Nothing,
        }
    }

    /// Makes the call, and returns its result as text.
    fn make(self, connection: &mut Connection) -> String {
        match self {
            Call::Take(most) => (0..most).map(|_| take(connection)).collect(),
            Call::Send => format!("{:?}", connection.send(Some(1), b"abc", b"")),
            Call::Release => {
                connection.released(connection.queued().max(connection.released_to()));
                String::new()
            }
            Call::Close(why) => {
                connection.close(why);
                String::new()
            }
            Call::Lose => {
                connection.lost("it is lost");
                String::new()
            }
            Call::WantRoom => {
                connection.request_send_notify();
                String::new()
            }
            Call::Nothing => String::new(),
        }
    }
}

fn take(connection: &mut Connection) -> String {
    let mut to = Inline::EMPTY;
    match connection.take_short(&mut to) {
        Found::Other => match connection.take() {
            Ok(Some(taken)) => format!("{:?} {:?};", taken.immediate, taken.receipt),
            Ok(None) => "nothing;".into(),
            Err(end) => format!("{end:?};"),
        },
        found => format!("{found:?} {to:?};"),
    }
}

/// Everything that a program and a driver see of a connection, as text.
fn seen(connection: &mut Connection) -> String {
    let events = connection.take_events();
    let told = (events.send, events.receive, events.lost.as_deref(), connection.has_arrivals());
    let fresh = connection.take_fresh();
    let mut outgoing = vec![0; 1 << 20];
    let mut pieces = Pieces::new();
    let len = connection.gather(connection.released_to(), outgoing.len(), &mut pieces);
    assert_eq!(pieces.copy_to(&mut outgoing), len);
    outgoing.truncate(len);
    format!("{told:?} {fresh} {connection:?} {outgoing:?}")
}

#[test]
fn short_messages_in_one_step_are_what_the_stages_make_of_them() {
    for number in 0..CONNECTIONS {
        let mut random = Random(SplitMix64::new(number));
        let level = random.pick(&[Reliability::Unreliable, Reliability::Delivery, Reliability::Reception]);
        let side = random.pick(&[Side::Asked, Side::Accepted]);
        let (memory, windows) = (Memory::fresh(4 << 20).unwrap(), Windows::new());
        let mut twins = [(); 2].map(|()| connection(level, side, &memory, &windows));
        if level == Reliability::Unreliable && random.once_in(3) {
            twins.iter_mut().for_each(Connection::go_unreliable);
        }
        // The count of our messages that the peer has taken, and how many more it may take.
        let (mut taken, mut sent) = (0u32, 0);
        if random.once_in(4) {
            let age = u64::from(u32::MAX) - random.below(40);
            twins.iter_mut().for_each(|twin| twin.advance_for_test(age));
            taken = age as u32;
        }
        let flooded = random.once_in(8);
        for round in 0..ROUNDS {
            let frames = if flooded { 41 } else { 1 + random.below(6) };
            let mut bytes = Vec::new();
            for _ in 0..frames {
                if sent > 0 && random.once_in(3) {
                    (sent, taken) = (sent - 1, taken.wrapping_add(1));
                }
                let frame = frame(&mut random, level);
                bytes.extend(encoded(&mut random, frame, taken));
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let len = random.pick(&[1, 8, 33, 64, 100, 1 << 16, 1 << 16]).min(rest.len());
                let (piece, later) = rest.split_at(len);
                twins[0].came_by_stages(piece);
                twins[1].on_receive_beside(piece);
                rest = later;
            }
            let call = Call::any(&mut random, flooded);
            let [by_stages, in_one_step] = twins.each_mut().map(|twin| (call.make(twin), seen(twin)));
            assert_eq!(by_stages, in_one_step, "connection {number}, round {round}");
            sent += u32::from(matches!(call, Call::Send) && by_stages.0.starts_with("Ok"));
            if by_stages.1.contains("phase: Broken") {
                break;
            }
        }
    }
}
