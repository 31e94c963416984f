//! A peer that sends arbitrary bytes, below its virtual interfaces, to a real world: ring cells, tokens, gates, windows and link
//! messages over shared memory; streams over TCP, datagrams over UDP, messages of a queue pair over verbs' stand-in.
//! (`tests/hostile.rs` does the same above the virtual interfaces.)
//!
//! There are four ranks. The first is the victim: it has a mailbox, and posts to the rogue's. The second posts to the victim by
//! every protocol, and all of that arrives, in order. The third is the rogue: a world like any other, whose bytes are spoilt
//! under way (`relay`, the stand-in's `STANDIN_SPOIL`), or that spoils its shared memory itself (`scribbler`, in a process of its
//! own). The fourth claims to be another rank.
//!
//! Requirements: nothing panics; every call returns by its deadline (`common::clock`); only the rogue's messages may be lost,
//! changed or out of order; memory, mappings, threads and descriptors are the same at the end as before.
//!
//! Everything follows from a seed, except the order of events. `DECK_SEED=N cargo test --test bytes tcp` replays one,
//! `PROPTEST_CASES` sets the number of seeds. `corpus` has the seeds that once found something, and their findings; they are
//! played first.

#[path = "../common/mod.rs"]
mod common;
mod poser;
mod random;
mod relay;
mod rogue;
mod scribbler;

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::clock::within_deadline;
use common::honest::{Judge, blocks};
use common::watch::{Resources, alone, watched};
use common::{LONG, PROTOCOLS};
use poser::Poser;
use random::Random;
use relay::Relay;
use rogue::Poster;
use scribbler::Scribbler;
use udeck::via::Deadline;
use udeck::{Error, World};
use udeck_boot::{Client, local::Job};

/// Default number of seeds for each transport.
const CASES: usize = 4;
/// Seed of the case that each process plays before it counts its holdings.
const WARM_UP: u64 = 1;
/// Largest number of polls between two steps: the rogue may be faster.
const POLLS: usize = 200;
/// Variable that tells a process that it is the rogue, with its seed.
const ROGUE: &str = "UDECK_ROGUE";
/// Variable that tells a process that it plays cases over verbs, with the first seed.
const APART: &str = "UDECK_BYTES";

#[test]
fn prop_no_bytes_of_a_peer_over_shm_harm_a_world() {
    match std::env::var(ROGUE) {
        Ok(seed) => rogue_process(seed.parse().expect("a number")),
        Err(_) => play_all("shm", seeds("shm")),
    }
}

#[test]
fn prop_no_bytes_of_a_peer_over_tcp_harm_a_world() {
    play_all("tcp", seeds("tcp"));
}

#[test]
fn prop_no_bytes_of_a_peer_over_udp_harm_a_world() {
    play_all("udp", seeds("udp"));
}

/// Each seed has a process of its own, because the stand-in reads its settings when it is loaded.
#[test]
fn prop_no_bytes_of_a_peer_over_verbs_harm_a_world() {
    if let Ok(seed) = std::env::var(APART) {
        return play_all("verbs", [seed.parse().expect("a number")]);
    }
    let program = std::env::current_exe().expect("it runs");
    let standin = program.with_file_name("libudeck_mock_verbs.so");
    if !standin.exists() {
        return println!("skipped: there is no stand-in at {}", standin.display());
    }
    let _alone = alone();
    for seed in seeds("verbs") {
        println!("verbs {seed}");
        let mut apart = Command::new(&program);
        apart.args(["--exact", "prop_no_bytes_of_a_peer_over_verbs_harm_a_world", "--nocapture"]);
        apart.env("DECK_VERBS_LIBRARY", &standin).env("STANDIN_SPOIL", format!("rogue,{seed}"));
        let output = apart.env(APART, seed.to_string()).output().expect("it runs again");
        let [told, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(output.status.success() && told.contains("1 passed"), "verbs {seed}: {told}{errors}");
    }
}

/// The requested seed; or those that have found something, and then others.
fn seeds(transport: &str) -> Vec<u64> {
    if let Ok(seed) = std::env::var("DECK_SEED") {
        return vec![seed.parse().expect("DECK_SEED: a number")];
    }
    let known = include_str!("corpus").lines().filter_map(|line| line.split('#').next()?.split_once(' '));
    let known =
        known.filter(|(of, _)| *of == transport).map(|(_, seed)| seed.trim().parse().expect("a number"));
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let mut fresh = [0; 8];
    getrandom(&mut fresh);
    let mut fresh = Random::new(u64::from_ne_bytes(fresh));
    // The seeds are short enough to be copied by hand.
    known.chain((0..cases).map(|_| fresh.word() >> 32)).collect()
}

fn getrandom(bytes: &mut [u8]) {
    use std::io::Read;
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes)).expect("random bytes");
}

