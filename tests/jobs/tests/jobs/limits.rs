//! Ranks under limits of their process, as batch systems set them.

use udeck_jobs::{Bin, Ended, Job};

const RANK: &str = env!("CARGO_BIN_EXE_group-rank");

/// Three ranks, of which some begin with these shell commands.
fn three(limited: &str, commands: &str, arena: &str) -> Ended {
    let script = format!("case $DECK_RANK in {limited}) {commands};; esac; exec {RANK} all_reduce");
    let job = Job::new(Bin::deckrun().path()).args(["-n", "3", "--", "sh", "-c", &script]);
    let job = if arena.is_empty() { job } else { job.env("DECK_ARENA", arena) };
    job.run()
}

#[test]
fn message_memory_is_as_large_as_limits_allow() {
    for commands in ["ulimit -v 2000000", "ulimit -f 50000", "ulimit -v 3000000; ulimit -f 50000"] {
        let ended = three("*", commands, "").ok();
        (0..3).for_each(|rank| _ = ended.line_with(&format!("rank {rank}: right")));
    }
}

#[test]
fn a_limit_that_is_in_the_way_is_named() {
    for limited in ["*", "0", "2"] {
        let ended = three(limited, "ulimit -f 100", "").fails();
        assert!(ended.stderr.contains("RLIMIT_FSIZE, `ulimit -f`"), "{ended}");
        let ended = three(limited, "ulimit -v 1000000", "1G").fails();
        assert!(ended.stderr.contains("at most 1024000000 bytes of address space (RLIMIT_AS"), "{ended}");
    }
}

/// The limited rank may connect or be connected to, while all ranks live.
#[test]
fn a_rank_that_cannot_map_the_memory_of_others_is_not_lost_to_them() {
    for limited in ["0", "1", "2"] {
        let ended = three(limited, "ulimit -v 3000000", "1G").fails();
        assert!(ended.stderr.contains("at most 3072000000 bytes of address space (RLIMIT_AS"), "{ended}");
        assert!(!ended.stderr.contains("is lost"), "{ended}");
    }
}
