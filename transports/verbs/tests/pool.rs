//! Receive buffers that connections share: how much is pinned, that no connection starves, and that a liar takes no
//! buffers away.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use udeck_via::mem::Fill;
use udeck_via::transport::{Body, Hello, PostedBuffer, Refused};
use udeck_via::{Reliability, ServiceLevel};

use super::early::core_with;
use super::{LentEnd, alone, inject, options, pair, soon, unreliable};
use crate::Settings;
use crate::connection::{Connection, MESSAGES, RECEIVES, RequestOptions, Work};
use crate::core::Core;
use crate::ffi::codes::event;
use crate::link::VerbsLink;
use crate::oob::Oob;
use crate::queue::{LEADS, Queue};
use crate::wire::{BLOCK, Frame, Header};

fn hello() -> Hello {
    Hello {
        reliability: Reliability::Delivery,
        writable_ptag: None,
        readable_ptag: None,
        private_data: Vec::new(),
    }
}

/// Bytes that so many queue pairs of one domain have pinned.
fn pinned(settings: Settings, connections: usize) -> usize {
    let core = core_with(settings);
    let queues: Vec<_> = (0..connections).map(|_| core.queue(&hello()).unwrap()).collect();
    let pinned = core.pinned();
    drop(queues);
    assert_eq!(core.pinned(), 0, "nothing is left");
    pinned
}

/// A VI's level marks the packets of its queue pairs; without one, the level of the settings does.
#[test]
fn queue_pairs_have_the_level_of_their_vi() {
    let _alone = alone();
    let core = core_with(Settings::default());
    let unreliable = Hello { reliability: Reliability::Unreliable, ..hello() };
    let (_, mut queue) = core.queue(&unreliable).unwrap();
    let settings = Settings { sl: 3, ..core.settings.clone() };
    for (level, marked) in [(0, 3), (5, 5), (15, 15), (0, 3)] {
        queue.set_level(ServiceLevel::new(level).unwrap());
        assert_eq!(queue.sl(&settings), marked, "level {level}");
        assert_eq!(
            queue.unreliable_queue().map(|unreliable| unreliable.sl(&settings)),
            Some(marked),
            "level {level}"
        );
    }
}

#[test]
fn connections_pin_receive_buffers_up_to_the_bound_and_then_share_them() {
    let _alone = alone();
    let own = RECEIVES as usize * BLOCK;
    let shared = |receives| Settings { receives, ..Settings::default() };
    assert_eq!(pinned(shared(0), 20), 20 * (LEADS + own), "each has its own");
    assert_eq!(pinned(shared(1024), 1), LEADS + own);
    assert_eq!(pinned(shared(1024), 100), 100 * LEADS + 1024 / RECEIVES as usize * own, "the bound");
    assert_eq!(pinned(shared(RECEIVES), 20), 20 * LEADS + own, "one connection's worth for all");
}

/// Domains share the bound. One that comes too late for a pool has buffers of its own for each connection.
#[test]
fn a_domain_without_a_pool_has_own_buffers() {
    let _alone = alone();
    let core = core_with(Settings { receives: RECEIVES, ..Settings::default() });
    let nic = crate::open(options(Settings::default())).unwrap();
    let tagged = Hello { writable_ptag: Some(nic.ptag()), ..hello() };
    let (first, second) = (core.queue(&hello()).unwrap(), core.queue(&tagged).unwrap());
    let own = RECEIVES as usize * BLOCK;
    assert_eq!(core.pinned(), 2 * (LEADS + own));
    let third = core.queue(&tagged).unwrap();
    assert_eq!(core.pinned(), 3 * (LEADS + own));
    // When the first domain's pool is gone, another one can be made.
    drop(first);
    let fourth = core.queue(&tagged).unwrap();
    let fifth = core.queue(&tagged).unwrap();
    assert_eq!(core.pinned(), 4 * LEADS + 3 * own);
    drop((second, third, fourth, fifth));
}

