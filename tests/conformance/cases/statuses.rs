//! VIA's status bits, level by level: each can be produced, as a completion or as the refusal of a post.
//!
//! | bit | unreliable delivery | reliable delivery | reliable reception |
//! |---|---|---|---|
//! | `DONE` | `done_*` | `done_*` | `done_*` |
//! | `FORMAT_ERROR` (at post) | `refused_*` | `refused_*` | `refused_*` |
//! | `PROTECTION_ERROR` (at post) | `refused_*` | `refused_*` | `refused_*`; raw memory: topic `raw` |
//! | `LENGTH_ERROR`, at post | `refused_*` | `refused_*` | `refused_*` |
//! | `LENGTH_ERROR`, of a receive | topic `reliability` | topic `errors` | topic `reliability` |
//! | `PARTIAL_ERROR` | never | never | never |
//! | `DESC_FLUSHED_ERROR` of sends, by `disconnect` | `flushed_*`, where data wait at the sender | the same | `flushed_*`, all |
//! | the same, by an error here | never: no error | `an_error_flushes_*` | `an_error_flushes_*` |
//! | the same, of receives | `flushed_*` | `flushed_*`, topics `connection`, `errors` | `flushed_*` |
//! | `TRANSPORT_ERROR` | the transport's own tests, which can lose a connection | the same | the same |
//! | `RDMA_PROT_ERROR` | `protected_*` | `protected_*` | `protected_*` |
//! | `REMOTE_DESC_ERROR` | never: nobody is told | never: the data have left | topic `reliability` |
//!
//! After each error the VI is reset by `disconnect` and connects again: topic `errors` (reliable delivery), `reliability`
//! (reliable reception), and here (unreliable delivery).

use udeck_via::{Caps, Descriptor, Error, MemHandle, Region, Reliability, RemoteBuffer, State, Status};

use crate::kit::{End, Pair, assert_bytes, contents, pattern, regions, soon, until};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "statuses";
pub const CASES: &[Case] = &[
    case!(done_unreliable, UNRELIABLE),
    case!(done_delivery, RELIABLE_DELIVERY),
    case!(done_reception, RELIABLE_RECEPTION),
    case!(refused_unreliable, UNRELIABLE),
    case!(refused_delivery, RELIABLE_DELIVERY),
    case!(refused_reception, RELIABLE_RECEPTION),
    case!(protected_unreliable, UNRELIABLE, RDMA_WRITE),
    case!(protected_delivery, RELIABLE_DELIVERY, RDMA_WRITE),
    case!(protected_reception, RELIABLE_RECEPTION, RDMA_WRITE),
    case!(flushed_unreliable, UNRELIABLE),
    case!(flushed_delivery, RELIABLE_DELIVERY),
    case!(flushed_reception, RELIABLE_RECEPTION),
    case!(an_error_flushes_both_queues_delivery, RELIABLE_DELIVERY),
    case!(an_error_flushes_both_queues_reception, RELIABLE_RECEPTION),
    case!(an_unreliable_vi_is_reset_and_used_again, UNRELIABLE),
];

/// One case for each level.
macro_rules! at_levels {
    ($($name:ident = $what:ident($level:ident);)*) => {
        $(fn $name(fabric: &dyn Fabric) {
            $what(fabric, Reliability::$level);
        })*
    };
}

at_levels! {
    done_unreliable = done(Unreliable);
    done_delivery = done(Delivery);
    done_reception = done(Reception);
    refused_unreliable = refused(Unreliable);
    refused_delivery = refused(Delivery);
    refused_reception = refused(Reception);
    protected_unreliable = protected(Unreliable);
    protected_delivery = protected(Delivery);
    protected_reception = protected(Reception);
    flushed_unreliable = flushed(Unreliable);
    flushed_delivery = flushed(Delivery);
    flushed_reception = flushed(Reception);
    an_error_flushes_both_queues_delivery = an_error_flushes_both_queues(Delivery);
    an_error_flushes_both_queues_reception = an_error_flushes_both_queues(Reception);
}

/// Connected VIs of the level, with all remote access that the NIC offers.
fn pair(fabric: &dyn Fabric, reliability: Reliability, options: &Options) -> Pair {
    let caps = fabric.open(options).caps();
    Pair::with(fabric, options, |attributes| {
        attributes.reliability = reliability;
        attributes.enable_rdma_write = caps.has(Caps::RDMA_WRITE);
        attributes.enable_rdma_read = caps.has(Caps::RDMA_READ);
    })
}

