//! A peer that sends anything, and the reports that the program gets.

use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use udeck::NicOptions;
use udeck::via::auth::Keys;
use udeck::via::transport::Inline;
use udeck::via::{Cq, Deadline, Listener, NetAddress, Nic};

use super::*;
use crate::vipl::address::Host;
use crate::vipl::engine::{NICS, OwnPtag, PTAGS};
use crate::vipl::memory::{self, Wanted};
use crate::vipl::types::{ControlSegment, RELIABLE_DELIVERY, RELIABLE_RECEPTION, UNRELIABLE};
use udeck::names::{Directory, Listeners, NameService};
use udeck_rdma::MAX_HELD_BYTES;
use udeck_rdma::frame::{self, Head};

/// A directory without names.
struct NoNames;

impl NameService for NoNames {
    fn host_by_name(&self, _: &str, _: usize) -> udeck::via::Result<Vec<u8>> {
        Ok(self.address().to_vec())
    }

    fn host_by_address(&self, _: &[u8]) -> udeck::via::Result<String> {
        Ok("here".into())
    }
}

impl Directory for NoNames {
    fn options(&self) -> NicOptions {
        NicOptions::new(Keys::from([1; 32]))
    }

    fn default_nic(&self) -> &'static str {
        "shm0"
    }

    fn hosts(&self) -> Vec<Host> {
        Vec::new()
    }
}

impl Listeners for NoNames {
    fn address(&self) -> Host {
        [0; 16]
    }

    fn publish(&self, _: &str, _: &[u8]) -> Result<bool, String> {
        Ok(true)
    }

    fn withdraw(&self, _: &str) {}

    fn find(&self, _: &Host, _: &str, _: Deadline, _: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>, String> {
        Ok(None)
    }
}

const PAGE: usize = 4096;
const GUARD: u8 = 0xd5;

/// Memory of the program's: a page that is registered, between two that nobody may touch, and one for descriptors.
#[repr(C, align(4096))]
struct Memory {
    before: [u8; PAGE],
    open: [u8; PAGE],
    after: [u8; PAGE],
    descriptors: [u8; PAGE],
}

struct Scene {
    state: Arc<NicState>,
    ptag_handle: Handle,
    /// The open page.
    start: NonNull<Memory>,
    open: u32,
    descriptors: u32,
    /// The peer's NIC.
    nic: Nic,
    cq: Cq,
}

// SAFETY: one test at a time has it, under its lock.
unsafe impl Send for Scene {}

static SCENE: LazyLock<parking_lot::Mutex<Scene>> = LazyLock::new(|| parking_lot::Mutex::new(Scene::new()));

impl Scene {
    fn new() -> Scene {
        let open = || udeck::open_nic("shm0", &NoNames.options()).unwrap();
        let made =
            NICS.insert(|handle| NicState::new(handle, open(), Arc::new(NoNames), &VISITS).ok()).unwrap();
        let state = NICS.get(made).flatten().unwrap();
        extern "C" fn ignore(_: *mut std::ffi::c_void, _: *mut types::ErrorDescriptor) {}
        state.on_error(Some(error::Callback { handler: ignore, context: std::ptr::null_mut() }));
        let ptag = state.nic.ptag();
        let ptag_handle = PTAGS.insert(|_| OwnPtag { nic: made, ptag }).unwrap();
        let memory =
            Memory { before: [GUARD; PAGE], open: [0; PAGE], after: [GUARD; PAGE], descriptors: [0; PAGE] };
        let start = NonNull::from(Box::leak(Box::new(memory)));
        let wanted = |open| Wanted { ptag, ptag_handle, write: open, read: open };
        let page = |nth: usize, open| {
            // SAFETY: within the memory.
            let at = unsafe { start.cast::<u8>().add(nth * PAGE) };
            memory::register(&state.nic, at, PAGE, wanted(open)).unwrap()
        };
        let (opened, descriptors) = (page(1, true), page(3, false));
        let nic = open();
        let cq = Cq::new(&nic).unwrap();
        Scene { state, ptag_handle, start, open: opened, descriptors, nic, cq }
    }

    fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Returns a VI of the program's, and the peer's end.
    fn connected(&self, reliability: u16) -> (Handle, Vi) {
        let attributes = ViAttributes {
            reliability,
            max_transfer: PAGE as _,
            qos: std::ptr::null_mut(),
            ptag: self.ptag_handle,
            rdma_write: 1,
            rdma_read: i32::from(reliability != UNRELIABLE),
        };
        let wanted = ViObject::below_for(&self.state, &attributes).unwrap();
        let below = Vi::new(&self.state.nic, wanted).unwrap();
        let vi = VIS
            .insert(|own| ViObject::new(own, self.state.clone(), attributes, below, [None, None]))
            .unwrap();
        let mut below = VIS.lock(vi).unwrap().begin_connecting().unwrap();
        let listener = Listener::new(&self.state.nic, b"test").unwrap();
        let to =
            NetAddress { host: self.state.nic.attributes().address.clone(), discriminator: b"test".to_vec() };
        let limit = Deadline::after(Duration::from_secs(60));
        let mut peer = Vi::new(&self.nic, Below { ptag: self.nic.ptag(), ..wanted }).unwrap();
        let peer_cq = self.cq.handle();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| peer.connect(&to, &peer_cq, &peer_cq, b"", limit).map(drop));
            let cq = self.state.progress.cq_handle();
            listener.wait(limit).unwrap().accept(&mut below, cq, cq, b"").unwrap();
            asks.join().unwrap().unwrap();
        });
        VIS.lock(vi).unwrap().end_connecting(below, true);
        (vi, peer)
    }

    /// Descriptor number `nth`, of one segment of the open page: 64 bytes, or 8 for RDMA.
    fn descriptor(&self, nth: usize, control: u16) -> super::Place {
        // SAFETY: within the memory.
        let at = unsafe { self.start.cast::<u8>().add(3 * PAGE + nth * 64) }.cast::<Descriptor>();
        let head = ControlSegment {
            next: 0,
            next_handle: 0,
            seg_count: if control == 0 { 1 } else { 2 },
            control,
            reserved: 0,
            immediate: 0,
            length: 0,
            status: 0,
        };
        let last = if control == 0 { 64 } else { 8 };
        let segment = DescriptorSegment { data: self.address() + PAGE as u64, handle: self.open, last };
        // SAFETY: as above; nothing is posted there.
        unsafe {
            at.cast::<ControlSegment>().write(head);
            at.byte_add(32).cast::<[DescriptorSegment; 2]>().write([segment, segment]);
        }
        super::Place { descriptor: at.as_ptr(), handle: self.descriptors }
    }

    fn status(&self, nth: usize) -> u32 {
        let at = self.descriptor_at(nth).cast::<ControlSegment>();
        // SAFETY: within the memory, and aligned.
        unsafe { &*(&raw const (*at).status).cast::<AtomicU32>() }.load(Ordering::Acquire)
    }

    fn guards_stand(&self) -> bool {
        [0, 2].into_iter().all(|nth| {
            // SAFETY: a page of the memory, which nobody else may write: that is what is tested.
            let page = unsafe { self.start.cast::<[u8; PAGE]>().add(nth).as_ref() };
            page.iter().all(|byte| *byte == GUARD)
        })
    }
}

/// A frame: kind, flags, address, length as it claims, and bytes.
#[derive(Clone, Debug)]
enum Frame {
    Any(Vec<u8>),
    Rdma { kind: u8, flags: u8, offset: i64, handle: u32, len: u64, bytes: Vec<u8> },
    Word(u8, u32, Vec<u8>),
}

fn frame() -> impl Strategy<Value = Frame> {
    let bytes = |most| prop::collection::vec(any::<u8>(), 0..most);
    let end = PAGE as i64;
    let offset = prop_oneof![0..64_i64, -16..1_i64, (end - 16)..(end + 2), any::<i64>()];
    let handle = prop_oneof![9 => Just(0_u32), 1 => any::<u32>()];
    let len = prop_oneof![0..100_u64, any::<u64>()];
    // Other flags end the connection before any memory is looked up.
    let flags = prop_oneof![6 => Just(0_u8), 3 => Just(frame::IMMEDIATE), 1 => any::<u8>()];
    prop_oneof![
        1 => bytes(Inline::CAPACITY + 1).prop_map(Frame::Any),
        4 => (frame::WRITE..=frame::READ, flags, offset, handle, len, bytes(16))
            .prop_map(|(kind, flags, offset, handle, len, bytes)| Frame::Rdma { kind, flags, offset, handle, len, bytes }),
        4 => (0..8_u8, prop_oneof![0..3_u32, any::<u32>()], bytes(24))
            .prop_map(|(kind, word, bytes)| Frame::Word(kind, word, bytes)),
    ]
}

