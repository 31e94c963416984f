//! Ranks that finish before others have received all their messages: these are retrieved before any call reports that no rank
//! is left, and none of the ranks is lost.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;

use crate::common::{LONG, SHORT, config};
use udeck::via::Nic;
use udeck::{Error, Mailbox, NicOptions, Postbox, ReceiveModel, World};
use udeck_boot::{Client, local::Job};
use udeck_faults::{BrokenPromises, Call, Fault, Trace, When, wrapped};

fn open(client: &Client) -> Nic {
    udeck::open_nic("shm0", &NicOptions::new(client.keys())).unwrap()
}

/// The accepting thread does not run between the answer and its next line, until the peer has finished. (The completion
/// queue names nothing: it would name the connection, and the mailbox would wait at the door.)
#[test]
fn a_message_of_a_rank_that_has_left_is_retrieved_while_its_connection_is_being_accepted() {
    let (_job, streams) = Job::new(2).expect("a name service");
    let [first, second] = <[_; 2]>::try_from(streams).unwrap().map(|stream| Client::new(stream).unwrap());
    let (leaves, has_left) = mpsc::channel();
    let leaver = std::thread::spawn(move || -> udeck::Result {
        let nic = open(&first);
        let world = World::new(first, vec![nic], config(), true)?;
        world.postbox::<u64>("in")?.post(&[7][..]).map_err(|failed| failed.error)?;
        world.finish()?;
        leaves.send(()).expect("the other side waits for it");
        Ok(())
    });
    let has_left = Mutex::new(has_left);
    let slow = Trace::new(move |event| {
        if matches!(event.call, Call::Connect { .. }) {
            has_left.lock().unwrap().recv_timeout(LONG).expect("it is answered, posts, and finishes");
            // The news can be heard during this sleep.
            std::thread::sleep(SHORT * 4);
        }
    });
    let mute =
        Fault::lying(BrokenPromises { forget_wakeup: When::Chance(1.0), ..BrokenPromises::default() }, 1);
    let nic = wrapped(&wrapped(&open(&second), mute), slow);
    let mut config = config();
    config.receive = ReceiveModel::WorkQueues;
    let world = World::new(second, vec![nic], config, true).unwrap();
    let inbox = world.mailbox::<u64>("in").unwrap();
    assert_eq!(inbox.retrieve_timeout(LONG).expect("it was posted")[..], [7]);
    leaver.join().unwrap().unwrap();
    let error = inbox.retrieve_timeout(LONG).unwrap_err();
    assert!(matches!(error, Error::NobodyLeft { .. }), "{error}");
}

/// A launcher whose messages, once held up, reach the rank only after the rank has sent something more.
#[derive(Default)]
struct DelayingLauncher {
    /// Number of messages that the rank has sent, and number that it must have sent.
    spoken: Mutex<(u64, u64)>,
    changed: Condvar,
}

impl DelayingLauncher {
    /// Starts the relay between the launcher and the rank.
    fn start(launcher: UnixStream) -> (UnixStream, Arc<Self>) {
        let (rank, ours) = UnixStream::pair().expect("two descriptors");
        let relay = Arc::<DelayingLauncher>::default();
        let twin = |stream: &UnixStream| stream.try_clone().expect("a descriptor");
        let (from_rank, to_launcher) = (twin(&ours), twin(&launcher));
        let (hears, tells) = (relay.clone(), relay.clone());
        thread::spawn(move || pass(from_rank, to_launcher, || hears.heard()));
        thread::spawn(move || pass(launcher, ours, || tells.wait()));
        (rank, relay)
    }

    fn hold_up(&self) {
        let mut spoken = self.spoken.lock().unwrap();
        spoken.1 = spoken.0 + 1;
    }

    /// Holds the launcher's messages up until [`DelayingLauncher::let_go`], whatever the rank sends.
    fn silence(&self) {
        self.spoken.lock().unwrap().1 = u64::MAX;
    }

    fn let_go(&self) {
        self.spoken.lock().unwrap().1 = 0;
        self.changed.notify_all();
    }

    fn heard(&self) {
        self.spoken.lock().unwrap().0 += 1;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let spoken = self.spoken.lock().unwrap();
        let _ = self.changed.wait_timeout_while(spoken, LONG, |spoken| spoken.0 < spoken.1).unwrap();
    }
}

fn pass(mut from: UnixStream, mut to: UnixStream, first: impl Fn()) -> io::Result<()> {
    let mut bytes = [0; 4096];
    loop {
        let len = from.read(&mut bytes)?;
        first();
        if len == 0 {
            return to.shutdown(Shutdown::Write);
        }
        to.write_all(&bytes[..len])?;
    }
}

