//! Meeting of the ranks of a job that deckrun did not start: by their launcher's table they learn where rank 0
//! serves names.
//!
//! ```text
//!   all       put their RankInfo: host, processors                    fence
//!   rank 0    reads them all, listens, puts where, and the secret    fence
//!   others    read it, connect, prove that they know the secret
//! ```
//!
//! Rank 0 listens at this host's own addresses only, and on the loopback address alone if all ranks run on one
//! host. From then on the launcher is needed only at the end: [`ForeignJob`].

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::Duration,
};

use rustix::net::listen as set_backlog;
use udeck_auth::{DeadlineStream, SecureStream};
use udeck_sys::{
    Deadline, Interface, above_stdio, address_of, advise_route, interfaces, is_link_local, listed,
    make_room_for_descriptors, stderr_line, stream_pair, tcp_connect, thread,
};

use super::{
    Environment, StartError,
    foreign_job::{ForeignJob, Serving},
    proxy::{Acceptor, Proxy},
    rank_info::{self, MAX_ADDRESSES, RANK_INFO, ROOT, RankInfo, Root},
    secure::{self, Broken},
};
use crate::{BootError, Client, MAX_RANKS, Placement, serve::Service, server::Config};

/// The environment variable with the interface, or the address, at which other hosts of the job reach this one.
pub const ENV_INTERFACE: &str = "DECK_IFACE";

/// Time limit for one address at a time.
const TRY: Duration = Duration::from_secs(5);

/// Descriptors of rank 0 for each rank: a connection, and both ends of the local socket between it and the name
/// service.
pub const DESCRIPTORS_PER_RANK: u64 = 3;

/// Other descriptors of rank 0 until all have come: for strangers, the launcher's library, and the program.
const OTHER_DESCRIPTORS: u64 = 256;

/// Maximum number of connections that wait to be accepted: all ranks come at once. The system may allow fewer.
const BACKLOG: i32 = MAX_RANKS as i32;

/// Options of [`join`](super::join): its time limits, and this host's interface.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time limit for the whole call.
    pub limit: Duration,
    /// How long a host may be silent before it counts as lost.
    pub detect: Duration,
    /// The value of [`ENV_INTERFACE`].
    pub interface: Option<String>,
}

/// Brings this rank into its job.
pub(super) fn bootstrap(
    mut environment: Box<dyn Environment>,
    options: &Options,
) -> Result<Client, BootError> {
    let until = Deadline::after(options.limit);
    let (rank, size) = (environment.rank(), environment.size());
    if size > MAX_RANKS {
        return Err(too_many(&*environment).into());
    }
    environment.put(RANK_INFO, &rank_info::encode(&RankInfo::of_this_process(rank)), until)?;
    environment.fence(until)?;
    let interfaces = interfaces().map_err(|source| io_error("listing this host's interfaces", source))?;
    let own = own_address(options, &interfaces)?;
    if rank > 0 {
        environment.fence(until)?;
        return come(environment, own, options, until);
    }
    let mut infos = Vec::new();
    for rank in 0..size {
        let text = environment.get(rank, RANK_INFO, until)?;
        infos.push(rank_info::decode::<RankInfo>(&text).ok_or_else(|| other_release(&*environment, rank))?);
    }
    let placement = Placement::of_ranks(infos.iter().map(|info| (&info.host, info.name.clone())));
    let of_host = |host| placement.ranks_of(host).filter_map(|rank| infos.get(rank as usize));
    let cpus = (0..placement.hosts().len()).map(|host| rank_info::cpus_together(of_host(host))).collect();
    let listeners = listen(&addresses(&placement, own, &interfaces))?;
    let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>();
    let addresses = addresses.map_err(|source| io_error("listening for the other ranks", source))?;
    let config = Config::new(size).map_err(|source| io_error("drawing the job's secret", source))?;
    let root = Root { secret: config.secret(), addresses };
    environment.put(ROOT, &rank_info::encode(&root), until)?;
    environment.fence(until)?;
    serve(
        environment,
        config.placed(placement, own).with_cpus(cpus).served_by(0),
        listeners,
        own,
        options,
        until,
    )
}

