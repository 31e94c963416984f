//! An admitted peer that sends anything: at most the connection breaks, with a reason, and nothing is lent, kept or
//! answered without bound.

use std::ptr::NonNull;

use proptest::prelude::*;
use udeck_session::Memory;
use udeck_via::transport::{Hello, PostedBuffer};
use udeck_via::{MemHandle, Ptag, Reliability, RemoteBuffer};

use crate::connection::{Connection, MESSAGES, Phase, RequestOptions, Span, Work};
use crate::hca::objects::Mr;
use crate::memory::Segment;
use crate::wire::{BLOCK, Frame, HEADER, Header, Note, RemoteKey, RemotePiece};

/// A device that takes everything, and completes it when asked.
#[derive(Default)]
struct Device {
    taken: Vec<u32>,
    frames: usize,
    /// Questions that the peer could answer: the window that was asked for, and the numbers of offered messages.
    asked: Option<u32>,
    numbered: u32,
    offered: Vec<u32>,
    /// The unreliable queue pair, if there is one. There an offer carries the key of its notes.
    unreliable: Option<Box<Device>>,
    is_unreliable: bool,
}

impl Work for Device {
    fn has_room(&self) -> bool {
        self.taken.len() < 100
    }
    fn fitting(&mut self, segments: &[Segment], from: usize) -> Result<usize, String> {
        Ok((segments.iter().map(|segment| segment.len()).sum::<usize>() - from).min(1 << 20))
    }
    fn send(&mut self, lead: &[u8], body: &[Segment], options: RequestOptions) -> Result<(), String> {
        assert!(lead.len() + body.iter().map(|segment| segment.len()).sum::<usize>() <= BLOCK);
        let header = lead.first_chunk::<HEADER>().expect("a header");
        let Header { taken, control_ack, frame } = Header::decode(header).expect("what is sent can be read");
        match frame {
            Frame::Where { handle, .. } => self.asked = Some(handle),
            Frame::Offer { .. } if self.is_unreliable => self.offered.push(control_ack),
            Frame::Offer { .. } => self.offered.push(self.numbered),
            _ => {}
        }
        assert!(!self.is_unreliable || taken == self.numbered, "its number");
        assert!(!frame.is_numbered() || self.unreliable.is_none(), "where messages do not travel");
        self.numbered += u32::from(frame.is_numbered());
        self.frames += 1;
        self.taken.push(options.token);
        Ok(())
    }
    fn write(
        &mut self,
        _: Span<'_>,
        _: RemoteKey,
        immediate: Option<u32>,
        options: RequestOptions,
    ) -> Result<(), String> {
        assert!(!self.is_unreliable || immediate.is_none_or(|number| number == self.numbered), "its number");
        self.numbered += u32::from(immediate.is_some());
        self.taken.push(options.token);
        Ok(())
    }
    fn read(&mut self, _: Span<'_>, _: RemoteKey, options: RequestOptions) -> Result<(), String> {
        self.taken.push(options.token);
        Ok(())
    }
    fn offer(&mut self, segments: &[Segment], parts: &mut Vec<RemotePiece>) -> Result<(), String> {
        parts.extend(segments.iter().map(|segment| RemotePiece {
            address: 0,
            rkey: 1,
            len: segment.len() as u32,
        }));
        Ok(())
    }
    fn register(&mut self, _: NonNull<[u8]>) -> Result<Mr, String> {
        Err("no memory".into())
    }
    fn find(&mut self, handle: u32, _: bool) -> Option<RemoteKey> {
        handle.is_multiple_of(2).then_some(RemoteKey { address: 0, rkey: 7, len: 100 })
    }
    fn unreliable(&mut self) -> Option<&mut dyn Work> {
        self.unreliable.as_deref_mut().map(|unreliable| unreliable as &mut dyn Work)
    }
}

fn hello(reliability: Reliability) -> Hello {
    let tag = Some(Ptag(1));
    Hello { reliability, writable_ptag: tag, readable_ptag: tag, private_data: Vec::new() }
}

