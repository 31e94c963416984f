use super::*;
use crate::deadlock::check;
use proptest::{collection::vec, prelude::*, sample::Index};

/// Every packet arrives, and if routes are minimal, over as many links as the shortest way has.
fn all_arrive(network: &Network) {
    for from in 0..network.hosts() {
        for to in 0..network.hosts() {
            let path = network.path(from, to);
            assert_eq!(
                path.last(),
                Some(&network.attachment(to).node),
                "{}: {from} to {to}: {path:?}",
                network.name
            );
            let last = network.route(*path.last().unwrap(), to);
            assert_eq!(usize::from(last.port), network.attachment(to).port);
        }
    }
    for node in 0..network.switches() + network.hosts() {
        for (port, peer) in network.peers(node).iter().enumerate() {
            let Some(peer) = peer else { continue };
            assert_eq!(network.peers(peer.node)[peer.port], Some(Peer { node, port }));
        }
    }
}

#[test]
fn trees_have_their_switches_and_shortest_ways() {
    for (k, n) in [(2, 1), (2, 3), (3, 3), (4, 3), (4, 2)] {
        let network = tree(k, n).unwrap();
        assert_eq!((network.hosts(), network.switches()), (k.pow(n as u32), n * k.pow(n as u32 - 1)));
        all_arrive(&network);
        check(&network).unwrap();
        // The path leads up to the lowest common ancestor and down again.
        assert_eq!(network.path(0, network.hosts() - 1).len(), 2 * n - 1);
        assert_eq!(network.path(0, 1).len(), 1);
        assert!((network.uniform_bound() - 1.0).abs() < 0.1, "{}", network.uniform_bound());
    }
}

#[test]
fn meshes_and_hypercubes_have_their_cables_and_no_circle() {
    let cables = |network: &Network| {
        let ports = (0..network.switches()).map(|at| network.peers(at).iter().flatten().count());
        (ports.sum::<usize>() - network.hosts()) / 2
    };
    for (network, expected) in [(mesh(&[4, 4], 4), 24), (mesh(&[3, 2, 5], 1), 59), (hypercube(4, 4), 32)] {
        let network = network.unwrap();
        assert_eq!(cables(&network), expected, "{}", network.name);
        all_arrive(&network);
        check(&network).unwrap();
    }
    assert_eq!(hypercube(4, 4).unwrap().peers(0).len(), 8);
}

#[test]
fn tori_take_the_shorter_way() {
    for (dims, hosts) in [(&[2][..], 1), (&[8], 1), (&[3, 4], 2), (&[4, 4, 2], 1), (&[5, 5], 1)] {
        let network = torus(dims, hosts).unwrap();
        all_arrive(&network);
        check(&network).unwrap();
        for to in 0..network.hosts() {
            let mut rest = to / hosts;
            let steps = dims.iter().map(|&size| {
                let goal = rest % size;
                rest /= size;
                goal.min(size - goal)
            });
            let steps: usize = steps.sum();
            assert_eq!(network.path(0, to).len(), 1 + steps, "{dims:?}: to {to}");
        }
    }
    // In a ring of 16, a host's packets cross 4 links on average, and there are two for each host.
    assert!((torus(&[16], 1).unwrap().uniform_bound() - 15.0 / 32.0).abs() < 0.02);
}

#[test]
fn the_dragonfly_of_the_paper_has_1056_hosts() {
    let network = dragonfly(4, 8, 4).unwrap();
    assert_eq!((network.hosts(), network.switches()), (1056, 264));
    check(&network).unwrap();
    let longest = (0..1056).map(|to| network.path(0, to).len()).max();
    assert_eq!(longest, Some(4), "local, global, local");
    let small = dragonfly(2, 4, 2).unwrap();
    all_arrive(&small);
    check(&small).unwrap();
    check(&dragonfly(1, 1, 2).unwrap()).unwrap();
}

#[test]
fn irregular_networks_are_connected_and_follow_from_the_seed() {
    let network = irregular(16, 4, 4, 7).unwrap();
    all_arrive(&network);
    check(&network).unwrap();
    let cables = |network: &Network| (0..16).map(|switch| network.peers(switch).to_vec()).collect::<Vec<_>>();
    assert_eq!(cables(&network), cables(&irregular(16, 4, 4, 7).unwrap()));
    assert_ne!(cables(&network), cables(&irregular(16, 4, 4, 8).unwrap()));
}

