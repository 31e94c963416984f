//! Contenders of `--layer dat`: transfers of uDAPL, and the same transfers of virtual interfaces.

use clap::ValueEnum;
use udeck::via::Caps;

use crate::{
    commands::vi::Transfer,
    experiment::{
        plan::{Plan, Quantity, Test},
        rounds::{Contend, Results},
        turn::Pattern,
    },
};

/// Layer that moves the data.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// uDAPL's endpoints.
    Dat,
    /// The virtual interfaces under them, as a program of that interface uses them.
    Vi,
}

/// Levels, in the order of the columns.
pub const APIS: [Api; 2] = [Api::Dat, Api::Vi];
/// Transfers, in the order of the tables.
pub const TRANSFERS: [Transfer; 3] = [Transfer::Send, Transfer::RdmaWrite, Transfer::RdmaRead];

/// One column of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatContender {
    /// Test that is timed.
    pub test: Test,
    /// Layer that moves the data.
    pub api: Api,
    /// Transfer that moves the data.
    pub transfer: Transfer,
}

impl DatContender {
    /// Roles of the two ranks in an iteration.
    pub fn pattern(&self) -> Pattern {
        match (self.test, self.transfer) {
            (Test::Latency, Transfer::RdmaRead) => Pattern::Read,
            (Test::Latency, _) => Pattern::PingPong,
            // The command line allows no other test here.
            (Test::Bandwidth | Test::BiBandwidth, Transfer::RdmaRead) => Pattern::ReadStream,
            (Test::Bandwidth | Test::BiBandwidth, _) => Pattern::Stream,
        }
    }
}

impl Contend for DatContender {
    fn quantity(&self) -> Quantity {
        self.test.quantity()
    }

    /// Counts one message for the latency of a read, because it has no way back.
    fn counted(&self, messages: u64) -> u64 {
        match (self.test, self.transfer) {
            (Test::Latency, Transfer::RdmaRead) => 1,
            _ => messages,
        }
    }
}

/// Whether `api` has `transfer` over a NIC with these capabilities. uDAPL always has it, because its RDMA travels in messages.
pub fn has(api: Api, transfer: Transfer, caps: Caps) -> bool {
    match (api, transfer) {
        (Api::Dat, _) | (Api::Vi, Transfer::Send) => true,
        (Api::Vi, Transfer::RdmaWrite) => caps.has(Caps::RDMA_WRITE),
        (Api::Vi, Transfer::RdmaRead) => caps.has(Caps::RDMA_READ),
    }
}

/// Empty series for all contenders.
pub fn contenders(plan: &Plan, caps: Caps) -> Results<DatContender> {
    let mut cells = Vec::new();
    for &test in &plan.tests {
        for transfer in TRANSFERS {
            for api in APIS.into_iter().filter(|&api| has(api, transfer, caps)) {
                cells.extend(plan.sizes_of(test).map(|size| (DatContender { test, api, transfer }, size)));
            }
        }
    }
    Results::empty(&plan.sizes, cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_levels_have_every_transfer_where_the_nic_has_rdma() {
        let all = contenders(&Plan::sample(), Caps::RDMA_WRITE | Caps::RDMA_READ);
        // Two sizes of latency and one of bandwidth.
        assert_eq!(all.posts.len(), 2 * 3 * (2 + 1));
        let without = contenders(&Plan::sample(), Caps::default());
        let of = |api| without.posts.iter().filter(|series| series.contender.api == api).count();
        assert_eq!((of(Api::Dat), of(Api::Vi)), (3 * 3, 3));
    }

    #[test]
    fn a_read_is_timed_to_its_end_and_a_message_one_way() {
        let of = |transfer| DatContender { test: Test::Latency, api: Api::Dat, transfer };
        assert_eq!(TRANSFERS.map(|transfer| of(transfer).counted(2)), [2, 2, 1]);
        let bandwidth = DatContender { test: Test::Bandwidth, ..of(Transfer::RdmaRead) };
        assert_eq!(bandwidth.counted(64), 64);
    }
}