/// Lengths in bytes around the limit of a descriptor, and beyond it.
const LENGTHS: [usize; 5] = [0, 1, 48, 49, 5000];

fn done(fabric: &dyn Fabric, level: Reliability) {
    let mut pair = pair(fabric, level, &Options::default());
    for (number, len) in (1..).zip(LENGTHS) {
        let bytes = pattern(len, len);
        pair.b.post_receive(len + 10);
        let descriptor = Descriptor::new([pair.a.region(&bytes)]).immediate(number);
        pair.a.vi.post_send(descriptor).unwrap();
        let received = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((received.status, received.length), (Status::Done, len));
        assert_eq!(received.immediate, Some(number));
        assert_bytes(&contents(&received), &bytes);
        let sent = pair.a.sent();
        assert_eq!((sent.length, sent.immediate), (len, None));
        assert_bytes(&regions(sent.descriptor.unwrap())[0], &bytes);
    }
    assert_eq!((pair.a.vi.state(), pair.b.vi.state()), (State::Connected, State::Connected));
}

/// Posts to the send queue and expects a refusal that leaves the descriptor unchanged.
fn refusal(end: &mut End, descriptor: Descriptor) -> Error {
    let before: Vec<_> = descriptor.segments().iter().map(|segment| segment.bytes().to_vec()).collect();
    let (error, back) = end.vi.post_send(descriptor).expect_err("it cannot be carried out");
    let after: Vec<_> = back.segments().iter().map(|segment| segment.bytes().to_vec()).collect();
    assert!(before == after, "the descriptor comes back untouched");
    error
}

fn refused(fabric: &dyn Fabric, level: Reliability) {
    // A region may be longer than the longest message if memory is rounded up.
    let options = Options { arena_limit: 3 << 20, ..Options::default() };
    let mut pair = pair(fabric, level, &options);
    let limits = pair.a.nic.attributes().clone();
    let pieces = |end: &End| -> Vec<Region> { (0..=limits.max_segments).map(|_| end.region(b"x")).collect() };

    let too_many = Descriptor::new(pieces(&pair.a));
    let error = refusal(&mut pair.a, too_many);
    assert!(matches!(error, Error::InvalidParameter(_)), "format: {error}");
    let (error, _) = pair.b.vi.post_receive(Descriptor::new(pieces(&pair.b))).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "format: {error}");
    if limits.caps.has(Caps::RDMA_READ) {
        let nowhere = RemoteBuffer { handle: MemHandle(1), offset: 0, len: 1 };
        let read = Descriptor::rdma_read([pair.a.region(b"x")], nowhere).immediate(1);
        let error = refusal(&mut pair.a, read);
        assert!(matches!(error, Error::InvalidParameter(_)), "format: {error}");
    }

    let foreign = |end: &End| end.nic.region(8, end.nic.ptag()).unwrap();
    let of_another_tag = Descriptor::new([foreign(&pair.a)]);
    let error = refusal(&mut pair.a, of_another_tag);
    assert!(matches!(error, Error::InvalidPtag), "protection: {error}");
    let (error, _) = pair.b.vi.post_receive(Descriptor::new([foreign(&pair.b)])).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "protection: {error}");

    if let Ok(long) = pair.a.nic.region(limits.max_transfer + 1, pair.a.ptag) {
        let error = refusal(&mut pair.a, Descriptor::new([long]));
        assert!(matches!(error, Error::InvalidParameter(_)), "length: {error}");
    }

    assert!(pair.a.vi.send_done().is_none() && pair.b.vi.receive_done().is_none(), "nothing was posted");
    pair.check();
}

/// If the sender can check, the post is refused, and the connection goes on. If only the target can, the descriptor
/// ends with this status, and a reliable connection ends with it.
fn protected(fabric: &dyn Fabric, level: Reliability) {
    let mut pair = pair(fabric, level, &Options::default());
    let window = pair.b.nic.window(100, pair.b.ptag).unwrap();
    let foreign = pair.b.nic.window(100, pair.b.nic.ptag()).unwrap();
    let beyond = RemoteBuffer { offset: 1, ..window.remote() };
    pair.forbidden_write(&[1; 100], foreign.remote());
    pair.forbidden_write(&[1; 100], beyond);
    if pair.a.nic.caps().has(Caps::RDMA_READ) && level != Reliability::Unreliable {
        pair.forbidden_read(100, window.remote());
    }
    pair.check();
    for window in [window, foreign] {
        let mut there = [9; 100];
        window.read(0, &mut there).unwrap();
        assert_eq!(there, [0; 100], "nothing was written");
    }
    pair.check();
}

