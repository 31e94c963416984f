//! Memory that the library did not allocate: sent, received, written and read in the program's own place.

use udeck_via::{Descriptor, Error, Region, Reliability, RemoteBuffer, Rights, State, Status, ViAttributes};

use crate::kit::{End, Pair, assert_bytes, contents, pattern, regions, soon};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "user_memory";
pub const CASES: &[Case] = &[
    case!(user_memory_is_sent),
    case!(user_memory_is_sent_by_reliable_reception, RELIABLE_RECEPTION),
    case!(user_memory_receives),
    case!(elements_come_back_as_elements),
    case!(sends_mix_memory_of_both_kinds),
    case!(receives_mix_memory_of_both_kinds),
    case!(user_memory_is_written_from, RDMA_WRITE),
    case!(user_memory_is_written_from_by_reliable_reception, RDMA_WRITE, RELIABLE_RECEPTION),
    case!(user_memory_is_read_into, RDMA_READ),
    case!(a_read_that_is_refused_leaves_the_memory, RDMA_READ),
    case!(what_is_sent_is_copied_once),
    case!(user_memory_of_another_tag_is_refused),
    case!(user_memory_of_another_nic_is_refused),
    case!(a_send_that_the_outbox_has_no_room_for_comes_back),
    case!(what_was_sent_arrives_though_its_vi_is_gone),
    case!(flushed_descriptors_have_their_memory),
    case!(only_the_right_type_takes_the_buffer_out),
];

/// Registers `buffer` with the end's own tag.
fn registered(end: &End, buffer: Vec<u8>) -> Region {
    end.nic.register(buffer, end.ptag).expect("it is registered")
}

/// The buffer of a descriptor's only region.
fn buffer_of(descriptor: Descriptor) -> Vec<u8> {
    regions(descriptor).pop().expect("a region").into_buffer().expect("a vector of bytes")
}

fn send_sizes(pair: &mut Pair) {
    for len in [0, 1, 48, 49, 5000, 100_000] {
        let bytes = pattern(len, len);
        let buffer = bytes.clone();
        let address = buffer.as_ptr();
        pair.b.post_receive(len);
        let descriptor = Descriptor::new([registered(&pair.a, buffer)]).immediate(len as u32);
        pair.a.vi.post_send(descriptor).unwrap();
        let received = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((received.status, received.immediate), (Status::Done, Some(len as u32)));
        assert_bytes(&contents(&received), &bytes);
        let sent = pair.a.sent();
        assert_eq!(sent.length, len);
        let buffer = buffer_of(sent.descriptor.unwrap());
        assert_eq!(buffer.as_ptr(), address, "the very buffer");
        assert_bytes(&buffer, &bytes);
    }
    assert_eq!(pair.a.nic.outbox().usage().used, 0, "nothing stays staged");
}

fn user_memory_is_sent(fabric: &dyn Fabric) {
    send_sizes(&mut Pair::posted(fabric));
}

fn user_memory_is_sent_by_reliable_reception(fabric: &dyn Fabric) {
    let settings = |attributes: &mut ViAttributes| attributes.reliability = Reliability::Reception;
    send_sizes(&mut Pair::with(fabric, &Options::default(), settings));
}

fn user_memory_receives(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for len in [0, 1, 49, 5000, 100_000] {
        let bytes = pattern(len, len);
        let buffer = vec![0xee; len + 10];
        let address = buffer.as_ptr();
        let used = |pair: &Pair| pair.b.nic.outbox().usage().used;
        let before = used(&pair);
        pair.b.vi.post_receive(Descriptor::new([registered(&pair.b, buffer)])).unwrap();
        pair.a.post_send(&bytes);
        let received = pair.b.vi.receive_wait(soon()).unwrap();
        assert_eq!((received.status, received.length), (Status::Done, len));
        assert_eq!(used(&pair), before, "it keeps no memory of the library");
        let buffer = buffer_of(received.descriptor.unwrap());
        assert_eq!(buffer.as_ptr(), address);
        assert_bytes(&buffer[..len], &bytes);
        assert_eq!(buffer[len..], [0xee; 10], "nothing beyond the message");
        pair.a.sent();
    }
}

