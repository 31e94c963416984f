//! Networks from a text: one `switch NAME`, `host NAME` or `link NAME NAME` a line; `#` begins a comment.

use super::{BadTopology, MOST_PORTS, Network, Peer, up_down};
use std::collections::BTreeMap;
use thiserror::Error;

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {reason}")]
pub struct BadLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// Reason as text.
    pub reason: String,
}

struct Node {
    name: String,
    line: usize,
    is_host: bool,
    ports: usize,
}

/// Reads a network. Routes go up and down, as in [`super::irregular`].
pub fn parse(name: &str, text: &str) -> Result<Network, BadLine> {
    let (mut nodes, mut names) = (Vec::<Node>::new(), BTreeMap::new());
    let mut cables = Vec::new();
    let mut last = 1;
    for (line, words) in words(text) {
        last = line;
        let bad = |reason: String| Err(BadLine { line, reason });
        match words[..] {
            [kind @ ("switch" | "host"), name] => {
                if let Some(&first) = names.get(name) {
                    let first: &Node = &nodes[first];
                    return bad(format!("{name:?} again: line {} has it: take another name", first.line));
                }
                names.insert(name, nodes.len());
                nodes.push(Node { name: name.into(), line, is_host: kind == "host", ports: 0 });
            }
            ["link", a, b] => {
                let mut ends = Vec::new();
                for end in [a, b] {
                    match names.get(end) {
                        Some(&node) => ends.push(node),
                        None => return bad(format!("{end:?} is not known here: its line comes first")),
                    }
                }
                if let Err(reason) = cable(&mut nodes, ends[0], ends[1]) {
                    return bad(reason);
                }
                cables.push((ends[0], ends[1]));
            }
            _ => return bad("a line is `switch NAME`, `host NAME` or `link NAME NAME`".into()),
        }
    }
    for node in &nodes {
        if node.is_host && node.ports == 0 {
            let reason = format!("host {:?} has no link: link it to a switch, or leave it out", node.name);
            return Err(BadLine { line: node.line, reason });
        }
    }
    build(name, &nodes, &cables).map_err(|bad| located(&nodes, last, &bad))
}

/// Names the switches of a network that has several parts, and the line of one of them. Other reasons are about the whole
/// file, which ends in the line `last`.
fn located(nodes: &[Node], last: usize, bad: &BadTopology) -> BadLine {
    let BadTopology::Apart { from, to } = *bad else {
        return BadLine { line: last, reason: bad.to_string() };
    };
    let switches: Vec<_> = nodes.iter().filter(|node| !node.is_host).collect();
    let (from, to) = (switches[from], switches[to]);
    let reason = format!(
        "no way leads from {:?} to {:?}: link all switches, or leave out those that no host needs",
        from.name, to.name
    );
    BadLine { line: to.line, reason }
}

fn words(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let lines = (1..).zip(text.lines());
    let words =
        lines.map(|(line, text)| (line, text.split('#').next().unwrap_or("").split_whitespace().collect()));
    words.filter(|(_, words): &(usize, Vec<&str>)| !words.is_empty())
}

fn cable(nodes: &mut [Node], a: usize, b: usize) -> Result<(), String> {
    if a == b {
        return Err(format!("{:?} is linked with itself", nodes[a].name));
    }
    if nodes[a].is_host && nodes[b].is_host {
        return Err(format!(
            "{:?} and {:?} are both hosts: a host has a link to a switch",
            nodes[a].name, nodes[b].name
        ));
    }
    for end in [a, b] {
        let node = &mut nodes[end];
        let most = if node.is_host { 1 } else { MOST_PORTS };
        if node.ports == most {
            return Err(format!("{:?} has as many links as it can have: {most}", node.name));
        }
        node.ports += 1;
    }
    Ok(())
}

fn build(name: &str, nodes: &[Node], cables: &[(usize, usize)]) -> Result<Network, BadTopology> {
    let hosts = nodes.iter().filter(|node| node.is_host).count();
    let switches = nodes.len() - hosts;
    let ports = nodes.iter().map(|node| node.ports).max().unwrap_or(0);
    let mut network = Network::new(name.into(), switches, ports, hosts)?;
    let (mut switch, mut host) = (0..switches, switches..nodes.len());
    let numbers: Vec<_> = nodes
        .iter()
        .map(|node| if node.is_host { host.next() } else { switch.next() }.unwrap_or(0))
        .collect();
    network.names = vec![String::new(); nodes.len()];
    nodes.iter().zip(&numbers).for_each(|(node, &number)| network.names[number].clone_from(&node.name));
    let mut used = vec![0; nodes.len()];
    let mut end = |node: usize| {
        used[node] += 1;
        Peer { node: numbers[node], port: used[node] - 1 }
    };
    for &(a, b) in cables {
        let (a, b) = (end(a), end(b));
        network.connect(a, b);
    }
    up_down::route(network)
}
