//! Switches, hosts and cables, and where a packet goes at each switch.
//!
//! Nodes are numbered: switches first, then hosts. A host has one port. Routes are tables by destination, as InfiniBand's switches
//! have them, with the virtual channel of the next hop: what a torus and a dragonfly need against deadlock.

mod dragonfly;
mod file;
mod irregular;
mod torus;
mod tree;
mod up_down;

pub use dragonfly::dragonfly;
pub use file::{BadLine, parse};
pub use irregular::irregular;
pub use torus::torus;
pub use tree::tree;

use thiserror::Error;

/// Ports of a switch, at most: a word of bits has them, and one for the switch itself.
pub const MOST_PORTS: usize = 63;
/// Switches and hosts, at most.
pub const MOST_NODES: usize = 1 << 16;
/// Entries of all routes together, at most.
const MOST_ROUTES: usize = 1 << 26;

/// The other end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// A switch or a host.
    pub node: usize,
    /// Its port.
    pub port: usize,
}

/// The next hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route {
    /// The port of this switch.
    pub port: u8,
    /// The virtual channel on that link.
    pub vc: u8,
}

/// Why there is no such network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadTopology {
    /// A number that is not possible.
    #[error("{what} is {value}: take {least} to {most}")]
    Range {
        /// What it is.
        what: &'static str,
        /// As asked for.
        value: usize,
        /// At least.
        least: usize,
        /// At most.
        most: usize,
    },
    /// Switches' ports.
    #[error("a switch has {ports} ports, and at most {MOST_PORTS} are possible")]
    Ports {
        /// As asked for.
        ports: usize,
    },
    /// All together.
    #[error(
        "{switches} switches and {hosts} hosts cannot be: there are at least 1 and 2, at most {MOST_NODES} of both, and at most {MOST_ROUTES} routes from a switch to a host"
    )]
    Size {
        /// As asked for.
        switches: usize,
        /// As asked for.
        hosts: usize,
    },
    /// Somebody cannot be reached.
    #[error("switch {from} does not reach host {host}: the network has more than one part")]
    Apart {
        /// A switch.
        from: usize,
        /// A host.
        host: usize,
    },
}

/// A network and its routes.
#[derive(Clone, Debug)]
pub struct Network {
    /// For reports.
    pub name: String,
    switches: usize,
    hosts: usize,
    /// By node and port.
    peers: Vec<Vec<Option<Peer>>>,
    /// By switch, then by host.
    routes: Vec<Route>,
    channels: usize,
}

impl Network {
    /// Nodes without cables.
    fn new(name: String, switches: usize, ports: usize, hosts: usize) -> Result<Self, BadTopology> {
        if ports > MOST_PORTS {
            return Err(BadTopology::Ports { ports });
        }
        if switches == 0
            || hosts < 2
            || switches.saturating_add(hosts) > MOST_NODES
            || switches * hosts > MOST_ROUTES
        {
            return Err(BadTopology::Size { switches, hosts });
        }
        let mut peers = vec![vec![None; ports]; switches];
        peers.resize(switches + hosts, vec![None]);
        Ok(Self { name, switches, hosts, peers, routes: Vec::new(), channels: 1 })
    }

    fn connect(&mut self, a: Peer, b: Peer) {
        debug_assert!(self.peers[a.node][a.port].is_none() && self.peers[b.node][b.port].is_none());
        self.peers[a.node][a.port] = Some(b);
        self.peers[b.node][b.port] = Some(a);
    }

    /// Connects a host to a switch's port.
    fn attach(&mut self, host: usize, switch: usize, port: usize) {
        let node = self.host_node(host);
        self.connect(Peer { node, port: 0 }, Peer { node: switch, port });
    }

    /// Fills the routes: `route` gives the next hop at a switch for a host.
    fn route_by(mut self, channels: usize, route: impl Fn(usize, usize) -> Route) -> Self {
        let pairs = (0..self.switches).flat_map(|switch| (0..self.hosts).map(move |host| (switch, host)));
        self.routes = pairs.map(|(switch, host)| route(switch, host)).collect();
        self.channels = channels;
        self
    }

    /// The same with all in one virtual channel: what it is good for is shown by what happens without.
    #[cfg(test)]
    pub(crate) fn with_one_channel(mut self) -> Self {
        self.routes.iter_mut().for_each(|route| route.vc = 0);
        self.channels = 1;
        self
    }

    /// How many switches there are: the nodes from 0.
    pub fn switches(&self) -> usize {
        self.switches
    }

    /// How many hosts there are: the nodes behind the switches.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// The node of a host.
    pub fn host_node(&self, host: usize) -> usize {
        self.switches + host
    }

    /// Virtual channels that routes use.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// By port, the other ends.
    pub fn peers(&self, node: usize) -> &[Option<Peer>] {
        &self.peers[node]
    }

    /// The switch of a host, and its port there.
    pub fn attachment(&self, host: usize) -> Peer {
        self.peers[self.host_node(host)][0].expect("a host is attached when the network is made")
    }

    /// Where a packet to a host goes from a switch.
    pub fn route(&self, switch: usize, host: usize) -> Route {
        self.routes[switch * self.hosts + host]
    }

    /// The switches that a packet passes.
    pub fn path(&self, from: usize, to: usize) -> Vec<usize> {
        let mut at = self.attachment(from).node;
        let mut path = vec![at];
        while at != self.attachment(to).node && path.len() <= self.switches {
            match self.peers[at][usize::from(self.route(at, to).port)] {
                Some(peer) => at = peer.node,
                None => break,
            }
            path.push(at);
        }
        path
    }

    /// What each host can send at most, in flits a cycle, if all send to all alike: the busiest link's bound by the routes.
    pub fn uniform_bound(&self) -> f64 {
        let mut load = vec![vec![0u64; MOST_PORTS]; self.switches];
        for to in 0..self.hosts {
            for from in (0..self.hosts).filter(|from| *from != to) {
                let mut at = self.attachment(from).node;
                while at < self.switches {
                    let port = usize::from(self.route(at, to).port);
                    load[at][port] += 1;
                    let Some(peer) = self.peers[at][port] else { break };
                    at = peer.node;
                }
            }
        }
        let busiest = load.iter().flatten().max().copied().unwrap_or(0);
        ((self.hosts - 1) as f64 / busiest.max(1) as f64).min(1.0)
    }
}

fn within(what: &'static str, value: usize, least: usize, most: usize) -> Result<(), BadTopology> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(BadTopology::Range { what, value, least, most })
    }
}

#[cfg(test)]
mod tests;
