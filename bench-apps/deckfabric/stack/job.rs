//! Jobs of many ranks in one process.

use indicatif::ProgressBar;
use std::{
    io,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};
use udeck::{Config, Error, IncastControl, World, via::Caps};
use udeck_boot::{Client, local};
use udeck_sim::{Fabric, Network, Options, trace::Event};

/// Stack size of a rank's thread, in bytes. Only pages that the thread touches take memory.
const STACK: usize = 1 << 20;
/// Bytes of a rank's message memory, for each direction. Only touched pages take memory.
const ARENA: usize = 64 << 20;
/// Descriptors of a rank: both ends of its connection with the name service, and some to spare.
const DESCRIPTORS: u64 = 6;
/// Time limit for making connections: enough for those of a thousand ranks on one processor.
const SET_UP: Duration = Duration::from_secs(600);

/// A rank, as its program sees it.
pub struct Rank<'a> {
    pub world: &'a World,
    /// Reference time that is the same for all ranks.
    pub begun: Instant,
    fabric: &'a Fabric,
    bar: &'a ProgressBar,
}

impl Rank<'_> {
    /// Runs `work` in virtual time, together with all other ranks, and returns how long it took this rank, from the
    /// common beginning.
    pub fn timed(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<Duration, Error> {
        self.bar.inc(1);
        let turn = self.fabric.enter(&name(self.world.rank()));
        let result = work();
        let took = turn.leave();
        result.map(|()| took)
    }
}

/// Results of a job.
pub struct JobResult<T> {
    /// Results by rank.
    pub results: Vec<T>,
    /// Events since the ranks last entered virtual time.
    pub trace: Vec<Event>,
}

fn name(rank: usize) -> String {
    format!("rank{rank}")
}

/// Configuration of the library for a NIC over a network, whose peers cannot read this rank's memory.
fn config(incast: IncastControl) -> Config {
    let mut config = Config::default();
    config.setup = SET_UP;
    config.arena = Some(ARENA);
    config.incast = incast;
    // A progress thread would not take part in the turns.
    config.progress_thread = false;
    config
}

/// Runs `body` on `ranks` ranks, each on a host of its own. Without a network frames take no time. `bar` advances by
/// a step for each rank that has made its connections.
///
/// # Errors
/// Text about the failure: the system's refusal, or the ranks that failed, and the reason.
pub fn run<T: Send>(
    ranks: usize,
    incast: IncastControl,
    network: Option<Box<dyn Network>>,
    bar: &ProgressBar,
    body: impl Fn(&Rank<'_>) -> Result<T, Error> + Sync,
) -> Result<JobResult<T>, String> {
    // A process has one virtual clock, so it runs one job at a time.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let system = |what: &'static str| move |why: io::Error| format!("{what} for {ranks} ranks: {why}");
    udeck_sys::make_room_for_descriptors(DESCRIPTORS * ranks as u64 + 100).map_err(system("descriptors"))?;
    let (_names, streams) = local::Job::on_hosts(&vec![1; ranks]).map_err(system("a name service"))?;
    let fabric = Fabric::new(1);
    fabric.take_turns(ranks, network).map_err(|why| why.to_string())?;
    fabric.record_trace();
    // NICs are opened in the order of ranks, because the network identifies a NIC by its number in this order.
    let mut there = Vec::new();
    for (rank, stream) in streams.into_iter().enumerate() {
        let client = Client::new(stream).map_err(|why| format!("rank {rank}: {why}"))?;
        let caps = Caps::RELIABLE_DELIVERY | Caps::RDMA_WRITE;
        let options = Options { keys: client.keys(), arena_limit: ARENA, caps };
        let nic = fabric.nic(&name(rank), options).map_err(|why| format!("rank {rank}: {why}"))?;
        there.push((client, nic));
    }
    let begun = udeck::via::job_time();
    let results = thread::scope(|scope| {
        let start = |(rank, (client, nic)): (usize, _)| {
            let (body, fabric) = (&body, &fabric);
            let thread = thread::Builder::new().name(name(rank)).stack_size(STACK);
            thread.spawn_scoped(scope, move || {
                let world = World::new(client, vec![nic], config(incast), false)?;
                let result = body(&Rank { world: &world, begun, fabric, bar })?;
                world.finish()?;
                Ok(result)
            })
        };
        let started: io::Result<Vec<_>> = there.into_iter().enumerate().map(start).collect();
        let threads = started.map_err(system("threads"))?;
        let end = |(rank, thread): (usize, thread::ScopedJoinHandle<'_, Result<T, Error>>)| {
            let ended = thread.join().map_err(|_| format!("rank {rank} has panicked"))?;
            ended.map_err(|why| format!("rank {rank}: {why}"))
        };
        let ended: Vec<Result<T, String>> = threads.into_iter().enumerate().map(end).collect();
        all(ended)
    })?;
    Ok(JobResult { results, trace: fabric.trace() })
}

/// All results, or text about the first failures. It has several of them, because the failure of one rank makes
/// others fail.
fn all<T>(ended: Vec<Result<T, String>>) -> Result<Vec<T>, String> {
    const TOLD: usize = 5;
    let (good, bad): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
    if bad.is_empty() {
        return Ok(good.into_iter().filter_map(Result::ok).collect());
    }
    let failed = bad.len();
    let told: Vec<String> = bad.into_iter().filter_map(Result::err).take(TOLD).collect();
    Err(format!("{failed} ranks failed: {}", told.join("; ")))
}
