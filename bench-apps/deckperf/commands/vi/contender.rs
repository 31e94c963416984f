//! Contenders of `--layer vi`: transfers, ways for the receiver to notice messages, and the VIs on which messages arrive.

use clap::ValueEnum;
use udeck::via::Caps;

use crate::{
    distinct::distinct,
    experiment::{
        exchange,
        plan::{Plan, Quantity, Test},
        rounds::{Contend, Results, SMALL},
    },
};

/// Transfer that moves the data.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// Send into the descriptor that the receiver posted.
    Send,
    /// RDMA write into the receiver's window, with immediate data, which take a descriptor.
    RdmaWrite,
    /// RDMA read out of the peer's window. The peer does nothing. Measured only beside uDAPL's reads.
    RdmaRead,
}

/// Way in which the receiver notices a message.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// The receiver polls each VI in turn.
    WorkQueue,
    /// The receiver polls the completion queue, and then the VI that it names.
    #[value(name = "cq")]
    CompletionQueue,
    /// The receiver waits at the completion queue, which spins for as long as a sleep would cost.
    #[value(name = "cq-wait")]
    Wait,
    /// The receiver waits, and has fallen asleep before the message is posted.
    #[value(name = "cq-asleep")]
    Asleep,
}

/// VIs of the receiver on which messages arrive.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Each message on another VI, as if by chance: all VIs are in use.
    Spread,
    /// All messages on one VI, while the others are connected and idle: shows what idle VIs cost.
    OneBusy,
}

/// Transfers of `--layer vi`, in the order of the tables.
pub const TRANSFERS: [Transfer; 2] = [Transfer::Send, Transfer::RdmaWrite];
/// Traffics, in the order of the tables.
pub const TRAFFICS: [Traffic; 2] = [Traffic::Spread, Traffic::OneBusy];
/// Detections with which many VIs are measured, in the order of the columns: the receiver never sleeps.
pub const POLLING: [Detection; 2] = [Detection::WorkQueue, Detection::CompletionQueue];

/// Transfer, detection and number of VIs. Each setup has VIs of its own, so that none inherits another's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViSetup {
    /// Transfer that moves the data.
    pub transfer: Transfer,
    /// Way in which the receiver notices a message.
    pub detection: Detection,
    /// Number of VIs on each side.
    pub vis: usize,
}

/// One column of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViContender {
    /// Test that is timed.
    pub test: Test,
    /// Setup of the VIs.
    pub way: ViSetup,
    /// VIs on which the messages travel.
    pub traffic: Traffic,
}

impl ViContender {
    /// All messages on one VI, without further VIs beside it.
    pub fn alone(test: Test, transfer: Transfer, detection: Detection) -> Self {
        Self { test, way: ViSetup { transfer, detection, vis: 1 }, traffic: Traffic::OneBusy }
    }

    /// Round trips of sends among `vis` VIs. A single VI is busy, whatever the traffic.
    pub fn among(vis: usize, detection: Detection, traffic: Traffic) -> Self {
        match vis {
            1 => Self::alone(Test::Latency, Transfer::Send, detection),
            _ => Self {
                test: Test::Latency,
                way: ViSetup { transfer: Transfer::Send, detection, vis },
                traffic,
            },
        }
    }
}

impl Contend for ViContender {
    fn quantity(&self) -> Quantity {
        self.test.quantity()
    }
}

impl Traffic {
    /// Index, among `vis` VIs, of the VI for message `number` of its direction, in batch `batch` of the lane; both ranks
    /// compute the same.
    #[inline]
    pub fn on(self, number: u64, batch: u64, vis: usize) -> usize {
        let by_chance = |number| {
            let chance = exchange::mix(number) >> 32; // uniform below 2^32
            ((chance * vis as u64) >> 32) as usize
        };
        match self {
            Traffic::OneBusy => by_chance(batch),
            Traffic::Spread => by_chance(number),
        }
    }
}

/// Detections that are the columns of a test; the receiver never falls asleep within a window.
pub fn detections(test: Test) -> &'static [Detection] {
    match test {
        Test::Latency => Detection::value_variants(),
        Test::Bandwidth | Test::BiBandwidth => &Detection::value_variants()[..3],
    }
}

/// All setups that the plan needs, each once; both ranks compute the same.
pub fn setups(plan: &Plan, caps: Caps) -> Vec<ViSetup> {
    let mut setups = Vec::new();
    for transfer in TRANSFERS {
        // Without RDMA (`DECK_TRUST=none`), the columns of RDMA writes stay empty.
        if transfer == Transfer::RdmaWrite && !caps.has(Caps::RDMA_WRITE) {
            continue;
        }
        let latency = plan.tests.contains(&Test::Latency);
        let detections = detections(if latency { Test::Latency } else { Test::Bandwidth });
        setups.extend(detections.iter().map(|&detection| ViSetup { transfer, detection, vis: 1 }));
    }
    for (vis, detection) in among_many(plan) {
        setups.push(ViSetup { transfer: Transfer::Send, detection, vis });
    }
    setups
}

