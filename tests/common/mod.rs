//! Common code for tests of the message layer: worlds with settings of their own, patterns, and events outside of
//! the library.

#![allow(dead_code, reason = "every test binary uses a part of it")]

pub mod clock;
pub mod honest;
pub mod liar;
pub mod several;
pub mod watch;

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use udeck::{Buf, Config, Pod, Protocol, Result, Retrieved, World};

/// Every protocol.
pub const PROTOCOLS: [Protocol; 7] = [
    Protocol::Auto,
    Protocol::Eager,
    Protocol::Copy,
    Protocol::RdmaWrite,
    Protocol::RdmaRead,
    Protocol::Handshake,
    Protocol::HandOff,
];

/// Protocols in which a post does not wait for its retrieve.
pub fn asynchronous() -> impl Iterator<Item = Protocol> {
    PROTOCOLS.into_iter().filter(|protocol| *protocol != Protocol::Handshake)
}

/// Time limit as a safety net: no test should take as long, but a hang must become an error.
pub const LONG: Duration = Duration::from_secs(30);

/// Time limit of a wait that must end without success.
pub const SHORT: Duration = Duration::from_millis(30);

/// The default settings, with deadlines that suit tests.
pub fn config() -> Config {
    let mut config = Config::default();
    (config.deadline, config.setup) = (LONG, LONG);
    config
}

/// Runs ranks as `udeck::run_local` does, with [`config`].
pub fn ranks<F>(size: u32, body: F)
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    ranks_with(size, &config(), body);
}

/// Runs ranks as `udeck::run_local` does, with settings.
pub fn ranks_with<F>(size: u32, config: &Config, body: F)
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    ranks_each(size, |_| config.clone(), body);
}

/// Runs ranks as `udeck::run_local` does, with settings for each rank.
pub fn ranks_each<F>(size: u32, config: impl Fn(u32) -> Config, body: F)
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    ranks_believing(size, config, |_| are_crowded(size), body);
}

/// The ranks' belief about oversubscription: more than two ranks believe that there are fewer processors. In this way both
/// kinds of waiting are tested: two ranks wait by spinning, which takes a processor each, and more ranks sleep.
pub fn are_crowded(size: u32) -> bool {
    size > 2
}

/// Runs ranks as [`ranks_each`] does, with each rank's belief whether there are fewer processors than ranks.
pub fn ranks_believing<F>(
    size: u32,
    config: impl Fn(u32) -> Config,
    oversubscribed: impl Fn(u32) -> bool,
    body: F,
) where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    ranks_over("shm", size, config, oversubscribed, body);
}

/// Runs ranks as [`ranks_believing`] does, over this transport.
pub fn ranks_over<F>(
    transport: &'static str,
    size: u32,
    config: impl Fn(u32) -> Config,
    oversubscribed: impl Fn(u32) -> bool,
    body: F,
) where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    let (_job, streams) = udeck_boot::local::Job::new(size).expect("a name service");
    started(streams, &format!("{transport}0"), config, oversubscribed, body);
}

/// Runs ranks as [`ranks_with`] does; they are told that they run on several hosts, with these numbers of ranks, but share
/// memory.
pub fn on_hosts<F>(hosts: &[u32], config: &Config, body: F)
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    let (_job, streams) = udeck_boot::local::Job::on_hosts(hosts).expect("a name service");
    started(streams, "shm0", |_| config.clone(), |_| true, body);
}

/// Starts a thread for each rank, with one NIC.
fn started<F>(
    streams: Vec<UnixStream>,
    nic: &str,
    config: impl Fn(u32) -> Config,
    oversubscribed: impl Fn(u32) -> bool,
    body: F,
) where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    let body = Arc::new(body);
    let threads: Vec<_> = streams
        .into_iter()
        .zip(0..)
        .map(|(stream, rank)| {
            let (body, config, oversubscribed) = (body.clone(), config(rank), oversubscribed(rank));
            let nic = nic.to_owned();
            std::thread::spawn(move || {
                let client = udeck_boot::Client::new(stream)?;
                let mut options = udeck::NicOptions::new(client.keys());
                (options.arena, options.trusting) = (config.arena, config.trusting);
                let nic = udeck::open_nic(&nic, &options).expect("it opens");
                body(World::new(client, vec![nic], config, oversubscribed)?)
            })
        })
        .collect();
    judge(threads);
}

/// Allocates a message of `len` elements, and all other memory.
pub fn hoard(world: &World, len: usize) -> (Buf<u8>, Vec<Buf<u8>>) {
    let message = world.buf::<u8>(len).unwrap();
    let (mut all, mut piece) = (Vec::new(), len);
    while piece >= 64 {
        match world.buf::<u8>(piece) {
            Ok(buf) => all.push(buf),
            Err(_) => piece /= 2,
        }
    }
    (message, all)
}

/// Fails with the errors of the ranks, by number.
fn judge(threads: Vec<std::thread::JoinHandle<Result>>) {
    let results: Vec<_> = threads.into_iter().map(std::thread::JoinHandle::join).collect();
    // The error of one rank is often the consequence of another's.
    let error = |(rank, result): (usize, &std::thread::Result<Result>)| match result {
        Ok(Err(error)) => Some(format!("rank {rank}: {error}")),
        _ => None,
    };
    let errors: Vec<_> = results.iter().enumerate().filter_map(error).collect();
    if let Some(panicked) = results.into_iter().find_map(std::result::Result::err) {
        std::panic::resume_unwind(panicked);
    }
    assert!(errors.is_empty(), "{}", errors.join("; "));
}