/// Rank 0, which has posted a 7 and will leave, and the mailbox of rank 1, which hears the launcher through a relay. Both are on a
/// simulated fabric.
struct Parting {
    _outbox: Postbox<u64>,
    inbox: Mailbox<u64>,
    _stayer: World,
    leaver: World,
    fabric: udeck_sim::Fabric,
    relay: Arc<DelayingLauncher>,
    _job: Job,
}

impl Parting {
    fn new() -> Self {
        let (job, streams) = Job::new(2).expect("a name service");
        let [first, second] = <[_; 2]>::try_from(streams).unwrap();
        let (second, relay) = DelayingLauncher::start(second);
        let fabric = udeck_sim::Fabric::new(1);
        let world = |name: &str, stream| {
            let client = Client::new(stream).unwrap();
            let options = udeck_sim::Options { keys: client.keys(), ..udeck_sim::Options::default() };
            let nic = fabric.nic(name, options).expect("the name is free");
            World::new(client, vec![nic], config(), true).expect("a world")
        };
        let (leaver, stayer) = (world("leaver", first), world("stayer", second));
        let inbox = stayer.mailbox::<u64>("in").unwrap();
        let outbox = leaver.postbox::<u64>("in").unwrap();
        outbox.post(&[7][..]).expect("there is room");
        Parting { _outbox: outbox, inbox, _stayer: stayer, leaver, fabric, relay, _job: job }
    }
}

/// The end of its connections comes before the launcher's news: a rank that closed them without a goodbye may have told the
/// launcher.
#[test]
fn a_rank_that_has_finished_is_not_lost_because_its_process_ended() {
    let ranks = Parting::new();
    ranks.relay.hold_up();
    ranks.leaver.finish().unwrap();
    ranks.fabric.kill("leaver");
    assert_eq!(ranks.inbox.retrieve_timeout(LONG).expect("it was posted")[..], [7]);
    let error = ranks.inbox.retrieve_timeout(LONG).unwrap_err();
    assert!(matches!(error, Error::NobodyLeft { .. }), "{error}");
}

/// The launcher must say whether a rank whose connection has broken has finished: a poll does not wait for that, and a later poll
/// reports it.
#[test]
fn a_look_does_not_wait_for_the_launcher() {
    let ranks = Parting::new();
    assert_eq!(ranks.inbox.retrieve_timeout(LONG).expect("it was posted")[..], [7]);
    ranks.relay.silence();
    ranks.fabric.kill("leaver");
    for _ in 0..10 {
        assert!(ranks.inbox.try_retrieve().expect("nobody knows yet").is_none());
    }
    let error = ranks.inbox.retrieve_timeout(LONG).unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank: 0, .. }), "{error}");
    ranks.relay.let_go();
}

/// A rank's connections see its end, each with its own text, and the launcher reports it: every call returns the launcher's
/// text to the program.
#[test]
fn one_loss_is_told_in_the_same_words_by_every_call() {
    let (job, streams) = Job::new(2).expect("a name service");
    let clients: Vec<_> = streams.into_iter().map(|stream| Client::new(stream).unwrap()).collect();
    let fabric = udeck_sim::Fabric::new(1);
    let mut worlds = clients.into_iter().zip(["killed", "stayer"]).map(|(client, name)| {
        let options = udeck_sim::Options { keys: client.keys(), ..udeck_sim::Options::default() };
        let nic = fabric.nic(name, options).expect("the name is free");
        World::new(client, vec![nic], config(), true).expect("a world")
    });
    let (killed, stayer) = (worlds.next().unwrap(), worlds.next().unwrap());
    let (inbox, its_inbox) = (stayer.mailbox::<u64>("in").unwrap(), killed.mailbox::<u64>("its").unwrap());
    let (outbox, to_it) = (killed.postbox::<u64>("in").unwrap(), stayer.postbox::<u64>("its").unwrap());
    outbox.post(&[7][..]).expect("there is room");
    assert_eq!(inbox.retrieve().expect("it was posted")[..], [7]);
    fabric.kill("killed");
    job.reporter().report_ended(0, "killed by SIGKILL");
    let told = [
        inbox.retrieve().map(|_| ()).unwrap_err(),
        to_it.post(&[7][..]).map_err(Error::from).unwrap_err(),
        stayer.barrier().unwrap_err(),
    ];
    for error in told {
        let Error::PeerLost { rank: 0, how } = &error else { panic!("{error}") };
        assert_eq!(how, "killed by SIGKILL", "{error}");
    }
    drop(its_inbox);
}
