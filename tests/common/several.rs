//! Worlds with two NICs: shared memory, and an apparent network. (The network is shared memory, too, over the same arenas,
//! in disguise: without hand-off, and with another name.)

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use udeck::via::auth::Keys;
use udeck::via::{Caps, Error, Nic};
use udeck::{Config, Result, World};
use udeck_boot::local::Job;
use udeck_faults::{Disguise, wrapped};
use udeck_shm::{Arenas, Options};
use udeck_sys::reactor::Reactor;

use super::config;

/// Message memory of each rank, in bytes.
const ARENA: usize = 64 << 20;

/// Whether shared memory leads anywhere, and the number of its requests.
#[derive(Clone, Default)]
pub struct Barred {
    barred: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
}

impl Barred {
    pub fn new(barred: bool) -> Self {
        let new = Barred::default();
        new.set(barred);
        new
    }

    pub fn set(&self, barred: bool) {
        self.barred.store(barred, Ordering::Relaxed);
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Counts a request, and fails it if shared memory is barred.
    pub fn count(&self) -> udeck::via::Result {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.barred.load(Ordering::Relaxed) {
            return Err(Error::os("connecting to nobody", io::ErrorKind::ConnectionRefused));
        }
        Ok(())
    }

    fn shm(self) -> Disguise {
        Disguise::named("shm0").reaching(move |_| self.count())
    }
}

/// The apparent network.
pub fn net() -> Disguise {
    Disguise::named("net0").without(Caps::HAND_OFF).host_only(false)
}

/// Opens both NICs.
pub fn nics(keys: Keys, barred: &Barred, net: Disguise) -> Vec<Nic> {
    let mut options = Options::new(keys);
    options.arena_limit = ARENA;
    options.arenas = Some(Arenas::new(ARENA).expect("memory"));
    let open = || {
        let reactor = Arc::new(Reactor::start("several").expect("a thread"));
        udeck_shm::open(options.clone(), reactor).expect("shm0")
    };
    vec![wrapped(&open(), barred.clone().shm()), wrapped(&open(), net)]
}

/// A world of one rank over both NICs, and its name service.
pub fn alone_with(barred: &Barred, net: Disguise, config: Config) -> (Job, World) {
    let (job, mut streams) = Job::new(1).expect("a name service");
    let client = udeck_boot::Client::new(streams.remove(0)).expect("a rank");
    let nics = nics(client.keys(), barred, net);
    let world = World::new(client, nics, config, true).expect("one memory");
    (job, world)
}

pub fn alone(barred: &Barred) -> (Job, World) {
    alone_with(barred, net(), config())
}

/// Runs ranks over both NICs; shared memory leads nowhere from the ranks that `barred` selects.
pub fn ranks<F>(size: u32, config: &Config, barred: impl Fn(u32) -> bool, body: F)
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    let (_job, streams) = Job::new(size).expect("a name service");
    let body = Arc::new(body);
    let threads: Vec<_> = streams
        .into_iter()
        .zip(0..)
        .map(|(stream, rank)| {
            let (body, config, barred) = (body.clone(), config.clone(), Barred::new(barred(rank)));
            std::thread::spawn(move || {
                let client = udeck_boot::Client::new(stream)?;
                let nics = nics(client.keys(), &barred, net());
                body(World::new(client, nics, config, super::are_crowded(size))?)
            })
        })
        .collect();
    super::judge(threads);
}
