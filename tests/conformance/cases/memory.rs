//! Protection tags, windows, RDMA write.

use udeck_via::{Descriptor, Error, MemHandle, RemoteBuffer, State, Status, Window};

use crate::kit::{Pair, assert_bytes, pattern, regions, soon};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "memory";
pub const CASES: &[Case] = &[
    case!(regions_are_zeroed_aligned_and_disjoint),
    case!(recycled_regions_are_zeroed),
    case!(a_send_of_another_tag_is_refused),
    case!(a_receive_of_another_tag_is_refused),
    case!(a_window_is_read_within_its_bounds, RDMA_WRITE),
    case!(write_with_immediate_data, RDMA_WRITE),
    case!(data_are_visible_when_the_immediate_data_are, RDMA_WRITE),
    case!(write_past_the_end, RDMA_WRITE),
    case!(write_beyond_the_buffer_it_was_given, RDMA_WRITE),
    case!(write_by_a_handle_that_never_was, RDMA_WRITE),
    case!(write_to_a_revoked_window, RDMA_WRITE),
    case!(write_by_no_handle_to_a_revoked_window, RDMA_WRITE),
    case!(write_to_a_dropped_window, RDMA_WRITE),
    case!(write_to_a_window_of_another_tag, RDMA_WRITE),
    case!(write_to_a_vi_that_does_not_allow_it, RDMA_WRITE),
    case!(write_from_memory_of_another_tag, RDMA_WRITE),
    case!(write_while_not_connected, RDMA_WRITE),
    case!(revoke_gives_the_bytes, RDMA_WRITE),
    case!(a_handle_is_not_used_again_at_once, RDMA_WRITE),
];

/// A pair whose `b` lets `a` write, and a window of `len` bytes there.
fn writable(fabric: &dyn Fabric, len: usize) -> (Pair, Window) {
    let pair = Pair::with(fabric, &Options::default(), |attributes| attributes.enable_rdma_write = true);
    let window = pair.b.nic.window(len, pair.b.ptag).unwrap();
    (pair, window)
}

/// Writes, and waits until the data are in place: a message behind a write arrives after it.
fn write(pair: &mut Pair, bytes: &[u8], to: RemoteBuffer) -> udeck_via::Result {
    let descriptor = Descriptor::rdma_write([pair.a.region(bytes)], to);
    pair.a.vi.post_send(descriptor).map_err(|(error, descriptor)| {
        assert_eq!(&regions(descriptor)[0][..], bytes, "the descriptor comes back untouched");
        error
    })?;
    assert_eq!(pair.a.sent().length, bytes.len());
    pair.drain();
    Ok(())
}

fn bytes_of(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0xaa; window.len()];
    window.read(0, &mut bytes).unwrap();
    bytes
}

/// Asserts that neither the connection nor the window was harmed.
fn assert_unharmed(pair: &mut Pair, window: &Window) {
    assert!(bytes_of(window).iter().all(|&byte| byte == 0), "nothing was written");
    assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Connected, State::Connected));
    pair.check();
}

fn regions_are_zeroed_aligned_and_disjoint(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let ptag = nic.ptag();
    let mut all: Vec<_> =
        [0, 1, 63, 64, 65, 1000, 100_000].map(|len| (len, nic.region(len, ptag).unwrap())).into();
    for (number, (len, region)) in all.iter_mut().enumerate() {
        assert_eq!((region.len(), region.ptag()), (*len, ptag));
        assert!(*len == 0 || region.as_ptr().addr().is_multiple_of(64));
        assert!(region.iter().all(|&byte| byte == 0));
        region.fill(number as u8 + 1);
    }
    for (number, (_, region)) in all.iter().enumerate() {
        assert!(region.iter().all(|&byte| byte == number as u8 + 1));
    }
}

fn recycled_regions_are_zeroed(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let ptag = nic.ptag();
    for len in [64, 5000, 8 << 20] {
        nic.region(len, ptag).unwrap().fill(0xff);
        assert!(nic.region(len, ptag).unwrap().iter().all(|&byte| byte == 0), "{len} bytes");
    }
}

