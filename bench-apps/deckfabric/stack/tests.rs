//! Tests of the library's jobs in virtual time.

use super::*;
use udeck_fabric::topology;

fn played(operation: Operation, ranks: usize, bytes: usize) -> StackResult {
    let network = topology::tree(4, 3).expect("a tree");
    let task = Task { operation, bytes, order: Order::Tournament, incast: IncastControl::Off };
    run_with(&task, ranks, 2, &network, &Config::default(), &ProgressBar::hidden()).expect("a job")
}

/// A job repeats exactly, whatever the order in which the system's scheduler let its threads make their connections.
#[test]
fn jobs_repeat_to_the_last_frame() {
    for (operation, ranks) in [
        (Operation::Barrier, 64),
        (Operation::AllToAll, 8),
        (Operation::AllToAll, 64),
        (Operation::Transpose, 8),
        (Operation::Transpose2d, 64),
    ] {
        let first = played(operation, ranks, 100);
        let (begin, end) = first.times.cycles;
        assert!(0 < begin && begin <= end && !first.trace.is_empty(), "{operation:?}: {begin} to {end}");
        assert!(first == played(operation, ranks, 100), "{operation:?} of {ranks}");
    }
}

/// Grants are given at virtual times, too. With control a message waits at its sender and not in the network, where
/// it would block others.
#[test]
fn an_incast_repeats_to_the_last_frame_and_control_keeps_it_out_of_the_network() {
    let network = topology::tree(4, 3).expect("a tree");
    let run = |incast, bytes| {
        let task = Task { operation: Operation::Incast, bytes, order: Order::Tournament, incast };
        run_with(&task, 64, 10, &network, &Config::default(), &ProgressBar::hidden()).expect("a job")
    };
    for bytes in [16 << 10, 160 << 10] {
        let both = [IncastControl::Off, IncastControl::Smsrp].map(|incast| {
            let (first, again) = (run(incast, bytes), run(incast, bytes));
            assert!(first == again, "{incast:?}, {bytes} bytes: two runs differ");
            first
        });
        let [off, controlled] = both.each_ref().map(|ended| ended.times.waits.expect("an incast has waits"));
        // With messages of 16 KiB, all but a window wait at the sender; with long messages, which are announced, those
        // beyond two mebibytes.
        assert!(controlled[0] < off[0], "{bytes} bytes: {controlled:?}, without control {off:?}");
        let [off, controlled] = both.each_ref().map(|ended| ended.times.cycles.1);
        assert!(
            controlled < off + off / 100,
            "{bytes} bytes: done after {controlled}, without control {off}"
        );
    }
}

/// A deadline passes in virtual time, and the error names the rank that did not come.
#[test]
fn who_waits_for_nobody_gives_up_in_virtual_time() {
    let limit = Duration::from_secs(1000);
    let begun = Instant::now();
    let ended = job::run(2, IncastControl::Off, None, &ProgressBar::hidden(), |rank| {
        rank.world.barrier()?;
        let mut said = None;
        let took = rank.timed(|| {
            if rank.world.rank() == 0 {
                said = rank.world.barrier_timeout(limit).err().map(|error| error.to_string());
            }
            Ok(())
        })?;
        // Rank 1 enters the barrier late.
        rank.world.barrier()?;
        Ok((took, said))
    });
    let results = ended.expect("a job").results;
    let (took, said) = &results[0];
    assert!(*took >= limit && begun.elapsed() < limit, "{took:?}");
    assert!(said.as_ref().is_some_and(|said| said.contains("rank 1")), "{said:?}");
    assert_eq!(results[1], (Duration::ZERO, None));
}

/// Larger messages take longer, over links that carry a flit in a cycle.
#[test]
fn the_network_decides_when_frames_arrive() {
    let of = |bytes| played(Operation::AllToAll, 8, bytes).times.cycles.1;
    let (short, long) = (of(64), of(64_000));
    // Each host receives from seven others, twice.
    assert!(long - short > 2 * 7 * 900, "{short}, {long}");
}

/// The library's barrier takes as long as its schedule: each message is a flit, and nothing computes.
#[test]
fn a_barrier_takes_what_its_schedule_takes() {
    let text = "measured = 100000\n[topology]\nkind = \"tree\"\nk = 4\nn = 3\n[collective]\noperation = \"barrier\"\nranks = 64\nlibrary = true\n";
    let scenario = crate::input::read(text, None).expect("a scenario");
    let answer = crate::dependent::run(&scenario, std::path::Path::new(""), crate::options::Format::Json);
    let answer: serde_json::Value = serde_json::from_str(&answer.expect("an answer")).expect("JSON");
    let run = &answer["runs"][0];
    let cycles = |key: &str| run[key].as_u64().expect(key);
    let (schedule, library) = (cycles("last_end_cycles"), cycles("library_last_end_cycles"));
    // The schedule's ranks begin in cycle 1.
    assert!(schedule.abs_diff(library) <= 1, "{schedule}, {library}");
}
