//! Counters as text: a table for people, and Prometheus's exposition format.
//!
//! Source of the format: *Prometheus exposition formats*, text format 0.0.4.

use std::fmt::Write as _;

use crate::stats::{PeerStats, Stats};

/// Maximum number of ranks with a line of their own in a table; the others share one.
const MAX_LINES: usize = 16;

/// Name, help text and getter of one number of [`PeerStats`].
type PeerMetric = (&'static str, &'static str, fn(&PeerStats) -> u64);
/// Name, type, help text and getter of one number of [`Stats`].
type RankMetric = (&'static str, &'static str, &'static str, fn(&Stats) -> u64);

const PEER_METRICS: [PeerMetric; 7] = [
    ("udeck_messages_posted_total", "Messages posted to the peer.", |peer| peer.messages_posted),
    ("udeck_bytes_posted_total", "Payload bytes posted to the peer.", |peer| peer.bytes_posted),
    ("udeck_messages_received_total", "Messages received from the peer.", |peer| peer.messages_received),
    ("udeck_bytes_received_total", "Payload bytes received from the peer.", |peer| peer.bytes_received),
    ("udeck_bytes_copied_for_posts_total", "Bytes copied for posts to the peer.", |peer| peer.bytes_copied),
    ("udeck_waits_total", "Waits of posts and flushes for the peer.", |peer| peer.waits),
    (
        "udeck_retransmissions",
        "Packets to the peer that were sent again, on connections that stand.",
        |peer| peer.retransmissions,
    ),
];

const BY_PROTOCOL: &str = "udeck_messages_by_protocol_total";

const RANK_METRICS: [RankMetric; 5] = [
    ("udeck_bytes_copied_total", "counter", "Bytes that the library copied.", |all| all.bytes_copied),
    (
        "udeck_registrations_total",
        "counter",
        "Registrations of the program's memory that were made.",
        |all| all.registrations.misses,
    ),
    ("udeck_registration_cache_hits_total", "counter", "Registrations that were there already.", |all| {
        all.registrations.hits
    }),
    ("udeck_registration_cache_evictions_total", "counter", "Registrations that made room.", |all| {
        all.registrations.evictions
    }),
    ("udeck_registered_bytes", "gauge", "Bytes of the program's memory that are registered.", |all| {
        all.registrations.bytes as u64
    }),
];

/// All counters of a rank in Prometheus's text format.
pub(crate) fn exposition(rank: usize, all: &Stats, peers: &[PeerStats]) -> String {
    let mut to = String::new();
    for (name, help, of) in PEER_METRICS {
        head(&mut to, name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for peer in peers {
            let _ = writeln!(to, "{name}{{rank=\"{rank}\",peer=\"{}\"}} {}", peer.peer, of(peer));
        }
    }
    head(&mut to, BY_PROTOCOL, "counter", "Messages posted to the peer, by the protocol that carried them.");
    for peer in peers {
        for (protocol, count) in &peer.by_protocol {
            let _ = writeln!(
                to,
                "{BY_PROTOCOL}{{rank=\"{rank}\",peer=\"{}\",protocol=\"{protocol}\"}} {count}",
                peer.peer
            );
        }
    }
    for (name, kind, help, of) in RANK_METRICS {
        head(&mut to, name, kind, help);
        let _ = writeln!(to, "{name}{{rank=\"{rank}\"}} {}", of(all));
    }
    to
}

fn head(to: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A rank's counters for people: one line for each of the ranks with which it has exchanged the most bytes.
pub(crate) fn table(rank: usize, all: &Stats, peers: &[PeerStats]) -> String {
    let bytes = |peer: &PeerStats| peer.bytes_posted + peer.bytes_received;
    let mut order: Vec<&PeerStats> = peers.iter().collect();
    order.sort_by_key(|peer| std::cmp::Reverse(bytes(peer)));
    let (shown, others) = order.split_at(order.len().min(MAX_LINES));
    let mut shown: Vec<&PeerStats> = shown.to_vec();
    shown.sort_by_key(|peer| peer.peer);
    let mut to = format!(
        "deck: rank {rank}:{:>5} {:>10} {:>9} {:>10} {:>9} {:>9} {:>7} {:>6}  by",
        "peer", "posted", "bytes", "received", "bytes", "copied", "waits", "again"
    );
    for peer in shown {
        line(&mut to, rank, &peer.peer.to_string(), &[peer]);
    }
    if !others.is_empty() {
        line(&mut to, rank, "other", others);
    }
    let cache = all.registrations;
    let _ = write!(
        to,
        "\ndeck: rank {rank}: {} copied in all; {} registrations made, {} found",
        size(all.bytes_copied),
        cache.misses,
        cache.hits
    );
    to
}

fn line(to: &mut String, rank: usize, title: &str, peers: &[&PeerStats]) {
    let sum = |of: fn(&PeerStats) -> u64| peers.iter().map(|peer| of(peer)).sum::<u64>();
    let _ = write!(
        to,
        "\ndeck: rank {rank}:{title:>5} {:>10} {:>9} {:>10} {:>9} {:>9} {:>7} {:>6} ",
        sum(|peer| peer.messages_posted),
        size(sum(|peer| peer.bytes_posted)),
        sum(|peer| peer.messages_received),
        size(sum(|peer| peer.bytes_received)),
        size(sum(|peer| peer.bytes_copied)),
        sum(|peer| peer.waits),
        sum(|peer| peer.retransmissions),
    );
    let mut protocols: Vec<(String, u64)> = Vec::new();
    for (protocol, count) in peers.iter().flat_map(|peer| &peer.by_protocol) {
        let name = protocol.to_string();
        match protocols.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += count,
            None => protocols.push((name, *count)),
        }
    }
    for (name, count) in protocols {
        let _ = write!(to, " {name} {count}");
    }
}

/// Formats a number of bytes for people.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Protocol;

    fn peers(count: u32) -> Vec<PeerStats> {
        let peer = |rank: u32| {
            let mut peer = PeerStats::new(rank);
            (peer.messages_posted, peer.bytes_posted) = (3, 3 << (10 + rank % 30));
            peer.by_protocol = vec![(Protocol::Eager, 1), (Protocol::HandOff, 2)];
            peer
        };
        (0..count).map(peer).collect()
    }

    #[test]
    fn the_busiest_peers_have_a_line_and_the_others_share_one() {
        let few = table(1, &Stats::default(), &peers(2));
        assert_eq!(few.lines().count(), 4, "{few}");
        assert!(few.contains("3.0 KiB") && few.contains("eager 1 hand-off 2"), "{few}");
        let many = table(1, &Stats::default(), &peers(20));
        assert_eq!(many.lines().count(), MAX_LINES + 3, "{many}");
        assert!(many.contains("other") && many.contains("eager 4 hand-off 8"), "{many}");
        assert!(many.lines().all(|line| line.starts_with("deck: rank 1:")), "{many}");
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([0, 1023, 1 << 20, 5 << 29].map(size), ["0 B", "1023 B", "1.0 MiB", "2.5 GiB"]);
    }

    /// Checks the format's rules: each name once, with its help and its type before its samples, and each
    /// sample once.
    #[test]
    fn the_exposition_conforms() {
        let text = exposition(2, &Stats::default(), &peers(3));
        let mut names = Vec::new();
        let mut samples = std::collections::BTreeSet::new();
        let (mut help, mut kind) = ("", "");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                help = rest.split_once(' ').expect("words").0;
                assert!(!names.contains(&help), "{line}");
                names.push(help);
                continue;
            }
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, word) = rest.split_once(' ').expect("a type");
                assert!(name == help && matches!(word, "counter" | "gauge"), "{line}");
                assert_eq!(name.ends_with("_total"), word == "counter", "{line}");
                kind = name;
                continue;
            }
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').expect("labels");
            assert!(name == kind && name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{line}");
            value.parse::<u64>().expect("a number");
            let labels = labels.strip_suffix('}').expect("their end");
            for label in labels.split(',') {
                let (_, value) = label.split_once('=').expect("a label");
                assert!(value.len() > 2 && value.starts_with('"') && value.ends_with('"'), "{line}");
            }
            assert!(samples.insert(series), "{line}");
        }
        assert!(text.ends_with('\n') && names.len() == 13, "{names:?}");
        assert!(samples.contains("udeck_messages_posted_total{rank=\"2\",peer=\"1\"}"));
    }
}
