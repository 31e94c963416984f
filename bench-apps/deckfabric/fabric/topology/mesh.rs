//! Meshes, and hypercubes, which are meshes of two in each dimension. Routes go up and down, as in
//! [`super::irregular`].

use super::{BadTopology, Network, Peer, up_down, within};

/// Makes a mesh of any dimensions, with `hosts` hosts at each switch.
pub fn mesh(dims: &[usize], hosts: usize) -> Result<Network, BadTopology> {
    within("the number of dimensions", dims.len(), 1, 12)?;
    dims.iter().try_for_each(|&dim| within("a dimension", dim, 2, 1024))?;
    within("hosts at each switch", hosts, 1, 32)?;
    let switches = dims.iter().fold(1usize, |all, dim| all.saturating_mul(*dim));
    let shape: Vec<_> = dims.iter().map(usize::to_string).collect();
    let ports = hosts + dims.iter().map(|dim| if *dim > 2 { 2 } else { 1 }).sum::<usize>();
    let name = format!("{} mesh", shape.join("×"));
    let mut network = Network::new(name, switches, ports, switches.saturating_mul(hosts))?;
    let mut used = vec![hosts; switches];
    for switch in 0..switches {
        (0..hosts).for_each(|nth| network.attach(switch * hosts + nth, switch, nth));
        let mut unit = 1;
        for &size in dims {
            if switch / unit % size + 1 < size {
                let up = switch + unit;
                network.connect(Peer { node: switch, port: used[switch] }, Peer { node: up, port: used[up] });
                used[switch] += 1;
                used[up] += 1;
            }
            unit *= size;
        }
    }
    up_down::route(network)
}

/// Makes a hypercube, with `hosts` hosts at each switch.
pub fn hypercube(dimensions: usize, hosts: usize) -> Result<Network, BadTopology> {
    within("the number of dimensions", dimensions, 1, 12)?;
    let network = mesh(&vec![2; dimensions], hosts)?;
    Ok(Network { name: format!("hypercube of {}", network.switches), ..network })
}
