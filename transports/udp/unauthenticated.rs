//! Bounds for unauthenticated callers: how many are kept, and which of them is evicted for another one.
//!
//! Anybody may call. So at most [`MAX_UNAUTHENTICATED`] callers are kept, each for at most [`HANDSHAKE_TIMEOUT`].
//! While there is a free place, nobody is refused: all ranks of a host may call at once. When there is none, a
//! newcomer evicts a caller of the source that has most places, if that source has more places than the newcomer's
//! source would have then. Between sources with equal shares, and within one source, nobody is evicted before
//! [`GRACE`].

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Upper bound of the unauthenticated callers that are kept.
pub const MAX_UNAUTHENTICATED: usize = 64;
/// How long a caller may take to authenticate itself.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a caller is safe from eviction by one whose source has no smaller share.
pub const GRACE: Duration = Duration::from_secs(1);

/// A caller that has not authenticated itself.
#[derive(Clone, Copy, Debug)]
pub struct Unauthenticated {
    /// Number of the connection handle.
    pub number: usize,
    pub at: IpAddr,
    pub since: Instant,
}

/// Decision about a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The newcomer takes a free place.
    Free,
    /// The newcomer is admitted, and this caller is evicted.
    Evict(usize),
    /// The newcomer is ignored. It retransmits.
    Refuse,
}

/// Decides on a newcomer at `at`.
pub fn admit(known: &[Unauthenticated], at: IpAddr, now: Instant) -> Admission {
    if known.len() < MAX_UNAUTHENTICATED {
        return Admission::Free;
    }
    let share = |at: IpAddr| known.iter().filter(|other| source(other.at) == source(at)).count();
    let Some(victim) = known.iter().min_by_key(|one| (Reverse(share(one.at)), one.since)) else {
        return Admission::Refuse;
    };
    let is_greedy = share(victim.at) > share(at) + 1;
    if is_greedy || now.duration_since(victim.since) >= GRACE {
        Admission::Evict(victim.number)
    } else {
        Admission::Refuse
    }
}

/// Returns the source to which a share is counted: an IPv4 address, or the network of an IPv6 address (/64, of which
/// a host may take any address).
fn source(at: IpAddr) -> IpAddr {
    match at.to_canonical() {
        IpAddr::V6(at) => Ipv6Addr::from_bits(at.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_from(at: impl Fn(usize) -> IpAddr, since: Instant) -> Vec<Unauthenticated> {
        (0..MAX_UNAUTHENTICATED).map(|number| Unauthenticated { number, at: at(number), since }).collect()
    }

    fn v4(last: usize) -> IpAddr {
        IpAddr::from([10, 0, 0, last as u8])
    }

    fn v6(net: u16, host: usize) -> IpAddr {
        IpAddr::from([0x2001, 0xdb8, 0, net, 0, 0, 7, host as u16])
    }

    #[test]
    fn nobody_is_refused_or_driven_out_while_a_place_is_free() {
        let now = Instant::now();
        let mut one_host = all_from(|_| v4(1), now);
        one_host.pop();
        assert_eq!(admit(&one_host, v4(1), now + HANDSHAKE_TIMEOUT), Admission::Free);
        assert_eq!(admit(&one_host, v4(2), now + HANDSHAKE_TIMEOUT), Admission::Free);
    }

    #[test]
    fn who_holds_all_places_makes_place_for_another_source_at_once() {
        let now = Instant::now();
        let mut all = all_from(|_| v4(1), now);
        all[5].since = now.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(admit(&all, v4(2), now), Admission::Evict(5), "the one that has had most time");
        // Newcomers of the same source wait until the oldest caller has had a fair time.
        assert_eq!(admit(&all, v4(1), now), Admission::Refuse);
        assert_eq!(admit(&all, v4(1), now + GRACE), Admission::Evict(5));
    }

    #[test]
    fn sources_come_to_equal_shares_and_do_not_drive_each_other_out() {
        let now = Instant::now();
        let mut all = all_from(|_| v4(1), now);
        let mut moved = 0;
        while let Admission::Evict(number) = admit(&all, v4(2), now) {
            all[number].at = v4(2);
            moved += 1;
            assert!(moved <= MAX_UNAUTHENTICATED, "it never ends");
        }
        assert_eq!(moved, MAX_UNAUTHENTICATED / 2);
        assert_eq!(admit(&all, v4(1), now), Admission::Refuse);
        let each_its_own = all_from(v4, now);
        assert_eq!(admit(&each_its_own, v4(200), now), Admission::Refuse);
        assert!(matches!(admit(&each_its_own, v4(200), now + GRACE), Admission::Evict(_)));
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let now = Instant::now();
        let all = all_from(|number| v6(1, number), now);
        assert!(matches!(admit(&all, v6(2, 0), now), Admission::Evict(_)));
        assert_eq!(admit(&all, v6(1, 999), now), Admission::Refuse);
        assert_eq!(source("::ffff:10.0.0.1".parse().unwrap()), v4(1));
        assert_ne!(source("::ffff:10.0.0.1".parse().unwrap()), source("::ffff:10.0.0.2".parse().unwrap()));
    }
}
