//! Holdings of a rank: when all mailboxes and postboxes have gone, they must not exceed those after the first
//! round.

use std::thread;
use std::time::{Duration, Instant};

use udeck::World;
use udeck_jobs::holdings::Holdings;
use udeck_jobs::soak::plan::{Place, Plan};

/// Interval of the counts.
const PAUSE: Duration = Duration::from_millis(50);
/// Time in which others give back their share of the first round; if they take longer, a growth is reported later.
const SETTLE: Duration = Duration::from_secs(2);

pub struct RankHoldings(Holdings);

impl RankHoldings {
    /// Holdings after they have stopped changing.
    pub fn settled(plan: &Plan, world: &World) -> RankHoldings {
        let deadline = Instant::now() + SETTLE;
        let mut before = now(plan, world);
        loop {
            thread::sleep(PAUSE);
            let after = now(plan, world);
            if after == before || Instant::now() > deadline {
                return RankHoldings(after);
            }
            before = after;
        }
    }

    /// Growth of the holdings that persists, in words.
    pub fn growth(&self, plan: &Plan, world: &World, limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        loop {
            let growth = now(plan, world).growth_since(&self.0);
            if growth.is_empty() {
                return None;
            }
            if Instant::now() > deadline {
                return Some(growth);
            }
            thread::sleep(PAUSE);
        }
    }
}

fn now(plan: &Plan, world: &World) -> Holdings {
    match plan.place {
        // In one process, descriptors and mappings are shared by all ranks.
        Place::OneProcess => Holdings::of_arenas(world),
        _ => Holdings::of(world),
    }
}
