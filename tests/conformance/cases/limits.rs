//! Limits: a bounded resource reports when it is full, and continues when it has room again.

use udeck_via::{Cq, Descriptor, Error, Nic, Region, ViAttributes};

use crate::kit::{End, Pair, contents, pattern, regions, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "limits";
pub const CASES: &[Case] = &[
    case!(the_send_queue_fills_and_recovers),
    case!(the_receive_queue_fills_and_recovers),
    case!(the_connection_fills_and_recovers),
    case!(too_many_segments_are_refused),
    case!(a_transfer_too_long_is_refused),
    case!(rdma_writes_keep_the_bounds_of_sends, RDMA_WRITE),
    case!(the_outbox_fills_and_recovers),
    case!(the_landing_fills_and_recovers, RDMA_WRITE),
    case!(a_request_beyond_all_memory_is_refused),
    case!(the_table_of_windows_fills_and_recovers, RDMA_WRITE),
    case!(completion_queues_are_recycled),
];

fn the_send_queue_fills_and_recovers(fabric: &dyn Fabric) {
    for len in [10, 5000] {
        let mut pair = Pair::posted(fabric);
        let most = pair.a.nic.attributes().max_descriptors_per_queue;
        let mut sent = 0;
        for _ in 0..2 {
            let (error, descriptor) = until("a full queue", || {
                let refused =
                    pair.a.vi.post_send(Descriptor::new([pair.a.region(&pattern(sent, len))])).err();
                sent += usize::from(refused.is_none());
                // Over a network, news of the new room may come late.
                refused.filter(|_| sent > 0)
            });
            assert!(matches!(error, Error::Full { .. }), "{error}");
            assert_eq!(regions(descriptor)[0][..], pattern(sent, len), "the descriptor comes back");
            assert!((1..=most).contains(&sent));
            for number in 0..sent {
                pair.b.post_receive(len);
                assert_eq!(pair.b.received(), pattern(number, len));
            }
            (0..sent).for_each(|_| drop(pair.a.sent()));
            sent = 0;
        }
    }
}

fn the_receive_queue_fills_and_recovers(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let most = pair.b.nic.attributes().max_descriptors_per_queue;
    (0..most).for_each(|_| pair.b.post_receive(8));
    let one_more = Descriptor::new([pair.b.region(b"one more")]);
    let (error, descriptor) = pair.b.vi.post_receive(one_more).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
    pair.a.post_send(b"room");
    assert_eq!(pair.b.received(), b"room");
    pair.b.vi.post_receive(descriptor).expect("there is room again");
    pair.b.vi.disconnect();
    let flushed =
        |pair: &mut Pair| pair.b.vi.receive_done().expect("one that was flushed").descriptor.unwrap();
    let one = flushed(&mut pair);
    pair.b.vi.post_receive(one).expect("one was reported");
    let two = flushed(&mut pair);
    pair.b.vi.post_receive(two).expect("one more was");
    let one_more = Descriptor::new([pair.b.region(b"one more")]);
    let (error, _) = pair.b.vi.post_receive(one_more).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "those that nobody took count: {error}");
}

fn the_connection_fills_and_recovers(fabric: &dyn Fabric) {
    let mut pair = Pair::lent(fabric);
    let mut sent = 0u32;
    let mut taken = 0;
    for _ in 0..3 {
        let full = until("a full connection", || match pair.a.vi.send_inline(Some(sent), b"", b"x") {
            Ok(()) => {
                sent += 1;
                None
            }
            Err(error) => Some(error),
        });
        assert!(matches!(full, Error::Full { .. }) && !full.is_final(), "{full}");
        while taken < sent {
            assert_eq!(pair.b.arrival().immediate, Some(taken));
            taken += 1;
        }
    }
}

fn too_many_segments_are_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let most = pair.a.nic.attributes().max_segments;
    let segments: Vec<Region> = (0..=most).map(|_| pair.a.region(b"piece")).collect();
    let (error, descriptor) = pair.a.vi.post_send(Descriptor::new(segments)).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_eq!(descriptor.segments().len(), most + 1);
    let segments: Vec<Region> = (0..=most).map(|_| pair.b.region(b"piece")).collect();
    let (error, _) = pair.b.vi.post_receive(Descriptor::new(segments)).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    pair.check();
}

fn a_transfer_too_long_is_refused(fabric: &dyn Fabric) {
    // The memory suffices for two messages, but no message may be longer than an arena.
    let options = Options { arena_limit: 3 << 20, ..Options::default() };
    let mut pair = Pair::with(fabric, &options, |_| {});
    let most = pair.a.nic.attributes().max_transfer;
    let Ok(long) = pair.a.nic.region(most + 1, pair.a.ptag) else {
        assert!(pair.a.nic.region(most / 2, pair.a.ptag).is_ok(), "memory bounds messages here");
        return pair.check();
    };
    let (error, descriptor) = pair.a.vi.post_send(Descriptor::new([long])).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_eq!(descriptor.len(), most + 1);
    drop(descriptor);
    pair.check();
}

