//! Choice of port and address, without a device.

use std::net::IpAddr;

use crate::ffi::Gid;
use crate::ffi::codes::gid_type;

/// An entry of a port's table of addresses.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub index: u32,
    pub gid: Gid,
    pub kind: u32,
}

/// The chosen address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidChoice {
    pub gid: Gid,
    pub index: u32,
}

/// Returns the wanted port, or else the first active one. `ports` lists numbers, and whether each is active.
///
/// # Errors
/// Text that lists the ports which exist.
pub fn choose_port(ports: &[(u8, bool)], wanted: Option<u8>) -> Result<u8, String> {
    let list = || {
        let state = |active: bool| if active { "active" } else { "not active" };
        let all: Vec<_> =
            ports.iter().map(|(number, active)| format!("{number} ({})", state(*active))).collect();
        format!("its ports: {}", all.join(", "))
    };
    match wanted {
        Some(wanted) => match ports.iter().find(|(number, _)| *number == wanted) {
            Some((_, true)) => Ok(wanted),
            Some((_, false)) => Err(format!("DECK_VERBS_PORT={wanted} is not active; {}", list())),
            None => Err(format!("DECK_VERBS_PORT={wanted} does not exist; {}", list())),
        },
        None => ports.iter().find(|(_, active)| *active).map(|(number, _)| *number).ok_or_else(list),
    }
}

/// Returns the wanted address. Without one, prefers addresses equal to `bind`, and among them RoCE v2; otherwise
/// returns the best of all.
///
/// # Errors
/// Text that lists the addresses which exist.
pub fn choose_gid(entries: &[Candidate], wanted: Option<u32>, bind: IpAddr) -> Result<GidChoice, String> {
    let chosen = |entry: &Candidate| GidChoice { gid: entry.gid, index: entry.index };
    if let Some(wanted) = wanted {
        let found = entries.iter().find(|entry| entry.index == wanted);
        return found.map(chosen).ok_or_else(|| {
            let all: Vec<_> = entries.iter().map(describe).collect();
            format!("DECK_VERBS_GID={wanted} is empty; there are: {}", all.join(", "))
        });
    }
    let address = match bind {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    // A smaller rank is better.
    let rank = |entry: &&Candidate| {
        let others = entry.gid.raw != address.octets();
        let kind = match entry.kind {
            gid_type::ROCE_V2 => 0,
            gid_type::IB => 1,
            _ => 2,
        };
        // Link-local addresses reach only their own link.
        let local = entry.gid.raw[..2] == [0xfe, 0x80] && entry.kind != gid_type::IB;
        (others, kind, local, entry.index)
    };
    entries.iter().min_by_key(rank).map(chosen).ok_or_else(|| "it has no address (GID) yet".to_owned())
}

fn describe(entry: &Candidate) -> String {
    let address = std::net::Ipv6Addr::from(entry.gid.raw);
    let kind = match entry.kind {
        gid_type::ROCE_V2 => "RoCE v2",
        gid_type::ROCE_V1 => "RoCE v1",
        _ => "InfiniBand",
    };
    format!("{} ({address}, {kind})", entry.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid { raw: text.parse::<std::net::Ipv6Addr>().unwrap().octets() }
    }

    fn table() -> Vec<Candidate> {
        [
            (0, "fe80::1", gid_type::ROCE_V1),
            (1, "fe80::1", gid_type::ROCE_V2),
            (2, "::ffff:10.0.0.1", gid_type::ROCE_V1),
            (3, "::ffff:10.0.0.1", gid_type::ROCE_V2),
            (5, "::ffff:10.9.0.1", gid_type::ROCE_V1),
        ]
        .map(|(index, text, kind)| Candidate { index, gid: gid(text), kind })
        .to_vec()
    }

    #[test]
    fn the_address_that_the_nic_is_bound_to_counts_first() {
        let choose = |bind: &str| choose_gid(&table(), None, bind.parse().unwrap()).unwrap().index;
        assert_eq!(choose("10.0.0.1"), 3, "RoCE v2 before v1");
        assert_eq!(choose("10.9.0.1"), 5, "what there is of it");
        assert_eq!(choose("127.0.0.1"), 3, "within a host: one that is routed");
        assert_eq!(choose("fe80::1"), 1);
    }

    #[test]
    fn a_wanted_address_must_exist() {
        let bind = "10.0.0.1".parse().unwrap();
        assert_eq!(choose_gid(&table(), Some(5), bind).unwrap().index, 5);
        let error = choose_gid(&table(), Some(4), bind).unwrap_err();
        assert!(
            error.contains("DECK_VERBS_GID=4") && error.contains("3 (::ffff:10.0.0.1, RoCE v2)"),
            "{error}"
        );
        assert!(choose_gid(&[], None, bind).is_err());
    }

    #[test]
    fn ports_are_chosen_by_their_state() {
        let ports = [(1, false), (2, true), (3, true)];
        assert_eq!(choose_port(&ports, None), Ok(2));
        assert_eq!(choose_port(&ports, Some(3)), Ok(3));
        for (wanted, words) in [(Some(1), "not active"), (Some(4), "does not exist")] {
            let error = choose_port(&ports, wanted).unwrap_err();
            assert!(error.contains(words) && error.contains("2 (active)"), "{error}");
        }
        assert!(choose_port(&[(1, false)], None).unwrap_err().contains("1 (not active)"));
    }
}
