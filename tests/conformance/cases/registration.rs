//! Registered memory: attributes, the life of protection tags, the registration cache.

use udeck_via::mem::UserMemory;
use udeck_via::{Caps, Descriptor, Error, Nic, Ptag, RemoteBuffer, Rights, Vi, ViAttributes, Window};

use crate::counting::{Books, counting};
use crate::kit::{Pair, assert_bytes, nics, pattern, soon};
use crate::{Case, Fabric, Options};

const TOPIC: &str = "registration";
pub const CASES: &[Case] = &[
    case!(a_tag_in_use_is_not_destroyed),
    case!(a_window_uses_its_tag, RDMA_WRITE),
    case!(tags_that_are_none_are_refused),
    case!(regions_change_their_tag),
    case!(memory_tells_its_attributes),
    case!(set_attributes_ends_the_old_handle, RDMA_WRITE),
    case!(set_attributes_changes_rights, RDMA_WRITE, RDMA_READ),
    case!(set_attributes_that_fails_changes_nothing, RDMA_WRITE),
    case!(a_window_that_is_not_quiet_gives_no_rights, RDMA_WRITE),
    case!(registrations_end_with_their_memory),
    case!(a_registration_is_there_the_next_time),
    case!(what_the_device_refuses_comes_back),
    case!(the_longest_unused_registration_makes_room),
    case!(registrations_in_use_are_bounded),
    case!(pinned_memory_is_bounded_by_the_kernel),
];

fn assert_in_use(destroyed: udeck_via::Result, by: &str) {
    let text = destroyed.as_ref().unwrap_err().to_string();
    assert!(matches!(destroyed, Err(Error::InUse { .. })) && text.contains(by), "{text}");
}

fn a_tag_in_use_is_not_destroyed(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let ptag = nic.ptag();
    let mut vi = Vi::new(&nic, ViAttributes::new(ptag)).unwrap();
    assert_in_use(nic.destroy_ptag(ptag), "1 VIs");
    vi.set_attributes(ViAttributes::new(nic.ptag())).unwrap();
    let region = nic.region(10, ptag).unwrap();
    let user = nic.register(vec![0u8; 10], ptag).unwrap();
    assert_in_use(nic.clone().destroy_ptag(ptag), "2 regions");
    drop((region, user));
    nic.destroy_ptag(ptag).unwrap();
    assert!(matches!(nic.destroy_ptag(ptag), Err(Error::InvalidPtag)));
}

fn a_window_uses_its_tag(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let (ptag, other) = (nic.ptag(), nic.ptag());
    let mut window = nic.window(64, ptag).unwrap();
    assert_in_use(nic.destroy_ptag(ptag), "1 windows");
    window.set_attributes(other, Rights::WRITE, soon()).unwrap();
    nic.destroy_ptag(ptag).unwrap();
    assert_in_use(nic.destroy_ptag(other), "1 windows");
    window.revoke(soon()).unwrap();
    nic.destroy_ptag(other).unwrap();
}

fn tags_that_are_none_are_refused(fabric: &dyn Fabric) {
    let (nic, other) = nics(fabric);
    let destroyed = nic.ptag();
    nic.destroy_ptag(destroyed).unwrap();
    for ptag in [destroyed, other.ptag(), Ptag(0), Ptag(u32::MAX)] {
        assert!(matches!(Vi::new(&nic, ViAttributes::new(ptag)), Err(Error::InvalidPtag)), "{ptag:?}");
        let mut vi = Vi::new(&nic, ViAttributes::new(nic.ptag())).unwrap();
        assert!(matches!(vi.set_attributes(ViAttributes::new(ptag)), Err(Error::InvalidPtag)));
        assert_ne!(vi.attributes().ptag, ptag);
        assert!(matches!(nic.region(10, ptag), Err(Error::InvalidPtag)));
        let (error, buffer) = nic.register(vec![9u8; 10], ptag).unwrap_err();
        assert!(matches!(error, Error::InvalidPtag), "{error}");
        assert_eq!(buffer, [9; 10]);
        if nic.caps().has(Caps::RDMA_WRITE) {
            assert!(matches!(nic.window(10, ptag), Err(Error::InvalidPtag)));
        }
    }
}

