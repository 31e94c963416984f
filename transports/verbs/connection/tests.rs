use udeck_sys::position::Position;
use udeck_via::mem::Fill;
use udeck_via::transport::{PostedBuffer, TransferStatus};

use super::send_queue::OnCompletion;
use super::*;
use crate::wire::{Frame, Header};

/// Lets the connection receive a frame of the peer.
fn hear(connection: &mut Connection, frame: Frame, behind: &[u8]) {
    let header = Header { taken: connection.window.taken().narrow(), control_ack: 0, frame };
    connection.on_receive(&[&header.encode()[..], behind].concat());
}

/// 2^31 messages take only minutes. With counts of 32 bits, such a message was taken for one that was not read, and
/// its memory went back under its reader.
#[test]
fn a_message_that_is_kept_for_long_was_read() {
    for later in [1 << 31, 1 << 32, (1 << 32) + 5] {
        let memory = Memory::fresh(8 << 20).unwrap();
        let hello = Hello {
            reliability: Reliability::Reception,
            writable_ptag: None,
            readable_ptag: None,
            private_data: Vec::new(),
        };
        let mut connection = Connection::new(&memory, &hello, &hello, 1 << 20);
        let block = memory.outbox.block(100, Fill::Zero).unwrap();
        let lend = |connection: &mut Connection, caller| {
            let number = connection.window.sent();
            let lent = connection.lend(None, b"", &[(block.offset(), 100)], PostedBuffer::Caller(caller));
            assert!(lent.is_ok(), "there is room");
            connection.complete(OnCompletion::MessageLeft(number), TransferStatus::Arrived);
        };
        lend(&mut connection, 7);
        // The peer's program took the message and many more, and goes on reading it.
        connection.window = SendWindow::at(Position::START.plus(later), Position::START.plus(later));
        let kept = Position::START.narrow();
        lend(&mut connection, 8);
        hear(&mut connection, Frame::End { broken: false, len: 0 }, b"");
        assert_eq!(
            connection.next_completion(),
            Some((8, TransferStatus::Unread)),
            "the peer closed before it took this one"
        );
        assert_eq!(
            connection.next_completion(),
            None,
            "taken before the peer closed, after {later} messages"
        );
        let receipt = Note::Receipt(kept, TransferStatus::Arrived).encode();
        hear(&mut connection, Frame::Notes { count: 1 }, &receipt);
        assert_eq!(
            connection.next_completion(),
            Some((7, TransferStatus::Arrived)),
            "after {later} messages"
        );
    }
}

/// A device that takes requests of 100 bytes, and from some time on refuses them.
struct Refusing {
    takes: usize,
    /// Whether [`Work::fitting`] succeeds, so that the request itself is refused.
    fits: bool,
    /// The device refuses nothing, but has no room beyond the requests that it takes.
    is_full: bool,
    taken: Vec<u32>,
    unreliable: Option<Box<Refusing>>,
}

const REFUSED: &str = "memory cannot be registered";

impl Refusing {
    fn take(&mut self, options: RequestOptions) -> Result<(), String> {
        if self.takes == 0 {
            return Err(REFUSED.into());
        }
        self.takes -= 1;
        self.taken.push(options.token);
        Ok(())
    }
}

impl Work for Refusing {
    fn has_room(&self) -> bool {
        self.takes > 0 || !self.is_full
    }
    fn fitting(&mut self, segments: &[Segment], from: usize) -> Result<usize, String> {
        let rest = segments.iter().map(|segment| segment.len()).sum::<usize>() - from;
        if self.takes == 0 && !self.fits { Err(REFUSED.into()) } else { Ok(rest.min(100)) }
    }
    fn send(&mut self, _: &[u8], body: &[Segment], options: RequestOptions) -> Result<(), String> {
        // The device takes any number of control frames.
        if body.is_empty() { Ok(()) } else { self.take(options) }
    }
    fn write(
        &mut self,
        _: Span<'_>,
        _: RemoteKey,
        _: Option<u32>,
        options: RequestOptions,
    ) -> Result<(), String> {
        self.take(options)
    }
    fn read(&mut self, _: Span<'_>, _: RemoteKey, options: RequestOptions) -> Result<(), String> {
        self.take(options)
    }
    fn offer(&mut self, _: &[Segment], _: &mut Vec<RemotePiece>) -> Result<(), String> {
        Err(REFUSED.into())
    }
    fn register(&mut self, _: NonNull<[u8]>) -> Result<Mr, String> {
        Err(REFUSED.into())
    }
    fn find(&mut self, _: u32, _: bool) -> Option<RemoteKey> {
        None
    }
    fn unreliable(&mut self) -> Option<&mut dyn Work> {
        self.unreliable.as_deref_mut().map(|unreliable| unreliable as &mut dyn Work)
    }
}

#[derive(Clone, Copy, Debug)]
enum What {
    Write,
    Read,
    Message,
    Offer,
}

/// A refused request is reported as lost, and so are all behind it. Its memory stays until the device has nothing of
/// it: the first parts may be in flight.
#[test]
fn what_the_device_refuses_is_kept_until_the_connection_is_lost_and_reported() {
    for what in [What::Write, What::Read, What::Message, What::Offer] {
        for (takes, fits) in [(0, true), (0, false), (2, true), (2, false)] {
            for level in [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception] {
                for unreliable in [false, true] {
                    if matches!((what, level), (What::Read, Reliability::Unreliable))
                        || (unreliable && level != Reliability::Unreliable)
                    {
                        continue;
                    }
                    println!("{what:?}, {takes} taken, fits {fits}, {level:?}, unreliable {unreliable}");
                    refuse(what, takes, fits, level, unreliable);
                }
            }
        }
    }
}