fn elements_come_back_as_elements(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let numbers: Vec<f64> = (0..1000).map(f64::from).collect();
    let into = pair.b.nic.register(vec![0f64; 1000].into_boxed_slice(), pair.b.ptag).unwrap();
    pair.b.vi.post_receive(Descriptor::new([into])).unwrap();
    let from = pair.a.nic.register(numbers.clone(), pair.a.ptag).unwrap();
    pair.a.vi.post_send(Descriptor::new([from])).unwrap();
    let received = regions(pair.b.vi.receive_wait(soon()).unwrap().descriptor.unwrap()).pop().unwrap();
    assert_eq!(received.into_buffer::<Box<[f64]>>().unwrap()[..], numbers);
    let sent = regions(pair.a.sent().descriptor.unwrap()).pop().unwrap();
    assert_eq!(sent.into_buffer::<Vec<f64>>().unwrap(), numbers);
}

/// Makes up to three pieces, as many as a descriptor may have, of both kinds in turn; the first is the
/// program's memory.
fn mixed(end: &End, pieces: &[Vec<u8>]) -> Vec<Region> {
    let region = |(index, piece): (usize, &Vec<u8>)| {
        if index.is_multiple_of(2) { registered(end, piece.clone()) } else { end.region(piece) }
    };
    pieces.iter().enumerate().map(region).collect()
}

fn pieces(end: &End, lengths: [usize; 3]) -> Vec<Vec<u8>> {
    let count = end.nic.attributes().max_segments.min(3);
    lengths[..count].iter().enumerate().map(|(seed, &len)| pattern(seed, len)).collect()
}

fn sends_mix_memory_of_both_kinds(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for lengths in [[5, 10, 15], [1000, 0, 3000], [700, 1, 70_000]] {
        let pieces = pieces(&pair.a, lengths);
        pair.b.post_receive(80_000);
        pair.a.vi.post_send(Descriptor::new(mixed(&pair.a, &pieces))).unwrap();
        assert_bytes(&pair.b.received(), &pieces.concat());
        for (region, piece) in regions(pair.a.sent().descriptor.unwrap()).iter().zip(&pieces) {
            assert_bytes(region, piece);
        }
    }
}

fn receives_mix_memory_of_both_kinds(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let empty: Vec<_> = pieces(&pair.b, [300, 5, 7000]).iter().map(|piece| vec![0; piece.len()]).collect();
    let bytes = pattern(3, empty.concat().len());
    pair.b.vi.post_receive(Descriptor::new(mixed(&pair.b, &empty))).unwrap();
    pair.a.post_send(&bytes);
    assert_bytes(&pair.b.received(), &bytes);
}

fn writes(fabric: &dyn Fabric, reliability: Reliability) {
    let settings = |attributes: &mut ViAttributes| {
        (attributes.enable_rdma_write, attributes.reliability) = (true, reliability);
    };
    let mut pair = Pair::with(fabric, &Options::default(), settings);
    let window = pair.b.nic.window(80_000, pair.b.ptag).unwrap();
    for (lengths, immediate) in [([5, 10, 15], None), ([700, 1, 70_000], Some(8))] {
        let pieces = pieces(&pair.a, lengths);
        let bytes = pieces.concat();
        let mut write = Descriptor::rdma_write(mixed(&pair.a, &pieces), window.remote());
        if let Some(data) = immediate {
            pair.b.post_receive(0);
            write = write.immediate(data);
        }
        pair.a.vi.post_send(write).unwrap();
        if immediate.is_some() {
            assert_eq!(pair.b.vi.receive_wait(soon()).unwrap().immediate, immediate);
        }
        assert_eq!(pair.a.sent().length, bytes.len());
        pair.drain();
        let mut there = vec![0; bytes.len()];
        window.read(0, &mut there).unwrap();
        assert_bytes(&there, &bytes);
    }
    assert_eq!(pair.a.nic.outbox().usage().used, 0, "nothing stays staged");
}

