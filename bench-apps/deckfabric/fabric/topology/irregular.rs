//! Irregular networks: random cables between switches.

use super::{BadTopology, Network, Peer, up_down, within};
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Makes `switches` switches with `hosts` hosts and up to `degree` cables to other switches each. Two switches have
/// at most one cable; all are connected. The same seed gives the same network.
pub fn irregular(switches: usize, hosts: usize, degree: usize, seed: u64) -> Result<Network, BadTopology> {
    within("the number of switches", switches, 2, 4096)?;
    within("hosts at each switch", hosts, 1, 32)?;
    within("cables to other switches", degree, 2, 31)?;
    let name = format!("irregular {switches}×{hosts}");
    let mut network = Network::new(name, switches, hosts + degree, switches * hosts)?;
    for host in 0..switches * hosts {
        network.attach(host, host / hosts, host % hosts);
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut used = vec![0; switches];
    let cable = |network: &mut Network, used: &mut Vec<usize>, a: usize, b: usize| {
        network.connect(Peer { node: a, port: hosts + used[a] }, Peer { node: b, port: hosts + used[b] });
        used[a] += 1;
        used[b] += 1;
    };
    // The tree comes first, in which each switch keeps a port free for the next one; then cables on the remaining ports.
    for switch in 1..switches {
        let free: Vec<_> = (0..switch).filter(|other| used[*other] < degree).collect();
        let other = free[random.random_range(0..free.len())];
        cable(&mut network, &mut used, switch, other);
    }
    loop {
        let mut pairs = Vec::new();
        for a in (0..switches).filter(|a| used[*a] < degree) {
            let connected = |b: usize| network.peers[a].iter().flatten().any(|peer| peer.node == b);
            pairs.extend((a + 1..switches).filter(|b| used[*b] < degree && !connected(*b)).map(|b| (a, b)));
        }
        if pairs.is_empty() {
            break;
        }
        let (a, b) = pairs[random.random_range(0..pairs.len())];
        cable(&mut network, &mut used, a, b);
    }
    up_down::route(network)
}
