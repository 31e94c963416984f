//! A mailbox whose messages come over several NICs: order, fairness, waiting, memory, losses.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Instant;

use crate::common::several::{self, Barred};
use crate::common::{Event, LONG, assert_pattern, config, patterned};
use udeck::{Config, Error, ExternalBuf, Mailbox, Postbox, Protocol, ReceiveModel, Result, World};
use udeck::{post_all, select_timeout};
use udeck_boot::local::Job;

fn models() -> [Config; 2] {
    [ReceiveModel::CompletionQueue, ReceiveModel::WorkQueues].map(|model| {
        let mut config = config();
        config.receive = model;
        config
    })
}

/// A world of one rank with a mailbox, and postboxes to it over either NIC.
struct Mixed {
    _job: Job,
    world: World,
    inbox: Mailbox<u8>,
    near: Vec<Postbox<u8>>,
    far: Vec<Postbox<u8>>,
}

impl Mixed {
    fn new(near: usize, far: usize) -> Self {
        Self::with(near, far, several::net(), config())
    }

    fn with(near: usize, far: usize, net: udeck_faults::Disguise, config: Config) -> Self {
        let barred = Barred::new(false);
        let (job, world) = several::alone_with(&barred, net, config);
        let inbox = world.mailbox_with_queue("in", 0).unwrap();
        let made = |by: &str, count: usize| -> Vec<Postbox<u8>> {
            barred.set(by == "net");
            let outs: Vec<_> = (0..count).map(|_| world.postbox("in").unwrap()).collect();
            assert!(outs.iter().all(|out: &Postbox<u8>| out.route().transport == by));
            outs
        };
        let (near, far) = (made("shm", near), made("net", far));
        Mixed { _job: job, world, inbox, near, far }
    }

    fn all(&self) -> Vec<&Postbox<u8>> {
        self.near.iter().chain(&self.far).collect()
    }
}

/// Half of the senders use the first NIC, half the second, and each message another protocol than the last.
#[test]
fn messages_of_each_postbox_arrive_in_order_by_either_receive_model() {
    const ROUNDS: usize = 40;
    for config in models() {
        several::ranks(
            5,
            &config,
            |rank| rank % 2 == 0,
            |world| {
                // Protocols that the second NIC supports.
                const PROTOCOLS: [Protocol; 5] = [
                    Protocol::Auto,
                    Protocol::Eager,
                    Protocol::Copy,
                    Protocol::RdmaWrite,
                    Protocol::RdmaRead,
                ];
                let messages = || {
                    let lens = [1, 3000, (70 << 10) + 1].into_iter().cycle();
                    PROTOCOLS.into_iter().cycle().zip(lens).take(ROUNDS).enumerate()
                };
                if world.rank() == 0 {
                    let inbox = world.mailbox::<u8>("in")?;
                    let mut next = [messages(), messages(), messages(), messages()];
                    for _ in 0..4 * ROUNDS {
                        let received = inbox.retrieve()?;
                        let (seed, (_, len)) =
                            next[received.source() - 1].next().expect("as many as were posted");
                        assert_eq!(received.tag() as usize, seed, "out of order from {}", received.source());
                        assert_pattern(&received, seed, len);
                    }
                } else {
                    let out = world.postbox::<u8>("in")?;
                    for (seed, (protocol, len)) in messages() {
                        out.post_with(protocol, patterned(&world, seed, len)?)?;
                    }
                    out.flush()?;
                }
                world.barrier()?;
                world.finish()
            },
        );
    }
}

/// Largest allowed ratio of the most favoured postbox to the least favoured.
const RATIO: f64 = 1.2;
/// Average number of messages retrieved from each postbox.
const EACH: usize = 300;

#[test]
fn a_flooded_mailbox_serves_its_postboxes_alike_whichever_nic_they_come_by() {
    for (near, far) in [(1, 1), (8, 1), (1, 8), (40, 12), (3, 60)] {
        let mixed = Mixed::new(near, far);
        let outs = mixed.all();
        let fill = |at: usize| loop {
            match outs[at].try_post(patterned(&mixed.world, at, 8).unwrap()) {
                Ok(()) => {}
                Err(refused) if matches!(refused.error, Error::WouldBlock { .. }) => return,
                Err(refused) => panic!("{refused}"),
            }
        };
        let mut served = vec![0; outs.len()];
        (0..outs.len()).for_each(fill);
        for _ in 0..outs.len() * EACH {
            let at = mixed.inbox.retrieve().unwrap().tag() as usize;
            served[at] += 1;
            fill(at);
        }
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(
            f64::from(*most) <= RATIO * f64::from(*least),
            "{near} postboxes by the first NIC, {far} by the second: the least and the most served: {least} and {most}"
        );
    }
}

