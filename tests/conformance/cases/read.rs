//! RDMA read, and the rights of windows.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use udeck_via::{
    Caps, Descriptor, Error, MemHandle, Reliability, RemoteBuffer, Rights, State, Status, Vi, ViAttributes,
    Window,
};

use crate::kit::{End, Pair, assert_bytes, pattern, regions, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "read";
pub const CASES: &[Case] = &[
    case!(rdma_read_is_there_or_unsupported),
    case!(a_fresh_window_shows_nothing_old, RDMA_READ),
    case!(read_past_the_end, RDMA_READ),
    case!(read_by_a_handle_that_never_was, RDMA_READ),
    case!(rights_are_kept_apart, RDMA_READ, RDMA_WRITE),
    case!(read_from_a_window_of_another_tag, RDMA_READ),
    case!(read_from_a_vi_that_does_not_allow_it, RDMA_READ),
    case!(read_into_memory_of_another_tag, RDMA_READ),
    case!(a_revoked_window_is_not_read, RDMA_READ),
    case!(revoke_waits_for_readers, RDMA_READ, RDMA_WRITE),
    case!(a_read_carries_no_immediate_data, RDMA_READ),
    case!(a_read_needs_a_connection, RDMA_READ),
    case!(unreliable_vis_do_not_read, RDMA_READ, UNRELIABLE),
];

fn readable(fabric: &dyn Fabric) -> Pair {
    Pair::with(fabric, &Options::default(), |attributes| attributes.enable_rdma_read = true)
}

/// A window of `end` that holds `bytes`, for its peer to read.
fn shown(end: &End, bytes: &[u8]) -> Window {
    let mut window = end.nic.window_for(bytes.len(), end.ptag, Rights::READ).unwrap();
    window.write(0, bytes).unwrap();
    window
}

/// Reads `len` bytes.
fn read(end: &mut End, len: usize, from: RemoteBuffer) -> udeck_via::Result<Vec<u8>> {
    let untouched = vec![0xcc; len];
    let descriptor = Descriptor::rdma_read([end.region(&untouched)], from);
    end.vi.post_send(descriptor).map_err(|(error, descriptor)| {
        assert_eq!(regions(descriptor)[0][..], untouched, "the descriptor comes back untouched");
        error
    })?;
    let completion = end.vi.send_wait(soon()).expect("a completion");
    if completion.status == Status::RdmaProtectionError {
        return Err(Error::RdmaProtection { handle: from.handle.0, offset: from.offset, len });
    }
    assert_eq!((completion.status, completion.length), (Status::Done, len));
    Ok(regions(completion.descriptor.unwrap())[0].to_vec())
}

fn assert_unharmed(pair: &mut Pair) {
    assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Connected, State::Connected));
    pair.check();
}

fn rdma_read_is_there_or_unsupported(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let nic = &pair.a.nic;
    let has = nic.caps().has(Caps::RDMA_READ);
    let enabled = ViAttributes { enable_rdma_read: true, ..ViAttributes::new(nic.ptag()) };
    let answers = [Vi::new(nic, enabled).map(drop), nic.window_for(64, nic.ptag(), Rights::READ).map(drop)];
    let from = RemoteBuffer { handle: MemHandle(1), offset: 0, len: 10 };
    if has {
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        pair.forbidden_read(10, from); // there is no such window
    } else {
        let error = read(&mut pair.a, 10, from).expect_err("it cannot read");
        let unsupported = |error: &Error| matches!(error, Error::Unsupported { needed: Caps::RDMA_READ, .. });
        assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(unsupported)), "{answers:?}");
        assert!(unsupported(&error), "{error}");
    }
    assert_unharmed(&mut pair);
}

fn a_fresh_window_shows_nothing_old(fabric: &dyn Fabric) {
    let mut pair = readable(fabric);
    drop(shown(&pair.b, &[0xab; 5000]));
    let window = pair.b.nic.window_for(5000, pair.b.ptag, Rights::READ).unwrap();
    assert_bytes(&read(&mut pair.a, 5000, window.remote()).unwrap(), &[0; 5000]);
}

fn read_past_the_end(fabric: &dyn Fabric) {
    let mut pair = readable(fabric);
    let window = shown(&pair.b, &pattern(1, 1000));
    let whole = window.remote();
    for (offset, len) in [(0, 1001), (1, 1000), (1000, 1), (5000, 1), (usize::MAX, 1), (usize::MAX - 3, 10)] {
        let from = RemoteBuffer { offset, len, ..whole };
        pair.forbidden_read(len, from);
        pair.forbidden_read(len, RemoteBuffer { len: usize::MAX, ..from });
    }
    let part = RemoteBuffer { offset: 100, len: 50, ..whole };
    pair.forbidden_read(51, part);
    assert_unharmed(&mut pair);
}