/// Four connections share the buffers of one. All send as much as they may before any thread polls. One of the
/// receiving programs takes nothing until the others are through.
#[test]
fn messages_that_a_program_leaves_lying_hold_up_no_others() {
    let _alone = alone();
    let few = || crate::open(options(Settings { receives: RECEIVES, ..Settings::default() })).unwrap();
    let (a, b) = (few(), few());
    let mut pairs: Vec<_> = (0..4).map(|_| pair(&a, &b)).collect();
    let send = |from: &mut LentEnd, round: u32| {
        for number in 0..MESSAGES {
            let mut block = a.outbox().block(2000, Fill::Keep).unwrap();
            block.bytes_mut().fill(number as u8);
            let deadline = soon();
            let mut next = Some(block);
            // Short and longer messages take turns.
            if number % 2 == 0 {
                return_when_sent(|| from.vi.send_inline(Some(round + number), b"", b"short").is_ok());
                continue;
            }
            while let Some(block) = next.take() {
                if let Err((error, block)) = from.vi.hand_off(Some(round + number), b"", block) {
                    assert!(!deadline.passed(), "{error}");
                    next = Some(block);
                }
            }
        }
    };
    let take = |to: &mut LentEnd, round: u32| {
        for number in 0..MESSAGES {
            let arrival = to.arrival().unwrap();
            assert_eq!(arrival.immediate, Some(round + number));
            if let Body::Lent(_, message) = arrival.body {
                assert!(
                    message.len() == 2000
                        && message.as_slice().unwrap().iter().all(|&byte| byte == number as u8)
                );
            }
        }
    };
    pairs.iter_mut().for_each(|(left, _)| send(left, 0));
    for round in [0, 100, 200] {
        for (left, right) in &mut pairs[1..] {
            take(right, round);
            send(left, round + 100);
        }
    }
    // The messages that have waited so long are taken now.
    take(&mut pairs[0].1, 0);
    pairs[1..].iter_mut().for_each(|(_, right)| take(right, 300));
}

fn return_when_sent(mut send: impl FnMut() -> bool) {
    let deadline = soon();
    while !send() {
        assert!(!deadline.passed(), "it is not sent");
    }
}

/// Makes a link of `core`, and a queue pair of a peer that sends whatever the test wants.
fn liar(core: &Arc<Core>, far: &Arc<Core>) -> (Arc<VerbsLink>, Queue, UnixStream) {
    let hello = hello();
    let ((number, mut queue), (_, mut peer)) = (core.queue(&hello).unwrap(), far.queue(&hello).unwrap());
    core.join(&mut queue, &far.parameters(&peer)).unwrap();
    far.join(&mut peer, &core.parameters(&queue)).unwrap();
    let (oob, other) = UnixStream::pair().unwrap();
    let connection = Connection::new(&core.memory, &hello, &hello, 1 << 20);
    let link = VerbsLink::new(core, number, connection, queue, Oob::new(oob.into()), true);
    core.completions.add(number, &link);
    (link, peer, other)
}

fn flood(far: &Core, peer: &mut Queue, frames: u32, frame: Frame) {
    let deadline = soon();
    for token in 0..frames {
        let lead = Header { taken: 0, control_ack: 0, frame }.encode();
        let options = RequestOptions { signalled: true, token, fence: false };
        while let Err(why) = peer.send(&lead, &[], options) {
            assert!(!deadline.passed(), "{why}");
            far.completions.take_all();
        }
    }
}

/// Waits until the link is lost, which only polling brings about.
fn lost(core: &Core, link: &VerbsLink) -> String {
    let deadline = soon();
    loop {
        core.completions.take_all();
        if let Some(end) = link.with(|connection| connection.end()) {
            return format!("{end:?}");
        }
        assert!(!deadline.passed(), "the liar is believed");
    }
}

