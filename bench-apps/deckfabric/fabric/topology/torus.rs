//! Tori: routes go dimension by dimension, by the shorter way. Packets that still have to cross the edge use channel
//! 0, all others channel 1.

use super::{BadTopology, MOST_PORTS, Network, Peer, Route, within};
use serde::{Deserialize, Serialize};

/// `topology.half-way`: direction of a packet half way round a ring, where both are the shortest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HalfWay {
    /// Up from even coordinates, down from odd ones: both directions have the same load.
    #[default]
    Both,
    /// Up from all: under uniform traffic a ring of 8 has 5/3 of the load down in its links up.
    Up,
}

/// Makes a torus of any dimensions, with `hosts` hosts at each switch. The ports 2d and 2d + 1 lead up and down in
/// the dimension d.
pub fn torus(dims: &[usize], hosts: usize) -> Result<Network, BadTopology> {
    trunked_torus(dims, hosts, 1, HalfWay::Both)
}

/// Makes a torus whose neighbours have `trunk` links each. A packet may take any of them. In the dimension d, the ports from
/// 2d × `trunk` on lead up, and those from (2d + 1) × `trunk` on lead down.
pub fn trunked_torus(
    dims: &[usize],
    hosts: usize,
    trunk: usize,
    half_way: HalfWay,
) -> Result<Network, BadTopology> {
    within("the number of dimensions", dims.len(), 1, 6)?;
    dims.iter().try_for_each(|&dim| within("a dimension", dim, 2, 1024))?;
    within("hosts at each switch", hosts, 1, 32)?;
    within("links of a trunk", trunk, 1, MOST_PORTS)?;
    let switches = dims.iter().fold(1usize, |all, dim| all.saturating_mul(*dim));
    let shape: Vec<_> = dims.iter().map(usize::to_string).collect();
    let links = if trunk > 1 { format!(", trunks of {trunk}") } else { String::new() };
    let name = format!("{} torus{links}", shape.join("×"));
    let first = 2 * dims.len() * trunk;
    let mut network = Network::new(name, switches, first + hosts, switches.saturating_mul(hosts))?;
    for switch in 0..switches {
        (0..hosts).for_each(|nth| network.attach(switch * hosts + nth, switch, first + nth));
        let mut unit = 1;
        for (dim, &size) in dims.iter().enumerate() {
            let own = switch / unit % size;
            let up = switch - own * unit + (own + 1) % size * unit;
            let (to_up, to_down) = (2 * dim * trunk, (2 * dim + 1) * trunk);
            for link in 0..trunk {
                network.connect(
                    Peer { node: switch, port: to_up + link },
                    Peer { node: up, port: to_down + link },
                );
            }
            if trunk > 1 {
                [to_up, to_down].into_iter().for_each(|port| network.set_equal(switch, port, trunk));
            }
            unit *= size;
        }
    }
    Ok(network.route_by(2, |switch, host| {
        let (mut at, mut to) = (switch, host / hosts);
        for (dim, &size) in dims.iter().enumerate() {
            let (own, goal) = (at % size, to % size);
            if own != goal {
                let Route { port, vc } = towards(own, goal, size, dim, half_way);
                return Route { port: port * trunk as u8, vc };
            }
            (at, to) = (at / size, to / size);
        }
        Route { port: (first + host % hosts) as u8, vc: 0 }
    }))
}

/// Returns the next hop in a dimension.
fn towards(own: usize, goal: usize, size: usize, dim: usize, half_way: HalfWay) -> Route {
    let up = (goal + size - own) % size;
    let is_up_half_way = half_way == HalfWay::Up || own.is_multiple_of(2);
    let goes_up = 2 * up < size || (2 * up == size && is_up_half_way);
    let crosses = if goes_up { own > goal } else { own < goal };
    Route { port: (2 * dim + usize::from(!goes_up)) as u8, vc: u8::from(!crosses) }
}