fn regions_change_their_tag(fabric: &dyn Fabric) {
    let mut pair = Pair::posted(fabric);
    let other = pair.a.nic.ptag();
    for mut region in
        [pair.a.nic.region(100, other).unwrap(), pair.a.nic.register(vec![0u8; 100], other).unwrap()]
    {
        let error = region.set_ptag(pair.b.ptag).unwrap_err();
        assert!(matches!(error, Error::InvalidPtag), "a tag of another NIC: {error}");
        assert_eq!(region.ptag(), other);
        region.set_ptag(pair.a.ptag).unwrap();
        assert_eq!(region.attributes().ptag, pair.a.ptag);
        pair.b.post_receive(100);
        pair.a.vi.post_send(Descriptor::new([region])).unwrap();
        pair.b.received();
        pair.a.sent();
    }
    pair.a.nic.destroy_ptag(other).expect("nothing carries it any more");
}

fn memory_tells_its_attributes(fabric: &dyn Fabric) {
    let nic = fabric.open(&Options::default());
    let ptag = nic.ptag();
    for region in [nic.region(100, ptag).unwrap(), nic.register(vec![0u32; 25], ptag).unwrap()] {
        let attributes = region.attributes();
        assert_eq!((attributes.ptag, attributes.rights, attributes.len), (ptag, Rights::NONE, 100));
    }
    if nic.caps().has(Caps::RDMA_WRITE) {
        let attributes = nic.window(70, ptag).unwrap().attributes();
        assert_eq!((attributes.ptag, attributes.rights, attributes.len), (ptag, Rights::WRITE, 70));
    }
}

/// A pair whose `b` allows `a` to write and read as far as the NIC can, and a window there.
fn reachable(fabric: &dyn Fabric, rights: Rights) -> (Pair, Window) {
    let pair = Pair::with(fabric, &Options::default(), |attributes| {
        (attributes.enable_rdma_write, attributes.enable_rdma_read) = (rights.write, rights.read);
    });
    let window = pair.b.nic.window_for(100, pair.b.ptag, rights).unwrap();
    (pair, window)
}

fn write(pair: &mut Pair, to: RemoteBuffer) -> udeck_via::Result {
    let write = Descriptor::rdma_write([pair.a.region(&[6; 100])], to);
    pair.a.vi.post_send(write).map_err(|(error, _)| error)?;
    pair.a.sent();
    pair.drain();
    Ok(())
}

fn read(pair: &mut Pair, from: RemoteBuffer) -> udeck_via::Result<Vec<u8>> {
    let read = Descriptor::rdma_read([pair.a.region(&[0; 100])], from);
    pair.a.vi.post_send(read).map_err(|(error, _)| error)?;
    Ok(pair.a.sent().descriptor.unwrap().segments()[0].bytes().to_vec())
}

fn set_attributes_ends_the_old_handle(fabric: &dyn Fabric) {
    let (mut pair, mut window) = reachable(fabric, Rights::WRITE);
    let (old, other) = (window.remote(), pair.b.nic.ptag());
    write(&mut pair, old).unwrap();
    window.set_attributes(other, Rights::WRITE, soon()).unwrap();
    assert_eq!(window.attributes().ptag, other);
    let elsewhere = window.remote();
    pair.forbidden_write(&[6; 100], old);
    pair.forbidden_write(&[6; 100], elsewhere);
    window.set_attributes(pair.b.ptag, Rights::WRITE, soon()).unwrap();
    pair.forbidden_write(&[6; 100], old);
    pair.forbidden_write(&[6; 100], elsewhere);
    let mut bytes = [0; 100];
    window.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [6; 100], "the bytes stay");
    let new = window.remote();
    assert!(old.handle != new.handle && elsewhere.handle != new.handle);
    window.write(0, &[0; 100]).unwrap();
    write(&mut pair, new).unwrap();
    assert_eq!(window.revoke(soon()).unwrap()[..], [6; 100]);
}

fn set_attributes_changes_rights(fabric: &dyn Fabric) {
    let (mut pair, mut window) = reachable(fabric, Rights::BOTH);
    for rights in [Rights::WRITE, Rights::READ, Rights::BOTH, Rights::READ] {
        window.set_attributes(pair.b.ptag, rights, soon()).unwrap();
        assert_eq!(window.attributes().rights, rights);
        let bytes = pattern(usize::from(rights.write), 100);
        window.write(0, &bytes).unwrap();
        if rights.read {
            assert_bytes(&read(&mut pair, window.remote()).unwrap(), &bytes);
        } else {
            pair.forbidden_read(100, window.remote());
        }
        if rights.write {
            write(&mut pair, window.remote()).unwrap();
        } else {
            pair.forbidden_write(&[6; 100], window.remote());
        }
    }
}