/// The liar sends both kinds of frames, each more often than credits allow. The buffers that they have filled come
/// back to the pool, though their queue pair goes while most of their completions lie in the queue. Otherwise the
/// next connection would find no buffer, and fail.
#[test]
fn a_liar_is_let_go_and_takes_no_buffers_along() {
    let _alone = alone();
    // A sender that finds no buffer gives up at once.
    let settings = Settings { receives: 2 * RECEIVES, rnr_retry: 0, ..Settings::default() };
    let (core, far) = (core_with(settings.clone()), core_with(settings));
    // The honest link keeps the pool, and its two connections' worth of buffers.
    let (honest, mut peer, _oob) = liar(&core, &far);
    for (frame, words) in [
        (Frame::Short { immediate: None, len: 0 }, "more than 64 messages"),
        (Frame::Credit, "more control frames than it may"),
    ] {
        let (link, mut liar, _oob) = liar(&core, &far);
        flood(&far, &mut liar, 2 * RECEIVES - 16, frame);
        let why = lost(&core, &link);
        assert!(why.contains(words), "{why}");
    }
    flood(&far, &mut peer, MESSAGES, Frame::Short { immediate: None, len: 0 });
    // A sender without a buffer has given up before any thread polls.
    std::thread::sleep(Duration::from_millis(20));
    let deadline = soon();
    let mut taken = 0;
    while taken < MESSAGES {
        core.completions.take_all();
        let came = honest.with(Connection::take).expect("the honest one has found buffers");
        taken += u32::from(came.is_some());
        assert!(!deadline.passed(), "{taken} of {MESSAGES} have come");
    }
    honest.give_up("the test is over");
}

/// Connections come and go, each in the middle of its sends: the pool is whole at the end.
#[test]
fn connections_that_go_leave_the_pool_whole() {
    let _alone = alone();
    let few = || crate::open(options(Settings { receives: RECEIVES, ..Settings::default() })).unwrap();
    let (a, b) = (few(), few());
    let (mut left, mut right) = pair(&a, &b);
    for round in 0..40u32 {
        let (mut one, other) = pair(&a, &b);
        for _ in 0..MESSAGES {
            one.vi.send_inline(None, b"", b"gone").unwrap();
        }
        // Either end goes first, with everything in flight.
        if round % 2 == 0 {
            drop((one, other))
        } else {
            drop((other, one))
        }
        super::check(&mut left, &mut right);
    }
}

/// Records how many queue pairs the device has when it is dropped.
struct Probe(Arc<AtomicU64>);

impl Drop for Probe {
    fn drop(&mut self) {
        self.0.store(counters()[5], Ordering::Relaxed);
    }
}

/// The device may read an offer until its queue pair is destroyed. Only then may its owner be told.
#[test]
fn memory_outlives_the_queue_pair_that_may_access_it() {
    let _alone = alone();
    // Queue pairs of the test before may still be going.
    let deadline = soon();
    while counters()[5] > 0 {
        assert!(!deadline.passed(), "{} queue pairs of other tests stay", counters()[5]);
        std::thread::sleep(Duration::from_millis(1));
    }
    let (core, far) = (core_with(Settings::default()), core_with(Settings::default()));
    let (link, peer, _oob) = liar(&core, &far);
    let block = core.memory.outbox.block(1 << 16, Fill::Zero).unwrap();
    let pairs_at_drop = Arc::new(AtomicU64::new(u64::MAX));
    let probe = PostedBuffer::Owner(Box::new(Probe(pairs_at_drop.clone())));
    let lent = link.with(|connection| connection.lend(None, b"", &[(block.offset(), 1 << 16)], probe));
    assert!(lent.is_ok());
    let pairs = counters()[5];
    core.completions.remove(link.number);
    drop(link);
    assert_eq!(
        pairs_at_drop.load(Ordering::Relaxed),
        pairs - 1,
        "queue pairs when the memory was given back"
    );
    drop(peer);
}

/// Polls for completions when it is dropped, as a program's owner of memory may.
struct Looks(Arc<Core>, Arc<AtomicU64>);

