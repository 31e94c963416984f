//! The cases, a file per topic.

use crate::Case;

/// A line of a topic's table: a function of this file, and the abilities without which it is skipped.
macro_rules! case {
    ($name:ident $(, $cap:ident)*) => {
        $crate::Case { topic: TOPIC, name: stringify!($name), needs: &[$(::udeck_via::Caps::$cap),*], run: $name }
    };
}

mod attributes;
mod completion;
mod connection;
mod errors;
mod flood;
mod lent;
mod limits;
mod many;
mod memory;
mod order;
mod peer;
mod raw;
mod read;
mod reliability;
mod transfer;

const TOPICS: &[&[Case]] = &[
    attributes::CASES,
    connection::CASES,
    peer::CASES,
    transfer::CASES,
    memory::CASES,
    read::CASES,
    completion::CASES,
    errors::CASES,
    reliability::CASES,
    limits::CASES,
    lent::CASES,
    raw::CASES,
    order::CASES,
    flood::CASES,
    many::CASES,
];

/// All cases, simple topics first.
pub fn all() -> impl Iterator<Item = &'static Case> {
    TOPICS.iter().copied().flatten()
}
