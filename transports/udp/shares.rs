//! Who has how much of what there is a bounded number of places for. Where there are none left, whoever has most gives way: a
//! flood from one caller keeps no other out.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use udeck_via::auth::Pair;

/// Who has it: what a caller has proved to be, because it can be only one. Of who proves no rank, the address, which it has
/// proved to receive at; of IPv6 the network, because a host may have all of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    Rank(u32),
    Address(IpAddr),
}

impl Origin {
    pub fn of(from: SocketAddr, pair: &Pair) -> Self {
        match (pair.caller(), from.ip()) {
            (Some(rank), _) => Origin::Rank(rank),
            (None, IpAddr::V4(ip)) => Origin::Address(ip.into()),
            (None, IpAddr::V6(ip)) => Origin::Address(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into()),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Shares {
    of: HashMap<Origin, usize>,
    ranked: BTreeSet<(usize, Origin)>,
}

impl Shares {
    pub fn add(&mut self, origin: Origin) {
        let now = self.of(origin) + 1;
        self.set(origin, now);
    }

    pub fn remove(&mut self, origin: Origin) {
        let now = self.of(origin).saturating_sub(1);
        self.set(origin, now);
    }

    /// How much it has.
    pub fn of(&self, origin: Origin) -> usize {
        self.of.get(&origin).copied().unwrap_or(0)
    }

    /// Who has most, if anybody has anything.
    pub fn largest(&self) -> Option<Origin> {
        self.ranked.last().map(|(_, origin)| *origin)
    }

    fn set(&mut self, origin: Origin, now: usize) {
        let before = if now == 0 { self.of.remove(&origin) } else { self.of.insert(origin, now) };
        if let Some(before) = before {
            self.ranked.remove(&(before, origin));
        }
        if now > 0 {
            self.ranked.insert((now, origin));
        }
    }
}

#[cfg(test)]
mod tests {
    use udeck_via::auth::Keys;

    use super::*;

    #[test]
    fn whoever_has_most_is_known() {
        let mut shares = Shares::default();
        let [a, b] = [Origin::Rank(1), Origin::Rank(2)];
        assert_eq!(shares.largest(), None);
        [a, b, b].into_iter().for_each(|origin| shares.add(origin));
        assert_eq!((shares.largest(), shares.of(a), shares.of(b)), (Some(b), 1, 2));
        [b, b, b].into_iter().for_each(|origin| shares.remove(origin));
        assert_eq!((shares.largest(), shares.of(a), shares.of(b)), (Some(a), 1, 0));
        shares.remove(a);
        assert_eq!(shares.largest(), None);
        assert!(shares.of.is_empty() && shares.ranked.is_empty());
    }

    #[test]
    fn who_proves_no_rank_is_where_it_calls_from() {
        let pair = Keys::from([1; 32]).call(None).unwrap();
        let of = |address: &str| Origin::of(address.parse().unwrap(), &pair);
        assert_eq!(of("10.0.0.1:5"), of("10.0.0.1:6"));
        assert_ne!(of("10.0.0.1:5"), of("10.0.0.2:5"));
        assert_eq!(of("[2001:db8::1]:5"), of("[2001:db8::ffff:0:0:2]:5"));
        assert_ne!(of("[2001:db8::1]:5"), of("[2001:db8:0:1::1]:5"));
    }
}
