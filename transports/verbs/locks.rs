//! Order of this transport's locks. Debug builds check it ([`udeck_sys::ranked`]).
//!
//! The thread that takes completions holds `POLLING`, and passes them on to links. A link that ends drops its queue
//! pair under its own lock, which gives back its share of a completion queue, its buffers and its route: so these
//! locks come last. A program's owners of memory, which may run any code when dropped, are dropped without any of
//! these locks.

use udeck_sys::ranked::Rank;

const fn rank(number: u16, name: &'static str) -> Rank {
    Rank { number, name }
}

pub const POLLING: Rank = rank(10, "the taking of completions");
pub const LINK: Rank = rank(20, "a link");
pub const SHARDS: Rank = rank(30, "the shares of completion queues");
pub const ROUTES: Rank = rank(40, "the routes of completions");
pub const POOLS: Rank = rank(50, "the table of pools");
pub const ASIDE: Rank = rank(60, "completions set aside");
pub const RECYCLED: Rank = rank(70, "a pool's recycled buffers");
