//! k-ary n-trees: n levels of k^(n-1) switches, k^n hosts. Routes go up by the destination's digits, and down by
//! them, so the load is even. Other routes choose among the ways up; down there is one.

use super::{BadTopology, MOST_PORTS, Network, Peer, Route, within};

/// Makes a k-ary n-tree.
pub fn tree(k: usize, n: usize) -> Result<Network, BadTopology> {
    build(k, n, Up::Fixed)
}

/// Makes a k-ary n-tree whose packets take any way up, as far as their destination needs, and the only way down (Valiant's
/// routes in a tree).
pub fn valiant_tree(k: usize, n: usize) -> Result<Network, BadTopology> {
    build(k, n, Up::Random)
}

/// Makes a k-ary n-tree whose packets take the way up that has the shortest queue, as far as their destination needs, and the
/// only way down.
pub fn adaptive_tree(k: usize, n: usize) -> Result<Network, BadTopology> {
    build(k, n, Up::LeastLoaded)
}

/// Choice of the way up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Up {
    Fixed,
    Random,
    LeastLoaded,
}

fn build(k: usize, n: usize, up: Up) -> Result<Network, BadTopology> {
    within("n", n, 1, 16)?;
    // A single switch has no ways up.
    within("k", k, 2, if n == 1 { MOST_PORTS } else { MOST_PORTS / 2 })?;
    let power = |n: usize| k.checked_pow(n as u32).unwrap_or(usize::MAX / 64);
    let (width, hosts) = (power(n - 1), power(n));
    let mut network =
        Network::new(format!("{k}-ary {n}-tree"), n.saturating_mul(width), (2 * k).min(MOST_PORTS), hosts)?;
    for host in 0..hosts {
        network.attach(host, host / k, host % k);
    }
    network.is_adaptive = up == Up::LeastLoaded;
    // The switch `at` of a level has n - 1 digits. Its up port j leads to the switch whose digit `level` is j.
    for level in 0..n - 1 {
        let unit = power(level);
        for at in 0..width {
            let own = at / unit % k;
            for digit in 0..k {
                let above = at - own * unit + digit * unit;
                let (a, b) = (level * width + at, (level + 1) * width + above);
                network.connect(Peer { node: a, port: k + digit }, Peer { node: b, port: own });
            }
            if up != Up::Fixed {
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
            k + if up == Up::Fixed { host / unit % k } else { 0 }
        };
        Route { port: port as u8, vc: 0 }
    }))
}
