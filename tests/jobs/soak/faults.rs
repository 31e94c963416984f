//! Inflicts the plan's faults on a running job.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::{Running, netns::Network};
use rustix::process::{Pid, Signal, kill_process};

use crate::soak::facts::Fact;
use crate::soak::folder::Folder;
use crate::soak::plan::{Fault, Plan};

const PAUSE: Duration = Duration::from_millis(2);

/// An act at a certain time.
#[derive(Clone, Debug)]
enum Act {
    Kill(usize),
    Stop(usize),
    Continue(usize),
    Link { host: usize, at_switch: bool, up: bool },
    Cut(usize),
}

/// Makes the network lose packets, before the job begins. Returns how.
///
/// # Errors
/// The reason why the kernel cannot.
pub fn lose(plan: &Plan, network: &Network) -> Result<Option<&'static str>, String> {
    let mut how = None;
    for fault in &plan.faults {
        let Fault::Loss { host } = fault else { continue };
        // If the kernel cannot lose packets at random, a queue that is too short for bursts loses some of each.
        let ways: [(&str, &[&str]); 2] = [
            ("netem", &["netem", "loss", "3%"]),
            ("tbf", &["tbf", "rate", "200mbit", "burst", "16k", "limit", "64k"]),
        ];
        let works = |way: &&(&str, &[&str])| {
            let mut tc = Command::new("ip");
            tc.args(["netns", "exec", network.host(*host), "tc", "qdisc", "add", "dev", "eth0", "root"])
                .args(way.1);
            tc.output().is_ok_and(|output| output.status.success())
        };
        match ways.iter().find(works) {
            Some((name, _)) => how = Some(*name),
            None => return Err("tc has neither netem nor tbf here".into()),
        }
    }
    Ok(how)
}

/// Inflicts all faults, and then waits until the job has ended or `deadline` is near. Every stopped process is
/// continued.
pub fn inflict(plan: &Plan, folder: &Folder, network: Option<&Network>, job: &Running, deadline: Instant) {
    let is_over = || has_ended(job.pid()) || Instant::now() > deadline;
    let all_are_ready =
        || (0..plan.ranks).all(|rank| folder.is_dead(rank) || folder.facts(rank).contains(&Fact::Ready));
    while !all_are_ready() {
        if is_over() {
            return;
        }
        thread::sleep(PAUSE);
    }
    let begin = Instant::now();
    for (at, act) in timeline(plan) {
        let wait = at.saturating_sub(begin.elapsed());
        // A job may end before its fault, but a stopped rank keeps it from ending.
        let end = Instant::now() + wait;
        while Instant::now() < end && !has_ended(job.pid()) {
            thread::sleep(PAUSE.min(end.saturating_duration_since(Instant::now())));
        }
        perform(&act, plan, folder, network);
    }
    while !is_over() {
        thread::sleep(PAUSE);
    }
}

fn timeline(plan: &Plan) -> Vec<(Duration, Act)> {
    let mut acts = Vec::new();
    for fault in &plan.faults {
        match *fault {
            Fault::Kill { rank, after } => acts.push((after, Act::Kill(rank))),
            Fault::Stop { rank, after, pause } => {
                acts.push((after, Act::Stop(rank)));
                acts.push((after + pause, Act::Continue(rank)));
            }
            Fault::Blink { host, after, pause, at_switch } => {
                acts.push((after, Act::Link { host, at_switch, up: false }));
                acts.push((after + pause, Act::Link { host, at_switch, up: true }));
            }
            Fault::Cut { host, after } => acts.push((after, Act::Cut(host))),
            // Ranks inflict these by themselves, or the network does from the beginning.
            Fault::Suicide { .. } | Fault::Cramp { .. } | Fault::Famine { .. } | Fault::Loss { .. } => {}
        }
    }
    acts.sort_by_key(|(at, _)| *at);
    acts
}

fn perform(act: &Act, plan: &Plan, folder: &Folder, network: Option<&Network>) {
    match *act {
        Act::Kill(rank) => {
            signal(folder, rank, Signal::KILL);
            folder.bury(rank);
        }
        Act::Stop(rank) => signal(folder, rank, Signal::STOP),
        Act::Continue(rank) => signal(folder, rank, Signal::CONT),
        Act::Link { host, at_switch, up } => {
            let Some(network) = network else { return };
            if at_switch { network.set_port(host, up) } else { network.set_link(host, up) }
        }
        Act::Cut(host) => {
            let Some(network) = network else { return };
            network.set_port(host, false);
            (0..plan.ranks).filter(|rank| plan.host_of(*rank) == host).for_each(|rank| folder.bury(rank));
        }
    }
}

/// Sends a signal to a rank. A rank that has ended by itself is left alone, because its number may be another
/// process's.
fn signal(folder: &Folder, rank: usize, signal: Signal) {
    let facts = folder.facts(rank);
    if folder.is_dead(rank) || facts.contains(&Fact::Done) {
        return;
    }
    let number = facts.iter().find_map(|fact| match fact {
        Fact::Pid(number) => Pid::from_raw(*number),
        _ => None,
    });
    if let Some(number) = number {
        let _ = kill_process(number, signal);
    }
}

/// Whether the job's first process has ended. It was not reaped yet.
fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}