/// Plays the seeds, after one that leaves the resources that a process makes once. The others must leave
/// nothing.
fn play_all(transport: &str, seeds: impl IntoIterator<Item = u64>) {
    let _alone = alone();
    play(transport, WARM_UP);
    let before = Resources::at_rest();
    for seed in seeds {
        println!("{transport} {seed}");
        play(transport, seed);
        before.assert_no_growth(&format!("{transport} {seed}"));
    }
}

fn play(transport: &str, seed: u64) {
    watched(&format!("{transport} {seed}"), || Case::new(transport, seed).play());
}

/// The victim, and the ranks around it.
struct Case {
    transport: &'static str,
    random: Random,
    victim: World,
    judge: Judge,
    rogue: Rogue,
    poser: Poser,
    _job: Job,
}

impl Case {
    fn new(transport: &str, seed: u64) -> Case {
        let transport =
            ["shm", "tcp", "udp", "verbs"].into_iter().find(|known| *known == transport).expect("known");
        let mut random = Random::new(seed);
        let (job, streams) = Job::new(4).expect("a name service");
        let [victim, honest, rogue, poser] = <[UnixStream; 4]>::try_from(streams).expect("four ranks");
        let (victim, honest) = (rogue::world(transport, victim), rogue::world(transport, honest));
        let judge = Judge::new(&victim, honest, |message| {
            let is_forged = message[..] == poser::FORGED[..];
            assert!(message.source() == 3 || !is_forged, "forged, and from rank {}", message.source());
        });
        let poser = Poser::new(transport, Client::new(poser).expect("a rank"), &victim);
        let relay = advertise_another(&victim, "in", transport, &mut random);
        let rogue = Rogue::start(transport, seed, rogue, random.fork(), relay);
        Case { transport, random, victim, judge, rogue, poser, _job: job }
    }

    fn play(self) {
        let Case { transport, mut random, victim, mut judge, rogue, mut poser, _job } = self;
        let mut poster = Poster::new("back");
        let before = blocks(&victim);
        for _ in 0..40 + random.below(80) {
            match random.below(10) {
                0..4 => judge.honest(random.pick(&PROTOCOLS), random.len()),
                4..8 => poster.post(&victim, &mut random),
                8 => poser.claim(&mut random),
                _ => thread::sleep(Duration::from_micros(random.below(3000) as u64)),
            }
            let _ = judge.poll(POLLS);
        }
        within_deadline(LONG, "dropping a postbox", || drop(poster));
        rogue.end();
        drop(poser);
        judge.outlives_the_others(&victim, before, transport);
        judge.end();
        match within_deadline(LONG, "finishing", || victim.finish_timeout(LONG)) {
            // The rogue may leave the victim's messages unread.
            Ok(()) => {}
            Err(error) => assert!(is_loss_of_the_rogues(&error), "the victim ends in order: {error}"),
        }
    }
}

/// Whether the error is about messages to the rogue, and nothing else.
fn is_loss_of_the_rogues(error: &Error) -> bool {
    match error {
        Error::Undelivered { rank, .. } => *rank == 2,
        Error::Multiple(errors) => errors.iter().all(is_loss_of_the_rogues),
        _ => false,
    }
}

