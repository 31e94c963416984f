//! Up-down routes for any network: first up, then down, where up is nearer to the root. A packet that has gone down
//! never goes up again, so channels cannot wait for one another in a circle.

use super::{BadTopology, Network, Route};
use std::collections::VecDeque;

/// Fills in the routes. The switch with the most links is the root.
pub fn route(network: Network) -> Result<Network, BadTopology> {
    let ranks = ranks(&network)?;
    let by_switch: Vec<_> = (0..network.switches).map(|goal| hops(&network, &ranks, goal)).collect();
    let hop = |switch: usize, host: usize| {
        let goal = network.attachment(host);
        if goal.node == switch {
            return Route { port: goal.port as u8, vc: 0 };
        }
        // Hosts of a switch take different ones of the equally short ways.
        let choices = &by_switch[goal.node][switch];
        Route { port: choices[host % choices.len()], vc: 0 }
    };
    let table: Vec<_> = (0..network.switches)
        .map(|switch| (0..network.hosts).map(|host| hop(switch, host)).collect::<Vec<_>>())
        .collect();
    Ok(network.route_by(1, |switch, host| table[switch][host]))
}

/// Returns each switch's distance from the root and its number. A smaller pair is further up.
fn ranks(network: &Network) -> Result<Vec<(usize, usize)>, BadTopology> {
    let degree = |switch: &usize| (neighbours(network, *switch).count(), usize::MAX - switch);
    let root = (0..network.switches).max_by_key(degree).unwrap_or(0);
    let mut distances = vec![usize::MAX; network.switches];
    distances[root] = 0;
    let mut queue = VecDeque::from([root]);
    while let Some(at) = queue.pop_front() {
        for (_, next) in neighbours(network, at) {
            if distances[next] == usize::MAX {
                distances[next] = distances[at] + 1;
                queue.push_back(next);
            }
        }
    }
    match distances.iter().position(|distance| *distance == usize::MAX) {
        Some(to) => Err(BadTopology::Apart { from: root, to }),
        None => Ok(distances.into_iter().zip(0..).collect()),
    }
}

fn neighbours(network: &Network, switch: usize) -> impl Iterator<Item = (usize, usize)> {
    let peers = network.peers[switch].iter().enumerate();
    peers
        .filter_map(|(port, peer)| peer.map(|peer| (port, peer.node)))
        .filter(|(_, node)| *node < network.switches)
}

/// Returns for each switch the ports of the shortest ways to `goal`: down if there is a way that only goes down,
/// otherwise up.
fn hops(network: &Network, ranks: &[(usize, usize)], goal: usize) -> Vec<Vec<u8>> {
    let mut down = vec![usize::MAX; network.switches];
    down[goal] = 0;
    let mut queue = VecDeque::from([goal]);
    while let Some(at) = queue.pop_front() {
        for (_, above) in neighbours(network, at).filter(|(_, next)| ranks[*next] < ranks[at]) {
            if down[above] == usize::MAX {
                down[above] = down[at] + 1;
                queue.push_back(above);
            }
        }
    }
    // The order is from the root downwards: the way up from a switch leads to one whose way is known.
    let mut order: Vec<_> = (0..network.switches).collect();
    order.sort_by_key(|switch| ranks[*switch]);
    let mut cost = down.clone();
    let mut ports = vec![Vec::new(); network.switches];
    for at in order {
        let goes_down = down[at] != usize::MAX;
        let far = |next: usize| if goes_down { down[next] } else { cost[next] };
        let usable = || neighbours(network, at).filter(|(_, next)| (ranks[*next] > ranks[at]) == goes_down);
        let Some(best) = usable().map(|(_, next)| far(next)).min().filter(|best| *best != usize::MAX) else {
            continue;
        };
        ports[at] = usable().filter(|(_, next)| far(*next) == best).map(|(port, _)| port as u8).collect();
        cost[at] = best + 1;
    }
    ports
}
