//! How a program becomes a rank.

use std::sync::Arc;

use udeck_boot::{BootError, Client, local};
use udeck_deck::{Config, Error, Result, World};
use udeck_sys::Topology;

use crate::registry::open_nic;

/// The world that `deckrun` has started this process in; alone, a world of one.
///
/// # Errors
/// [`Error::Config`] names a setting that makes no sense; otherwise what the launcher or the operating system refused.
#[doc(alias = "deck_init")]
pub fn init() -> Result<World> {
    init_with(Config::from_env()?)
}

/// As [`init`], with settings of the program's own.
///
/// # Errors
/// As [`init`].
pub fn init_with(config: Config) -> Result<World> {
    let client = match Client::from_env()? {
        Some(client) => client,
        None => {
            let (_, streams) = local::Job::new(1).map_err(no_service)?;
            let stream = streams.into_iter().next().expect("a job of one has one stream");
            Client::new(stream)?
        }
    };
    world(client, config)
}

/// `size` worlds in this process, one thread each; `body` runs once per rank. For tests and for trying things out: the
/// ranks speak as processes do, over shared memory.
///
/// # Errors
/// The first rank's error, by number.
///
/// # Panics
/// When a rank's body panics.
pub fn run_local<F>(size: usize, body: F) -> Result
where
    F: Fn(World) -> Result + Send + Sync + 'static,
{
    let ranks = u32::try_from(size).unwrap_or(u32::MAX);
    let (_, streams) = local::Job::new(ranks).map_err(no_service)?;
    let body = Arc::new(body);
    let threads: Vec<_> = streams
        .into_iter()
        .map(|stream| {
            let body = body.clone();
            std::thread::spawn(move || body(world(Client::new(stream)?, Config::from_env()?)?))
        })
        .collect();
    let results: Vec<Result> =
        threads.into_iter().map(|rank| rank.join().expect("a rank panicked")).collect();
    results.into_iter().collect()
}

fn world(client: Client, config: Config) -> Result<World> {
    let welcome = client.welcome();
    let opened = open_nic("shm0", welcome.secret, config.arena, config.trusting);
    let nic =
        opened.map_err(|source| Error::Via { what: "opening shm0".into(), source: Box::new(source) })?;
    let oversubscribed = welcome.size as usize > Topology::detect().cpus;
    Ok(World::new(client, nic, config, oversubscribed))
}

fn no_service(source: std::io::Error) -> BootError {
    BootError::Io { what: "starting a name service in this process".into(), source }
}
