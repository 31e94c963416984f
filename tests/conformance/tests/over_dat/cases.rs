//! The cases, a file per topic.

use udeck_conformance::{Case, both};

use crate::end::Dat;

/// A line of a topic's table: a function of this file. Every transport has what uDAPL needs.
macro_rules! case {
    ($name:ident) => {
        ::udeck_conformance::Case { topic: TOPIC, name: stringify!($name), needs: &[], run: $name }
    };
}

mod connection;
mod events;
mod flood;
mod limits;
mod many;
mod memory;
mod names;
mod order;
mod orphans;
mod states;
mod statuses;
mod unposted;

const TOPICS: &[&[Case]] = &[
    connection::CASES,
    both::Ends::<Dat>::CASES,
    states::CASES,
    names::CASES,
    both::Transfer::<Dat>::CASES,
    both::Integrity::<Dat>::CASES,
    both::Write::<Dat>::CASES,
    both::Read::<Dat>::CASES,
    memory::CASES,
    both::Late::<Dat>::CASES,
    both::Fence::<Dat>::CASES,
    both::Completion::<Dat>::CASES,
    both::Order::<Dat>::CASES,
    order::CASES,
    events::CASES,
    statuses::CASES,
    unposted::CASES,
    limits::CASES,
    orphans::CASES,
    flood::CASES,
    many::CASES,
];

/// All cases, simple topics first.
pub fn all() -> Vec<Case> {
    TOPICS.iter().copied().flatten().copied().collect()
}