/// From now on a lookup of the mailbox leads to a relay; over shared memory there is none.
fn advertise_another(world: &World, name: &str, transport: &str, random: &mut Random) -> Option<Relay> {
    if transport == "shm" {
        return None;
    }
    let address = world.nic().attributes().address.clone();
    let target: SocketAddr = String::from_utf8_lossy(&address).parse().expect("an IP address and a port");
    let relay = match transport {
        "udp" => Relay::udp(target, random.fork()),
        _ => Relay::tcp(target, transport == "tcp", random.fork()),
    };
    let put = |bytes: &[u8]| [&[bytes.len() as u8], bytes].concat();
    let (theirs, ours) = (put(&address), put(relay.address.to_string().as_bytes()));
    let (client, until) = (world.client(), Deadline::after(LONG).instant());
    let advert = client.lookup(name, false, until).expect("it is registered").value;
    let at = advert.windows(theirs.len()).position(|place| place == theirs).expect("it has an address");
    let advert = [&advert[..at], &ours, &advert[at + theirs.len()..]].concat();
    client.unregister(name, until).expect("it is registered");
    client.register(name, &advert, until).expect("it is free");
    Some(relay)
}

/// The rogue: a thread or a process.
enum Rogue {
    Thread { over: Arc<AtomicBool>, thread: JoinHandle<()>, _relay: Option<Relay> },
    Process(Child),
}

impl Rogue {
    fn start(
        transport: &'static str,
        seed: u64,
        stream: UnixStream,
        mut random: Random,
        relay: Option<Relay>,
    ) -> Rogue {
        if transport == "shm" {
            let mut process = Command::new(std::env::current_exe().expect("it runs"));
            process.args(["--exact", "prop_no_bytes_of_a_peer_over_shm_harm_a_world", "--nocapture"]);
            process.env(ROGUE, seed.to_string()).stdin(Stdio::from(std::os::fd::OwnedFd::from(stream)));
            process.stdout(Stdio::piped()).stderr(Stdio::piped());
            return Rogue::Process(process.spawn().expect("it runs again"));
        }
        let over = Arc::<AtomicBool>::default();
        let seen = over.clone();
        // The stand-in recognises the rogue by the thread's name.
        let thread = thread::Builder::new().name("rogue".into());
        let thread = thread.spawn(move || {
            let world = rogue::world(transport, stream);
            let Ok(back) = world.mailbox::<u8>("back") else { return };
            let _relay = advertise_another(&world, "back", transport, &mut random);
            rogue::run(world, back, random, |_| {}, || seen.load(Ordering::Relaxed));
        });
        Rogue::Thread { over, thread: thread.expect("a thread"), _relay: relay }
    }

    fn end(self) {
        match self {
            Rogue::Thread { over, thread, .. } => {
                over.store(true, Ordering::Relaxed);
                thread.join().expect("what the rogue calls returns");
            }
            Rogue::Process(mut process) => {
                // The rogue ends by itself, or is killed in the middle of its work.
                let end = Instant::now() + Duration::from_secs(2);
                let mut by_itself = false;
                while Instant::now() < end && !by_itself {
                    by_itself = process.try_wait().expect("our child").is_some();
                    thread::sleep(Duration::from_millis(1));
                }
                let _ = process.kill();
                let output = process.wait_with_output().expect("our child");
                let [told, errors] =
                    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
                // The rogue's own library must survive the same bytes.
                assert!(!errors.contains("panicked"), "the rogue: {told}{errors}");
                assert!(
                    !by_itself || output.status.success(),
                    "the rogue: {}: {told}{errors}",
                    output.status
                );
            }
        }
    }
}

fn rogue_process(seed: u64) {
    let stream = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().expect("a descriptor");
    let world = rogue::world("shm", UnixStream::from(stream));
    let mut scribbler = Scribbler::new();
    let back = world.mailbox::<u8>("back").expect("the name is free");
    rogue::run(world, back, Random::new(seed), |random| scribbler.step(random), || false);
}
