//! Tests of the suite itself.
//!
//! *Broken promises:* for each promise that a transport may silently break, a case notices; the table says which. The case
//! passes over the same NICs as long as they do not lie.
//!
//! *Permitted faults and traces:* permitted behaviour of a correct transport fails no case, and a traced NIC behaves like
//! the same NIC.

#[path = "broken/lies.rs"]
mod lies;
#[path = "broken/noticed.rs"]
mod noticed;
#[path = "broken/wrapped.rs"]
mod wrapped;

use std::process::ExitCode;

use udeck_conformance::{Case, Fabric, cases, main_of};
use udeck_faults::{Fault, PermittedFaults, Trace, When};
use wrapped::{PlainShm, PlainSim, Wrapping};

/// Cases that require silence, or one queue's news and no others. A transport may name a queue that turns out to
/// have nothing; these cases test that it does not do so without need.
const ASK_FOR_SILENCE: &[&str] = &[
    "an_empty_queue_names_nothing_until_the_deadline",
    "a_queue_is_named_until_it_is_empty",
    "room_to_send_is_named",
    "two_queues_of_one_vi_report_apart",
    "a_wait_on_three_queues_ends_at_its_deadline",
];

/// Cases whose posts are repeated while the connection is busy; in the other cases the first post must succeed.
const TRY_AGAIN: &[&str] = &[
    "room_to_send_is_named",
    "a_block_is_dropped_on_another_thread",
    "a_hoarding_receiver_does_not_starve_its_sender",
];

/// Cases that send until they learn of the end, with the number of messages that they post before. The connection may be
/// full until then.
const SEND_UNTIL_THE_END: &[(u64, &str)] = &[
    (1, "messages_outlive_the_receivers_vi"),
    (1, "messages_outlive_the_receivers_nic"),
    (10, "unread_messages_come_home_when_the_receiver_leaves"),
];

fn main() -> ExitCode {
    let (shm, sim) = (PlainShm, PlainSim::new());
    let lies = main_of(&[&shm, &sim], lies::CASES);
    let parts = [lies, with_luck(&shm, &sim), with_busy_luck(&shm, &sim), watched(&shm, &sim)];
    if parts.iter().all(|part| *part == ExitCode::SUCCESS) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the suite over NICs with spurious news. They are traced, too: one wrapper around another.
fn with_luck(shm: &dyn Fabric, sim: &dyn Fabric) -> ExitCode {
    let luck = PermittedFaults { spurious_news: When::Chance(0.2), ..PermittedFaults::default() };
    let luck = || Fault::honest(luck.clone(), 1);
    let (shm, sim) = (Wrapping::new("shm", shm, luck), Wrapping::new("sim", sim, luck));
    let fabrics: [&dyn Fabric; 2] =
        [&Wrapping::new("shm-faulty", &shm, trace), &Wrapping::new("sim-faulty", &sim, trace)];
    let chosen = cases::all().filter(|case| !ASK_FOR_SILENCE.contains(&case.name));
    main_of(&fabrics, &chosen.copied().collect::<Vec<_>>())
}

fn with_busy_luck(shm: &dyn Fabric, sim: &dyn Fabric) -> ExitCode {
    let passed = |busy: When, names: &[&str]| {
        let luck = PermittedFaults { busy, ..PermittedFaults::default() };
        let luck = || Fault::honest(luck.clone(), 1);
        let fabrics: [&dyn Fabric; 2] =
            [&Wrapping::new("shm-busy", shm, luck), &Wrapping::new("sim-busy", sim, luck)];
        main_of(&fabrics, &named(names)) == ExitCode::SUCCESS
    };
    let mut all = passed(When::Chance(0.3), TRY_AGAIN);
    for &(posted, name) in SEND_UNTIL_THE_END {
        all &= passed(When::Numbers((posted..posted + 20).collect()), &[name]);
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs over traced NICs the cases that [`with_luck`] leaves out.
fn watched(shm: &dyn Fabric, sim: &dyn Fabric) -> ExitCode {
    let fabrics: [&dyn Fabric; 2] =
        [&Wrapping::new("shm-traced", shm, trace), &Wrapping::new("sim-traced", sim, trace)];
    main_of(&fabrics, &named(ASK_FOR_SILENCE))
}

fn trace() -> Trace {
    Trace::new(|event| drop(event.to_string()))
}

fn named(names: &[&str]) -> Vec<Case> {
    let chosen: Vec<_> = cases::all().filter(|case| names.contains(&case.name)).copied().collect();
    assert_eq!(chosen.len(), names.len(), "each of {names:?} is a case");
    chosen
}
