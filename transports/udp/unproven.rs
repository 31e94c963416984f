//! Callers that have not proved who they are: how many are kept, and which of them makes place for another one.
//!
//! Anybody may call, so there are [`PLACES`] for them, and each is kept for [`LIMIT`] at most. Nobody is refused while there is a
//! free place: all ranks of a host may call at once. When there is none, those places are the first to be taken back of which one
//! source has more than the newcomer's would have; so whoever holds many loses them to whoever holds few. Between sources with
//! equal shares, and within one, nobody is driven out before it has had [`FAIR`].

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How many are kept.
pub const PLACES: usize = 64;
/// How long one may take to prove who it is.
pub const LIMIT: Duration = Duration::from_secs(5);
/// How long one may take while others wait for its place.
pub const FAIR: Duration = Duration::from_secs(1);

/// A caller that has not proved who it is.
#[derive(Clone, Copy, Debug)]
pub struct Unproven {
    /// The endpoint's number of its connection.
    pub number: usize,
    pub at: IpAddr,
    pub since: Instant,
}

/// Where a newcomer finds its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Free,
    /// That of this caller, which is sent away.
    Of(usize),
    /// Nowhere: it is ignored, and will try again.
    None,
}

/// A place for a caller at `at`.
pub fn place(unproven: &[Unproven], at: IpAddr, now: Instant) -> Place {
    if unproven.len() < PLACES {
        return Place::Free;
    }
    let share = |at: IpAddr| unproven.iter().filter(|other| source(other.at) == source(at)).count();
    let Some(victim) = unproven.iter().min_by_key(|one| (Reverse(share(one.at)), one.since)) else {
        return Place::None;
    };
    let is_greedy = share(victim.at) > share(at) + 1;
    if is_greedy || now.duration_since(victim.since) >= FAIR { Place::Of(victim.number) } else { Place::None }
}

/// Whom a share is counted for: an IPv4 address, or the network of an IPv6 address (/64, of which a host may take any address).
fn source(at: IpAddr) -> IpAddr {
    match at.to_canonical() {
        IpAddr::V6(at) => Ipv6Addr::from_bits(at.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_from(at: impl Fn(usize) -> IpAddr, since: Instant) -> Vec<Unproven> {
        (0..PLACES).map(|number| Unproven { number, at: at(number), since }).collect()
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
        assert_eq!(place(&one_host, v4(1), now + LIMIT), Place::Free);
        assert_eq!(place(&one_host, v4(2), now + LIMIT), Place::Free);
    }

    #[test]
    fn who_holds_all_places_makes_place_for_another_source_at_once() {
        let now = Instant::now();
        let mut all = all_from(|_| v4(1), now);
        all[5].since = now.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(place(&all, v4(2), now), Place::Of(5), "the one that has had most time");
        // Its own newcomers wait until one has had a fair time.
        assert_eq!(place(&all, v4(1), now), Place::None);
        assert_eq!(place(&all, v4(1), now + FAIR), Place::Of(5));
    }

    #[test]
    fn sources_come_to_equal_shares_and_do_not_drive_each_other_out() {
        let now = Instant::now();
        let mut all = all_from(|_| v4(1), now);
        let mut moved = 0;
        while let Place::Of(number) = place(&all, v4(2), now) {
            all[number].at = v4(2);
            moved += 1;
            assert!(moved <= PLACES, "it never ends");
        }
        assert_eq!(moved, PLACES / 2);
        assert_eq!(place(&all, v4(1), now), Place::None);
        let each_its_own = all_from(v4, now);
        assert_eq!(place(&each_its_own, v4(200), now), Place::None);
        assert!(matches!(place(&each_its_own, v4(200), now + FAIR), Place::Of(_)));
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let now = Instant::now();
        let all = all_from(|number| v6(1, number), now);
        assert!(matches!(place(&all, v6(2, 0), now), Place::Of(_)));
        assert_eq!(place(&all, v6(1, 999), now), Place::None);
        assert_eq!(source("::ffff:10.0.0.1".parse().unwrap()), v4(1));
        assert_ne!(source("::ffff:10.0.0.1".parse().unwrap()), source("::ffff:10.0.0.2".parse().unwrap()));
    }
}
