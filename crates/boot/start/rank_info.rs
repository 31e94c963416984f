//! Records of the launcher's table, by which ranks find each other before they have connections.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::wire::bounded;

/// The key of a rank's [`RankInfo`].
pub(crate) const RANK_INFO: &str = "card";
/// The key of rank 0's [`Root`].
pub(crate) const ROOT: &str = "root";
/// Maximum number of addresses at which rank 0 can be reached.
pub(crate) const MAX_ADDRESSES: usize = 6;
/// Maximum number of processors in a record. A rank with more must count its own.
const MAX_CPUS: usize = 1024;
/// Maximum length of a host's name in a record, in characters.
const MAX_NAME: usize = 64;

/// A rank's host, and the processors that it may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankInfo {
    /// Key of the host: ranks with the same key can share memory ([`udeck_sys::host_key`]). A rank that does
    /// not know it writes its own number.
    pub host: Vec<u8>,
    /// The host's name.
    pub name: String,
    /// A bit for each processor that this rank may use, the lowest first.
    pub cpus: Vec<u8>,
}

impl RankInfo {
    pub fn of_this_process(rank: u32) -> RankInfo {
        let host = udeck_sys::host_key().map_or_else(|_| rank.to_le_bytes().to_vec(), Vec::from);
        let name = rustix::system::uname().nodename().to_string_lossy().chars().take(MAX_NAME).collect();
        RankInfo { host, name, cpus: bits(&udeck_sys::usable_cpus()) }
    }
}

/// Returns the number of processors that ranks with these records may use together.
pub(crate) fn cpus_together<'a>(infos: impl Iterator<Item = &'a RankInfo>) -> u32 {
    let mut all = Vec::<u8>::new();
    for RankInfo { cpus, .. } in infos {
        all.resize(all.len().max(cpus.len()), 0);
        all.iter_mut().zip(cpus).for_each(|(all, one)| *all |= one);
    }
    all.iter().map(|byte| byte.count_ones()).sum()
}

fn bits(cpus: &[usize]) -> Vec<u8> {
    let mut bits = vec![0; MAX_CPUS / 8];
    for cpu in cpus.iter().filter(|cpu| **cpu < MAX_CPUS) {
        bits[cpu / 8] |= 1 << (cpu % 8);
    }
    bits.truncate(bits.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bits
}

/// Addresses at which rank 0 serves names, and the secret by which a rank proves that it belongs to the job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Root {
    pub secret: [u8; 32],
    #[serde(deserialize_with = "bounded::<_, _, MAX_ADDRESSES>")]
    pub addresses: Vec<SocketAddr>,
}

/// Encodes a record as letters and digits.
pub(crate) fn encode<T: Serialize>(value: &T) -> String {
    let bytes = postcard::to_allocvec(value).unwrap_or_default();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes a text of [`encode`]. Returns `None` for any other text.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Option<T> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    match postcard::take_from_bytes(&bytes) {
        Ok((value, [])) if digits.len().is_multiple_of(2) => Some(value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_told_is_short_and_comes_back() {
        let cpus = bits(&(0..MAX_CPUS + 7).collect::<Vec<_>>());
        let info = RankInfo { host: vec![255; 24], name: "n".repeat(MAX_NAME), cpus };
        let addresses =
            vec!["[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap(); MAX_ADDRESSES];
        let root = Root { secret: [255; 32], addresses };
        assert_eq!(decode::<RankInfo>(&encode(&info)), Some(info.clone()));
        assert!(decode::<Root>(&encode(&root)) == Some(root.clone()));
        // Slurm's PMI-2 takes 1024 bytes, and some servers count the key among them.
        assert!(encode(&info).len() < 500 && encode(&root).len() < 500, "{}", encode(&info).len());
        assert!(RankInfo::of_this_process(3) == RankInfo::of_this_process(3), "a host does not change");
    }

    #[test]
    fn processors_are_counted_once_however_many_ranks_have_them() {
        let info = |cpus: &[usize]| RankInfo { host: vec![], name: String::new(), cpus: bits(cpus) };
        let together =
            |sets: &[&[usize]]| cpus_together(sets.iter().map(|set| info(set)).collect::<Vec<_>>().iter());
        assert_eq!(together(&[&[0], &[1], &[9]]), 3, "each bound to its own");
        assert_eq!(together(&[&[0, 1], &[0, 1]]), 2, "all may use all");
        assert_eq!(together(&[&[1000], &[]]), 1);
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_table_nothing_panics(text in ".{0,200}", hex in "[0-9a-f]{0,200}") {
            for text in [text, hex] {
                let _ = (decode::<RankInfo>(&text), decode::<Root>(&text).is_some());
            }
        }
    }
}
