//! Ranks of a job: servers 0 and 1, then the clients, then the spare nodes.

use std::ops::Range;

/// Number of servers that have data at the beginning: ranks 0 and 1.
pub const SERVERS: usize = 2;

/// Ranks that are servers now, or may become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Servers {
    size: usize,
    spares: usize,
}

impl Servers {
    /// Servers of a job of `size` ranks, of which the last ones are spares.
    pub fn of_job(size: usize, spares: usize) -> Servers {
        Servers { size, spares }
    }

    pub fn has(self, rank: usize) -> bool {
        rank < SERVERS || self.spares().contains(&rank)
    }

    /// All ranks that are servers or spares, in their order.
    pub fn all(self) -> impl Iterator<Item = usize> {
        (0..SERVERS).chain(self.spares())
    }

    pub fn spares(self) -> Range<usize> {
        self.clients().end..self.size
    }

    pub fn clients(self) -> Range<usize> {
        SERVERS..self.size.saturating_sub(self.spares).max(SERVERS)
    }
}
