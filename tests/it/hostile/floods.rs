//! Floods: a peer sends without end, but no call goes on taking its messages beyond its deadline, and others
//! are served.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use crate::common::liar::{EAGER, Liar, PAIR, REQUEST};
use crate::common::{LONG, SHORT, assert_pattern, config, len_and_source, patterned};
use udeck::{Error, NicOptions, Protocol, ReceiveModel, World, try_select};
use udeck_boot::{Client, local::Job};
use udeck_faults::{BrokenPromises, Fault, PermittedFaults, When, wrapped};

/// Number of the arrival that is repeated, a connection's fourth: connections without a flood have fewer.
const FLOOD: u64 = 3;

/// Runs `body`, and fails if it does not return in time.
fn in_time<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> R {
    let (end, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let _end = end;
        body()
    });
    assert_ne!(ended.recv_timeout(LONG * 2), Err(RecvTimeoutError::Timeout), "it does not return");
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Makes the worlds of one job, each with its own faults around its NIC.
fn worlds<const N: usize>(faults: [Option<Fault>; N], model: ReceiveModel) -> [World; N] {
    let (_job, streams) = Job::new(N as u32).expect("a name service");
    let mut streams = streams.into_iter();
    faults.map(|fault| {
        let client = Client::new(streams.next().expect("one each")).unwrap();
        let nic = udeck::open_nic("shm0", &NicOptions::new(client.keys())).unwrap();
        let nic = fault.map_or(nic.clone(), |fault| wrapped(&nic, fault));
        let mut config = config();
        config.receive = model;
        World::new(client, vec![nic], config, true).unwrap()
    })
}

/// Repeats the arrival with this number for ever.
fn repeating(number: u64) -> Fault {
    Fault::lying(BrokenPromises { repeat: When::Numbers(vec![number]), ..BrokenPromises::default() }, 1)
}

fn flooded(model: ReceiveModel) -> World {
    let [world] = worlds([Some(repeating(FLOOD))], model);
    world
}

/// Begins to flood the connected peer.
fn flood(liar: &mut Liar, kind: u8, part: u32, immediate: u32, rest: &[u8]) {
    (0..=FLOOD).for_each(|_| liar.say(kind, part, immediate, rest));
}

const MODELS: [ReceiveModel; 2] = [ReceiveModel::CompletionQueue, ReceiveModel::WorkQueues];

#[test]
fn a_mailbox_that_is_flooded_with_what_is_no_message() {
    for model in MODELS {
        in_time(move || {
            let world = flooded(model);
            let inbox = world.mailbox::<u8>("in").unwrap();
            let mut liar = Liar::of(&world);
            // The acknowledged pair does not exist: the message is dropped, without an answer.
            flood(&mut liar, REQUEST, PAIR, 100, &[]);
            for _ in 0..3 {
                assert!(inbox.try_retrieve().unwrap().is_none());
                assert_eq!(try_select(&[&inbox]).unwrap(), None);
                assert_eq!(inbox.try_retrieve_into(&mut [0; 9]).unwrap(), None);
                let error = inbox.retrieve_timeout(SHORT).unwrap_err();
                assert!(matches!(error, Error::Deadline { .. }), "{error}");
            }
            let out = world.postbox::<u8>("in").unwrap();
            for number in 0..FLOOD as usize {
                out.post(patterned(&world, number, 1000).unwrap()).unwrap();
                assert_pattern(&inbox.retrieve().unwrap(), number, 1000);
            }
        });
    }
}

/// Messages that do not fit the buffer are set aside within bounds, however many are sent.
#[test]
fn a_buffer_that_is_too_small_for_a_flood_of_messages() {
    in_time(|| {
        let world = flooded(ReceiveModel::CompletionQueue);
        let inbox = world.mailbox::<u8>("in").unwrap();
        let mut liar = Liar::of(&world);
        flood(&mut liar, EAGER, 0, 7, &[1; 8]);
        for _ in 0..3 {
            let error = inbox.retrieve_into(&mut [0; 7]).unwrap_err();
            assert!(matches!(error, Error::TooSmall { needed: 8, have: 7, rank: 0 }), "{error}");
        }
        let mut buffer = [0; 8];
        assert_eq!(len_and_source(inbox.retrieve_into(&mut buffer).unwrap()), (8, 0));
        assert_eq!(buffer, [1; 8]);
    });
}

