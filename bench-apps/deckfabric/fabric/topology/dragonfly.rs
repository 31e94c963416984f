//! Dragonflies: groups of switches, all of a group connected with one another, and a link between each two groups.
//! Routes are minimal: to the switch that has the link, over it, and to the destination. A packet uses channel 0
//! before that link and on it, channel 1 behind it.
//!
//! With adaptive routes a packet may pass an intermediate group: it uses channel 0 as far as this group, and then a minimal
//! route with channels that are higher by one. So a packet's channels never fall, and within a channel links between groups
//! come behind the links of a group.

use super::{BadTopology, Detours, Network, Peer, Route, within};

/// Makes a dragonfly of full size: `hosts` hosts at each switch, `group` switches in a group, `global` links from
/// each switch to other groups, so `group * global + 1` groups. The numbers 4, 8 and 4 give 1,056 hosts.
pub fn dragonfly(hosts: usize, group: usize, global: usize) -> Result<Network, BadTopology> {
    within("hosts at each switch", hosts, 1, 32)?;
    within("switches in a group", group, 1, 32)?;
    within("global links of a switch", global, 1, 32)?;
    let groups = group * global + 1;
    let (switches, local, first_global) = (groups * group, hosts, hosts + group - 1);
    let name = format!("dragonfly {hosts}, {group}, {global}");
    let mut network = Network::new(name, switches, first_global + global, switches * hosts)?;
    let local_port = |from: usize, to: usize| local + if to < from { to } else { to - 1 };
    for switch in 0..switches {
        (0..hosts).for_each(|nth| network.attach(switch * hosts + nth, switch, nth));
        let (own_group, own) = (switch / group, switch % group);
        for other in own + 1..group {
            let (a, b) = (local_port(own, other), local_port(other, own));
            network
                .connect(Peer { node: switch, port: a }, Peer { node: own_group * group + other, port: b });
        }
        // Channel c of a group leads to the group that is c + 1 further on, where it is channel `groups - 2 - c`.
        for nth in 0..global {
            let channel = own * global + nth;
            let to_group = (own_group + channel + 1) % groups;
            let back = groups - 2 - channel;
            if own_group < to_group {
                let peer =
                    Peer { node: to_group * group + back / global, port: first_global + back % global };
                network.connect(Peer { node: switch, port: first_global + nth }, peer);
            }
        }
    }
    Ok(network.route_by(2, |switch, host| {
        let (own_group, own, goal) = (switch / group, switch % group, host / hosts);
        let (port, vc) = if switch == goal {
            (host % hosts, 0)
        } else if goal / group == own_group {
            (local_port(own, goal % group), 1)
        } else {
            let channel = (goal / group + groups - own_group - 1) % groups;
            match channel / global {
                gate if gate == own => (first_global + channel % global, 0),
                gate => (local_port(own, gate), 0),
            }
        };
        Route { port: port as u8, vc }
    }))
}

/// Makes a dragonfly whose packets take the minimal route or a way by a random intermediate group, by the queues at their
/// first switch.
pub fn adaptive_dragonfly(hosts: usize, group: usize, global: usize) -> Result<Network, BadTopology> {
    let network = dragonfly(hosts, group, global)?;
    let groups = group * global + 1;
    let first_host = |to_group: usize| to_group * group * hosts;
    // A minimal route to a host of another group leads by the only link between the groups.
    let hop = |switch: usize, to: usize| network.route(switch, first_host(to));
    let hops = (0..network.switches).flat_map(|switch| (0..groups).map(move |to| (switch, to)));
    let hops = hops.map(|(switch, to)| hop(switch, to)).collect();
    Ok(Network {
        name: format!("{}, adaptive", network.name),
        channels: 3,
        is_adaptive: true,
        detours: Some(Detours { groups, size: group, hops, shift: 1 }),
        ..network
    })
}
