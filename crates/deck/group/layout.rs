//! Members of a group, the hosts that they share, and the settings that all members have to agree on.

use std::collections::BTreeMap;

use udeck_boot::Welcome;

use super::choice::Algorithm;
use super::plan::Plan;

/// The members of a group as one of them sees it, numbered from 0.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Ranks in the world, by member.
    pub ranks: Vec<usize>,
    /// Number of this member.
    pub me: usize,
    /// Members by their rank in the world.
    members: BTreeMap<usize, usize>,
    /// Members by host: each host's in ascending order, the hosts in the order of their first members.
    pub hosts: Vec<Vec<usize>>,
    /// Index of each member's host in `hosts`.
    host_of: Vec<usize>,
    pub agreed: Agreed,
}

/// Settings that must be the same at all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// Whether a host has more ranks than processors, so that members take turns.
    pub oversubscribed: bool,
    /// The algorithm that is forced (`DECK_GROUP`).
    pub forced: Option<Algorithm>,
}

impl Layout {
    /// Makes a layout. `ranks` are ranks in the world, in the order of the members; `me` is an index of it.
    pub fn new(ranks: Vec<usize>, me: usize, welcome: &Welcome, agreed: Agreed) -> Self {
        let members: BTreeMap<usize, usize> =
            ranks.iter().enumerate().map(|(member, rank)| (*rank, member)).collect();
        let mut hosts: Vec<(usize, Vec<usize>)> = Vec::new();
        let mut host_of = Vec::with_capacity(ranks.len());
        for (member, rank) in ranks.iter().enumerate() {
            let host = welcome.placement.host_of(*rank as u32).unwrap_or(usize::MAX);
            let known = hosts.iter().position(|(known, _)| *known == host);
            let place = known.unwrap_or_else(|| {
                hosts.push((host, Vec::new()));
                hosts.len() - 1
            });
            hosts[place].1.push(member);
            host_of.push(place);
        }
        let hosts = hosts.into_iter().map(|(_, members)| members).collect();
        Layout { ranks, me, members, hosts, host_of, agreed }
    }

    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The member with this rank in the world.
    #[inline]
    pub fn member_of(&self, rank: usize) -> Option<usize> {
        // Most groups are the world, where both are equal.
        if self.ranks.get(rank) == Some(&rank) { Some(rank) } else { self.members.get(&rank).copied() }
    }

    pub fn is_on_one_host(&self) -> bool {
        self.hosts.len() == 1
    }

    /// Whether there are several hosts, some with several members: then one message between hosts may serve
    /// many members.
    pub fn has_shared_hosts(&self) -> bool {
        self.hosts.len() > 1 && self.hosts.len() < self.size()
    }

    /// The members of this member's host.
    pub fn neighbours(&self) -> &[usize] {
        &self.hosts[self.host_of[self.me]]
    }

    /// Index of a member's host in [`Layout::hosts`].
    pub fn host_of(&self, member: usize) -> usize {
        self.host_of[member]
    }

    /// The messages of a barrier.
    pub fn plan(&self) -> Plan {
        Plan::best(self.size(), self.agreed.oversubscribed)
    }

    /// The team of all members.
    pub fn everybody(&self) -> Team<'_> {
        Team { members: None, me: self.me, size: self.size() }
    }

    /// The team of some members; `None` if this member is not among them.
    pub fn team<'a>(&self, members: &'a [usize]) -> Option<Team<'a>> {
        let me = members.iter().position(|member| *member == self.me)?;
        Some(Team::new(members, me))
    }
}

/// The members that take part in one step of an algorithm. An algorithm numbers them by their places here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Team<'a> {
    /// Members by place; `None`: all members, each at the place of its number.
    members: Option<&'a [usize]>,
    /// This member's place.
    pub me: usize,
    pub size: usize,
}

impl<'a> Team<'a> {
    /// The team of these members, as seen by the one at place `me`.
    pub fn new(members: &'a [usize], me: usize) -> Self {
        Team { members: Some(members), me, size: members.len() }
    }

    /// The member at a place.
    #[inline]
    pub fn member(&self, place: usize) -> usize {
        self.members.map_or(place, |members| members[place])
    }

    /// The place of a member.
    pub fn place_of(&self, member: usize) -> Option<usize> {
        match self.members {
            None => Some(member),
            Some(members) => members.iter().position(|known| *known == member),
        }
    }

    /// The places of the others, beginning behind this one, so that members do not all begin with the same
    /// one.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let (me, size) = (self.me, self.size);
        (1..size).map(move |distance| (me + distance) % size)
    }
}

impl Agreed {
    pub fn encode(self) -> [u8; 2] {
        [u8::from(self.oversubscribed), self.forced.map_or(0, Algorithm::code)]
    }

    pub fn decode(bytes: &[u8]) -> Option<Agreed> {
        let &[oversubscribed @ 0..=1, forced] = bytes else { return None };
        let forced = if forced == 0 { None } else { Some(Algorithm::of_code(forced)?) };
        Some(Agreed { oversubscribed: oversubscribed == 1, forced })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_agreed_is_what_was_said() {
        let all = Algorithm::ALL.into_iter().map(Some).chain([None]);
        for (forced, oversubscribed) in all.flat_map(|forced| [(forced, true), (forced, false)]) {
            let agreed = Agreed { oversubscribed, forced };
            assert_eq!(Agreed::decode(&agreed.encode()), Some(agreed));
        }
        for nonsense in [&[][..], &[0], &[2, 0], &[0, 200], &[0, 0, 0]] {
            assert_eq!(Agreed::decode(nonsense), None);
        }
    }
}