fn rdma_writes_keep_the_bounds_of_sends(fabric: &dyn Fabric) {
    let settings = |attributes: &mut ViAttributes| attributes.enable_rdma_write = true;
    let mut pair = Pair::with(fabric, &Options::default(), settings);
    let window = pair.b.nic.window(64, pair.b.ptag).unwrap();
    let write = |end: &End, pieces: usize| {
        Descriptor::rdma_write((0..pieces).map(|_| end.region(b"x")), window.remote())
    };
    let (segments, most) = {
        let limits = pair.a.nic.attributes();
        (limits.max_segments, limits.max_descriptors_per_queue)
    };
    let too_many = write(&pair.a, segments + 1);
    let (error, descriptor) = pair.a.vi.post_send(too_many).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    assert_eq!(descriptor.segments().len(), segments + 1);
    for _ in 0..most {
        pair.a.vi.post_send(write(&pair.a, 1)).expect("the queue has room");
    }
    let (error, descriptor) = pair.a.vi.post_send(write(&pair.a, 1)).unwrap_err();
    assert!(matches!(error, Error::Full { what: "the send queue", .. }), "{error}");
    pair.a.sent();
    // There is room at once, or when the peer's NIC has confirmed that it has placed one message.
    let mut waiting = Some(descriptor);
    until("there is room again", || {
        let Err((error, back)) = pair.a.vi.post_send(waiting.take().expect("it came back")) else {
            return Some(());
        };
        assert!(matches!(error, Error::Full { .. }), "{error}");
        waiting = Some(back);
        None
    });
}

const SMALL: usize = 4 << 20;
const PIECE: usize = 100_000;

/// Allocates until there is no memory, twice: in between, all of it comes back.
fn fill_twice<T>(take: impl Fn(usize) -> udeck_via::Result<T>) {
    let mut counts = [0; 2];
    for count in &mut counts {
        let mut held = Vec::new();
        let error = loop {
            match take(PIECE) {
                Ok(one) => held.push(one),
                Err(error) => break error,
            }
        };
        let Error::NoMemory { asked, used, limit, .. } = error else { panic!("{error}") };
        assert_eq!(asked, PIECE);
        assert!(held.len() * PIECE <= used && used <= limit && limit < 2 * SMALL, "{used} of {limit}");
        assert!(used > limit / 2, "it was worth asking for: {used} of {limit}");
        held.pop();
        held.push(take(PIECE).expect("room for one again"));
        *count = held.len();
    }
    assert_eq!(counts[0], counts[1]);
}

fn small(fabric: &dyn Fabric) -> Nic {
    fabric.open(&Options { arena_limit: SMALL, ..Options::default() })
}

fn the_outbox_fills_and_recovers(fabric: &dyn Fabric) {
    let nic = small(fabric);
    let ptag = nic.ptag();
    fill_twice(|len| nic.region(len, ptag));
    assert_eq!(nic.outbox().usage().used, 0);
}

fn the_landing_fills_and_recovers(fabric: &dyn Fabric) {
    let nic = small(fabric);
    let ptag = nic.ptag();
    fill_twice(|len| nic.window(len, ptag));
    assert_eq!(nic.landing().usage().used, 0);
}

fn a_request_beyond_all_memory_is_refused(fabric: &dyn Fabric) {
    let nic = small(fabric);
    for len in [SMALL * 2, 1 << 40, usize::MAX / 2, usize::MAX] {
        let error = nic.region(len, nic.ptag()).unwrap_err();
        assert!(matches!(error, Error::NoMemory { asked, .. } if asked == len), "{error}");
    }
    nic.region(PIECE, nic.ptag()).expect("nothing was lost");
}

fn the_table_of_windows_fills_and_recovers(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let (most, ptag) = (nic.attributes().max_windows, nic.ptag());
    for _ in 0..2 {
        let mut windows: Vec<_> = (0..most).map(|_| nic.window(64, ptag).unwrap()).collect();
        let used = nic.landing().usage();
        let error = nic.window(64, ptag).unwrap_err();
        assert!(matches!(error, Error::Full { .. }), "{error}");
        assert_eq!(nic.landing().usage(), used, "a refused window holds no memory");
        windows.pop();
        nic.window(64, ptag).expect("room for one again");
    }
}

fn completion_queues_are_recycled(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for _ in 0..10_000 {
        Cq::new(&pair.a.nic).expect("dropped ones are free again");
    }
    pair.b.post_receive(3);
    pair.a.post_send(b"abc");
    assert_eq!(contents(&pair.b.vi.receive_wait(soon()).unwrap()), b"abc");
}