fn a_send_of_another_tag_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut foreign = pair.a.nic.region(100, pair.a.nic.ptag()).unwrap();
    foreign.fill(3);
    let mut segments = vec![foreign];
    if pair.a.nic.attributes().max_segments > 1 {
        segments.insert(0, pair.a.region(b"ours")); // one of the right tag does not help
    }
    let (error, descriptor) = pair.a.vi.post_send(Descriptor::new(segments)).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "{error}");
    assert_eq!(regions(descriptor).pop().unwrap()[..], [3; 100]);
    assert!(pair.a.vi.send_done().is_none());
    pair.check();
}

fn a_receive_of_another_tag_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let foreign = pair.b.nic.region(100, pair.b.nic.ptag()).unwrap();
    let (error, descriptor) = pair.b.vi.post_receive(Descriptor::new([foreign])).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "{error}");
    assert_eq!(descriptor.len(), 100);
    pair.check();
}

fn a_window_is_read_within_its_bounds(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 100);
    let bytes = pattern(1, 100);
    write(&mut pair, &bytes, window.remote()).unwrap();
    let mut ten = [0; 10];
    window.read(90, &mut ten).unwrap();
    assert_eq!(ten, bytes[90..]);
    window.read(100, &mut []).unwrap();
    for offset in [91, 101, usize::MAX] {
        let error = window.read(offset, &mut ten).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    }
}

fn write_with_immediate_data(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 1000);
    let bytes = pattern(1, 600);
    pair.b.post_receive(5);
    let to = RemoteBuffer { offset: 400, ..window.remote() };
    let descriptor = Descriptor::rdma_write([pair.a.region(&bytes)], RemoteBuffer { len: 600, ..to });
    pair.a.vi.post_send(descriptor.immediate(0xfeed)).unwrap();
    let completion = pair.b.vi.receive_wait(soon()).unwrap();
    assert_eq!((completion.status, completion.immediate), (Status::Done, Some(0xfeed)));
    assert_eq!(completion.length, 600, "what was written");
    assert_eq!(completion.descriptor.unwrap().segments()[0].bytes(), [0; 5], "the data are in the window");
    assert_eq!(bytes_of(&window)[400..], bytes);
    assert_eq!(pair.a.sent().length, 600);
}

fn data_are_visible_when_the_immediate_data_are(fabric: &dyn Fabric) {
    const ROUNDS: u32 = 2000;
    let (pair, window) = writable(fabric, 4096);
    let Pair { mut a, mut b } = pair;
    let to = window.remote();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                let bytes = (round as u8).wrapping_add(1);
                a.post_receive(0);
                let descriptor = Descriptor::rdma_write([a.region(&[bytes; 4096])], to);
                a.vi.post_send(descriptor.immediate(round)).unwrap();
                a.sent();
                assert!(a.received().is_empty());
            }
        });
        b.post_receive(0);
        for round in 0..ROUNDS {
            let completion = b.vi.receive_wait(soon()).unwrap();
            assert_eq!(completion.immediate, Some(round));
            let expected = (round as u8).wrapping_add(1);
            assert!(bytes_of(&window).iter().all(|&byte| byte == expected), "round {round}");
            b.post_receive(0);
            b.post_send(b"");
            b.sent();
        }
    });
}

fn write_past_the_end(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 1000);
    let whole = window.remote();
    for (offset, len) in [(0, 1001), (1, 1000), (1000, 1), (5000, 1), (usize::MAX, 1), (usize::MAX - 3, 10)] {
        let to = RemoteBuffer { offset, len, ..whole };
        pair.forbidden_write(&pattern(9, len), to);
        pair.forbidden_write(&pattern(9, len), RemoteBuffer { len: usize::MAX, ..to });
    }
    assert_unharmed(&mut pair, &window);
}

