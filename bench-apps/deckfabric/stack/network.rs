//! Network of simulated NICs: sends their frames as messages of the simulated network, whose switches determine when
//! they arrive.

use std::{collections::VecDeque, time::Duration};

use udeck_fabric::{
    config::Config,
    engine::{CannotRun, Engine},
    topology,
    workload::{Actions, Post, Workload},
};

/// Bytes of a flit.
pub const FLIT: usize = 64;
/// Bytes of a frame's header and checksum: those of InfiniBand within a subnet (LRH, BTH, two CRCs).
const HEADER: usize = 26;
/// Picoseconds in which a link carries a flit: 64 bytes at 100 Gb/s. NICs count in nanoseconds, which would be too
/// coarse.
const CYCLE: u128 = 5120;

/// Workload whose messages are posted from outside the engine.
#[derive(Default)]
struct Frames {
    arrived: VecDeque<u32>,
}

impl Workload for Frames {
    fn classes(&self) -> Vec<String> {
        vec!["frames".into()]
    }

    fn begin(&mut self, _: &mut Actions) {}

    fn timer(&mut self, _: u64, _: u32, _: &mut Actions) {}

    fn delivered(&mut self, _: u64, token: u32, _: &mut Actions) {
        self.arrived.push_back(token);
    }
}

/// A simulated network, with rank n on host n.
pub struct Switches {
    engine: Engine<'static, Frames>,
}

impl Switches {
    /// # Errors
    /// The errors of [`Engine::new`].
    pub fn new(network: &'static topology::Network, config: &Config) -> Result<Self, CannotRun> {
        Ok(Self { engine: Engine::new(network, config, Frames::default())? })
    }
}

/// Number of the cycle in progress at a time.
pub fn cycle(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() * 1000 / CYCLE).unwrap_or(u64::MAX)
}

/// Beginning of a cycle, rounded up to nanoseconds: `cycle(time(n))` is n.
fn time(cycle: u64) -> Duration {
    Duration::from_nanos(u64::try_from((u128::from(cycle) * CYCLE).div_ceil(1000)).unwrap_or(u64::MAX))
}

/// Number of flits of a frame that has `bytes` after its header.
pub fn flits(bytes: usize) -> u32 {
    u32::try_from((HEADER + bytes).div_ceil(FLIT)).unwrap_or(u32::MAX)
}

impl udeck_sim::Network for Switches {
    fn send(&mut self, now: Duration, frame: u64, from: usize, to: usize, bytes: usize) {
        let token = u32::try_from(frame).expect("fewer than four billion frames");
        let (from, to) = (from as u32, to as u32);
        let post = Post { from, to, flits: flits(bytes), level: 0, class: 0, token };
        let until = cycle(now);
        if until > self.engine.now() {
            // No frame arrives before this cycle: the fabric would have called `next` for it.
            self.engine.run_until(until).expect("nothing else posts");
        }
        self.engine.post_now(post).expect("a host for each rank");
    }

    fn next(&mut self, until: Option<Duration>) -> Option<(Duration, u64)> {
        let played = self.engine.run_until_enough(until.map(cycle), |frames| !frames.arrived.is_empty());
        played.expect("nothing else posts");
        let token = self.engine.workload_mut().arrived.pop_front()?;
        Some((time(self.engine.now()), u64::from(token)))
    }
}