/// Setups of several VIs. The row of one VI comes from the first table, so it needs no VIs of its own.
fn among_many(plan: &Plan) -> impl Iterator<Item = (usize, Detection)> {
    let counts = plan.vi_counts.iter().copied().filter(|&vis| vis > 1);
    counts.flat_map(|vis| POLLING.map(|detection| (vis, detection)))
}

/// Empty series for all contenders.
pub fn contenders(plan: &Plan, setups: &[ViSetup]) -> Results<ViContender> {
    let mut cells = Vec::new();
    let mut sizes = plan.sizes.clone();
    for &test in &plan.tests {
        for way in setups.iter().filter(|way| way.vis == 1 && detections(test).contains(&way.detection)) {
            let contender = ViContender::alone(test, way.transfer, way.detection);
            cells.extend(plan.sizes_of(test).map(|size| (contender, size)));
        }
    }
    if !plan.vi_counts.is_empty() {
        for (traffic, detection) in
            TRAFFICS.into_iter().flat_map(|traffic| POLLING.map(|detection| (traffic, detection)))
        {
            let of = |&vis| (ViContender::among(vis, detection, traffic), SMALL);
            cells.extend(plan.vi_counts.iter().map(of));
        }
        sizes.push(SMALL);
        sizes.sort_unstable();
        sizes.dedup();
    }
    Results::empty(&sizes, distinct(cells))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_contender_has_its_way_and_every_way_a_contender() {
        for tests in [vec![Test::Latency, Test::Bandwidth], vec![Test::Latency], vec![Test::Bandwidth]] {
            let mut plan = Plan::sample();
            if !tests.contains(&Test::Latency) {
                plan.vi_counts.clear();
            }
            plan.tests = tests;
            let setups = setups(&plan, Caps::RDMA_WRITE);
            let results = contenders(&plan, &setups);
            for way in &setups {
                assert_eq!(setups.iter().filter(|other| *other == way).count(), 1, "{way:?}");
                assert!(results.posts.iter().any(|series| series.contender.way == *way), "{way:?}");
            }
            assert!(results.posts.iter().all(|series| setups.contains(&series.contender.way)));
        }
    }

    #[test]
    fn eight_bytes_are_measured_for_the_many_even_if_no_table_has_them() {
        let plan = Plan { tests: vec![Test::Latency], sizes: vec![4096], ..Plan::sample() };
        let results = contenders(&plan, &setups(&plan, Caps::RDMA_WRITE));
        // Two transfers with four detections, and two for a message on one VI, on the busy one of 10, and on any of 10.
        assert_eq!(results.posts.len(), 2 * 4 + 2 * 3);
        assert_eq!(results.raws.iter().map(|raw| raw.size).collect::<Vec<_>>(), [SMALL, 4096]);
        let with_small = Plan { sizes: vec![SMALL, 4096], ..plan };
        let results = contenders(&with_small, &setups(&with_small, Caps::RDMA_WRITE));
        assert_eq!(results.posts.len(), 2 * 2 * 4 + 2 * 2, "one VI of 8 bytes is the first table's");
    }

    #[test]
    fn both_traffics_share_their_connections_and_one_vi_has_one_traffic() {
        let plan = Plan::sample();
        let setups = setups(&plan, Caps::RDMA_WRITE);
        let results = contenders(&plan, &setups);
        let traffics = |vis| -> Vec<Traffic> {
            let polled = results.posts.iter().filter(|series| {
                series.contender.way
                    == ViSetup { transfer: Transfer::Send, detection: Detection::CompletionQueue, vis }
                    && series.contender.test == Test::Latency
                    && series.size == SMALL
            });
            polled.map(|series| series.contender.traffic).collect()
        };
        assert_eq!(traffics(1), [Traffic::OneBusy]);
        assert_eq!(traffics(10), TRAFFICS);
    }

    #[test]
    fn spread_messages_reach_every_vi_alike_and_others_only_the_busy_one() {
        for vis in [1, 2, 10, 1000] {
            let mut came = vec![0; vis];
            for number in 0..100 * vis as u64 {
                came[Traffic::Spread.on(number, 7, vis)] += 1;
                assert_eq!(Traffic::OneBusy.on(number, 7, vis), Traffic::OneBusy.on(0, 7, vis));
            }
            assert!(came.iter().all(|&messages| (50..=150).contains(&messages)), "{came:?}");
            let busy: HashSet<_> =
                (0..20 * vis as u64).map(|batch| Traffic::OneBusy.on(0, batch, vis)).collect();
            assert_eq!(busy.len(), vis, "each has its batch");
        }
    }

    #[test]
    fn without_rdma_nothing_is_written() {
        let setups = setups(&Plan::sample(), Caps::default());
        assert!(setups.iter().all(|way| way.transfer == Transfer::Send) && !setups.is_empty());
    }

    #[test]
    fn nothing_is_streamed_to_a_sleeper_and_no_empty_messages() {
        let plan = Plan::sample();
        let results = contenders(&plan, &setups(&plan, Caps::RDMA_WRITE));
        let streamed = results.posts.iter().filter(|series| series.contender.test == Test::Bandwidth);
        assert!(streamed.clone().count() > 0);
        assert!(
            streamed
                .clone()
                .all(|series| series.contender.way.detection != Detection::Asleep && series.size > 0)
        );
    }
}