#[test]
fn what_cannot_be_built_is_refused() {
    for (bad, words) in [
        (tree(1, 2), "k is 1"),
        (tree(32, 2), "k is 32"),
        (tree(24, 9), "at most 65536 of both"),
        (torus(&[], 1), "dimensions is 0"),
        (torus(&[1024, 1024, 1024], 1), "at most 65536 of both"),
        (torus(&[4, 1], 1), "a dimension is 1"),
        (dragonfly(32, 32, 32), "95 ports"),
        (dragonfly(20, 20, 20), "at most 65536 of both"),
        (irregular(1, 4, 4, 0), "switches is 1"),
    ] {
        let reason = bad.unwrap_err().to_string();
        assert!(reason.contains(words), "{reason}");
    }
}

const FILE: &str = "# two switches\nswitch s\nswitch t\nhost a\nhost b # left\nhost c\nlink s t\nlink a s\nlink b s\nlink c t\n";

#[test]
fn a_file_is_a_network() {
    let network = parse("mine", FILE).unwrap();
    assert_eq!((network.hosts(), network.switches()), (3, 2));
    all_arrive(&network);
    assert_eq!(network.path(0, 2), [0, 1]);
}

#[test]
fn a_bad_file_is_refused_with_line_and_reason() {
    let replaced = |from: &str, to: &str| parse("mine", &FILE.replacen(from, to, 1)).unwrap_err().to_string();
    assert_eq!(replaced("switch t", "switch s"), "line 3: \"s\" again: line 2 has it: take another name");
    assert_eq!(replaced("link s t", "link s u"), "line 7: \"u\" is not known here: its line comes first");
    assert_eq!(replaced("link s t", "link s s"), "line 7: \"s\" is linked with itself");
    assert_eq!(
        replaced("link c t", "link c a"),
        "line 10: \"c\" and \"a\" are both hosts: a host has a link to a switch"
    );
    assert_eq!(replaced("link c t", "link a t"), "line 10: \"a\" has as many links as it can have: 1");
    let unlinked = "line 6: host \"c\" has no link: link it to a switch, or leave it out";
    assert_eq!(replaced("link c t", ""), unlinked);
    assert_eq!(
        replaced("link s t\n", ""),
        "line 3: no way leads from \"s\" to \"t\": link all switches, or leave out those that no host needs"
    );
    assert_eq!(
        replaced("host a", "switch spare\nhost a"),
        "line 4: no way leads from \"s\" to \"spare\": link all switches, or leave out those that no host needs"
    );
    assert_eq!(
        replaced("host a", "hosts a"),
        "line 4: a line is `switch NAME`, `host NAME` or `link NAME NAME`"
    );
    assert!(parse("empty", "").unwrap_err().to_string().starts_with("line 1: 0 switches"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn proptest_irregular_networks_have_no_deadlock(switches in 2usize..24, hosts in 1usize..4, degree in 2usize..6, seed: u64) {
        let network = irregular(switches, hosts, degree, seed).unwrap();
        all_arrive(&network);
        check(&network).unwrap();
    }

    /// Hosts have a switch each. Switches have any links, so that some networks have several parts.
    #[test]
    fn proptest_any_switches_and_links_are_a_network_or_an_error(
        switches in 1usize..6,
        hosts in vec(any::<Index>(), 2..6),
        links in vec(any::<[Index; 2]>(), 0..8),
    ) {
        let mut text: String = (0..switches).map(|switch| format!("switch s{switch}\n")).collect();
        for (host, switch) in hosts.iter().enumerate() {
            text += &format!("host h{host}\nlink h{host} s{}\n", switch.index(switches));
        }
        let mut parts: Vec<_> = (0..switches).collect();
        for [a, b] in links.iter().map(|ends| ends.map(|end| end.index(switches))).filter(|[a, b]| a != b) {
            text += &format!("link s{a} s{b}\n");
            let (from, to) = (parts[a], parts[b]);
            parts.iter_mut().filter(|part| **part == from).for_each(|part| *part = to);
        }
        let is_whole = parts.iter().all(|part| *part == parts[0]);
        let network = parse("any", &text);
        prop_assert_eq!(network.is_ok(), is_whole, "{} {:?}", text, network.err());
        if let Ok(network) = network {
            all_arrive(&network);
            check(&network).unwrap();
        }
    }

    #[test]
    fn proptest_any_text_is_a_network_or_an_error(text in "((switch|host|link|#) ?[a-f]? ?[a-f]?\n){0,20}") {
        if let Ok(network) = parse("any", &text) {
            all_arrive(&network);
        }
    }
}