/// Does the rest at rank 0: starts the name service and the proxy before it, and joins the job itself.
fn serve(
    environment: Box<dyn Environment>,
    config: Config,
    listeners: Vec<TcpListener>,
    own: Option<IpAddr>,
    options: &Options,
    until: Deadline,
) -> Result<Client, BootError> {
    let no_service = |source| io_error("starting the job's name service", source);
    let descriptors = u64::from(config.size()) * DESCRIPTORS_PER_RANK + OTHER_DESCRIPTORS;
    make_room_for_descriptors(descriptors).map_err(no_service)?;
    let placement = config.placement().clone();
    let elsewhere: Vec<bool> =
        placement.by_rank().iter().map(|host| *host != placement.by_rank()[0]).collect();
    let has_others = elsewhere.contains(&true);
    let pairs = (0..config.size()).map(|_| stream_pair()).collect::<io::Result<Vec<_>>>();
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.map_err(no_service)?.into_iter().unzip();
    let mut locals: Vec<_> = theirs.into_iter().map(Some).collect();
    let mine = locals[0].take().expect("a job has a rank 0");
    let (address, found) = mpsc::channel();
    let acceptor = Acceptor { listeners, locals, secret: config.secret(), until, elsewhere, address };
    let proxy = Proxy::of_root(acceptor, options.detect).map_err(no_service)?;
    let service = Service::new(config, ours).map_err(no_service)?;
    // A service that panics is dropped, and with it its sockets: the ranks see their end.
    thread::spawn("boot-serve", || report(service.run()), |_| {}).map_err(no_service)?;
    let proxy = thread::spawn("boot-proxy", || report(proxy.run()), |_| {}).map_err(no_service)?;
    // A rank of another host shows, by its connection, the address by which it reaches this host.
    let address = match own {
        None if has_others => found.recv_timeout(until.remaining()).ok(),
        own => own,
    };
    let foreign = ForeignJob::new(environment, Some(Serving::new(proxy)));
    Client::of_foreign_job(mine, foreign, address)
}

/// Reports an error of the service's thread: the ranks see only the end of their sockets.
fn report(ended: io::Result<()>) {
    if let Err(error) = ended {
        stderr_line(format_args!("udeck: the connection to this job's name service ended: {error}"));
    }
}

/// Does the rest at the other ranks: connects to rank 0.
fn come(
    mut environment: Box<dyn Environment>,
    own: Option<IpAddr>,
    options: &Options,
    until: Deadline,
) -> Result<Client, BootError> {
    let text = environment.get(0, ROOT, until)?;
    let root = rank_info::decode::<Root>(&text).ok_or_else(|| other_release(&*environment, 0))?;
    let (stream, secure) = reach(&root, environment.rank(), until)?;
    let address = own.or_else(|| {
        let towards = stream.local_addr().ok().map(|address| address.ip());
        towards.filter(|address| !address.is_loopback())
    });
    let no_proxy = |source| io_error("connecting to the job's name service", source);
    let (mine, proxies) = stream_pair().map_err(no_proxy)?;
    let proxy = Proxy::of_rank(stream, secure, proxies, options.detect).map_err(no_proxy)?;
    thread::spawn("boot-proxy", || report(proxy.run()), |_| {}).map_err(no_proxy)?;
    Client::of_foreign_job(mine, ForeignJob::new(environment, None), address)
}

// ---- addresses ----

fn own_address(options: &Options, existing: &[Interface]) -> Result<Option<IpAddr>, StartError> {
    let Some(asked) = &options.interface else { return Ok(None) };
    let wrong = |why| {
        StartError::Interface(format!(
            "{ENV_INTERFACE}={}: {why}. This host has {}",
            asked.escape_debug(),
            listed(existing)
        ))
    };
    address_of(asked, existing).map(Some).map_err(wrong)
}

/// Returns the addresses at which rank 0 listens.
fn addresses(placement: &Placement, own: Option<IpAddr>, existing: &[Interface]) -> Vec<IpAddr> {
    if placement.hosts().len() < 2 {
        return vec![Ipv4Addr::LOCALHOST.into()];
    }
    if let Some(own) = own {
        return vec![own];
    }
    let usable = |address: &IpAddr| !address.is_loopback() && !is_link_local(address);
    let up = existing.iter().filter(|interface| interface.up).map(|interface| interface.address);
    let mut all: Vec<_> = up.filter(usable).collect();
    all.sort_by_key(|address| !address.is_ipv4());
    all.truncate(MAX_ADDRESSES - 1);
    // The loopback address is for the ranks of this host, also if it has no network.
    all.push(Ipv4Addr::LOCALHOST.into());
    all
}

