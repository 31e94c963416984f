//! The only list of transports.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use udeck_qos::levels::Levels;
use udeck_sys::reactor::Reactor;
use udeck_via::auth::Keys;
use udeck_via::{Error, Nic, Result};

use crate::doctor::{finding::Finding, memory, network, rdma, tree::Tree};

/// A transport of this build.
pub(crate) struct Transport {
    pub name: &'static str,
    /// Whether the transport reaches other hosts.
    pub network: bool,
    /// Whether it encrypts and authenticates all data for other hosts, as its NIC's attributes say.
    pub encrypted: bool,
    /// Whether it is used without being named by the user.
    pub by_default: bool,
    /// Whether its NIC brings its own arenas, which the other NICs then use: it cannot use theirs.
    pub provides_arena: bool,
    open: fn(&NicOptions) -> Result<Nic>,
    /// Returns findings on the transport's needs, for `deckrun --doctor`.
    pub describe: fn(&Tree) -> Vec<Finding>,
    /// Returns the device that the NIC at this address would use, if there is a choice.
    pub device_at: fn(IpAddr) -> Option<String>,
}

#[cfg(test)]
impl Transport {
    /// Makes a transport that can be chosen and not opened.
    pub fn pretended(name: &'static str, network: bool, by_default: bool) -> Self {
        let open = |_: &NicOptions| unreachable!("only chosen");
        let (describe, device_at) = (|_: &Tree| Vec::new(), |_| None);
        let encrypted = name == "udp";
        Transport {
            name,
            network,
            encrypted,
            by_default,
            provides_arena: !network,
            open,
            describe,
            device_at,
        }
    }
}

/// All transports, best first.
pub(crate) const TRANSPORTS: &[Transport] = &[
    Transport {
        name: "shm",
        network: false,
        encrypted: false,
        by_default: true,
        provides_arena: true,
        open: open_shm,
        describe: memory::findings,
        device_at: |_| None,
    },
    Transport {
        name: "verbs",
        network: true,
        encrypted: false,
        by_default: true,
        provides_arena: false,
        open: open_verbs,
        describe: rdma::findings,
        device_at: |bind| udeck_verbs::describe(bind).ok(),
    },
    Transport {
        name: "tcp",
        network: true,
        encrypted: false,
        by_default: true,
        provides_arena: false,
        open: open_tcp,
        describe: network::tcp,
        device_at: |_| None,
    },
    Transport {
        name: "udp",
        network: true,
        encrypted: true,
        by_default: false,
        provides_arena: false,
        open: open_udp,
        describe: |tree| network::udp(tree, udeck_udp::offloads()),
        device_at: |_| None,
    },
];

/// Options for opening a NIC.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NicOptions {
    /// Keys by which this process proves that it is of the job, and which of its ranks: only peers that prove
    /// the same can connect.
    pub keys: Keys,
    /// Upper bound of message memory, in bytes, for each direction. `None`: half of the machine's memory, at
    /// most 4 GiB, and less if limits of the process (`ulimit -f`, `ulimit -v`) ask for it.
    pub arena: Option<usize>,
    /// A NIC whose memory this one shares; `None` gives it its own.
    pub memory: Option<Nic>,
    /// Whether admitted peers are trusted not to write memory that they gave away: see SAFETY.md.
    pub trusting: bool,
    /// The address at which peers on other hosts find this one, if the transport has a choice; `None` for this
    /// host's ranks only.
    pub bind: Option<IpAddr>,
    /// How long another host may be silent before it counts as lost; `None` for the transport's own time.
    pub detect: Option<Duration>,
    /// Shares of service levels; `None` leaves the order to the kernel, QUIC or the network.
    pub levels: Option<Levels>,
    /// Upper bound of bytes in flight of all connections, if levels have shares; `None` for 256 KiB.
    pub levels_in_flight: Option<usize>,
    /// Whether a transport is refused that sends to other hosts without encryption.
    pub encrypt: bool,
}

impl NicOptions {
    /// Makes options that trust peers, with memory of the NIC's own and its usual bound. `keys` are those of a
    /// [rank](udeck_boot::Client::keys), or a secret, which connects the NIC with all others that know it.
    pub fn new(keys: impl Into<Keys>) -> Self {
        NicOptions {
            keys: keys.into(),
            arena: None,
            memory: None,
            trusting: true,
            bind: None,
            detect: None,
            levels: None,
            levels_in_flight: None,
            encrypt: false,
        }
    }
}

/// Returns the names of this build's transports, best first.
pub fn transports() -> Vec<&'static str> {
    TRANSPORTS.iter().map(|transport| transport.name).collect()
}

