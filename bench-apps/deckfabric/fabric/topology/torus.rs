//! Tori: routes go dimension by dimension, by the shorter way. Packets that still have to cross the edge use channel
//! 0, all others channel 1.

use super::{BadTopology, Network, Peer, Route, within};

/// Makes a torus of any dimensions, with `hosts` hosts at each switch. The ports 2d and 2d + 1 lead up and down in
/// the dimension d.
pub fn torus(dims: &[usize], hosts: usize) -> Result<Network, BadTopology> {
    within("the number of dimensions", dims.len(), 1, 6)?;
    dims.iter().try_for_each(|&dim| within("a dimension", dim, 2, 1024))?;
    within("hosts at each switch", hosts, 1, 32)?;
    let switches = dims.iter().fold(1usize, |all, dim| all.saturating_mul(*dim));
    let shape: Vec<_> = dims.iter().map(usize::to_string).collect();
    let name = format!("{} torus", shape.join("×"));
    let first = 2 * dims.len();
    let mut network = Network::new(name, switches, first + hosts, switches.saturating_mul(hosts))?;
    for switch in 0..switches {
        (0..hosts).for_each(|nth| network.attach(switch * hosts + nth, switch, first + nth));
        let mut unit = 1;
        for (dim, &size) in dims.iter().enumerate() {
            let own = switch / unit % size;
            let up = switch - own * unit + (own + 1) % size * unit;
            network.connect(Peer { node: switch, port: 2 * dim }, Peer { node: up, port: 2 * dim + 1 });
            unit *= size;
        }
    }
    Ok(network.route_by(2, |switch, host| {
        let (mut at, mut to) = (switch, host / hosts);
        for (dim, &size) in dims.iter().enumerate() {
            let (own, goal) = (at % size, to % size);
            if own != goal {
                return towards(own, goal, size, dim);
            }
            (at, to) = (at / size, to / size);
        }
        Route { port: (first + host % hosts) as u8, vc: 0 }
    }))
}

/// Returns the next hop in a dimension. Half way round there are two shortest ways: even coordinates take the one
/// up, so that both are used.
fn towards(own: usize, goal: usize, size: usize, dim: usize) -> Route {
    let up = (goal + size - own) % size;
    let goes_up = 2 * up < size || (2 * up == size && own.is_multiple_of(2));
    let crosses = if goes_up { own > goal } else { own < goal };
    Route { port: (2 * dim + usize::from(!goes_up)) as u8, vc: u8::from(!crosses) }
}