impl Drop for Looks {
    fn drop(&mut self) {
        // With the lock still held, debug builds would panic here, and release builds would hang.
        self.0.completions.poll();
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn what_goes_when_the_completion_queue_fails_is_dropped_without_a_lock() {
    const TEST: &str = "tests::pool::what_goes_when_the_completion_queue_fails_is_dropped_without_a_lock";
    if !unreliable(TEST, &[]) {
        return;
    }
    let (core, far) = (core_with(Settings::default()), core_with(Settings::default()));
    let dropped = Arc::new(AtomicU64::new(0));
    let links: Vec<_> = (0..2).map(|_| liar(&core, &far)).collect();
    for (link, ..) in &links {
        let block = core.memory.outbox.block(1 << 16, Fill::Zero).unwrap();
        let owner = PostedBuffer::Owner(Box::new(Looks(core.clone(), dropped.clone())));
        let lent = link.with(|connection| connection.lend(None, b"", &[(block.offset(), 1 << 16)], owner));
        assert!(lent.is_ok());
    }
    inject(event::CQ_ERR, 0);
    core.completions.poll();
    assert_eq!(dropped.load(Ordering::Relaxed), 2, "each owner is told once");
    for (link, ..) in &links {
        let end = link.with(|connection| connection.end());
        assert!(
            matches!(&end, Some(Refused::Lost(why)) if why.contains("completion queue has failed")),
            "{end:?}"
        );
    }
}

/// Number of requests that the stand-in's engine has carried out: their messages have completed at the receiver.
fn carried_out() -> u64 {
    counters()[8]
}

/// Counters of the stand-in (`StandinCounters`).
fn counters() -> [u64; 10] {
    let mut counters = [0u64; 10];
    let count = super::standin(c"standin_counters");
    // SAFETY: the stand-in declares the function so, with a structure of ten such numbers.
    let count: extern "C" fn(*mut u64) = unsafe { std::mem::transmute(count) };
    count(counters.as_mut_ptr());
    counters
}

/// Completions that were set aside do not hide later ones: a thread that sleeps after such a poll would sleep on them.
#[test]
fn one_look_sees_what_was_set_aside_and_what_came_later() {
    let _alone = alone();
    let (core, far) = (core_with(Settings::default()), core_with(Settings::default()));
    let (link, mut peer, _oob) = liar(&core, &far);
    let (gone, _its_peer, _its_oob) = liar(&core, &far);
    let mut come = |messages: u32| {
        let (before, deadline) = (carried_out(), soon());
        flood(&far, &mut peer, messages, Frame::Short { immediate: None, len: 0 });
        while carried_out() < before + u64::from(messages) {
            assert!(!deadline.passed(), "they do not arrive");
        }
    };
    come(3);
    gone.give_up("it goes, and what has come for others is set aside");
    come(3);
    core.completions.poll();
    let mut taken = 0;
    while link.with(Connection::take).unwrap().is_some() {
        taken += 1;
    }
    assert_eq!(taken, 6);
    link.give_up("the test is over");
}

/// Words without any effect cost the peer nothing, so their number is bounded.
#[test]
fn a_peer_that_goes_on_and_on_at_its_oob_is_let_go() {
    let _alone = alone();
    let (core, far) = (core_with(Settings::default()), core_with(Settings::default()));
    let (link, _peer, oob) = liar(&core, &far);
    let ready = [1, 0, 0];
    (&oob).write_all(&ready.repeat(1000)).expect("they find room");
    link.listen();
    match link.with(|connection| connection.end()) {
        Some(Refused::Lost(why)) => {
            assert!(why.contains("malformed data on its out-of-band connection"), "{why}")
        }
        other => panic!("after a thousand words: {other:?}"),
    }
}

/// Completions come faster than they are taken, for as long as peers like.
#[test]
fn completions_that_never_end_do_not_keep_who_takes_them() {
    let this = "tests::pool::completions_that_never_end_do_not_keep_who_takes_them";
    if unreliable(this, &[("STANDIN_QUEUES", "endless")]) {
        let core = core_with(Settings::default());
        let share = core.completions.share(None).expect("a queue");
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            core.completions.take_all();
            core.completions.poll();
            // The objects are not dropped while the device goes on.
            std::mem::forget((share, core));
            tell.send(()).expect("it is waited for");
        });
        told.recv_timeout(Duration::from_secs(60)).expect("it takes and takes");
    }
}