/// The mailbox answers, and its answer is repeated for ever.
#[test]
fn a_postbox_that_is_flooded_with_answers() {
    const LEN: usize = 100_000;
    const POSTED: [Protocol; 4] =
        [Protocol::RdmaWrite, Protocol::Copy, Protocol::RdmaRead, Protocol::Handshake];
    in_time(|| {
        let [receiver, poster] = worlds([None, Some(repeating(0))], ReceiveModel::CompletionQueue);
        let reading = thread::spawn(move || {
            let inbox = receiver.mailbox::<u8>("in").unwrap();
            for number in 0..POSTED.len() + 1 {
                assert_pattern(&inbox.retrieve().unwrap(), number, LEN);
            }
            receiver.finish().unwrap();
        });
        for (number, protocol) in POSTED.into_iter().enumerate() {
            let out = poster.postbox::<u8>("in").unwrap();
            out.post_with(protocol, patterned(&poster, number, LEN).unwrap()).unwrap();
            out.flush().unwrap();
        }
        // The helper, and then `finish`, move the messages of a dropped postbox.
        let out = poster.postbox::<u8>("in").unwrap();
        out.post_with(Protocol::RdmaWrite, patterned(&poster, POSTED.len(), LEN).unwrap()).unwrap();
        drop(out);
        poster.finish().unwrap();
        reading.join().unwrap();
    });
}

#[test]
fn a_barrier_that_is_flooded_with_what_is_no_token() {
    in_time(|| {
        let [first, second] = worlds([Some(repeating(FLOOD)), None], ReceiveModel::CompletionQueue);
        let come = |world: World| {
            thread::spawn(move || {
                world.barrier().unwrap();
                world
            })
        };
        let [first, second] = [first, second].map(come).map(|thread| thread.join().unwrap());
        let mut liar = Liar::at(first.nic(), "\u{1}deck/group//0");
        flood(&mut liar, EAGER, 0, 77, &[]);
        for _ in 0..3 {
            let error = first.barrier_timeout(SHORT).unwrap_err();
            assert!(matches!(error, Error::Deadline { .. }), "{error}");
        }
        let _worlds = [first, second].map(come).map(|thread| thread.join().unwrap());
    });
}

/// A spurious entry may occur at any time: the named queue need not have news.
#[test]
fn a_completion_queue_that_is_never_empty() {
    let [world] = worlds(
        [Some(Fault::honest(
            PermittedFaults { spurious_news: When::Chance(1.0), ..PermittedFaults::default() },
            1,
        ))],
        ReceiveModel::CompletionQueue,
    );
    in_time(move || {
        let inbox = world.mailbox::<u8>("in").unwrap();
        let out = world.postbox::<u8>("in").unwrap();
        out.post(patterned(&world, 1, 10).unwrap()).unwrap();
        assert_pattern(&inbox.retrieve().unwrap(), 1, 10);
        assert!(inbox.try_retrieve().unwrap().is_none());
        let error = inbox.retrieve_timeout(SHORT).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
    });
}

/// The rank floods without lies: it sends as fast as it can, and the other rank's messages arrive in order.
#[test]
fn others_are_served_while_a_rank_floods() {
    in_time(|| {
        let [world] = worlds([None], ReceiveModel::CompletionQueue);
        let inbox = world.mailbox::<u8>("in").unwrap();
        let (mut liar, over) = (Liar::of(&world), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // The send is refused while there is no room.
                    let _ = liar.vi.send_inline(Some(100), &[REQUEST, 0, 0, 0, 1, 0, 0, 0], &[]);
                }
            });
            let out = world.postbox::<u8>("in").unwrap();
            for number in 0..100 {
                out.post(patterned(&world, number, 1000).unwrap()).unwrap();
                assert_pattern(&inbox.retrieve().unwrap(), number, 1000);
            }
            over.store(true, Ordering::Relaxed);
        });
    });
}