/// Whether this is the process that must run `test`, alone. Otherwise it starts such a process, with changes by `set`, which
/// must end well. `test` is the name as `--exact` needs it, with its module.
pub fn apart(test: &str, set: impl FnOnce(&mut Command)) -> bool {
    const MARK: &str = "UDECK_TEST_APART";
    if std::env::var(MARK).is_ok_and(|mark| mark == test) {
        return true;
    }
    let mut apart = Command::new(std::env::current_exe().expect("it runs"));
    apart.args(["--exact", test, "--nocapture"]).env(MARK, test);
    set(&mut apart);
    let output = apart.output().expect("it runs again");
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let well = output.status.success() && told.contains("1 passed");
    assert!(well, "{test}: {}: {told}{errors}", output.status);
    false
}

/// Runs as [`apart`] does, over verbs only, and over the stand-in if the host has no device.
pub fn over_verbs_apart(test: &str) -> bool {
    let standin = std::env::current_exe().expect("it runs").with_file_name("libudeck_mock_verbs.so");
    let has_device = std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut list| list.next().is_some());
    let stands_in = std::env::var_os("DECK_VERBS_LIBRARY").is_none() && !has_device;
    if stands_in && !standin.exists() {
        println!("skipped: this host has no verbs device, and there is no stand-in at {}", standin.display());
        return false;
    }
    apart(test, |process| {
        process.env("DECK_TRANSPORT", "verbs");
        if stands_in {
            process.env("DECK_VERBS_LIBRARY", &standin);
        }
    })
}

/// A world of one rank with `bytes` bytes of message memory.
pub fn alone(bytes: usize) -> World {
    let mut config = config();
    config.arena = Some(bytes);
    udeck::init_with(config).expect("a world of one")
}

/// Bytes that differ by position and by seed, repeated periodically. They are kept, because many megabytes are compared with
/// them, and slices are compared fast in any profile.
fn pattern(seed: usize) -> &'static [u8] {
    const PERIOD: usize = 1 << 16;
    static KEPT: Mutex<BTreeMap<u8, &[u8]>> = Mutex::new(BTreeMap::new());
    let seed = seed.wrapping_mul(101) as u8;
    KEPT.lock().unwrap().entry(seed).or_insert_with(|| {
        let bytes = (0..PERIOD).map(|at| (at.wrapping_mul(31) ^ (at >> 8)) as u8 ^ seed);
        Vec::leak(bytes.collect())
    })
}

/// Fills `bytes` with [`pattern`].
fn fill(bytes: &mut [u8], seed: usize) {
    let pattern = pattern(seed);
    bytes.chunks_mut(pattern.len()).for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()]));
}

/// A message of `len` elements with [`pattern`], tagged with its seed.
pub fn patterned<T: Pod>(world: &World, seed: usize, len: usize) -> Result<Buf<T>> {
    let mut buf = world.buf::<T>(len)?;
    fill(bytemuck::cast_slice_mut(&mut buf), seed);
    Ok(buf.with_tag(seed as u32))
}

/// Elements of [`patterned`], outside of message memory.
pub fn pattern_of<T: Pod>(seed: usize, len: usize) -> Vec<T> {
    let mut bytes = vec![0; size_of::<T>() * len];
    fill(&mut bytes, seed);
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// Asserts that the elements are those of [`patterned`].
#[track_caller]
pub fn assert_pattern<T: Pod>(found: &[T], seed: usize, len: usize) {
    assert_eq!(found.len(), len, "elements of message {seed}");
    let bytes: &[u8] = bytemuck::cast_slice(found);
    let pattern = pattern(seed);
    for (nth, chunk) in
        bytes.chunks(pattern.len()).enumerate().filter(|(_, chunk)| **chunk != pattern[..chunk.len()])
    {
        let wrong = chunk.iter().zip(pattern).position(|(is, should)| is != should);
        let wrong = wrong.map(|at| nth * pattern.len() + at);
        assert_eq!(wrong, None, "first wrong byte of message {seed}, {} bytes long", bytes.len());
    }
}

/// Number of elements that were retrieved into a buffer, and the rank that posted them.
pub fn len_and_source(retrieved: Retrieved) -> (usize, usize) {
    (retrieved.len, retrieved.source)
}

/// An event that is unknown to the library: a wait for it makes no progress for any message.
#[derive(Default)]
pub struct Event {
    happened: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn happen(&self) {
        *self.happened.lock().unwrap() = true;
        self.changed.notify_all();
    }

    #[track_caller]
    pub fn wait(&self) {
        let happened = self.happened.lock().unwrap();
        let (happened, _) =
            self.changed.wait_timeout_while(happened, LONG * 2, |happened| !*happened).unwrap();
        assert!(*happened, "what was waited for outside the library never happened");
    }
}

/// Returns a function that waits, outside the library, until each of so many ranks has called it. A rank that is lost also
/// ends a barrier of the library for a member that is still in it, so a test in which a rank is lost after a barrier uses both.
pub fn all_here(size: usize) -> impl Fn(usize) + Send + Sync + 'static {
    let here: Vec<_> = (0..size).map(|_| Event::new()).collect();
    move |rank| {
        here[rank].happen();
        here.iter().for_each(|of_one| of_one.wait());
    }
}
