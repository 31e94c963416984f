//! Examples, alone and as jobs.

use super::*;
use udeck_jobs::Job;

const RANKS: usize = 4;

/// Checks that the example ends well and prints something, alone and as four ranks.
fn both_ways(name: &str) -> [Ended; 2] {
    alone_and_as(RANKS, name)
}

fn alone_and_as(ranks: usize, name: &str) -> [Ended; 2] {
    let example = Bin::example(name);
    [example.alone(), example.ranks(ranks)].map(|job| {
        let ended = job.run().ok();
        assert!(!ended.stdout.trim().is_empty(), "says nothing: {ended}");
        ended
    })
}

#[test]
fn hello() {
    both_ways("hello");
}

#[test]
fn pack() {
    both_ways("pack");
}

#[test]
fn ring() {
    both_ways("ring");
}

#[test]
fn barrier() {
    both_ways("barrier");
}

#[test]
fn farm() {
    for ended in both_ways("farm") {
        ended.line_with("148933 primes");
    }
}

#[test]
fn conjugate_gradient() {
    let [_, ended] = both_ways("conjugate_gradient");
    ended.line_with("200 x 200 cells are right, on ranks [0, 1, 2, 3]");
}

/// There are many times more ranks than processors, and each meets several others.
#[test]
fn barrier_of_64() {
    let [_, ended] = alone_and_as(64, "barrier");
    ended.line_with("64 ranks passed two barriers");
}

/// The machine must provide the resources of a job of this size: processes, and some gigabytes of address space
/// each.
#[test]
#[ignore = "starts 500 processes"]
fn barrier_of_500() {
    let [_, ended] = alone_and_as(500, "barrier");
    ended.line_with("500 ranks passed two barriers");
}

/// Rank 0 hears from all of them: the test is about its descriptors and handshakes.
#[test]
#[ignore = "starts 500 processes"]
fn hello_of_500() {
    let [_, ended] = alone_and_as(500, "hello");
    ended.line_with("hello from rank 499 of 500");
}

#[test]
fn select() {
    let [alone, together] = both_ways("select");
    alone.line_with("the parts add up to 3");
    together.line_with("the parts add up to 12");
}

#[test]
fn shared_segment() {
    let [alone, together] = both_ways("shared_segment");
    alone.line_with("shared by 1 of this host");
    together.line_with("shared by 4 of this host");
}

/// Each rank has two threads.
#[test]
fn threads() {
    let [alone, together] = both_ways("threads");
    alone.line_with("2 threads add up to 1");
    together.line_with("8 threads add up to 28");
    together.line_with("2 threads in each of 4 ranks: ");
}

#[test]
fn pi() {
    for ended in both_ways("pi") {
        ended.line_with("3.14159");
    }
}

/// The job of an example: without deckrun, if it is one rank.
fn example(name: &str, ranks: usize) -> Job {
    let example = Bin::example(name);
    if ranks == 1 { example.alone() } else { example.ranks(ranks) }
}

/// Runs an example that must end well and leave a picture.
fn painted(name: &str, ranks: usize, arguments: &[&str]) -> Ended {
    let picture = std::env::temp_dir().join(format!("jobs-{name}-{ranks}-{}.png", std::process::id()));
    let ended = example(name, ranks).args(arguments).arg("--output").arg(&picture).run().ok();
    let written = std::fs::read(&picture).unwrap_or_else(|error| panic!("{error}: {ended}"));
    std::fs::remove_file(&picture).expect("it was read");
    assert!(written.starts_with(b"\x89PNG\r\n\x1a\n"), "no picture: {ended}");
    ended
}

/// The grid is cut into one strip, into strips that differ by a row, and into strips of one row each.
#[test]
fn heat2d() {
    for (ranks, size, cells) in [(1, "60", 3600), (4, "61", 3721), (7, "7", 49)] {
        let ended = painted("heat2d", ranks, &["--size", size, "--steps", "100"]);
        ended.line_with(&format!("{cells} of {cells} cells are right"));
    }
}

#[test]
fn heat2d_needs_a_row_for_each_rank() {
    let ended = Bin::example("heat2d").ranks(3).args(["--size", "2"]).run().fails();
    assert!(ended.stderr.contains("2 rows are too few for 3 ranks"), "{ended}");
}

/// The picture of 200 x 150 pixels has 4 x 3 tiles; those at two edges are smaller.
#[test]
fn mandelbrot() {
    for ranks in [1, 4] {
        let ended = painted("mandelbrot", ranks, &["--width", "200", "--limit", "300"]);
        ended.line_with("12 tiles in ");
        ended.line_with("2 tiles are the same when computed again");
        ended.line_with("the area of the set is about 1.5");
    }
}

/// The sort runs also on an odd number of ranks, and on more ranks than there are keys.
#[test]
fn sample_sort() {
    for (ranks, keys) in [(1, "100000"), (4, "100000"), (5, "99999"), (3, "2")] {
        let ended = example("sample_sort", ranks).args(["--keys", keys]).run().ok();
        ended.line_with(&format!("{keys} keys on {ranks} ranks"));
        ended.line_with("they are in order, and those of before");
    }
}

#[test]
fn allreduce_sgd() {
    for ranks in [1, 3, 4] {
        let ended = example("allreduce_sgd", ranks).args(["--weights", "100", "--steps", "100"]).run().ok();
        ended.line_with(&format!("a step on {ranks} ranks"));
        ended.line_with("and are the same on all ranks");
    }
}

/// `cargo xtask test --only engines` tests the example under mpirun.
#[test]
fn with_mpi() {
    for ended in alone_and_as(2, "with_mpi") {
        ended.line_with("Open MPI's mpirun has not started this program");
    }
}

#[test]
fn vi_pingpong() {
    for ended in alone_and_as(2, "vi_pingpong") {
        ended.line_with("WorkQueue: 1000 round trips of 4112 bytes");
        ended.line_with("CompletionQueue: 1000 round trips of 4112 bytes");
    }
}

#[test]
fn vi_rdma() {
    for ended in alone_and_as(2, "vi_rdma") {
        ended.line_with("8 pieces of 4096 bytes in place");
        ended.line_with("a stale handle gives: the remote memory is not exposed");
    }
}
