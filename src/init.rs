//! Start of a program as a rank: `init`, `init_with` and `run_local`.

pub(crate) mod choose;

use std::sync::Arc;
use std::time::Duration;

use udeck_boot::{BootError, Client, ENV_CPUS, Ranks, Welcome, local, start};
use udeck_deck::{Config, Error, Result, SkippedTransport, UnavailableTransport, World};
use udeck_qos::levels::{BadLevels, Levels};
use udeck_sys::Topology;
use udeck_via::Nic;
use udeck_via::auth::Keys;

use crate::registry::{NicOptions, TRANSPORTS, default_arena, open_nic};
use crate::settings;
use choose::{Opening, Places, Wanted, choose};

/// Descriptors for each peer, if all connect: two links (each side makes one), of five descriptors each: a
/// socket, the reactor's hold on it, the watch for the process's death, and the peer's outbox and landing.
pub(crate) const DESCRIPTORS_PER_PEER: u64 = 2 * 5;
/// Other descriptors: of the NIC, of connections that are being made, and of the program. With this number,
/// jobs of up to 76 ranks need no more than the usual 1024.
pub(crate) const OTHER_DESCRIPTORS: u64 = 256;

/// Default time for which another host may be silent (`DECK_DETECT`).
const DETECT: Duration = Duration::from_secs(10);

/// Joins the job in which this process was started: by `deckrun`, or by a cluster's own launcher with PMI or
/// PMIx (`srun`, `mpiexec`, `mpirun`); a process that is alone gets a world of one. `DECK_LAUNCH` names the
/// launcher if it cannot be detected. In a job of more than 76 ranks (59 under a cluster's launcher, at rank 0)
/// this may raise this process's soft limit on open descriptors, because all ranks may connect to it.
///
/// # Errors
/// [`Error::Config`] names a setting that makes no sense; otherwise what the launcher or the operating system refused.
#[doc(alias = "deck_init")]
pub fn init() -> Result<World> {
    init_with(Config::from_env()?)
}

/// Does as [`init`], with settings of the program's own.
///
/// # Errors
/// Those of [`init`].
pub fn init_with(config: Config) -> Result<World> {
    let found = start::detect(&|name| std::env::var(name).ok()).map_err(BootError::from)?;
    let options = start::Options {
        limit: 2 * config.setup,
        detect: config.detect.unwrap_or(DETECT),
        interface: std::env::var(start::ENV_INTERFACE).ok(),
    };
    let client = start::join(&found, &options)?;
    if config.explain && client.welcome().rank == 0 {
        explain(&found, &client);
    }
    world(client, config)
}

/// Runs `size` worlds in this process, one thread each; `body` runs once per rank. For tests and for trying
/// things out: the ranks communicate as processes do, over shared memory.
///
/// # Errors
/// The first rank's error, by rank number.
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

/// Writes which launcher started the job, and which ranks share a host.
fn explain(found: &start::Found, client: &Client) {
    let by = client.guest_of().unwrap_or(found.launcher.name());
    let because = if found.because.is_empty() { String::new() } else { format!(" ({})", found.because) };
    let placement = &client.welcome().placement;
    udeck_sys::stderr_line(format_args!("deck: started by {by}{because}: {} ranks", placement.size()));
    for (nth, name) in placement.hosts().iter().enumerate() {
        let ranks: Vec<u32> = placement.ranks_of(nth).collect();
        udeck_sys::stderr_line(format_args!(
            "deck: {} on host {name} (same kernel, same network namespace)",
            Ranks(&ranks)
        ));
    }
}

fn world(client: Client, config: Config) -> Result<World> {
    let welcome = client.welcome();
    if welcome.rank == 0 {
        settings::name_unknown();
    }
    let serves_names = welcome.rank == 0 && client.guest_of().is_some();
    let per_rank = DESCRIPTORS_PER_PEER + if serves_names { start::DESCRIPTORS_PER_RANK } else { 0 };
    let descriptors = u64::from(welcome.size) * per_rank + OTHER_DESCRIPTORS;
    udeck_sys::make_room_for_descriptors(descriptors).map_err(no_room)?;
    let hosts = hosts(welcome);
    let places = Places { rank: welcome.rank, hosts: &hosts, interface: welcome.address };
    let wanted = Wanted { transports: config.transport.as_deref(), encrypt: config.encrypt };
    let openings = choose(&places, wanted, TRANSPORTS)?;
    let mut options = NicOptions::configured(client.keys(), &config)?;
    let here = places.here(welcome.size);
    options.arena = options.arena.or_else(|| Some(default_arena(here)));
    let (nics, mut unavailable) = open_all(&openings, options)?;
    if config.encrypt && config.transport.is_none() && places.has_others() {
        unavailable.extend(unencrypted(&nics));
    }
    let oversubscribed = here.saturating_mul(config.threads) > shared_cpus(welcome);
    World::with_unavailable(client, nics, unavailable, config, oversubscribed)
}

