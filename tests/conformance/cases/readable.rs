//! Readable messages: a message's own memory, read by peers in place.

use udeck_via::{Block, Error, Reading, RemoteBuffer, State, ViAttributes};

use crate::kit::{End, Pair, assert_bytes, pattern, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "readable";
pub const CASES: &[Case] = &[
    case!(a_message_is_read_where_it_lies, RDMA_READ),
    case!(a_message_that_was_taken_back_is_not_read, RDMA_READ),
    case!(a_message_of_another_tag_is_not_read, RDMA_READ),
    case!(more_than_the_message_is_not_read, RDMA_READ),
    case!(a_message_to_be_read_is_not_written, RDMA_READ, RDMA_WRITE),
    case!(a_block_of_another_nic_is_not_shown, RDMA_READ),
];

fn pair(fabric: &dyn Fabric) -> Pair {
    let settings = |attributes: &mut ViAttributes| attributes.enable_rdma_read = true;
    Pair::with(fabric, &Options::default(), settings)
}

fn block(end: &End, bytes: &[u8]) -> Block {
    let mut region = end.nic.region(bytes.len(), end.ptag).unwrap();
    region.copy_from_slice(bytes);
    region.into_block().unwrap()
}

/// Reads as many bytes as `from` has, plus `more`.
fn read(end: &mut End, from: RemoteBuffer, more: usize) -> udeck_via::Result<Vec<u8>> {
    let into = block(end, &vec![0xcc; from.len + more]);
    match end.vi.rdma_read(into, from) {
        Ok(Reading::Done(block)) => Ok(block.bytes().to_vec()),
        Ok(Reading::UnderWay(number)) => {
            let done = until("the end of a read", || end.vi.read_done());
            assert_eq!(done.number, number);
            assert!(end.vi.read_done().is_none(), "it is told once");
            done.block.map(|block| block.bytes().to_vec())
        }
        Err((error, into)) => {
            assert!(into.bytes().iter().all(|&byte| byte == 0xcc), "refused, and something was read");
            Err(error)
        }
    }
}

/// Reads memory that is not exposed. If only the target can judge this, the connection breaks: then both
/// connect again.
fn forbidden(pair: &mut Pair, from: RemoteBuffer, more: usize) {
    let read = read(&mut pair.a, from, more);
    assert!(matches!(read, Err(Error::RdmaProtection { .. })), "{read:?}");
    if pair.a.vi.state() != State::Connected {
        pair.mend();
    }
}

fn a_message_is_read_where_it_lies(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    for len in [0, 1, 48, 5000, 1 << 20] {
        let message = pattern(len, len);
        let readable = pair.b.nic.readable(block(&pair.b, &message), pair.b.ptag).unwrap();
        assert_bytes(&read(&mut pair.a, readable.remote(), 0).unwrap(), &message);
        let back = readable.revoke(soon()).unwrap();
        assert_bytes(back.bytes(), &message);
    }
}

fn a_message_that_was_taken_back_is_not_read(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let shown = |pair: &Pair| pair.b.nic.readable(block(&pair.b, &[3; 100]), pair.b.ptag).unwrap();
    let revoked = shown(&pair);
    let from = revoked.remote();
    revoked.revoke(soon()).unwrap();
    forbidden(&mut pair, from, 0);
    let recalled = shown(&pair);
    let from = recalled.remote();
    assert_eq!(recalled.recall().bytes(), [3; 100]);
    forbidden(&mut pair, from, 0);
    let dropped = shown(&pair);
    let from = dropped.remote();
    drop(dropped);
    forbidden(&mut pair, from, 0);
}

fn a_message_of_another_tag_is_not_read(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let foreign = pair.b.nic.readable(block(&pair.b, &[3; 100]), pair.b.nic.ptag()).unwrap();
    forbidden(&mut pair, foreign.remote(), 0);
    let mut closed = Pair::posted(fabric);
    let readable = closed.b.nic.readable(block(&closed.b, &[3; 100]), closed.b.ptag).unwrap();
    forbidden(&mut closed, readable.remote(), 0);
}

fn more_than_the_message_is_not_read(fabric: &dyn Fabric) {
    let mut pair = pair(fabric);
    let readable = pair.b.nic.readable(block(&pair.b, &[3; 100]), pair.b.ptag).unwrap();
    forbidden(&mut pair, readable.remote(), 1);
    let beyond = RemoteBuffer { offset: 1, ..readable.remote() };
    forbidden(&mut pair, beyond, 0);
    forbidden(&mut pair, RemoteBuffer { offset: usize::MAX, ..beyond }, 0);
}

fn a_message_to_be_read_is_not_written(fabric: &dyn Fabric) {
    let settings = |attributes: &mut ViAttributes| {
        attributes.enable_rdma_read = true;
        attributes.enable_rdma_write = true;
    };
    let mut pair = Pair::with(fabric, &Options::default(), settings);
    let readable = pair.b.nic.readable(block(&pair.b, &[3; 100]), pair.b.ptag).unwrap();
    pair.forbidden_write(&[4; 100], readable.remote());
    assert_eq!(readable.revoke(soon()).unwrap().bytes(), [3; 100]);
}

fn a_block_of_another_nic_is_not_shown(fabric: &dyn Fabric) {
    let pair = pair(fabric);
    let (error, back) = pair.b.nic.readable(block(&pair.a, &[3; 100]), pair.b.ptag).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_eq!(back.bytes(), [3; 100]);
    let (error, _) = pair.a.nic.readable(back, pair.b.ptag).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "{error}");
}