fn read_by_a_handle_that_never_was(fabric: &dyn Fabric) {
    let mut pair = readable(fabric);
    let window = shown(&pair.b, &pattern(1, 1000));
    let right = window.remote();
    for wrong in [0, 1, u32::MAX, right.handle.0 ^ 1, right.handle.0 ^ (1 << 31), right.handle.0 ^ (1 << 12)]
    {
        pair.forbidden_read(10, RemoteBuffer { handle: MemHandle(wrong), ..right });
    }
    assert_unharmed(&mut pair);
}

fn rights_are_kept_apart(fabric: &dyn Fabric) {
    let settings = |attributes: &mut ViAttributes| {
        attributes.enable_rdma_read = true;
        attributes.enable_rdma_write = true;
    };
    let mut pair = Pair::with(fabric, &Options::default(), settings);
    let write_only = pair.b.nic.window(100, pair.b.ptag).unwrap();
    pair.forbidden_read(100, write_only.remote());
    let read_only = shown(&pair.b, &[3; 100]);
    pair.forbidden_write(&[4; 100], read_only.remote());
    assert_eq!(read(&mut pair.a, 100, read_only.remote()).unwrap(), [3; 100]);
    assert_unharmed(&mut pair);
}

fn read_from_a_window_of_another_tag(fabric: &dyn Fabric) {
    let mut pair = readable(fabric);
    let foreign = pair.b.nic.window_for(100, pair.b.nic.ptag(), Rights::READ).unwrap();
    pair.forbidden_read(100, foreign.remote());
    assert_unharmed(&mut pair);
}

fn read_from_a_vi_that_does_not_allow_it(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let window = shown(&pair.b, &[3; 100]);
    pair.forbidden_read(100, window.remote());
    assert_unharmed(&mut pair);
}

fn read_into_memory_of_another_tag(fabric: &dyn Fabric) {
    let mut pair = readable(fabric);
    let window = shown(&pair.b, &[3; 100]);
    let foreign = pair.a.nic.region(100, pair.a.nic.ptag()).unwrap();
    let (error, descriptor) =
        pair.a.vi.post_send(Descriptor::rdma_read([foreign], window.remote())).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "{error}");
    assert_eq!(regions(descriptor)[0][..], [0; 100]);
    assert_unharmed(&mut pair);
}

fn a_revoked_window_is_not_read(fabric: &dyn Fabric) {
    let mut pair = readable(fabric);
    let window = shown(&pair.b, &[3; 100]);
    let from = window.remote();
    let settled = window.revoke(soon()).unwrap();
    pair.forbidden_read(100, from);
    assert_eq!(settled[..], [3; 100]);
    assert_unharmed(&mut pair);
}

/// A successful read returns the contents of the window while it existed, and otherwise the read is refused: it
/// never returns what the memory became afterwards.
fn revoke_waits_for_readers(fabric: &dyn Fabric) {
    // Length in bytes, so long that a read is often under way when the window is revoked, each time at another
    // point of the read.
    const LEN: usize = 4 << 20;
    let mut pair = readable(fabric);
    let (ones, reads) = (vec![1; LEN], AtomicU32::new(0));
    for round in 0..40 {
        let window = shown(&pair.b, &ones);
        let (from, before) = (window.remote(), reads.load(Ordering::Relaxed));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Ok(bytes) = read(&mut pair.a, LEN, from) {
                    assert!(bytes.iter().all(|&byte| byte == 1), "read after the window was taken back");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
            until("the reader reads", || (reads.load(Ordering::Relaxed) > before).then_some(()));
            std::thread::sleep(Duration::from_micros(round * 100));
            drop(window.revoke(soon()).expect("readers leave"));
            // The same memory is used again, and at once its last bytes, which a reader would reach last.
            let mut reused = pair.b.nic.window(LEN, pair.b.ptag).unwrap();
            reused.write(LEN - 64, &[2; 64]).unwrap();
        });
        if pair.a.vi.state() != State::Connected {
            pair.mend();
        }
    }
}

fn a_read_carries_no_immediate_data(fabric: &dyn Fabric) {
    let mut pair = readable(fabric);
    let window = shown(&pair.b, &[3; 100]);
    let descriptor = Descriptor::rdma_read([pair.a.region(&[0; 100])], window.remote()).immediate(1);
    let (error, descriptor) = pair.a.vi.post_send(descriptor).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_eq!(regions(descriptor)[0][..], [0; 100]);
    assert_unharmed(&mut pair);
}

fn a_read_needs_a_connection(fabric: &dyn Fabric) {
    let mut pair = readable(fabric);
    let window = shown(&pair.b, &[3; 100]);
    pair.a.vi.disconnect();
    let error = read(&mut pair.a, 100, window.remote()).unwrap_err();
    assert!(matches!(error, Error::InvalidState { state: State::Idle, .. }), "{error}");
}

fn unreliable_vis_do_not_read(fabric: &dyn Fabric) {
    let settings = |attributes: &mut ViAttributes| {
        attributes.reliability = Reliability::Unreliable;
        attributes.enable_rdma_read = true;
    };
    let mut pair = Pair::with(fabric, &Options::default(), settings);
    let window = shown(&pair.b, &[3; 100]);
    let error = read(&mut pair.a, 100, window.remote()).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_unharmed(&mut pair);
}
