//! `deckperf clones`: what many clones (postboxes) of one mailbox cost its users.
//!
//! Idle clones: does it take longer to find the message of the busy one? Flooding clones: are all served alike, and how much
//! memory do they take?

mod flood;
mod idle;
mod report;

use std::thread;

use udeck::{Postbox, World};

use crate::{
    experiment::{
        places::Stage,
        plan::{Format, Pace},
        rounds::SMALL,
    },
    failure::{PerfError, Result},
    report::{Body, Report},
};

use idle::{CloneSets, IdleExperiment, contenders};

/// Default numbers of clones of the mailbox; one of them is busy.
pub const COUNTS: [u16; 4] = [1, 10, 100, 1000];

/// Default message sizes of the busy clone, in bytes.
pub const BUSY_SIZES: [usize; 1] = [SMALL];
/// Default message sizes of a flood, in bytes: the first travels inside its descriptor, the second lies in the arena.
pub const SIZES: [usize; 2] = [SMALL, 4 << 10];
/// Messages that are taken of each flooding clone, on average.
pub const EACH: usize = 200;

/// Plan of `deckperf clones`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClonesPlan {
    /// Numbers of clones, ascending.
    pub counts: Vec<usize>,
    /// Message sizes of the busy clone, ascending, in bytes.
    pub busy_sizes: Vec<usize>,
    /// Whether the busy clone also streams.
    pub stream: bool,
    /// Time and portions of the latency measurement.
    pub pace: Pace,
    /// Clones that flood the mailbox; 0: there is no flood.
    pub flooding: usize,
    /// Messages that are taken of each flooding clone, on average.
    pub each: usize,
    /// Message sizes of the flood, in bytes.
    pub sizes: Vec<usize>,
    /// Format of the report.
    pub format: Format,
    /// Whether each rank runs on a core of its own.
    pub pin: bool,
}

/// Plays one rank's part; rank 0's result is the text to print.
pub fn play(stage: &Stage<'_, '_>, plan: &ClonesPlan) -> Result<String> {
    let pair = stage.pair;
    let mut experiment = IdleExperiment { pair, sets: CloneSets::open(pair, &plan.counts)? };
    let results = stage.run(plan.pace, contenders(plan), &mut experiment)?;
    drop(experiment); // idle clones would be part of a flood's memory
    let floods = plan.sizes.iter().filter(|_| plan.flooding > 0);
    let Some(results) = results else {
        floods.copied().try_for_each(|size| flood::keep_full(pair, plan.flooding, size))?;
        return Ok(String::new());
    };
    let flood = |&size: &usize| flood::take(pair, plan.flooding, plan.each, size);
    let floods = floods.map(flood).collect::<Result<Vec<_>>>()?;
    let machine = stage.machine("");
    let receive = pair.world().config().receive.to_string();
    let tables = [
        Some(report::latencies(plan, &results)),
        plan.stream.then(|| report::streams(plan, &results)),
        (!floods.is_empty()).then(|| report::floods(&floods)),
    ];
    let report = Report {
        method: report::method(plan, &receive, &results),
        noise: results.noise(),
        command: "clones",
        series: report::series(machine.network(), &receive, &results),
        body: Body::of_tables(&tables.into_iter().flatten().collect::<Vec<_>>()),
        findings: report::findings(plan, &results),
        machine,
    };
    Ok(report.render(plan.format))
}

/// Threads that connect clones at the same time. One thread would wait for the launcher and for a thread of the peer at each clone.
const CONNECTING: usize = 16;

/// Connects `count` clones of the mailbox `name`.
fn connect(world: &World, name: &str, count: usize) -> Result<Vec<Postbox<u8>>> {
    let some = |first: usize| -> Result<Vec<Postbox<u8>>> {
        (first..count).step_by(CONNECTING).map(|_| Ok(world.postbox(name)?)).collect()
    };
    let parts = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..CONNECTING.min(count)).map(|first| scope.spawn(move || some(first))).collect();
        let ended = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|_| Err(PerfError::Internal("a thread that connects panicked".into())))
        };
        threads.into_iter().map(ended).collect::<Result<Vec<_>>>()
    })?;
    Ok(parts.into_iter().flatten().collect())
}
