//! Tables of facts on networks.

use udeck_cli::columns::{lines, row};
use udeck_fabric::{
    deadlock,
    topology::{Network, dragonfly, irregular, torus, tree},
};

/// Makes the table of the literature's networks.
pub fn known() -> Result<String, String> {
    let networks = [
        tree(4, 3),
        tree(8, 3),
        tree(24, 2),
        torus(&[8, 8], 1),
        torus(&[8, 8, 4], 1),
        torus(&[8, 8, 8], 1),
        dragonfly(2, 4, 2),
        dragonfly(4, 8, 4),
        irregular(16, 4, 4, 1),
    ];
    let networks: Result<Vec<_>, _> = networks.into_iter().collect();
    table(&networks.map_err(|bad| bad.to_string())?)
}

/// Makes a table with one line for each network.
pub fn table(networks: &[Network]) -> Result<String, String> {
    let mut rows = vec![row([
        "network",
        "hosts",
        "switches",
        "cables",
        "ports",
        "lanes",
        "longest",
        "mean",
        "uniform",
        "dependencies",
    ])];
    for network in networks {
        let proof = deadlock::check(network).map_err(|cycle| format!("{}: {cycle}", network.name))?;
        let ports = (0..network.switches())
            .map(|switch| network.peers(switch).iter().flatten().count())
            .collect::<Vec<_>>();
        let between = ports.iter().sum::<usize>() - network.hosts();
        let (longest, mean) = distances(network);
        rows.push(vec![
            network.name.clone(),
            network.hosts().to_string(),
            network.switches().to_string(),
            (between / 2).to_string(),
            ports.iter().max().copied().unwrap_or(0).to_string(),
            network.channels().to_string(),
            longest.to_string(),
            format!("{mean:.2}"),
            format!("{:.3}", network.uniform_bound()),
            proof.dependencies.to_string(),
        ]);
    }
    Ok(lines(&rows)
        + "\ncables: between switches. lanes: virtual channels that routes need. longest, mean: switches that a packet passes without detours.\n\
           uniform: flits a cycle that each host can send to all others, by the busiest link of the routes.\n\
           dependencies: pairs of channels that follow one another on a route; no circle was found among them, so no packets wait for\n\
           one another for ever.\n")
}

fn distances(network: &Network) -> (usize, f64) {
    let (mut longest, mut sum) = (0, 0);
    // Only one host of each switch is the start: the switch's other hosts have the same distances.
    let mut starts: Vec<(usize, usize)> = Vec::new();
    for host in 0..network.hosts() {
        let switch = network.attachment(host).node;
        match starts.iter_mut().find(|(first, _)| network.attachment(*first).node == switch) {
            Some((_, count)) => *count += 1,
            None => starts.push((host, 1)),
        }
    }
    for (from, count) in starts {
        for to in 0..network.hosts() {
            let switches = network.path(from, to).len();
            longest = longest.max(switches);
            sum += switches * count;
        }
    }
    // The path of a host to itself passes its switch, but does not count.
    let pairs = network.hosts() * (network.hosts() - 1);
    (longest, (sum - network.hosts()) as f64 / pairs as f64)
}