/// Asserts how the untaken sends of `end` completed, in the order of their posting.
fn assert_sends_flushed(end: &mut End, level: Reliability) {
    let max_inline = end.nic.attributes().max_inline;
    for len in LENGTHS {
        let completion = end.vi.send_wait(soon()).expect("every send is reported");
        match (level, completion.status) {
            (Reliability::Reception, status) => assert_eq!(status, Status::Flushed, "{len} bytes"),
            // The data had left before.
            (_, Status::Done) => {}
            (_, status) => {
                assert_eq!(status, Status::Flushed, "{len} bytes");
                assert!(len > max_inline, "{len} bytes leave when they are posted");
            }
        }
        let done = completion.status == Status::Done;
        assert_eq!(completion.length, if done { len } else { 0 });
        assert_bytes(&regions(completion.descriptor.unwrap())[0], &pattern(len, len));
    }
    assert!(end.vi.send_done().is_none());
}

/// Asserts that the receives of `end`, which were posted with [`LENGTHS`], were flushed.
fn assert_receives_flushed(end: &mut End) {
    for len in LENGTHS {
        let completion = end.vi.receive_done().expect("flushed");
        assert_eq!((completion.status, completion.length), (Status::Flushed, 0));
        assert_eq!(completion.descriptor.unwrap().len(), len);
    }
    assert!(end.vi.receive_done().is_none());
}

/// Fills both queues with posts of [`LENGTHS`].
fn post_all(end: &mut End) {
    for len in LENGTHS {
        end.post_receive(len);
        end.post_send(&pattern(len, len));
    }
}

fn flushed(fabric: &dyn Fabric, level: Reliability) {
    let mut pair = pair(fabric, level, &Options::default());
    post_all(&mut pair.a);
    pair.a.vi.disconnect();
    assert_eq!(pair.a.vi.state(), State::Idle);
    assert_receives_flushed(&mut pair.a);
    pair.b.vi.disconnect();
    assert_sends_flushed(&mut pair.a, level);
    pair.connect();
    pair.check();
}

fn an_error_flushes_both_queues(fabric: &dyn Fabric, level: Reliability) {
    let mut pair = pair(fabric, level, &Options::default());
    for len in LENGTHS {
        pair.b.post_send(&pattern(len, len));
    }
    // The first receive is too short for the message.
    pair.b.post_receive(9);
    LENGTHS.into_iter().for_each(|len| pair.b.post_receive(len));
    pair.a.post_send(&[1; 10]);
    let first = pair.b.vi.receive_wait(soon()).unwrap();
    assert_eq!((first.status, first.length), (Status::LengthError, 9));
    assert_eq!(pair.b.vi.state(), State::Error);
    assert_receives_flushed(&mut pair.b);
    pair.a.vi.disconnect();
    assert_sends_flushed(&mut pair.b, level);
    pair.b.vi.disconnect();
    while pair.a.vi.send_done().is_some() {}
    pair.connect();
    pair.check();
}

fn an_unreliable_vi_is_reset_and_used_again(fabric: &dyn Fabric) {
    let mut pair = pair(fabric, Reliability::Unreliable, &Options::default());
    for _ in 0..3 {
        LENGTHS.into_iter().for_each(|len| pair.b.post_receive(len));
        pair.a.vi.disconnect();
        until("the peer's end is noticed", || {
            if pair.b.vi.state() == State::Connected {
                pair.b.vi.receive_done().map(|flushed| assert_eq!(flushed.status, Status::Flushed))?;
            }
            (pair.b.vi.state() == State::Error).then_some(())
        });
        pair.b.vi.disconnect();
        while pair.b.vi.receive_done().is_some() {}
        let settings = *pair.b.vi.attributes();
        pair.b.vi.set_attributes(settings).expect("idle and empty");
        pair.connect();
        pair.check();
    }
}
