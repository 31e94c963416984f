//! Deadlock check: whether packets can wait for one another in a circle.
//!
//! A packet in a channel (a link's virtual channel) waits for the next channel of its route. If no circle of
//! channels waits like that, the last channel of any chain leads to a host, which takes what arrives, so some packet
//! always moves (Dally and Seitz). Levels have buffers of their own, and none waits for another, so one level stands
//! for all.
//!
//! Where switches choose, a channel waits for each channel that can be chosen: equal ports, and the ways to and from each
//! intermediate group. No circle among all of these is more than needed, and does for any choice.

use crate::topology::{Network, Route};
use std::{collections::BTreeSet, fmt};
use thiserror::Error;

/// A virtual channel of a switch's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// Switch that sends.
    pub switch: usize,
    /// Port by which it sends.
    pub port: usize,
    /// Number of the virtual channel.
    pub vc: usize,
}

impl fmt::Display for Channel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "switch {} port {} vc {}", self.switch, self.port, self.vc)
    }
}

/// Result of a check that found no circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Number of channels that routes use.
    pub channels: usize,
    /// Number of pairs of channels that follow one another on some route.
    pub dependencies: usize,
}

/// Error: channels that wait for one another in a circle.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("packets can wait for one another in a circle: {}", cycle.iter().map(Channel::to_string).collect::<Vec<_>>().join(" → "))]
pub struct Cycle {
    /// Channels of the circle: each waits for the next, and the last for the first.
    pub cycle: Vec<Channel>,
}

/// Follows all routes between hosts. Returns a proof that no channels wait for one another in a circle, or a circle.
pub fn check(network: &Network) -> Result<Proof, Cycle> {
    let graph = Graph::new(network);
    let used = graph.used.iter().filter(|used| **used).count();
    match graph.cycle() {
        Some(cycle) => Err(Cycle { cycle: cycle.into_iter().map(|number| graph.channel(number)).collect() }),
        None => Ok(Proof { channels: used, dependencies: graph.next.iter().map(Vec::len).sum() }),
    }
}

struct Graph {
    ports: usize,
    vcs: usize,
    used: Vec<bool>,
    next: Vec<Vec<u32>>,
}

impl Graph {
    fn new(network: &Network) -> Self {
        let ports = network.peers(0).len();
        let vcs = network.channels();
        let count = network.switches() * ports * vcs;
        let mut graph = Self { ports, vcs, used: vec![false; count], next: vec![Vec::new(); count] };
        let mut seen = vec![usize::MAX; count];
        let starts: BTreeSet<_> = (0..network.hosts()).map(|host| network.attachment(host).node).collect();
        for to in 0..network.hosts() {
            let ends = starts.iter().map(|start| (*start, None)).collect();
            graph.follow(network, to, ends, Network::route, &mut seen);
        }
        graph.follow_detours(network, &starts);
        for next in &mut graph.next {
            next.sort_unstable();
            next.dedup();
        }
        graph
    }

    /// Follows all ways to a host from `ends`: switches, each with the channel by which a packet has come. Stops where another
    /// way to the same host has passed before.
    fn follow(
        &mut self,
        network: &Network,
        to: usize,
        mut ends: Vec<(usize, Option<usize>)>,
        route: fn(&Network, usize, usize) -> Route,
        seen: &mut [usize],
    ) {
        let goal = network.attachment(to).node;
        while let Some((at, before)) = ends.pop() {
            if at == goal {
                continue;
            }
            let route = route(network, at, to);
            for port in network.equal_ports(at, route.port) {
                let channel = self.add(before, at, Route { port, ..route });
                if std::mem::replace(&mut seen[channel], to) != to {
                    let peer = network.peers(at)[usize::from(port)];
                    ends.push((peer.map_or(goal, |peer| peer.node), Some(channel)));
                }
            }
        }
    }

