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
    /// Whether it reaches other hosts.
    pub network: bool,
    /// Whether it encrypts and authenticates all that it sends to other hosts, as its NIC's attributes say.
    pub encrypted: bool,
    /// Whether it is used where nobody asks for it by name.
    pub by_default: bool,
    /// Whether its NIC brings its own arenas, which the other NICs then use: it cannot use theirs.
    pub provides_arena: bool,
    open: fn(&NicOptions) -> Result<Nic>,
    /// What the system has, and lacks, for it, for `deckrun --doctor`.
    pub describe: fn(&Tree) -> Vec<Finding>,
    /// The device that its NIC at this address would use, where there is a choice.
    pub device_at: fn(IpAddr) -> Option<String>,
}

#[cfg(test)]
impl Transport {
    /// One to choose from.
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

/// Best first.
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

/// How to open a NIC.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NicOptions {
    /// What this process proves to its peers by that it is of the job, and which of its ranks: only peers that do the same
    /// can connect.
    pub keys: Keys,
    /// The bound of its message memory in bytes, each way; `None`: half of the machine's memory, at most 4 GiB, and less where
    /// limits of the process (`ulimit -f`, `ulimit -v`) ask for it.
    pub arena: Option<usize>,
    /// A NIC whose memory it is to share; `None`: it gets its own.
    pub memory: Option<Nic>,
    /// Whether admitted peers are trusted not to write memory that they gave away: see SAFETY.md.
    pub trusting: bool,
    /// The address at which peers on other hosts find this one, where the transport has a choice; `None`: this host's
    /// ranks only.
    pub bind: Option<IpAddr>,
    /// How long another host may be silent before it is taken for dead; `None`: the transport's own time.
    pub detect: Option<Duration>,
    /// The shares of service levels; `None`: the kernel, QUIC or the network sends as it likes.
    pub levels: Option<Levels>,
    /// Where levels have shares: bytes that may be in flight at a time, of all connections; `None`: 256 KiB.
    pub levels_in_flight: Option<usize>,
}

impl NicOptions {
    /// Trusting, with memory of its own and the usual bound of it. `keys`: those of a [rank](udeck_boot::Client::keys), or a
    /// secret, which connects it with whoever else knows that.
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
        }
    }
}

/// The transports of this build, best first.
pub fn transports() -> Vec<&'static str> {
    TRANSPORTS.iter().map(|transport| transport.name).collect()
}

/// Opens a transport's NIC: `shm0`.
///
/// # Errors
/// [`Error::InvalidParameter`] lists the NICs that exist, or says that this one is over memory of its own only; otherwise
/// the operating system's.
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
    (transport.open)(options)
}

/// The same bound whichever transport has the memory: so the longest message is.
fn arena(options: &NicOptions) -> usize {
    options.arena.unwrap_or_else(|| default_arena(1))
}

/// The usual bound of a process's message memory, where so many ranks of the job run on this host.
pub(crate) fn default_arena(ranks: usize) -> usize {
    udeck_shm::default_arena_limit(ranks)
}

fn open_shm(options: &NicOptions) -> Result<Nic> {
    let reactor =
        Reactor::start("deck-reactor").map_err(|e| Error::os("starting the reactor's thread", e))?;
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

    /// The choice of transports is made by this list, and what a NIC may be used for by its own attribute.
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
