//! Memory for an announced message: only as much is taken as has come.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use udeck_sys::segment::CHUNK;
use udeck_via::Reliability;

use super::pair::{fill, hello, pattern, shared};
use crate::framed::connection::{Connection, Content, Phase, Pieces, Settings, Side};
use crate::framed::wire::{Frame, Header};
use crate::{Memory, Windows};
use crate::{TakenBody, TakenMessage};

const GIB: usize = 1 << 30;

/// Parts of a connection, and the segment of its outbox.
struct Receiver {
    memory: Memory,
    windows: Arc<Windows>,
    segment: File,
}

impl Receiver {
    fn new(len: usize, most: usize) -> Self {
        let (outbox, segment) = shared(len, most);
        let memory = Memory::new(Arc::new(outbox), Memory::fresh(1 << 20).unwrap().landing);
        Receiver { memory, windows: Windows::new(), segment }
    }

    fn connection(&self, level: Reliability) -> Connection {
        let hello = hello(level);
        let (memory, windows) = (&self.memory, &self.windows);
        let (ours, theirs) = (&hello, &hello);
        Connection::new(Settings { memory, windows, ours, theirs, side: Side::Asked, max_transfer: GIB })
    }

    /// Bytes of memory that the kernel has given the segment.
    fn taken(&self) -> usize {
        self.segment.metadata().unwrap().blocks() as usize * 512
    }
}

/// Bytes of private memory that this process has.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

fn announce(connection: &mut Connection, len: usize) {
    let frame = Frame::Message { immediate: None, receipt: false, lent: true, head: 0, len: len as u64 };
    let direct = connection.direct();
    connection.on_receive(direct, 0, &Header { taken: 0, frame }.encode());
}

/// Lets `bytes` come: at most `direct` of them in their place, the others in a scratch.
fn come(connection: &mut Connection, bytes: &[u8], direct: usize) {
    let place = connection.direct();
    let filled = place.len().min(direct).min(bytes.len());
    fill(&place, &bytes[..filled]);
    connection.on_receive(place, filled, &bytes[filled..]);
}

fn taken(connection: &mut Connection) -> Vec<u8> {
    match connection.take() {
        Ok(Some(TakenMessage { body: TakenBody::Body(_, store, 0), .. })) => store.bytes().to_vec(),
        _ => panic!("a message"),
    }
}

#[test]
fn a_message_takes_memory_as_it_comes() {
    let receiver = Receiver::new(2 * GIB, usize::MAX);
    let mut connections: Vec<_> = (0..4).map(|_| receiver.connection(Reliability::Delivery)).collect();
    let (first, others) = connections.split_first_mut().unwrap();
    announce(first, GIB);
    come(first, &[7; 4096], 1000);
    assert!(receiver.taken() < 4 << 20, "{} bytes for one page of a message", receiver.taken());
    // Half of the arena has room for some of these; the others go to the heap.
    let before = resident();
    for connection in others {
        announce(connection, GIB);
        come(connection, &[7; 4096], 0);
        assert_eq!(connection.phase(), Phase::Open);
    }
    assert!(receiver.taken() < 8 << 20, "{} bytes for two pages", receiver.taken());
    assert!(resident() < before + GIB / 4, "{} bytes, {before} before", resident());
    assert_eq!(receiver.memory.outbox.usage().used, GIB, "the arena's bound counts what was announced");
    let own = receiver.memory.outbox.block(GIB - (64 << 20), udeck_via::mem::Fill::Keep);
    assert!(own.is_ok(), "what is announced leaves room for messages of our own: {own:?}");
    drop(own);
    drop(connections);
    assert_eq!(receiver.memory.outbox.usage().used, 0);
}

#[test]
fn a_message_that_comes_whole_is_intact() {
    let len = 4 * CHUNK + 12_345;
    let bytes = pattern(len, 3);
    let receiver = Receiver::new(16 * CHUNK, usize::MAX);
    // The body lies in the arena, then in the arena again, where its memory is, then on the heap.
    let mut kept = Vec::new();
    for (round, (step, direct)) in [(1 << 16, 1 << 14), (len, len), (len, 0)].into_iter().enumerate() {
        let mut connection = receiver.connection(Reliability::Delivery);
        announce(&mut connection, len);
        bytes.chunks(step).for_each(|bytes| come(&mut connection, bytes, direct));
        assert!(taken(&mut connection) == bytes, "round {round}");
        assert!(receiver.taken() <= 5 * CHUNK, "{} bytes", receiver.taken());
        if round == 1 {
            announce(&mut connection, len);
            kept.push(connection);
        }
    }
}

#[test]
fn one_for_which_there_is_no_memory_ends_its_connection() {
    let receiver = Receiver::new(16 * CHUNK, 2 * CHUNK);
    let mut connection = receiver.connection(Reliability::Delivery);
    announce(&mut connection, 5 * CHUNK);
    let bytes = pattern(5 * CHUNK, 1);
    bytes.chunks(1 << 16).for_each(|bytes| come(&mut connection, bytes, 1 << 14));
    let why = format!("{:?}", connection.end());
    assert!(why.contains("no memory for a message of") && !why.contains("protocol"), "{why}");
    // The peer kept the rules: it is told of the shortage, and may end the connection in order.
    assert_eq!(connection.phase(), Phase::Open);
    let mut pieces = Pieces::new();
    connection.gather(0, usize::MAX, &mut pieces);
    let mut sent = vec![0; pieces.bytes()];
    pieces.copy_to(&mut sent);
    let sent = String::from_utf8_lossy(&sent).into_owned();
    assert!(sent.contains("no memory for a message of") && !sent.contains("protocol"), "{sent}");
    connection.lost("the test");
    assert_eq!(receiver.memory.outbox.usage().used, 0);
}

#[test]
fn pieces_out_of_order_take_memory_for_themselves() {
    let receiver = Receiver::new(2 * GIB, usize::MAX);
    let mut connection = receiver.connection(Reliability::Unreliable);
    connection.go_unreliable();
    let content = Content::Message { immediate: None, lent: true, head: 0 };
    let mut landing = connection.land(content, GIB).unwrap();
    assert!(landing.fill(GIB - 1000, &[7; 1000]) && landing.fill(GIB / 2, &[7; 1000]));
    assert!(receiver.taken() <= 2 * CHUNK, "{} bytes for two pieces", receiver.taken());
    connection.on_missed(0, Some(landing));
    let bytes = pattern(3 * CHUNK + 77, 9);
    let mut landing = connection.land(content, bytes.len()).unwrap();
    for (at, piece) in bytes.chunks(10_007).enumerate().collect::<Vec<_>>().into_iter().rev() {
        assert!(landing.fill(at * 10_007, piece));
    }
    connection.on_receive_unreliable(1, landing);
    assert!(taken(&mut connection) == bytes);
}