fn listen(addresses: &[IpAddr]) -> Result<Vec<TcpListener>, BootError> {
    let listener = |address: &IpAddr| -> io::Result<TcpListener> {
        let listener = above_stdio(TcpListener::bind((*address, 0)))?;
        // The default of std is 128. A connection beyond the backlog is silently dropped, and tries again
        // seconds later.
        set_backlog(&listener, BACKLOG)?;
        Ok(listener)
    };
    let bound: Vec<io::Result<_>> = addresses.iter().map(listener).collect();
    let error = bound.iter().find_map(|one| one.as_ref().err()).map(ToString::to_string);
    let listeners: Vec<_> = bound.into_iter().flatten().collect();
    match error {
        Some(why) if listeners.is_empty() => {
            Err(io_error("listening for the other ranks", io::Error::other(why)))
        }
        _ => Ok(listeners),
    }
}

// ---- connecting ----

/// Returns a proven connection to rank 0, by the first of its addresses that leads there. If an address takes
/// the connection and does not answer, rank 0 may be busy with others: the address is tried again as long as
/// there is time.
fn reach(root: &Root, rank: u32, until: Deadline) -> Result<(TcpStream, SecureStream), BootError> {
    let mut tried;
    loop {
        let mut is_silent = false;
        tried = Vec::new();
        for address in &root.addresses {
            match reach_at(*address, root.secret, rank, until) {
                Ok(connection) => return Ok(connection),
                Err(missed) => {
                    is_silent |= missed.is_silent;
                    tried.push(format!("{address}: {}", missed.why));
                }
            }
        }
        if !is_silent || until.passed() {
            break;
        }
    }
    let advice = format!(
        "Say by {ENV_INTERFACE} which interface, or address, of rank 0's host the others reach; ports must not be blocked \
         between the hosts of a job"
    );
    Err(StartError::Unreachable { rank, tried: tried.join("; "), advice }.into())
}

/// The failure of one address.
#[derive(Debug)]
struct Missed {
    why: String,
    /// There was a connection, and no answer within [`TRY`].
    is_silent: bool,
}

impl From<String> for Missed {
    fn from(why: String) -> Missed {
        Missed { why, is_silent: false }
    }
}

fn reach_at(
    address: SocketAddr,
    secret: [u8; 32],
    rank: u32,
    until: Deadline,
) -> Result<(TcpStream, SecureStream), Missed> {
    let limit = Deadline::after(TRY.min(until.remaining()));
    let is_silent =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    let words = |error: io::Error| match error.kind() {
        _ if is_silent(&error) => format!("no answer within {TRY:?}"),
        io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        _ => advise_route(error, address.ip()).to_string(),
    };
    let unanswered = |error: io::Error| Missed { is_silent: is_silent(&error), why: words(error) };
    let stream = tcp_connect(address, limit.remaining()).map_err(words)?;
    let mut secure = secure::rank(rank, secret).map_err(|error| error.to_string())?;
    let proved = secure.handshake(&mut DeadlineStream::new(&stream, limit.remaining()));
    proved.map_err(unanswered)?.map_err(|why| Broken::from(why).to_string())?;
    Ok((stream, secure))
}

fn other_release(environment: &dyn Environment, rank: u32) -> StartError {
    StartError::Server {
        environment: environment.title(),
        doing: format!("reading what rank {rank} has put"),
        why: "it is nothing that this release of µDECK puts there: use one release in a job".into(),
    }
}

fn too_many(environment: &dyn Environment) -> StartError {
    StartError::Unusable {
        by: environment.title(),
        found: format!("{} ranks", environment.size()),
        why: format!("a job has {MAX_RANKS} ranks at most"),
        advice: "Start fewer, with threads of their own".into(),
    }
}

fn io_error(what: &str, source: io::Error) -> BootError {
    BootError::Io { what: what.into(), source }
}

#[cfg(test)]
mod tests;
