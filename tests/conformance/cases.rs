//! The cases, a file per topic. Promises that uDAPL makes, too, are in `both/`.

use crate::Case;
use crate::both::{self, Via};

/// A line of a topic's table: a function of this file, and the abilities without which it is skipped.
macro_rules! case {
    ($name:ident $(, $cap:ident)*) => {
        $crate::Case { topic: TOPIC, name: stringify!($name), needs: &[$(::udeck_via::Caps::$cap),*], run: $name }
    };
}

mod attributes;
mod callback;
mod completion;
mod connection;
mod drain;
mod errors;
mod events;
mod fence;
mod flood;
mod integrity;
mod late;
mod lent;
mod limits;
mod many;
mod memory;
mod names;
mod notify;
mod order;
mod orphans;
mod peer;
mod queues;
mod raw;
mod read;
mod readable;
mod registration;
mod reliability;
mod shared;
mod states;
mod statuses;
mod transfer;
mod user_memory;

const TOPICS: &[&[Case]] = &[
    attributes::CASES,
    connection::CASES,
    both::Ends::<Via>::CASES,
    states::CASES,
    peer::CASES,
    names::CASES,
    transfer::CASES,
    both::Transfer::<Via>::CASES,
    integrity::CASES,
    both::Integrity::<Via>::CASES,
    memory::CASES,
    both::Write::<Via>::CASES,
    read::CASES,
    both::Read::<Via>::CASES,
    readable::CASES,
    late::CASES,
    both::Late::<Via>::CASES,
    fence::CASES,
    both::Fence::<Via>::CASES,
    user_memory::CASES,
    registration::CASES,
    completion::CASES,
    both::Completion::<Via>::CASES,
    queues::CASES,
    events::CASES,
    notify::CASES,
    errors::CASES,
    callback::CASES,
    reliability::CASES,
    statuses::CASES,
    limits::CASES,
    shared::CASES,
    lent::CASES,
    raw::CASES,
    orphans::CASES,
    drain::CASES,
    order::CASES,
    both::Order::<Via>::CASES,
    flood::CASES,
    many::CASES,
];

/// All cases, simple topics first.
pub fn all() -> impl Iterator<Item = &'static Case> {
    TOPICS.iter().copied().flatten()
}
