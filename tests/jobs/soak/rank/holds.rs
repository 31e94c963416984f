//! What a rank holds: it must be no more when all mailboxes and postboxes have gone than after the first round.

use std::thread;
use std::time::{Duration, Instant};

use udeck::World;
use udeck_jobs::holdings::Holdings;
use udeck_jobs::soak::plan::{Place, Plan};

/// How long it is looked at.
const PAUSE: Duration = Duration::from_millis(50);
/// What others have still to give back of the first round comes meanwhile; if it takes longer, growth is told later.
const SETTLE: Duration = Duration::from_secs(2);

pub struct Holds(Holdings);

impl Holds {
    /// What it holds when nothing changes any more.
    pub fn settled(plan: &Plan, world: &World) -> Holds {
        let deadline = Instant::now() + SETTLE;
        let mut before = now(plan, world);
        loop {
            thread::sleep(PAUSE);
            let after = now(plan, world);
            if after == before || Instant::now() > deadline {
                return Holds(after);
            }
            before = after;
        }
    }

    /// What has come on top and stays, in words.
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
        // Descriptors and mappings are everybody's there.
        Place::OneProcess => Holdings::of_arenas(world),
        _ => Holdings::of(world),
    }
}