impl NicOptions {
    /// Makes options as [`NicOptions::new`], with the settings for memory, trust, silence and service levels.
    ///
    /// # Errors
    /// [`Error::Config`]: `DECK_LEVELS` has no shares in it.
    pub fn configured(keys: impl Into<Keys>, config: &Config) -> Result<Self> {
        let mut options = NicOptions::new(keys);
        (options.arena, options.trusting, options.detect) = (config.arena, config.trusting, config.detect);
        (options.levels, options.levels_in_flight) = (levels(config)?, config.levels_in_flight);
        Ok(options)
    }
}

/// Returns the shares that the settings give to service levels.
fn levels(config: &Config) -> Result<Option<Levels>> {
    let Some(text) = &config.levels else { return Ok(None) };
    let bad = |why: BadLevels| Error::Config {
        variable: "DECK_LEVELS",
        value: text.clone(),
        expected: format!("LEVEL:SHARE[@DISTANCE],...: {why}").into(),
    };
    text.parse().map(Some).map_err(bad)
}

/// Returns the transports that would be taken between hosts if they were encrypted: the number of `nics` that
/// are better, and the reason.
fn unencrypted(nics: &[Nic]) -> Vec<UnavailableTransport> {
    let is_open = |name: &str| {
        nics.iter()
            .any(|nic| nic.attributes().name.trim_end_matches(|last: char| last.is_ascii_digit()) == name)
    };
    let (mut better, mut left_out) = (0, Vec::new());
    for transport in TRANSPORTS {
        if is_open(transport.name) {
            better += 1;
        } else if transport.network && transport.by_default && !transport.encrypted {
            left_out.push((better, SkippedTransport::new(transport.name, choose::NOT_ENCRYPTED)));
        }
    }
    left_out
}

/// Returns the number of each rank's host; empty if all run on one.
fn hosts(welcome: &Welcome) -> Vec<u32> {
    if welcome.placement.hosts().len() < 2 { Vec::new() } else { welcome.placement.by_rank().to_vec() }
}

/// Opens the NICs, all over the memory of the first one: the first may be one that can only have its own.
/// Optional NICs that this host cannot have are left out, and returned with the number of better NICs and the
/// reason.
pub(crate) fn open_all(
    openings: &[Opening],
    mut options: NicOptions,
) -> Result<(Vec<Nic>, Vec<UnavailableTransport>)> {
    let provides_arena =
        |opening: &Opening| TRANSPORTS.iter().any(|one| one.name == opening.transport && one.provides_arena);
    let mut order: Vec<usize> = (0..openings.len()).collect();
    order.sort_by_key(|at| !provides_arena(&openings[*at]));
    let (mut nics, mut absent) = (Vec::new(), Vec::new());
    for at in order {
        let Opening { transport, bind, optional } = openings[at];
        let (name, what) = (format!("{transport}0"), format!("opening {transport}0"));
        options.bind = bind;
        match open_nic(&name, &options) {
            Ok(nic) => {
                options.memory.get_or_insert_with(|| nic.clone());
                nics.push((at, nic));
            }
            Err(udeck_via::Error::Unavailable { why, .. }) if optional => {
                absent.push((at, SkippedTransport::new(transport, why)));
            }
            Err(source) => return Err(Error::Via { what, source: Box::new(source) }),
        }
    }
    nics.sort_by_key(|(at, _)| *at);
    let better = |at: usize| nics.iter().filter(|(other, _)| *other < at).count();
    let unavailable = absent.into_iter().map(|(at, skipped)| (better(at), skipped)).collect();
    Ok((nics.into_iter().map(|(_, nic)| nic).collect(), unavailable))
}

/// Returns how many processors the ranks of this host share: by the launcher, or by what the ranks have told
/// each other; without either, this process counts them.
fn shared_cpus(welcome: &Welcome) -> usize {
    let told = std::env::var(ENV_CPUS).ok().and_then(|cpus| cpus.parse().ok());
    match (told, welcome.cpus) {
        (Some(told), _) if told > 0 => told,
        (_, 0) => Topology::detect().cpus,
        (_, together) => Topology::of_ranks(together as usize).cpus,
    }
}

fn no_service(source: std::io::Error) -> BootError {
    BootError::Io { what: "starting a name service in this process".into(), source }
}

fn no_room(source: std::io::Error) -> BootError {
    BootError::Io { what: "raising the limit on open descriptors for a job of this size".into(), source }
}
