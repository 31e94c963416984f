//! Deadlock check: whether packets can wait for one another in a circle.
//!
//! A packet in a channel (a link's virtual channel) waits for the next channel of its route. If no circle of
//! channels waits like that, the last channel of any chain leads to a host, which takes what arrives, so some packet
//! always moves (Dally and Seitz). Levels have buffers of their own, and none waits for another, so one level stands
//! for all.

use crate::topology::Network;
use std::fmt;
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
        let mut seen = vec![usize::MAX; count + network.switches()];
        for to in 0..network.hosts() {
            for from in 0..network.hosts() {
                graph.follow(network, from, to, &mut seen);
            }
        }
        for next in &mut graph.next {
            next.sort_unstable();
            next.dedup();
        }
        graph
    }

    /// Follows all ways of one pair of hosts. Stops where another way to the same host has passed before.
    fn follow(&mut self, network: &Network, from: usize, to: usize, seen: &mut [usize]) {
        let goal = network.attachment(to).node;
        let start = network.attachment(from).node;
        if std::mem::replace(&mut seen[self.used.len() + start], to) == to {
            return;
        }
        let mut ends = vec![(start, None::<usize>)];
        while let Some((at, before)) = ends.pop() {
            if at == goal {
                continue;
            }
            let route = network.route(at, to);
            for port in network.equal_ports(at, route.port).map(usize::from) {
                let channel = (at * self.ports + port) * self.vcs + usize::from(route.vc);
                if let Some(before) = before {
                    self.next[before].push(channel as u32);
                }
                self.used[channel] = true;
                if std::mem::replace(&mut seen[channel], to) != to {
                    ends.push((network.peers(at)[port].map_or(goal, |peer| peer.node), Some(channel)));
                }
            }
        }
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
    use crate::topology::{torus, tree};

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