/// A step of a connection's life.
#[derive(Clone, Debug)]
enum Step {
    /// Any bytes come.
    Bytes(Vec<u8>),
    /// A frame comes whose header is valid, with about as many bytes behind it as the header says.
    Frame(Header, Vec<u8>, i8),
    /// A valid offer, answer or note comes.
    Offer(u32),
    Answer(bool),
    HasRead,
    /// An RDMA write comes.
    Written(u32, usize),
    /// A message or a piece of a write comes on the unreliable queue pair, so many numbers behind the last.
    Unreliable(u32, u32, Frame, Vec<u8>),
    Piece(u32, usize),
    /// The peer reports that messages have left: so many behind the last that came. Missing ones are missed.
    Left(u32),
    Miss,
    /// The device completes all requests, or fails the first.
    Complete,
    Fail(bool),
    /// The program works.
    Post(u8),
    Take,
    Close,
    Done,
}

fn frame() -> impl Strategy<Value = Frame> {
    let some = (any::<Option<u32>>(), any::<bool>(), 0..=48usize, 0..4u32, 0..3000u64);
    (1..=13u8, some).prop_map(|(kind, (immediate, flag, head, word, long))| match kind {
        1 => Frame::Short { immediate, len: head },
        2 => Frame::Body { immediate, receipt: flag, head, len: long as usize },
        3 => Frame::Offer { immediate, receipt: flag, head, parts: word as usize, len: long },
        4 => Frame::Flush,
        5 => Frame::Notes { count: word as usize },
        6 => Frame::Credit,
        7 => Frame::Ask { when_taken: flag },
        8 => Frame::End { broken: flag, len: head },
        9 => Frame::Where { handle: word, write: flag },
        10 => Frame::Here {
            handle: word,
            place: flag.then_some(RemoteKey { address: long, rkey: 1, len: long }),
        },
        11 | 12 => Frame::Wrote { immediate: immediate.unwrap_or(1), pieces: word, len: long },
        _ => Frame::Left { upto: word },
    })
}

/// Draws a distance of numbers: mostly the next; sometimes one is missing, or a message comes late.
fn behind() -> impl Strategy<Value = u32> {
    prop_oneof![20 => Just(0u32), 3 => 1..4u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

/// Draws a frame, mostly one that travels on the unreliable queue pair.
fn unreliable_frame() -> impl Strategy<Value = Frame> {
    let message = (0..3000usize).prop_map(|len| match len {
        0..=48 => Frame::Short { immediate: None, len },
        _ => Frame::Body { immediate: None, receipt: false, head: 0, len },
    });
    let offer = (1..3u32).prop_map(|parts| Frame::Offer {
        immediate: None,
        receipt: false,
        head: 0,
        parts: parts as usize,
        len: 5000 * u64::from(parts),
    });
    let wrote = (0..3u32, 0..2000u64).prop_map(|(pieces, len)| Frame::Wrote { immediate: 7, pieces, len });
    prop_oneof![10 => message, 3 => offer, 5 => wrote, 1 => frame()]
}

fn step() -> impl Strategy<Value = Step> {
    let small = prop_oneof![60 => Just(0u32), 2 => 0..3u32, 1 => any::<u32>()];
    let header = (small.clone(), small, frame()).prop_map(|(taken, control_ack, frame)| Header {
        taken,
        control_ack,
        frame,
    });
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Step::Bytes),
        6 => (1..5000u32).prop_map(Step::Offer),
        6 => any::<bool>().prop_map(Step::Answer),
        6 => Just(Step::HasRead),
        4 => (header, prop::collection::vec(0..4u8, 8..64), prop_oneof![20 => Just(0i8), 1 => -1..=1i8])
            .prop_map(|(header, bytes, more)| Step::Frame(header, bytes, more)),
        3 => (any::<u32>(), 0..1000usize).prop_map(|(immediate, len)| Step::Written(immediate, len)),
        6 => (behind(), 0..5u32, unreliable_frame(), prop::collection::vec(0..4u8, 8..64))
            .prop_map(|(by, key, frame, bytes)| Step::Unreliable(by, key, frame, bytes)),
        4 => (behind(), 0..1000usize).prop_map(|(by, len)| Step::Piece(by, len)),
        2 => behind().prop_map(Step::Left),
        1 => Just(Step::Miss),
        12 => Just(Step::Complete),
        1 => any::<bool>().prop_map(Step::Fail),
        30 => (0..5u8).prop_map(Step::Post),
        6 => Just(Step::Take),
        1 => Just(Step::Close),
        1 => Just(Step::Done),
    ]
}