fn refuse(what: What, takes: usize, fits: bool, level: Reliability, unreliable: bool) {
    let memory = Memory::fresh(8 << 20).unwrap();
    let tag = Some(udeck_via::Ptag(1));
    let hello =
        Hello { reliability: level, writable_ptag: tag, readable_ptag: tag, private_data: Vec::new() };
    let mut connection = Connection::new(&memory, &hello, &hello, 1 << 20);
    let device = |unreliable| Refusing { takes, fits, is_full: false, taken: Vec::new(), unreliable };
    let mut device = device(unreliable.then(|| Box::new(device(None))));
    if unreliable {
        connection.go_unreliable();
    }
    let place = RemoteKey { address: 0, rkey: 1, len: 10_000 };
    for write in [true, false] {
        connection.places.insert((7, write), place);
    }
    let len = if matches!(what, What::Offer) { 5000 } else { 250 };
    let remote = RemoteBuffer { handle: udeck_via::MemHandle(7), offset: 0, len: 10_000 };
    let post = |connection: &mut Connection, held, offset| {
        let segment = [(offset, len)];
        let posted = match what {
            What::Write => connection.rdma_write(&segment, remote, None, held),
            What::Read => connection.rdma_read(&segment, remote, held),
            What::Message | What::Offer => connection.lend(None, b"", &segment, held),
        };
        assert!(posted.is_ok(), "there is room");
    };
    for caller in [1, 2] {
        let block = memory.outbox.block(len, Fill::Zero).unwrap();
        let offset = block.offset();
        post(&mut connection, PostedBuffer::Caller(caller), offset);
        drop(block);
        let block = memory.outbox.block(len, Fill::Zero).unwrap();
        let offset = block.offset();
        post(&mut connection, PostedBuffer::Block(block), offset);
    }
    let blocks = memory.outbox.usage().blocks;
    assert_eq!(blocks, 2);
    connection.pump(&mut device);
    let why = connection.failure().map(str::to_owned);
    assert!(why.is_some(), "it was refused");
    assert_eq!(memory.outbox.usage().blocks, blocks, "the device may still use what was taken of them");
    connection.lost(&why.unwrap());
    for caller in [1, 2] {
        let (told, status) = connection.next_completion().expect("it is reported");
        assert_eq!(told, caller);
        assert!(status != TransferStatus::Arrived, "{status:?}");
    }
    assert_eq!(memory.outbox.usage().blocks, 0);
}

/// An RDMA read or write of which the device has some requests keeps its memory when the peer ends the connection,
/// until these are complete.
#[test]
fn what_the_device_has_begun_keeps_its_memory_when_the_peer_ends() {
    for (what, level, unreliable, sent) in [
        (What::Write, Reliability::Delivery, false, 0),
        (What::Read, Reliability::Delivery, false, 0),
        (What::Write, Reliability::Unreliable, false, 0),
        (What::Write, Reliability::Unreliable, true, 0),
        // The peer has taken none of them: there are no numbers left.
        (What::Write, Reliability::Unreliable, true, MESSAGES),
    ] {
        println!("{what:?}, {level:?}, unreliable {unreliable}, {sent} messages sent");
        begun(what, level, unreliable, sent);
    }
}

fn begun(what: What, level: Reliability, unreliable: bool, sent: u32) {
    let memory = Memory::fresh(8 << 20).unwrap();
    let tag = Some(udeck_via::Ptag(1));
    let hello =
        Hello { reliability: level, writable_ptag: tag, readable_ptag: tag, private_data: Vec::new() };
    let mut connection = Connection::new(&memory, &hello, &hello, 1 << 20);
    let device =
        |takes, unreliable| Refusing { takes, fits: true, is_full: true, taken: Vec::new(), unreliable };
    // The engine's control frames find room.
    let mut device = match unreliable {
        true => device(9, Some(Box::new(device(1, None)))),
        false => device(1, None),
    };
    if unreliable {
        connection.go_unreliable();
    }
    for write in [true, false] {
        connection.places.insert((7, write), RemoteKey { address: 0, rkey: 1, len: 10_000 });
    }
    for token in 0..sent {
        assert!(connection.send(Some(&mut device), None, b"", b"short").is_ok(), "there is room");
        connection.on_sent_unreliable(token);
    }
    let remote = RemoteBuffer { handle: udeck_via::MemHandle(7), offset: 0, len: 10_000 };
    for _ in 0..2 {
        let block = memory.outbox.block(250, Fill::Zero).unwrap();
        let segment = [(block.offset(), 250)];
        let held = PostedBuffer::Block(block);
        let posted = match what {
            What::Read => connection.rdma_read(&segment, remote, held),
            _ => connection.rdma_write(&segment, remote, None, held),
        };
        assert!(posted.is_ok(), "there is room");
    }
    connection.pump(&mut device);
    let used = |memory: &Memory| memory.outbox.usage().blocks;
    assert_eq!((used(&memory), connection.failure()), (2, None));
    hear(&mut connection, Frame::End { broken: false, len: 0 }, b"");
    connection.pump(&mut device);
    assert_eq!(used(&memory), 1, "the device has a request of the first one, and nothing of the second");
    // The device's requests complete, and it has room again.
    let at = if unreliable { device.unreliable.as_deref_mut().unwrap() } else { &mut device };
    at.takes = 9;
    for from in 0.. {
        let at = if unreliable { device.unreliable.as_deref_mut().unwrap() } else { &mut device };
        let Some(token) = at.taken.get(from).copied() else { break };
        match unreliable {
            true => connection.on_sent_unreliable(token),
            false => connection.sent(token),
        }
        connection.pump(&mut device);
    }
    assert_eq!(used(&memory), 0, "and none of the first one");
}
