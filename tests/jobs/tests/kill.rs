//! Processes killed in the middle of their work, at every named point of the library.
//!
//! [`plan`] lists the kills. For each role and protocol one process survives all of them, in one world, so that
//! anything a dead peer leaves behind shows as growth. [`pairs`] has fewer kills, each at a significant moment, and
//! specifies exactly what is delivered and what comes back.

#[path = "kill/job.rs"]
mod job;
#[path = "kill/pairs.rs"]
mod pairs;
#[path = "kill/plan.rs"]
mod plan;
#[path = "kill/whole_jobs.rs"]
mod whole_jobs;

use job::{InProcessJob, Rank};
use plan::Kill;
use std::{
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};
use udeck::Protocol;
use udeck_jobs::traffic::Role;

const SURVIVOR: &str = env!("CARGO_BIN_EXE_kill-survivor");
const VICTIM: &str = env!("CARGO_BIN_EXE_kill-victim");
const SIGKILL: i32 = 9;

/// Kills one process after the other in this role, and checks the survivor's output about each.
fn outlives_all(role: Role, protocol: Protocol) {
    let kills = plan::kills(role, protocol);
    let mut job = InProcessJob::new(1 + kills.len());
    let args = [role.to_string(), protocol.to_string()];
    let mut survivor = job.start(SURVIVOR, &args, None);
    survivor.says("ready").expect("the survivor starts");
    let mut slowest = Duration::ZERO;
    for (rank, kill) in (1..).zip(&kills) {
        let took = kill_one(&mut job, &survivor, rank, &args, *kill)
            .unwrap_or_else(|why| panic!("rank {rank}, which {role} by {protocol}, {kill:?}: {why}"));
        slowest = slowest.max(took);
    }
    let status = survivor.wait().expect("the survivor ends");
    assert!(status.success(), "the survivor: {status}");
    println!("{} killed while {protocol} {role}: noticed within {slowest:.1?}", kills.len());
}

/// Returns the time from the victim's end to the survivor's report that it knew.
fn kill_one(
    job: &mut InProcessJob,
    survivor: &Rank,
    rank: usize,
    args: &[String],
    kill: Kill,
) -> Result<Duration, String> {
    let mut victim = job.start(VICTIM, args, Some(format!("{}:{}", kill.point, kill.passage)));
    let status = victim.wait()?;
    if status.signal() != Some(SIGKILL) {
        return Err(format!("was not killed there: {status}"));
    }
    let died = Instant::now();
    // The launcher's news is one way to learn of the death; every other time the connection itself must tell.
    let told_at_once = rank.is_multiple_of(2);
    if told_at_once {
        job.report(rank);
    }
    survivor.says(&format!("lost {rank}"))?;
    let took = died.elapsed();
    if !told_at_once {
        job.report(rank);
    }
    survivor.says(&format!("clean {rank}"))?;
    Ok(took)
}

mod poster_dies {
    use super::*;

    #[test]
    fn eager() {
        outlives_all(Role::Posts, Protocol::Eager);
    }

    #[test]
    fn copy() {
        outlives_all(Role::Posts, Protocol::Copy);
    }

    #[test]
    fn rdma_write() {
        outlives_all(Role::Posts, Protocol::RdmaWrite);
    }

    #[test]
    fn rdma_read() {
        outlives_all(Role::Posts, Protocol::RdmaRead);
    }

    #[test]
    fn handshake() {
        outlives_all(Role::Posts, Protocol::Handshake);
    }

    #[test]
    fn hand_off() {
        outlives_all(Role::Posts, Protocol::HandOff);
    }
}

mod retriever_dies {
    use super::*;

    #[test]
    fn eager() {
        outlives_all(Role::Retrieves, Protocol::Eager);
    }

    #[test]
    fn copy() {
        outlives_all(Role::Retrieves, Protocol::Copy);
    }

    #[test]
    fn rdma_write() {
        outlives_all(Role::Retrieves, Protocol::RdmaWrite);
    }

    #[test]
    fn rdma_read() {
        outlives_all(Role::Retrieves, Protocol::RdmaRead);
    }

    #[test]
    fn handshake() {
        outlives_all(Role::Retrieves, Protocol::Handshake);
    }

    #[test]
    fn hand_off() {
        outlives_all(Role::Retrieves, Protocol::HandOff);
    }
}