fn spoken(frame: Frame, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Header { taken: 0, control_ack: 0, frame }.encode().to_vec();
    bytes.extend(rest);
    bytes
}

fn post(connection: &mut Connection, device: &mut Device, memory: &Memory, what: u8, number: u64) {
    let Ok(block) = memory.outbox.block(5000, udeck_via::mem::Fill::Keep) else { return };
    let segment = [(block.offset(), if what == 0 { 100 } else { 5000 })];
    let remote = RemoteBuffer { handle: MemHandle(u32::from(what)), offset: 0, len: 5000 };
    let held =
        if number.is_multiple_of(2) { PostedBuffer::Caller(number) } else { PostedBuffer::Block(block) };
    let _ = match what {
        0 | 1 => connection.lend(None, b"head", &segment, held).map_err(drop),
        2 => connection.rdma_write(&segment, remote, Some(3), held).map_err(drop),
        3 => connection.rdma_read(&segment, remote, held).map_err(drop),
        _ => connection.send(Some(device), None, b"", b"short").map_err(drop),
    };
}

fn play(level: Reliability, unreliable: bool, steps: Vec<Step>, memory: &Memory) {
    let mut connection = Connection::new(memory, &hello(level), &hello(level), 1 << 20);
    let mut device = Device::default();
    if unreliable {
        connection.go_unreliable();
        device.unreliable = Some(Box::new(Device { is_unreliable: true, ..Device::default() }));
    }
    let (mut numbers, mut next) = (0, 0u32);
    for step in steps {
        match step {
            Step::Bytes(bytes) => connection.on_receive(&bytes),
            Step::Frame(header, bytes, more) => {
                let len = header.frame.rest().saturating_add_signed(more.into());
                let mut frame = header.encode().to_vec();
                frame.extend(bytes.iter().cycle().take(len));
                connection.on_receive(&frame);
            }
            Step::Offer(len) => {
                let frame =
                    Frame::Offer { immediate: None, receipt: false, head: 0, parts: 1, len: len.into() };
                let part = RemotePiece { address: 4096, rkey: 1, len }.encode();
                connection.on_receive(&spoken(frame, &part));
            }
            Step::Answer(known) => {
                if let Some(handle) = device.asked.take() {
                    let place = known.then_some(RemoteKey { address: 0, rkey: 1, len: 5000 });
                    connection.on_receive(&spoken(Frame::Here { handle, place }, &[]));
                }
            }
            Step::HasRead => {
                let unreliable = device.unreliable.as_mut().and_then(|unreliable| unreliable.offered.pop());
                if let Some(number) = unreliable.or_else(|| device.offered.pop()) {
                    connection.on_receive(&spoken(Frame::Notes { count: 1 }, &Note::Read(number).encode()));
                }
            }
            Step::Written(immediate, len) => connection.written(immediate, len),
            Step::Unreliable(by, key, frame, bytes) if unreliable => {
                let mut rest = bytes.iter().cycle().copied().take(frame.rest()).collect::<Vec<u8>>();
                if let Frame::Offer { head: 0, .. } = frame {
                    let part = RemotePiece { address: 4096, rkey: 1, len: 5000 }.encode();
                    rest.as_chunks_mut::<{ RemotePiece::LEN }>().0.iter_mut().for_each(|place| *place = part);
                }
                let number = next.wrapping_add(by);
                let mut spoken = Header { taken: number, control_ack: key, frame }.encode().to_vec();
                spoken.extend(rest);
                connection.on_receive_unreliable(&spoken);
                next = if by < 100 { number.wrapping_add(1) } else { next };
            }
            Step::Piece(by, len) if unreliable => {
                connection.written_unreliable(next.wrapping_add(by), len);
                next = if by < 100 { next.wrapping_add(by + 1) } else { next };
            }
            Step::Left(by) if unreliable => {
                connection.on_receive(&spoken(Frame::Left { upto: next.wrapping_add(by) }, &[]));
            }
            Step::Miss => {
                connection.miss();
                assert_eq!(connection.awaited(), None);
            }
            Step::Unreliable(..) | Step::Piece(..) | Step::Left(_) => {}
            Step::Complete => {
                if let Some(unreliable) = &mut device.unreliable
                    && let Some(last) = unreliable.taken.pop()
                {
                    unreliable.taken.clear();
                    connection.on_sent_unreliable(last);
                }
                if let Some(last) = device.taken.pop() {
                    device.taken.clear();
                    connection.sent(last);
                }
            }
            Step::Fail(forbidden) => {
                if let Some(first) = device.taken.first() {
                    connection.failed(*first, forbidden);
                    connection.fail("a failure of the device");
                }
            }
            Step::Post(what) => {
                numbers += 1;
                post(&mut connection, &mut device, memory, what, numbers);
            }
            Step::Take => drop(connection.take()),
            Step::Close => connection.close(None),
            Step::Done => connection.peer_is_done(),
        }
        let frames = |device: &Device| {
            device.frames + device.unreliable.as_ref().map_or(0, |unreliable| unreliable.frames)
        };
        let before = frames(&device);
        connection.pump(&mut device);
        assert!(frames(&device) - before <= 4 * MESSAGES as usize, "answers without end");
        if let Some(words) = connection.failure().map(str::to_owned) {
            connection.lost(&words);
        }
        let _ = (connection.take_events(), connection.next_completion(), connection.has_arrivals());
        if connection.phase() == Phase::Over {
            break;
        }
    }
    connection.lost("the end of the test");
    assert_eq!(connection.phase(), Phase::Over);
    // Messages that came before can be taken, and behind them lies the end.
    while connection.take().is_ok_and(|taken| taken.is_some()) {}
    assert!(connection.end().is_some());
    connection.close(None);
    connection.endpoint_gone();
    drop(connection.take_events());
    assert_eq!(memory.outbox.usage().blocks, 0, "the device has nothing, and nobody waits");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// The connection breaks at most, and when it has broken, no block is kept.
    #[test]
    fn prop_whatever_a_peer_says_the_connection_breaks_at_most(
        level in prop::sample::select(vec![Reliability::Unreliable, Reliability::Delivery, Reliability::Reception]),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let memory = Memory::fresh(4 << 20).unwrap();
        play(level, false, steps, &memory);
    }

    #[test]
    fn prop_also_where_messages_travel_unreliable(steps in prop::collection::vec(step(), 1..160)) {
        let memory = Memory::fresh(4 << 20).unwrap();
        play(Reliability::Unreliable, true, steps, &memory);
    }
}

/// When the end comes, the offer is dropped, and the flush behind it, of which the program is not told, is no arrival.
#[test]
fn a_silent_number_behind_an_offer_is_no_arrival() {
    let memory = Memory::fresh(4 << 20).unwrap();
    let offer = Frame::Offer { immediate: None, receipt: false, head: 0, parts: 1, len: 5000 };
    let part = RemotePiece { address: 4096, rkey: 1, len: 5000 }.encode();
    let steps = [spoken(offer, &part), spoken(Frame::Flush, &[])].map(Step::Bytes);
    play(Reliability::Reception, false, steps.into(), &memory);
}

#[test]
fn notes_and_parts_of_any_bytes_are_read_or_refused() {
    assert!(Note::decode(&[9; Note::LEN]).is_err());
    assert_eq!(RemotePiece::decode(&[1; RemotePiece::LEN]).len, 0x0101_0101);
}