/// A poll that is not followed by a wait covers both NICs.
#[test]
fn a_single_look_finds_what_came_by_either() {
    let mixed = Mixed::new(1, 1);
    for round in 0..100 {
        let out = mixed.all()[round % 2];
        out.post(patterned(&mixed.world, round, 100).unwrap()).unwrap();
        assert_pattern(&mixed.inbox.try_retrieve().unwrap().expect("it is there"), round, 100);
        assert!(mixed.inbox.try_retrieve().unwrap().is_none());
        out.post(patterned(&mixed.world, round, 100).unwrap()).unwrap();
        assert_eq!(udeck::try_select(&[&mixed.inbox]).unwrap(), Some(0));
        assert_pattern(&mixed.inbox.try_retrieve().unwrap().expect("selected"), round, 100);
    }
}

/// State file of a thread that waits.
struct Sleeper(PathBuf);

impl Sleeper {
    fn own() -> Self {
        Sleeper(PathBuf::from("/proc").join(std::fs::read_link("/proc/thread-self").unwrap()))
    }

    /// Waits until the thread sleeps. The library's own short waits between two sleeps do not last: the thread
    /// must be found asleep several times in a row.
    #[track_caller]
    fn until_asleep(&self) {
        let (mut asleep, started) = (0, Instant::now());
        while asleep < 3 {
            assert!(started.elapsed() < LONG, "it does not sleep");
            let stat = std::fs::read_to_string(self.0.join("stat")).unwrap();
            let (_, state) = stat.rsplit_once(") ").unwrap();
            asleep = if state.starts_with('S') { asleep + 1 } else { 0 };
            std::thread::yield_now();
        }
    }
}

/// Longer than a flush waits: shows whether the sleeper was woken before it polled by itself.
const LONGER: std::time::Duration = std::time::Duration::from_secs(4 * LONG.as_secs());

/// Runs `next` six times in a thread, and posts over each NIC in turn whenever the thread sleeps.
fn wakes(mixed: Mixed, mut next: impl FnMut(&mut Mailbox<u8>, usize) + Send + 'static) {
    let Mixed { _job, world, inbox, near, far } = mixed;
    let (sender, receiver) = mpsc::channel();
    let waiting = std::thread::spawn(move || {
        sender.send(Sleeper::own()).unwrap();
        let mut inbox = inbox;
        (0..6).for_each(|round| next(&mut inbox, round));
    });
    let sleeper = receiver.recv().unwrap();
    for round in 0..6 {
        sleeper.until_asleep();
        let out = if round % 2 == 0 { &near[0] } else { &far[0] };
        out.post(patterned(&world, round, 2000).unwrap()).unwrap();
        // The thread must have taken the message: a message that waits would find it asleep, too.
        out.flush().unwrap();
    }
    waiting.join().unwrap();
}

#[test]
fn a_receiver_that_sleeps_is_woken_by_either() {
    for config in models() {
        for alone in [false, true] {
            let net = if alone { several::net().sleeping_alone() } else { several::net() };
            wakes(Mixed::with(1, 1, net, config.clone()), |inbox, round| {
                assert_pattern(&inbox.retrieve_timeout(LONGER).unwrap(), round, 2000);
            });
        }
    }
}

#[test]
fn a_select_that_sleeps_is_woken_by_either() {
    let mixed = Mixed::new(1, 1);
    let other = mixed.world.mailbox::<u64>("other").unwrap();
    wakes(mixed, move |inbox, round| {
        assert_eq!(select_timeout(&[&other, &*inbox], LONGER).unwrap(), 1);
        assert_pattern(&inbox.try_retrieve().unwrap().expect("selected"), round, 2000);
    });
}

#[test]
fn a_task_that_waits_is_woken_by_either() {
    wakes(Mixed::new(1, 1), |inbox, round| {
        assert_pattern(&block_on(inbox.retrieve_async()).unwrap(), round, 2000);
    });
}

fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let (mut future, started) = (std::pin::pin!(future), Instant::now());
    loop {
        if let std::task::Poll::Ready(output) =
            future.as_mut().poll(&mut std::task::Context::from_waker(&waker))
        {
            return output;
        }
        std::thread::park_timeout(LONG);
        assert!(started.elapsed() < LONG, "the task is never woken");
    }
}

/// There is one memory: a message can go over any NIC, to several mailboxes over several NICs, and comes back
/// from all.
#[test]
fn a_shared_message_goes_by_both() {
    let mixed = Mixed::new(2, 2);
    let message = patterned(&mixed.world, 3, 100_000).unwrap().share();
    post_all(mixed.all(), &message).unwrap();
    for _ in 0..4 {
        assert_pattern(&mixed.inbox.retrieve().unwrap(), 3, 100_000);
    }
    let mut message = Some(message);
    let started = Instant::now();
    while let Some(shared) = message.take() {
        message = mixed.world.unshare(shared).err();
        assert!(started.elapsed() < LONG, "it does not come home");
    }
    assert_eq!(mixed.world.nic().outbox().usage().used, 0, "nothing is left anywhere");
}