fn set_attributes_that_fails_changes_nothing(fabric: &dyn Fabric) {
    let (mut pair, mut window) = reachable(fabric, Rights::WRITE);
    let (old, ptag) = (window.remote(), pair.b.ptag);
    let error = window.set_attributes(pair.a.ptag, Rights::WRITE, soon()).unwrap_err();
    assert!(matches!(error, Error::InvalidPtag), "{error}");
    let error = window.set_attributes(ptag, Rights::NONE, soon()).unwrap_err();
    assert!(matches!(error, Error::InvalidParameter(_)), "{error}");
    let error = window.set_attributes(ptag, Rights::BOTH, soon()).unwrap_err();
    if pair.b.nic.caps().has(Caps::RDMA_READ) {
        assert!(matches!(error, Error::InvalidParameter(_)), "it was not cleared: {error}");
    } else {
        assert!(matches!(error, Error::Unsupported { needed: Caps::RDMA_READ, .. }), "{error}");
    }
    assert_eq!((window.remote(), window.attributes().rights), (old, Rights::WRITE));
    write(&mut pair, old).unwrap();
}

fn a_window_that_is_not_quiet_gives_no_rights(fabric: &dyn Fabric) {
    let (nic, books) = counting(&fabric.open(&Options::default()), |_| {});
    let (ptag, other) = (nic.ptag(), nic.ptag());
    let mut window = nic.window(64, ptag).unwrap();
    let old = window.remote();
    books.fail(1);
    let error = window.set_attributes(other, Rights::WRITE, soon()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert_eq!((window.attributes().rights, window.attributes().ptag), (Rights::NONE, ptag));
    assert!(nic.destroy_ptag(other).is_ok(), "it was not taken");
    window.set_attributes(ptag, Rights::WRITE, soon()).expect("quiet now");
    assert_eq!(window.attributes().rights, Rights::WRITE);
    assert_ne!(window.remote().handle, old.handle);
}

fn limited(fabric: &dyn Fabric) -> (Nic, std::sync::Arc<Books>) {
    counting(&fabric.open(&Options::default()), |limits| {
        (limits.max_registrations, limits.max_registered_bytes) = (3, 1000);
    })
}

fn registrations_end_with_their_memory(fabric: &dyn Fabric) {
    let (nic, books) = limited(fabric);
    let ptag = nic.ptag();
    let region = nic.register(vec![0u16; 50], ptag).unwrap();
    assert_eq!(books.live(), (1, 100));
    assert_eq!((nic.registrations().in_use, nic.registrations().bytes_in_use), (1, 100));
    drop(region);
    assert_eq!(books.live(), (0, 0), "nothing of it stays when it is freed");
    let region = nic.register(vec![0u16; 50], ptag).unwrap();
    let buffer = region.into_buffer::<Vec<u16>>().unwrap();
    assert_eq!(books.live(), (0, 0), "nor when it is taken back");
    let memory = nic.register(buffer, ptag).unwrap().into_memory::<Vec<u16>>().unwrap();
    assert_eq!(books.live(), (1, 100), "but while it is only set aside");
    assert!(nic.invalidate(&memory));
    assert_eq!(books.live(), (0, 0), "until the program says so");
    assert!(!nic.invalidate(&memory));
    let usage = nic.registrations();
    assert_eq!((usage.misses, usage.hits, usage.evictions, usage.invalidations), (3, 0, 0, 3));
    assert_eq!((usage.entries, usage.bytes, usage.in_use), (0, 0, 0));
}

fn a_registration_is_there_the_next_time(fabric: &dyn Fabric) {
    let (nic, books) = limited(fabric);
    let mut memory = UserMemory::new(vec![0u8; 100]);
    for round in 0..5u8 {
        let mut region = nic.register_memory(memory, nic.ptag()).unwrap();
        assert_eq!((&region[..], books.live()), (&[round; 100][..], (1, 100)));
        region.fill(round + 1);
        memory = region.into_memory().unwrap();
    }
    let usage = nic.registrations();
    assert_eq!((usage.misses, usage.hits, usage.entries, usage.in_use), (1, 4, 1, 0));
    // The address is the same, but the memory must be treated as other memory.
    let memory = UserMemory::new(memory.into_inner());
    drop(nic.register_memory(memory, nic.ptag()).unwrap());
    assert_eq!((nic.registrations().misses, nic.registrations().hits), (2, 4));
    assert_eq!(books.live(), (0, 0));
}

fn what_the_device_refuses_comes_back(fabric: &dyn Fabric) {
    let (nic, books) = limited(fabric);
    let ptag = nic.ptag();
    books.fail(1);
    let (error, buffer) = nic.register(vec![8u8; 1000], ptag).unwrap_err();
    assert!(error.to_string().contains("the hardware"), "{error}");
    assert_eq!((nic.registrations().entries, nic.registrations().bytes), (0, 0));
    nic.destroy_ptag(ptag).expect("nothing carries it");
    assert_eq!(nic.register(buffer, nic.ptag()).expect("all the room is there")[..], [8; 1000]);
}

fn the_longest_unused_registration_makes_room(fabric: &dyn Fabric) {
    let (nic, books) = limited(fabric);
    let ptag = nic.ptag();
    let set_aside = |memory: UserMemory<Vec<u8>>| {
        nic.register_memory(memory, ptag).unwrap().into_memory::<Vec<u8>>().unwrap()
    };
    let [first, second, third] = [300, 300, 300].map(|len| set_aside(UserMemory::new(vec![0; len])));
    let first = set_aside(first);
    assert_eq!(books.live(), (3, 900));
    let fourth = set_aside(UserMemory::new(vec![0; 200]));
    assert_eq!(books.live(), (3, 800), "no room for four");
    assert!(!nic.invalidate(&second), "it went");
    let fifth = set_aside(UserMemory::new(vec![0; 600]));
    assert_eq!(books.live(), (2, 800), "two more went for its bytes");
    assert!(!nic.invalidate(&third) && !nic.invalidate(&first));
    assert!(nic.invalidate(&fourth) && nic.invalidate(&fifth));
    assert_eq!(nic.registrations().evictions, 3);
}

fn registrations_in_use_are_bounded(fabric: &dyn Fabric) {
    let (nic, books) = limited(fabric);
    let ptag = nic.ptag();
    let full = |len: usize| {
        let (error, buffer) = nic.register(vec![0u8; len], ptag).unwrap_err();
        assert_eq!(buffer.len(), len);
        assert!(matches!(error, Error::Full { .. }), "{error}");
        error.to_string()
    };
    assert!(full(1001).contains("more than 1000, which the NIC can register"));
    let held: Vec<_> = [100, 700, 0].map(|len| nic.register(vec![0u8; len], ptag).unwrap()).into();
    assert!(full(1).contains("3 registrations are in use"));
    assert_eq!(books.live(), (3, 800));
    drop(held);
    nic.register(vec![0u8; 1000], ptag).expect("there is room again");
}

/// Number of bytes that this process may lock, as the kernel reports it; `None`: there is no limit.
fn lockable() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("the kernel tells the limits");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).expect("this one");
    line.split_whitespace().next()?.parse().ok()
}

fn pinned_memory_is_bounded_by_the_kernel(fabric: &dyn Fabric) {
    let (nic, books) = counting(&fabric.open(&Options::default()), |limits| limits.pins_memory = true);
    let ptag = nic.ptag();
    // The memory stays untouched, so that it costs address space only; and not too much of that.
    let len = lockable().filter(|&limit| limit < 1 << 30).map_or(1 << 20, |limit| limit + 1);
    match nic.register(vec![0u8; len], ptag) {
        Ok(_) => assert!(lockable().is_none_or(|limit| limit >= len)),
        Err((error, _)) => {
            assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
            assert!(lockable().is_some_and(|limit| limit < len));
            assert_eq!(books.live(), (0, 0), "the kernel was not even asked");
        }
    }
    let (plain, _) = counting(&fabric.open(&Options::default()), |_| {});
    plain.register(vec![0u8; len], plain.ptag()).expect("a NIC that does not pin does not care");
}