fn user_memory_is_written_from(fabric: &dyn Fabric) {
    writes(fabric, Reliability::Delivery);
}

fn user_memory_is_written_from_by_reliable_reception(fabric: &dyn Fabric) {
    writes(fabric, Reliability::Reception);
}

/// A pair whose `b` exposes these bytes to `a`, and their window.
fn shown(fabric: &dyn Fabric, bytes: &[u8]) -> (Pair, udeck_via::Window) {
    let pair = Pair::with(fabric, &Options::default(), |attributes| attributes.enable_rdma_read = true);
    let mut window = pair.b.nic.window_for(bytes.len(), pair.b.ptag, Rights::READ).unwrap();
    window.write(0, bytes).unwrap();
    (pair, window)
}

fn user_memory_is_read_into(fabric: &dyn Fabric) {
    let bytes = pattern(5, 75_000);
    let (mut pair, window) = shown(fabric, &bytes);
    let before = pair.a.nic.bytes_copied();
    let whole = Descriptor::rdma_read([registered(&pair.a, vec![1; 75_000])], window.remote());
    pair.a.vi.post_send(whole).unwrap();
    assert_bytes(&buffer_of(pair.a.sent().descriptor.unwrap()), &bytes);
    let copied = pair.a.nic.bytes_copied() - before;
    assert!(
        (75_000..=2 * 75_000).contains(&copied),
        "{copied} bytes: out of a block, and into it if not by hardware or kernel"
    );
    let empty: Vec<_> = pieces(&pair.a, [5, 1000, 70_000]).iter().map(|piece| vec![1; piece.len()]).collect();
    let len = empty.concat().len();
    let from = RemoteBuffer { offset: 100, len, ..window.remote() };
    pair.a.vi.post_send(Descriptor::rdma_read(mixed(&pair.a, &empty), from)).unwrap();
    let read: Vec<_> =
        regions(pair.a.sent().descriptor.unwrap()).iter().flat_map(|region| region.to_vec()).collect();
    assert_bytes(&read, &bytes[100..100 + len]);
}

fn a_read_that_is_refused_leaves_the_memory(fabric: &dyn Fabric) {
    let (mut pair, window) = shown(fabric, &[7; 100]);
    let beyond = Descriptor::rdma_read([registered(&pair.a, vec![1; 101])], window.remote());
    pair.forbidden(beyond, &[Status::RdmaProtectionError]);
    assert_eq!(pair.a.nic.outbox().usage().used, 0);
    pair.check();
}

fn what_is_sent_is_copied_once(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let mut copied = |region: fn(&End, Vec<u8>) -> Region| {
        let before = pair.a.nic.bytes_copied();
        pair.b.post_receive(5000);
        pair.a.vi.post_send(Descriptor::new([region(&pair.a, pattern(1, 5000))])).unwrap();
        pair.b.received();
        pair.a.sent();
        pair.a.nic.bytes_copied() - before
    };
    let from_the_arena = copied(|end, bytes| end.region(&bytes));
    assert_eq!(copied(registered), from_the_arena + 5000, "once more than from the outbox");
}

fn user_memory_of_another_tag_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let foreign = |end: &End| Descriptor::new([end.nic.register(vec![3u8; 100], end.nic.ptag()).unwrap()]);
    let (error, descriptor) = pair.a.vi.post_send(foreign(&pair.a)).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "{error}");
    assert_eq!(buffer_of(descriptor), [3; 100]);
    let (error, descriptor) = pair.b.vi.post_receive(foreign(&pair.b)).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "{error}");
    assert_eq!(buffer_of(descriptor), [3; 100]);
    pair.check();
}

fn user_memory_of_another_nic_is_refused(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    for foreign in [registered(&pair.b, vec![3; 100]), pair.b.region(&[3; 100])] {
        let (error, _) = pair.a.vi.post_send(Descriptor::new([foreign])).unwrap_err();
        assert!(matches!(error, Error::InvalidPtag), "{error}");
    }
    pair.check();
}

