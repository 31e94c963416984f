//! k-ary n-trees: n levels of k^(n-1) switches, k^n hosts. Routes go up by the destination's digits, and down by
//! them, so the load is even.

use super::{BadTopology, Network, Peer, Route, within};

/// Makes a k-ary n-tree.
pub fn tree(k: usize, n: usize) -> Result<Network, BadTopology> {
    build(k, n, false)
}

/// Makes a k-ary n-tree whose packets take any way up, as far as their destination needs, and the only way down (Valiant's
/// routes in a tree).
pub fn valiant_tree(k: usize, n: usize) -> Result<Network, BadTopology> {
    build(k, n, true)
}

fn build(k: usize, n: usize, is_random: bool) -> Result<Network, BadTopology> {
    within("k", k, 2, 31)?;
    within("n", n, 1, 16)?;
    let power = |n: usize| k.checked_pow(n as u32).unwrap_or(usize::MAX / 64);
    let (width, hosts) = (power(n - 1), power(n));
    let mut network = Network::new(format!("{k}-ary {n}-tree"), n.saturating_mul(width), 2 * k, hosts)?;
    for host in 0..hosts {
        network.attach(host, host / k, host % k);
    }
    // The switch `at` of a level has n - 1 digits. Its up port j leads to the switch whose digit `level` is j.
    for level in 0..n - 1 {
        let unit = power(level);
        for at in 0..width {
            let own = at / unit % k;
            for up in 0..k {
                let above = at - own * unit + up * unit;
                let (a, b) = (level * width + at, (level + 1) * width + above);
                network.connect(Peer { node: a, port: k + up }, Peer { node: b, port: own });
            }
            if is_random {
                network.set_equal(level * width + at, k, k);
            }
        }
    }
    Ok(network.route_by(1, |switch, host| {
        let (level, at, leaf) = (switch / width, switch % width, host / k);
        let unit = power(level);
        let port = if at / unit == leaf / unit {
            if level == 0 { host % k } else { leaf / power(level - 1) % k }
        } else {
            k + if is_random { 0 } else { host / unit % k }
        };
        Route { port: port as u8, vc: 0 }
    }))
}