#[test]
fn adopted_memory_goes_by_either_and_the_books_are_added_up() {
    let mixed = Mixed::new(1, 1);
    let mut adopted = ExternalBuf::new(vec![7_u8; 5000]);
    for out in [&mixed.near[0], &mixed.far[0], &mixed.near[0], &mixed.far[0]] {
        out.post(adopted).unwrap();
        assert_eq!(*mixed.inbox.retrieve().unwrap(), [7; 5000]);
        adopted = out.take_returned().expect("copied");
    }
    let stats = mixed.world.stats();
    assert_eq!((stats.registrations.misses, stats.registrations.hits), (2, 2), "once with each NIC");
    drop(adopted);
    assert_eq!(mixed.world.stats().registrations.entries, 0);
    let copied: u64 = mixed.world.nics().map(|nic| nic.bytes_copied()).sum();
    let before = mixed.world.stats().bytes_copied - copied;
    mixed.far[0].post_with(Protocol::RdmaWrite, patterned(&mixed.world, 1, 5000).unwrap()).unwrap();
    assert_pattern(&mixed.inbox.retrieve().unwrap(), 1, 5000);
    assert_eq!(mixed.world.stats().bytes_copied - copied - before, 5000, "by the second NIC");
}

/// The error names the holders, whichever NIC lent the memory.
#[test]
fn memory_that_is_out_by_both_is_added_up_and_comes_home() {
    const LEN: usize = 8 << 20;
    let mixed = Mixed::new(1, 1);
    let post =
        |out: &Postbox<u8>, protocol| out.post_with(protocol, patterned(&mixed.world, 1, LEN).unwrap());
    post(&mixed.near[0], Protocol::HandOff).unwrap();
    post(&mixed.far[0], Protocol::Eager).unwrap();
    let error = mixed.world.try_buf::<u8>(60 << 20).unwrap_err();
    let whose = format!("held: {} bytes by mailbox \"in\" of rank 0", 2 * LEN);
    assert!(error.to_string().contains(&whose), "{error}");
    for _ in 0..2 {
        assert_pattern(&mixed.inbox.retrieve().unwrap(), 1, LEN);
    }
    mixed.world.buf::<u8>(60 << 20).unwrap();
}

/// The second NIC has more connections than are checked before every large allocation.
#[test]
fn memory_comes_home_from_all_connections_of_both() {
    const LEN: usize = 5 << 20;
    let mixed = Mixed::new(1, 8);
    for out in mixed.all() {
        out.post_with(Protocol::Eager, patterned(&mixed.world, 1, LEN).unwrap()).unwrap();
    }
    for _ in mixed.all() {
        assert_pattern(&mixed.inbox.retrieve().unwrap(), 1, LEN);
    }
    mixed.world.try_buf::<u8>(60 << 20).unwrap();
}

#[test]
fn a_rank_that_is_lost_is_told_once_however_it_was_connected() {
    let heard = Event::new();
    let body = move |world: World| {
        if world.rank() > 0 {
            let outs = [world.postbox::<u8>("in")?, world.postbox::<u8>("in")?];
            outs[0].post(world.buf(1)?)?;
            outs[1].post(world.buf(1)?)?;
            heard.wait();
            // The rank is lost without a goodbye.
            return Ok(());
        }
        let inbox = world.mailbox::<u8>("in")?;
        for _ in 0..4 {
            inbox.retrieve()?;
        }
        heard.happen();
        let mut told = Vec::new();
        let error = loop {
            match inbox.retrieve_timeout(LONG) {
                Err(Error::PeerLost { rank, .. }) => told.push(rank),
                Err(error) => break error,
                Ok(_) => panic!("nobody posts any more"),
            }
        };
        assert!(matches!(error, Error::NobodyLeft { .. }), "{error}");
        told.sort_unstable();
        assert_eq!(told, [1, 2]);
        world.finish()
    };
    several::ranks(3, &config(), |rank| rank == 2, body);
}

/// A network takes time to report the end.
#[test]
fn a_mailbox_that_goes_is_told_by_either() -> Result {
    let Mixed { _job, world, inbox, near, far } = Mixed::new(1, 1);
    drop(inbox);
    for out in near.iter().chain(&far) {
        let started = Instant::now();
        let error = loop {
            match out.post(world.buf(100)?) {
                Err(failed) => break failed.error,
                Ok(()) => assert!(started.elapsed() < LONG, "it goes on posting to nobody"),
            }
        };
        assert!(matches!(&error, Error::MailboxGone { .. }), "{error}");
    }
    Ok(())
}