fn a_send_that_the_outbox_has_no_room_for_comes_back(fabric: &dyn Fabric) {
    let options = Options { arena_limit: 2 << 20, ..Options::default() };
    let mut pair = Pair::with(fabric, &options, |_| {});
    let taken: Vec<_> = std::iter::from_fn(|| pair.a.nic.region(64 << 10, pair.a.ptag).ok()).collect();
    let bytes = pattern(6, 512 << 10);
    let buffer = bytes.clone();
    let address = buffer.as_ptr();
    let descriptor = Descriptor::new([registered(&pair.a, buffer)]);
    let (error, descriptor) = pair.a.vi.post_send(descriptor).unwrap_err();
    assert!(matches!(error, Error::NoMemory { .. }), "{error}");
    assert!(pair.a.vi.send_done().is_none());
    drop(taken);
    pair.b.post_receive(bytes.len());
    pair.a.vi.post_send(descriptor).expect("there is room again");
    assert_bytes(&pair.b.received(), &bytes);
    let buffer = buffer_of(pair.a.sent().descriptor.unwrap());
    assert_eq!(buffer.as_ptr(), address);
}

fn what_was_sent_arrives_though_its_vi_is_gone(fabric: &dyn Fabric) {
    let Pair { a, mut b } = Pair::posted(fabric);
    let End { nic, ptag, mut vi, cq: _cq } = a;
    let bytes = pattern(2, 5000);
    let mut regions = vec![nic.register(bytes.clone(), ptag).unwrap()];
    if nic.attributes().max_segments > 1 {
        regions.push(nic.region(100, ptag).unwrap());
    }
    let total = regions.iter().map(|region| region.len()).sum();
    b.post_receive(total);
    vi.post_send(Descriptor::new(regions)).unwrap();
    drop(vi);
    // Memory that was freed too early would be handed out again.
    let mut others: Vec<_> = [5000, 100].map(|len| nic.region(len, ptag).unwrap()).into();
    others.iter_mut().for_each(|region| region.fill(0xff));
    let received = b.received();
    assert_bytes(&received[..5000], &bytes);
    assert!(received[5000..].iter().all(|&byte| byte == 0));
    drop(others);
    b.vi.disconnect();
    crate::kit::until("the memory is home", || {
        nic.reclaim();
        (nic.outbox().usage().used == 0).then_some(())
    });
}

fn flushed_descriptors_have_their_memory(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    pair.a.vi.post_receive(Descriptor::new([registered(&pair.a, vec![4; 50])])).unwrap();
    pair.a.vi.post_send(Descriptor::new([registered(&pair.a, vec![5; 500])])).unwrap();
    pair.a.vi.disconnect();
    pair.b.vi.disconnect();
    assert_eq!(pair.a.vi.state(), State::Idle);
    let flushed = pair.a.vi.receive_done().unwrap();
    assert_eq!(flushed.status, Status::Flushed);
    assert_eq!(buffer_of(flushed.descriptor.unwrap()), [4; 50]);
    let sent = pair.a.vi.send_wait(soon()).unwrap();
    assert_eq!(buffer_of(sent.descriptor.unwrap()), [5; 500]);
    assert_eq!(pair.a.nic.outbox().usage().used, 0);
}

fn only_the_right_type_takes_the_buffer_out(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let ptag = nic.ptag();
    let region = nic.register(vec![1u32, 2], ptag).unwrap();
    let region = region.into_buffer::<Vec<u8>>().unwrap_err();
    assert_eq!((region.len(), region.ptag()), (8, ptag));
    let region = region.into_buffer::<Box<[u32]>>().unwrap_err();
    assert_eq!(region.into_buffer::<Vec<u32>>().unwrap(), [1, 2]);
    let ours = nic.region(8, ptag).unwrap().into_buffer::<Vec<u8>>().unwrap_err();
    assert_eq!(ours.len(), 8);
}