fn write_beyond_the_buffer_it_was_given(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 1000);
    // A peer may know only a part of the window.
    let part = RemoteBuffer { offset: 100, len: 50, ..window.remote() };
    pair.forbidden_write(&[1; 51], part);
    assert_unharmed(&mut pair, &window);
    write(&mut pair, &[1; 50], part).unwrap();
}

fn write_by_a_handle_that_never_was(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 1000);
    let right = window.remote();
    for wrong in [0, 1, u32::MAX, right.handle.0 ^ 1, right.handle.0 ^ (1 << 31), right.handle.0 ^ (1 << 12)]
    {
        let to = RemoteBuffer { handle: MemHandle(wrong), ..right };
        pair.forbidden_write(&[1; 10], to);
    }
    assert_unharmed(&mut pair, &window);
}

fn write_to_a_revoked_window(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 100);
    let to = window.remote();
    write(&mut pair, &[5; 100], to).unwrap();
    let settled = window.revoke(soon()).unwrap();
    pair.forbidden_write(&[6; 100], to);
    let next = pair.b.nic.window(100, pair.b.ptag).unwrap();
    pair.forbidden_write(&[6; 100], to);
    assert_eq!(settled[..], [5; 100]);
    assert_unharmed(&mut pair, &next);
    write(&mut pair, &[7; 100], next.remote()).unwrap();
}

/// The handle of a window that is not open: it must not match the leftovers of an entry without a window.
fn write_by_no_handle_to_a_revoked_window(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 100);
    let nowhere = RemoteBuffer { handle: MemHandle(0), ..window.remote() };
    let settled = window.revoke(soon()).unwrap();
    let before = settled.to_vec();
    pair.forbidden_write(&pattern(3, 100), nowhere);
    assert_eq!(settled[..], before);
}

fn write_to_a_dropped_window(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 100);
    let to = window.remote();
    drop(window);
    pair.forbidden_write(&[6; 100], to);
    pair.check();
}

fn write_to_a_window_of_another_tag(fabric: &dyn Fabric) {
    let (mut pair, _) = writable(fabric, 100);
    let foreign = pair.b.nic.window(100, pair.b.nic.ptag()).unwrap();
    pair.forbidden_write(&[6; 100], foreign.remote());
    assert_unharmed(&mut pair, &foreign);
}

fn write_to_a_vi_that_does_not_allow_it(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let window = pair.b.nic.window(100, pair.b.ptag).unwrap();
    pair.forbidden_write(&[6; 100], window.remote());
    assert_unharmed(&mut pair, &window);
}

fn write_from_memory_of_another_tag(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 100);
    let foreign = pair.a.nic.region(100, pair.a.nic.ptag()).unwrap();
    let descriptor = Descriptor::rdma_write([foreign], window.remote());
    let (error, _) = pair.a.vi.post_send(descriptor).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "{error}");
    assert_unharmed(&mut pair, &window);
}

fn write_while_not_connected(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 100);
    pair.a.vi.disconnect();
    let error = write(&mut pair, &[1; 10], window.remote()).unwrap_err();
    assert!(matches!(error, Error::InvalidState { state: State::Idle, .. }), "{error}");
    assert!(bytes_of(&window).iter().all(|&byte| byte == 0));
}

fn revoke_gives_the_bytes(fabric: &dyn Fabric) {
    let (mut pair, window) = writable(fabric, 5000);
    let bytes = pattern(4, 5000);
    let before = pair.b.nic.landing().usage();
    write(&mut pair, &bytes, window.remote()).unwrap();
    let settled = window.revoke(soon()).unwrap();
    assert_bytes(&settled, &bytes);
    assert_eq!(pair.b.nic.landing().usage(), before, "still held");
    drop(settled);
    assert_eq!(pair.b.nic.landing().usage().used, 0, "home again");
}

fn a_handle_is_not_used_again_at_once(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let ptag = nic.ptag();
    let mut handles: Vec<_> = (0..1000).map(|_| nic.window(64, ptag).unwrap().remote().handle.0).collect();
    handles.sort_unstable();
    handles.dedup();
    assert!(handles.len() > 990, "{} of 1000 handles were fresh", handles.len());
}
