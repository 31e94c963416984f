//! Topology: switches, hosts and cables, and the routes at each switch.
//!
//! Nodes are numbered: switches first, then hosts. A host has one port. Routes are tables by destination, as in
//! InfiniBand's switches, with the virtual channel of the next hop, which a torus and a dragonfly need against
//! deadlock.

mod description;
mod dragonfly;
mod file;
mod irregular;
mod mesh;
mod torus;
mod tree;
mod up_down;

pub use description::{Description, Routes};
pub use dragonfly::{adaptive_dragonfly, dragonfly};
pub use file::{BadLine, parse};
pub use irregular::irregular;
pub use mesh::{hypercube, mesh};
pub use torus::{HalfWay, torus, trunked_torus};
pub use tree::{adaptive_tree, tree, valiant_tree};

use thiserror::Error;

/// Upper bound of a switch's ports: one word has a bit for each, and one for the switch itself.
pub const MOST_PORTS: usize = 63;
/// Upper bound of switches and hosts together.
pub const MOST_NODES: usize = 1 << 16;
/// Upper bound of the entries of all routes together.
const MOST_ROUTES: usize = 1 << 26;

/// Other end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Number of the switch or host.
    pub node: usize,
    /// Number of its port.
    pub port: usize,
}

/// Next hop of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Route {
    /// Port of this switch.
    pub port: u8,
    /// Virtual channel on that link.
    pub vc: u8,
}

/// Why a network is impossible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadTopology {
    /// A number is out of its range.
    #[error("{what} is {value}: take {least} to {most}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// Requested value.
        value: usize,
        /// Lower bound.
        least: usize,
        /// Upper bound.
        most: usize,
    },
    /// A switch would have too many ports.
    #[error("a switch has {ports} ports, and at most {MOST_PORTS} are possible")]
    Ports {
        /// Number of ports.
        ports: usize,
    },
    /// The network would be too small or too large.
    #[error(
        "{switches} switches and {hosts} hosts cannot be: there are at least 1 and 2, at most {MOST_NODES} of both, and at most {MOST_ROUTES} routes from a switch to a host"
    )]
    Size {
        /// Number of switches.
        switches: usize,
        /// Number of hosts.
        hosts: usize,
    },
    /// The network has more than one part.
    #[error("no way leads from switch {from} to switch {to}: link all switches")]
    Apart {
        /// Number of a switch.
        from: usize,
        /// Number of a switch in another part.
        to: usize,
    },
}

/// A network and its routes.
#[derive(Clone, Debug)]
pub struct Network {
    /// Name for reports.
    pub name: String,
    switches: usize,
    hosts: usize,
    /// Other ends of the cables, by node and port.
    peers: Vec<Vec<Option<Peer>>>,
    /// Next hops, by switch and then by host.
    routes: Vec<Route>,
    channels: usize,
    /// Names of the nodes in a file; none if the network was generated.
    names: Vec<String>,
    /// Numbers of equal ports that begin with a port, by switch and port; empty if routes name single ports.
    equals: Vec<u8>,
    /// Whether switches choose among equal ports by their queues, and not at random.
    is_adaptive: bool,
    /// Ways by an intermediate group, beside the minimal routes.
    detours: Option<Detours>,
}

/// Ways to the groups of a dragonfly, for packets that pass an intermediate one.
#[derive(Clone, Debug)]
struct Detours {
    groups: usize,
    /// Number of a group's switches.
    size: usize,
    /// Next hops, by switch and then by group; those to a switch's own group are not used.
    hops: Vec<Route>,
    /// Number by which the channels of a minimal route are higher behind the intermediate group.
    shift: u8,
}

impl Network {
    /// Makes nodes without cables.
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
        Ok(Self {
            name,
            switches,
            hosts,
            peers,
            routes: Vec::new(),
            channels: 1,
            names: Vec::new(),
            equals: Vec::new(),
            is_adaptive: false,
            detours: None,
        })
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

    /// Lets a packet whose route names a switch's port take any of the `count` ports from it on.
    fn set_equal(&mut self, switch: usize, port: usize, count: usize) {
        let ports = self.peers[0].len();
        self.equals.resize(self.switches * ports, 1);
        self.equals[switch * ports + port] = count as u8;
    }

