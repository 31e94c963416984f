//! Placement of ranks on hosts.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{MAX_RANKS, wire::bounded};

/// A host of a job, with a block of consecutive ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The host's name, as the launcher has it.
    pub name: String,
    /// Number of the host's ranks, which follow the ranks of the host before it.
    pub ranks: u32,
}

/// The hosts of a job, and the host of each rank. deckrun places consecutive ranks on each host; other
/// launchers may deal them out in turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Wire", try_from = "Wire")]
pub struct Placement {
    hosts: Vec<String>,
    /// Index in `hosts`, by rank.
    host_of: Vec<u32>,
}

impl Placement {
    /// Places consecutive ranks on each host.
    pub fn blocks(hosts: Vec<Host>) -> Placement {
        let ranks = |(host, Host { ranks, .. }): (u32, &Host)| (0..*ranks).map(move |_| host);
        let host_of = (0u32..).zip(&hosts).flat_map(ranks).collect();
        Placement { hosts: hosts.into_iter().map(|host| host.name).collect(), host_of }
    }

    /// Makes a placement from each rank's host: a key that tells hosts apart, and the name. Hosts are numbered
    /// in the order of their first ranks.
    pub fn of_ranks<K: PartialEq>(ranks: impl IntoIterator<Item = (K, String)>) -> Placement {
        let (mut keys, mut hosts, mut host_of) = (Vec::<K>::new(), Vec::new(), Vec::new());
        for (key, name) in ranks {
            let at = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                hosts.push(name);
                hosts.len() - 1
            });
            host_of.push(at as u32);
        }
        Placement { hosts, host_of }
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.host_of.len() as u32
    }

    /// Returns the hosts' names.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Returns the index in [`Placement::hosts`] of a rank's host; `None` if there is no such rank.
    pub fn host_of(&self, rank: u32) -> Option<usize> {
        self.host_of.get(rank as usize).map(|host| *host as usize)
    }

    /// Returns the index of each rank's host.
    pub fn by_rank(&self) -> &[u32] {
        &self.host_of
    }

    /// Returns the ranks of a host, in their order.
    pub fn ranks_of(&self, host: usize) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.host_of).filter(move |(_, of)| **of as usize == host).map(|(rank, _)| rank)
    }
}

/// Encoding of a placement: runs of consecutive ranks on a host.
#[derive(Clone, Serialize, Deserialize)]
struct Wire {
    #[serde(deserialize_with = "bounded::<_, _, { MAX_RANKS as usize }>")]
    hosts: Vec<String>,
    #[serde(deserialize_with = "bounded::<_, _, { MAX_RANKS as usize }>")]
    runs: Vec<(u32, u32)>,
}

impl From<Placement> for Wire {
    fn from(Placement { hosts, host_of }: Placement) -> Wire {
        let run = |run: &[u32]| (run[0], run.len() as u32);
        Wire { hosts, runs: host_of.chunk_by(|one, next| one == next).map(run).collect() }
    }
}

impl TryFrom<Wire> for Placement {
    type Error = &'static str;

    fn try_from(Wire { hosts, runs }: Wire) -> Result<Placement, &'static str> {
        let ranks: u64 = runs.iter().map(|(_, ranks)| u64::from(*ranks)).sum();
        if ranks > u64::from(MAX_RANKS) {
            return Err("more ranks than a job may have");
        }
        if runs.iter().any(|(host, _)| *host as usize >= hosts.len()) {
            return Err("a rank on a host that is not listed");
        }
        let host_of =
            runs.into_iter().flat_map(|(host, ranks)| Range { start: 0, end: ranks }.map(move |_| host));
        Ok(Placement { host_of: host_of.collect(), hosts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn travelled(placement: &Placement) -> Placement {
        postcard::from_bytes(&postcard::to_allocvec(placement).unwrap()).unwrap()
    }

    fn ranks_of(placement: &Placement) -> Vec<Vec<u32>> {
        (0..placement.hosts().len()).map(|host| placement.ranks_of(host).collect()).collect()
    }

    #[test]
    fn a_rank_has_the_host_that_its_number_falls_on() {
        let host = |(name, ranks): (&str, u32)| Host { name: name.into(), ranks };
        let placement = Placement::blocks([("a", 2), ("b", 0), ("c", 3)].map(host).into());
        assert_eq!(placement.size(), 5);
        let hosts: Vec<_> = (0..6).map(|rank| placement.host_of(rank)).collect();
        assert_eq!(hosts, [Some(0), Some(0), Some(2), Some(2), Some(2), None]);
        assert_eq!(ranks_of(&placement), [vec![0, 1], vec![], vec![2, 3, 4]]);
        // The hosts keep their numbers, though one of them has no rank.
        assert_eq!(travelled(&placement), placement);
    }

    #[test]
    fn ranks_that_are_dealt_out_keep_their_hosts() {
        let placement = Placement::of_ranks([7, 9, 7, 9, 8].map(|key| (key, format!("n{key}"))));
        assert_eq!(placement.hosts(), ["n7", "n9", "n8"]);
        assert_eq!(placement.by_rank(), [0, 1, 0, 1, 2]);
        assert_eq!(ranks_of(&placement), [vec![0, 2], vec![1, 3], vec![4]]);
        assert_eq!(travelled(&placement), placement);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let hosts = || vec!["a".to_owned()];
        for runs in [vec![(1, 1)], vec![(0, u32::MAX), (0, 2)], vec![(0, MAX_RANKS), (0, 1)]] {
            let bytes = postcard::to_allocvec(&Wire { hosts: hosts(), runs }).unwrap();
            assert!(postcard::from_bytes::<Placement>(&bytes).is_err());
        }
    }
}