impl Frame {
    fn bytes(&self, scene: &Scene) -> Vec<u8> {
        match self {
            Frame::Any(bytes) => bytes.clone(),
            Frame::Rdma { kind, flags, offset, handle, len, bytes } => {
                let address = (scene.address() + PAGE as u64).wrapping_add_signed(*offset);
                let place = frame::write_head(address, scene.open ^ handle);
                let tail = if *kind == frame::READ { len.to_le_bytes().to_vec() } else { bytes.clone() };
                [&[*kind, *flags, 0, 0, 0, 0, 0, 0][..], &place, &tail].concat()
            }
            Frame::Word(kind, word, bytes) => {
                [&[*kind, 0, 0, 0, 0, 0, 0, 0][..], &word.to_le_bytes(), bytes].concat()
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// A peer reaches no memory but what is open to it, and each descriptor is over once.
    #[test]
    fn a_peer_may_say_anything(
        level in prop_oneof![Just(UNRELIABLE), Just(RELIABLE_DELIVERY), Just(RELIABLE_RECEPTION)],
        frames in prop::collection::vec(frame(), 1..12),
    ) {
        let scene = SCENE.lock();
        let (vi, mut peer) = scene.connected(level);
        {
            let mut vi = VIS.lock(vi).unwrap();
            for nth in 0..4 {
                prop_assert_eq!(vi.post_receive(scene.descriptor(nth, 0)), VipReturn::SUCCESS);
            }
            // DATA and TAKEN may be of these; on an unreliable connection the read is wrong.
            for (nth, control) in [(4, 0), (5, types::control::OP_RDMAREAD), (6, 0)] {
                prop_assert_eq!(vi.post_send(scene.descriptor(nth, control)), VipReturn::SUCCESS);
            }
        }
        for frame in &frames {
            let bytes = frame.bytes(&scene);
            // Refused if the connection has ended.
            let _ = peer.send_inline(Some(7), &bytes, &[]);
        }
        for _ in 0..20 {
            let mut vi = VIS.lock(vi).unwrap();
            vi.move_on(Until::Bound);
            prop_assert!(vi.state() == ViState::CONNECTED || vi.state() == ViState::ERROR);
        }
        let mut vi_locked = VIS.lock(vi).unwrap();
        prop_assert_eq!(vi_locked.disconnect(), VipReturn::SUCCESS);
        for nth in 0..4 {
            prop_assert_eq!(vi_locked.receive_done(), Some(scene.descriptor_at(nth)));
        }
        for nth in 4..7 {
            prop_assert_eq!(vi_locked.send_done(), Some(scene.descriptor_at(nth)));
        }
        prop_assert!(vi_locked.receive_done().is_none() && vi_locked.send_done().is_none());
        drop(vi_locked);
        prop_assert!(scene.guards_stand());
        prop_assert!(matches!(VIS.remove(vi, |vi| vi.may_go()), Some(Ok(_))));
    }
}

impl Scene {
    fn descriptor_at(&self, nth: usize) -> *mut Descriptor {
        self.start.as_ptr().cast::<u8>().wrapping_add(3 * PAGE + nth * 64).cast()
    }
}

/// Ends the connection of a VI whose queues are empty, and the VI.
fn remove(vi: Handle) {
    assert_eq!(VIS.lock(vi).unwrap().disconnect(), VipReturn::SUCCESS);
    assert!(matches!(VIS.remove(vi, |vi| vi.may_go()), Some(Ok(_))));
}

/// The handler is called whichever thread moves the VI on: here the engine, when the peer has made room.
#[test]
fn who_asked_is_called_when_a_send_that_waited_for_room_is_over() {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn count(_: *mut c_void, _: Handle, _: Handle, _: *mut Descriptor) {
        CALLS.fetch_add(1, Ordering::SeqCst);
    }
    let scene = SCENE.lock();
    let (vi, mut peer) = scene.connected(RELIABLE_DELIVERY);
    let post = || {
        let mut vi = VIS.lock(vi).unwrap();
        assert_eq!(vi.post_send(scene.descriptor(0, 0)), VipReturn::SUCCESS);
        vi.send_done()
    };
    while post().is_some() {}
    let notify = Notify { handler: count, context: std::ptr::null_mut() };
    assert_eq!(VIS.lock(vi).unwrap().set_notify(Queue::Send, notify), VipReturn::SUCCESS);
    assert_eq!(CALLS.load(Ordering::SeqCst), 0, "it waits");
    let limit = Deadline::after(Duration::from_secs(20));
    while CALLS.load(Ordering::SeqCst) == 0 {
        assert!(!limit.passed(), "nobody is told");
        while peer.arrival().unwrap().is_some() {}
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(VIS.lock(vi).unwrap().send_done().is_none(), "the handler has it");
    remove(vi);
}

/// A message waits for a receive that is posted behind it, until the program has asked for messages, if the NIC's messages that
/// wait leave room.
#[test]
fn who_has_asked_for_messages_is_told_of_one_without_a_receive() {
    let scene = SCENE.lock();
    for (has_asked, others_hold) in [(false, MAX_HELD_BYTES - 1), (false, MAX_HELD_BYTES), (true, 0)] {
        let _others = scene.state.progress.held().add(others_hold, false);
        let (vi, mut peer) = scene.connected(RELIABLE_DELIVERY);
        let mut locked = VIS.lock(vi).unwrap();
        if has_asked {
            assert!(locked.receive_done().is_none(), "nothing has come");
        }
        peer.send_inline(None, &Head::plain(frame::SEND).bytes(), b"early").unwrap();
        // Moved on without asking for messages, as the engine or a send does.
        locked.move_on(Until::Bound);
        let is_over = has_asked || others_hold == MAX_HELD_BYTES;
        let state = if is_over { ViState::ERROR } else { ViState::CONNECTED };
        assert_eq!(locked.state(), state, "has asked: {has_asked}, others hold {others_hold}");
        assert_eq!(locked.post_receive(scene.descriptor(0, 0)), VipReturn::SUCCESS);
        assert_eq!(locked.receive_done(), Some(scene.descriptor_at(0)));
        drop(locked);
        remove(vi);
    }
}

/// The answer to a read, and the receipt of a message, end a descriptor of this side: the program may post its receives
/// behind that.
#[test]
fn answers_pass_messages_without_a_receive_up_to_a_bound() {
    let scene = SCENE.lock();
    let data = [&frame::data_head(false)[..], &[7; 8]].concat();
    let taken = 1_u32.to_le_bytes().to_vec();
    for (control, kind, answer) in
        [(types::control::OP_RDMAREAD, frame::DATA, data), (0, frame::TAKEN, taken)]
    {
        for (waiting, passes) in [(1, true), (face::MAX_HELD - 1, true), (face::MAX_HELD, false)] {
            let (vi, mut peer) = scene.connected(RELIABLE_RECEPTION);
            let mut locked = VIS.lock(vi).unwrap();
            assert_eq!(locked.post_send(scene.descriptor(0, control)), VipReturn::SUCCESS);
            let mut say = |kind, body: &[u8]| {
                peer.send_inline(Some(0), &Head::plain(kind).bytes(), body).unwrap();
            };
            (0..waiting).for_each(|_| say(frame::SEND, b"early"));
            say(kind, &answer);
            let sent = Some(scene.descriptor_at(0));
            assert_eq!(locked.send_done(), sent.filter(|_| passes), "frame {kind} behind {waiting} messages");
            assert_eq!(locked.post_receive(scene.descriptor(1, 0)), VipReturn::SUCCESS);
            locked.move_on(Until::Bound);
            assert_eq!(locked.send_done(), sent.filter(|_| !passes));
            assert_eq!(locked.receive_done(), Some(scene.descriptor_at(1)));
            assert_eq!(locked.state(), ViState::CONNECTED);
            drop(locked);
            remove(vi);
        }
    }
}

/// A program that takes messages one by one needs a receive for the next one only.
#[test]
fn a_program_that_asks_for_one_message_gets_one() {
    let scene = SCENE.lock();
    let (vi, mut peer) = scene.connected(RELIABLE_DELIVERY);
    let mut locked = VIS.lock(vi).unwrap();
    assert_eq!(locked.post_send(scene.descriptor(0, types::control::OP_RDMAREAD)), VipReturn::SUCCESS);
    for _ in 0..3 {
        peer.send_inline(Some(0), &Head::plain(frame::SEND).bytes(), b"early").unwrap();
    }
    locked.move_on(Until::Bound);
    for nth in 1..4 {
        assert_eq!(locked.post_receive(scene.descriptor(nth, 0)), VipReturn::SUCCESS);
        assert_eq!(locked.receive_done(), Some(scene.descriptor_at(nth)));
    }
    assert_eq!(locked.state(), ViState::CONNECTED);
    assert_eq!(locked.disconnect(), VipReturn::SUCCESS);
    assert_eq!(locked.send_done(), Some(scene.descriptor_at(0)));
    drop(locked);
    remove(vi);
}

/// A handler runs on another thread, and may look at the descriptor: the status is written before the call is queued.
#[test]
fn an_error_is_reported_behind_its_status() {
    let scene = SCENE.lock();
    let (vi, _peer) = scene.connected(RELIABLE_DELIVERY);
    let place = scene.descriptor(0, types::control::OP_MASK);
    let calls = scene.state.block_calls();
    std::thread::scope(|scope| {
        let post = scope.spawn(move || VIS.lock(vi).unwrap().post_send(place));
        let limit = Deadline::after(Duration::from_secs(20));
        while scene.status(0) != status::DONE | status::OP_SEND | status::FORMAT_ERROR {
            assert!(!limit.passed(), "no status is written while nothing can be reported");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(calls);
        assert_eq!(post.join().unwrap(), VipReturn::SUCCESS);
    });
    assert_eq!(VIS.lock(vi).unwrap().send_done(), Some(scene.descriptor_at(0)));
    remove(vi);
}