    /// Puts all routes into one virtual channel, to show what happens without a second one.
    #[cfg(test)]
    pub(crate) fn with_one_channel(mut self) -> Self {
        self.routes.iter_mut().for_each(|route| route.vc = 0);
        if let Some(detours) = &mut self.detours {
            detours.hops.iter_mut().for_each(|hop| hop.vc = 0);
            detours.shift = 0;
        }
        self.channels = 1;
        self
    }

    /// Number of switches, which are the nodes from 0.
    pub fn switches(&self) -> usize {
        self.switches
    }

    /// Number of hosts, which are the nodes behind the switches.
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    /// Number of a host's node.
    pub fn host_node(&self, host: usize) -> usize {
        self.switches + host
    }

    /// Number of virtual channels that routes use.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Other ends of a node's cables, by port.
    pub fn peers(&self, node: usize) -> &[Option<Peer>] {
        &self.peers[node]
    }

    /// The switch of a host, and its port there.
    pub fn attachment(&self, host: usize) -> Peer {
        self.peers[self.host_node(host)][0].expect("a host is attached when the network is made")
    }

    /// Next hop of a packet at a switch to a host.
    pub fn route(&self, switch: usize, host: usize) -> Route {
        self.routes[switch * self.hosts + host]
    }

    /// Name of a node: that of the file, or `s` and the number of a switch, `h` and that of a host, from 0.
    pub fn node_name(&self, node: usize) -> String {
        match (self.names.get(node), node.checked_sub(self.switches)) {
            (Some(name), _) => name.clone(),
            (None, Some(host)) => format!("h{host}"),
            (None, None) => format!("s{node}"),
        }
    }

    /// Ports that send a packet on: that of its host, and that of each switch, as node and port.
    pub fn ports(&self, from: usize, to: usize) -> Vec<(usize, usize)> {
        let of_switch = |switch| (switch, usize::from(self.route(switch, to).port));
        let switches = self.path(from, to).into_iter().map(of_switch);
        [(self.host_node(from), 0)].into_iter().chain(switches).collect()
    }

    /// Whether switches choose among several ways for some packets.
    pub fn has_choices(&self) -> bool {
        !self.equals.is_empty() || self.detours.is_some()
    }

    /// Whether switches choose by their queues, and not at random.
    pub fn is_adaptive(&self) -> bool {
        self.is_adaptive
    }

    /// Number of groups by which a packet may make a detour; 0 if there are no detours.
    pub fn groups(&self) -> usize {
        self.detours.as_ref().map_or(0, |detours| detours.groups)
    }

    /// Group of a switch, in a network with detours.
    pub fn group(&self, switch: usize) -> usize {
        self.detours.as_ref().map_or(0, |detours| switch / detours.size)
    }

    /// Next hop at a switch to an intermediate group. `None` if the switch is in it.
    pub fn detour(&self, switch: usize, group: usize) -> Option<Route> {
        let detours = self.detours.as_ref()?;
        (switch / detours.size != group).then(|| detours.hops[switch * detours.groups + group])
    }

    /// Next hop of a packet to a host behind its intermediate group.
    pub fn route_behind(&self, switch: usize, host: usize) -> Route {
        let Route { port, vc } = self.route(switch, host);
        Route { port, vc: vc + self.detours.as_ref().map_or(0, |detours| detours.shift) }
    }

    /// Ports that a packet may take whose route names `port`: links of a trunk, or all ways up.
    pub fn equal_ports(&self, switch: usize, port: u8) -> std::ops::Range<u8> {
        let ports = self.peers[switch].len();
        let count = self.equals.get(switch * ports + usize::from(port)).copied().unwrap_or(1);
        port..port + count
    }

    /// The switches that a packet passes, if it takes the first of equal ports.
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

    /// Upper bound of what each host can send, in flits a cycle, if all send equally to all: it follows from the
    /// busiest link of the routes, where equal ports have equal loads.
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
        let of_switch = |(switch, load): (usize, &Vec<u64>)| {
            let each = (0u8..)
                .zip(load)
                .map(|(port, load)| *load as f64 / self.equal_ports(switch, port).len() as f64);
            each.fold(0.0, f64::max)
        };
        let busiest = load.iter().enumerate().map(of_switch).fold(1.0, f64::max);
        ((self.hosts - 1) as f64 / busiest).min(1.0)
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