/// Opens a transport's NIC, by its name: `shm0`.
///
/// # Errors
/// [`Error::InvalidParameter`] lists the NICs that exist, or says that this one is over memory of its own only, or does
/// not encrypt; otherwise the operating system's.
pub fn open_nic(name: &str, options: &NicOptions) -> Result<Nic> {
    let Some(transport) = TRANSPORTS.iter().find(|transport| name.strip_suffix('0') == Some(transport.name))
    else {
        let nics: Vec<_> = transports().iter().map(|transport| format!("{transport}0")).collect();
        let what = format!("no NIC is named {name:?}; there are: {}", nics.join(", "));
        return Err(Error::InvalidParameter(what));
    };
    if let Some(other) = options.memory.as_ref().filter(|_| transport.provides_arena) {
        let what =
            format!("{name} is over memory of its own only; open {} over its", other.attributes().name);
        return Err(Error::InvalidParameter(what));
    }
    if options.encrypt && !encrypts(name) {
        let what = format!(
            "{name} does not encrypt what goes to other hosts, which is asked for (--encrypt, DECK_ENCRYPT, \
             NicOptions::encrypt); {} does",
            network_nic(true)
        );
        return Err(Error::InvalidParameter(what));
    }
    (transport.open)(options)
}

/// Whether nothing that a NIC of this name sends leaves the host unencrypted.
pub(crate) fn encrypts(nic: &str) -> bool {
    let is_its = |transport: &&Transport| nic.strip_suffix('0') == Some(transport.name);
    TRANSPORTS.iter().find(is_its).is_some_and(|transport| !transport.network || transport.encrypted)
}

/// Returns the NIC by which hosts reach each other without RDMA.
pub(crate) fn network_nic(encrypt: bool) -> &'static str {
    if encrypt { "udp0" } else { "tcp0" }
}

/// Returns the bound of the arena. It is the same for all transports that have the memory, and so is the
/// longest message.
fn arena(options: &NicOptions) -> usize {
    options.arena.unwrap_or_else(|| default_arena(1))
}

/// Returns the usual bound of a process's message memory, in bytes, if `ranks` of the job run on this host.
pub(crate) fn default_arena(ranks: usize) -> usize {
    udeck_shm::default_arena_limit(ranks)
}

fn open_shm(options: &NicOptions) -> Result<Nic> {
    let reactor = Reactor::start("reactor").map_err(|e| Error::os("starting the reactor's thread", e))?;
    let mut shm = udeck_shm::Options::new(options.keys.clone());
    shm.trusting = options.trusting;
    shm.arena_limit = arena(options);
    udeck_shm::open(shm, Arc::new(reactor))
}

fn open_verbs(options: &NicOptions) -> Result<Nic> {
    let mut verbs = udeck_verbs::Options::new(options.keys.clone())?;
    verbs.memory = match &options.memory {
        Some(nic) => udeck_verbs::Source::Shared(udeck_verbs::Memory::of(nic)),
        None => udeck_verbs::Source::Fresh(arena(options)),
    };
    verbs.bind = options.bind.map_or(verbs.bind, |address| SocketAddr::new(address, 0));
    verbs.detect = options.detect.unwrap_or(verbs.detect);
    udeck_verbs::open(verbs)
}

fn open_tcp(options: &NicOptions) -> Result<Nic> {
    let mut tcp = udeck_tcp::Options::new(options.keys.clone());
    tcp.memory = match &options.memory {
        Some(nic) => udeck_tcp::Source::Shared(udeck_tcp::Memory::of(nic)),
        None => udeck_tcp::Source::Fresh(arena(options)),
    };
    tcp.bind = options.bind.map_or(tcp.bind, |address| SocketAddr::new(address, 0));
    tcp.detect = options.detect.unwrap_or(tcp.detect);
    tcp.levels.clone_from(&options.levels);
    tcp.in_flight = options.levels_in_flight.unwrap_or(tcp.in_flight);
    udeck_tcp::open(tcp)
}

fn open_udp(options: &NicOptions) -> Result<Nic> {
    let mut udp = udeck_udp::Options::new(options.keys.clone());
    udp.memory = match &options.memory {
        Some(nic) => udeck_udp::Source::Shared(udeck_udp::Memory::of(nic)),
        None => udeck_udp::Source::Fresh(arena(options)),
    };
    udp.bind = options.bind.map_or(udp.bind, |address| SocketAddr::new(address, 0));
    udp.detect = options.detect.unwrap_or(udp.detect);
    udp.levels.clone_from(&options.levels);
    udp.in_flight = options.levels_in_flight.unwrap_or(udp.in_flight);
    udeck_udp::open(&udp)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transports are chosen by this list, and a NIC is used according to its own attribute.
    #[test]
    fn every_transport_encrypts_if_its_nic_does() {
        for transport in TRANSPORTS {
            let mut options = NicOptions::new([7; 32]);
            options.arena = Some(8 << 20);
            match (transport.open)(&options) {
                Ok(nic) => assert_eq!(nic.attributes().encrypted, transport.encrypted, "{}", transport.name),
                Err(error) => println!("skipped: {}: {error}", transport.name),
            }
        }
    }
}