    /// Follows the ways by all intermediate groups: from all hosts' switches to each group, and from each channel by which
    /// packets come into one to all hosts.
    fn follow_detours(&mut self, network: &Network, starts: &BTreeSet<usize>) {
        let mut turns = BTreeSet::new();
        for group in 0..network.groups() {
            let mut seen = vec![false; self.used.len()];
            let mut ends: Vec<_> = starts.iter().map(|start| (*start, None)).collect();
            while let Some((at, before)) = ends.pop() {
                let Some(hop) = network.detour(at, group) else {
                    turns.extend(before.map(|before| (at, Some(before))));
                    continue;
                };
                let channel = self.add(before, at, hop);
                if let (false, Some(peer)) =
                    (std::mem::replace(&mut seen[channel], true), network.peers(at)[usize::from(hop.port)])
                {
                    ends.push((peer.node, Some(channel)));
                }
            }
        }
        let mut seen = vec![usize::MAX; self.used.len()];
        for to in (0..network.hosts()).filter(|_| !turns.is_empty()) {
            self.follow(network, to, turns.iter().copied().collect(), Network::route_behind, &mut seen);
        }
    }

    /// Adds a switch's channel, which follows `before`. Returns its number.
    fn add(&mut self, before: Option<usize>, switch: usize, Route { port, vc }: Route) -> usize {
        let channel = (switch * self.ports + usize::from(port)) * self.vcs + usize::from(vc);
        if let Some(before) = before {
            self.next[before].push(channel as u32);
        }
        self.used[channel] = true;
        channel
    }

    fn channel(&self, number: usize) -> Channel {
        let (port, vc) = (number / self.vcs, number % self.vcs);
        Channel { switch: port / self.ports, port: port % self.ports, vc }
    }

    /// Searches depth first. A channel that is reached from itself closes the circle.
    fn cycle(&self) -> Option<Vec<usize>> {
        let mut done = vec![false; self.next.len()];
        let mut on_path = vec![false; self.next.len()];
        for start in 0..self.next.len() {
            let mut path: Vec<(usize, usize)> = Vec::new();
            if !done[start] {
                path.push((start, 0));
                on_path[start] = true;
            }
            while let Some((at, nth)) = path.last_mut() {
                let Some(&next) = self.next[*at].get(*nth) else {
                    done[*at] = true;
                    on_path[*at] = false;
                    path.pop();
                    continue;
                };
                *nth += 1;
                let next = next as usize;
                if on_path[next] {
                    let begin = path.iter().position(|(channel, _)| *channel == next).unwrap_or(0);
                    return Some(path[begin..].iter().map(|(channel, _)| *channel).collect());
                }
                if !done[next] {
                    on_path[next] = true;
                    path.push((next, 0));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{adaptive_dragonfly, adaptive_tree, torus, tree};

    #[test]
    fn adaptive_routes_have_no_circle_and_detours_in_one_channel_have() {
        let fixed = check(&tree(3, 3).unwrap()).unwrap();
        let adaptive = check(&adaptive_tree(3, 3).unwrap()).unwrap();
        assert!(adaptive.dependencies > fixed.dependencies, "all ways up are followed");
        let dragonfly = adaptive_dragonfly(2, 4, 2).unwrap();
        let proof = check(&dragonfly).unwrap();
        let minimal = check(&crate::topology::dragonfly(2, 4, 2).unwrap()).unwrap();
        assert!(proof.channels > minimal.channels && proof.dependencies > 2 * minimal.dependencies);
        assert!(check(&dragonfly.with_one_channel()).is_err());
        check(&adaptive_dragonfly(4, 8, 4).unwrap()).unwrap();
    }

    #[test]
    fn a_ring_without_a_second_channel_has_a_circle() {
        let ring = torus(&[8], 1).unwrap();
        assert!(check(&ring).is_ok());
        let cycle = check(&ring.with_one_channel()).unwrap_err();
        assert_eq!(cycle.cycle.len(), 8);
        assert!(
            cycle.to_string().starts_with("packets can wait for one another in a circle: switch "),
            "{cycle}"
        );
        assert!(check(&tree(4, 3).unwrap().with_one_channel()).is_ok(), "a tree needs no second one");
    }
}
