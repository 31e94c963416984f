//! The programs that users get, run as users run them: alone, and as jobs of several processes under `deckrun`.
//!
//! `Ended::ok` and `Ended::fails` also check that no process and no file outlives the job.

use udeck_jobs::{Bin, Ended};

#[path = "jobs/group.rs"]
mod group;
#[path = "jobs/hadb.rs"]
mod hadb;
#[path = "jobs/lost.rs"]
mod lost;
#[path = "jobs/pause.rs"]
mod pause;
#[path = "jobs/share.rs"]
mod share;
#[path = "jobs/stuck.rs"]
mod stuck;
#[path = "jobs/trace.rs"]
mod trace;

/// Once, not by each rank: a misspelt setting would be ignored in silence.
#[test]
fn a_variable_that_is_no_setting_is_named() {
    let ended = Bin::example("hello").ranks(2).env("DECK_DEADLIN", "5").run().ok();
    let words = "udeck: DECK_DEADLIN is no setting and does nothing; the nearest one is DECK_DEADLINE";
    assert_eq!(ended.stderr.matches(words).count(), 1, "{ended}");
}

mod examples {
    use super::*;
    use udeck_jobs::Job;

    const RANKS: usize = 4;

    /// Alone and as four ranks the example ends well and says something.
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

    /// Many times more ranks than processors, all of which meet several others.
    #[test]
    fn barrier_of_64() {
        let [_, ended] = alone_and_as(64, "barrier");
        ended.line_with("64 ranks passed two barriers");
    }

    /// What a job of this size takes is the machine's to give: processes, and some gigabytes of address space each.
    #[test]
    #[ignore = "starts 500 processes"]
    fn barrier_of_500() {
        let [_, ended] = alone_and_as(500, "barrier");
        ended.line_with("500 ranks passed two barriers");
    }

    /// Rank 0 hears from all of them: its descriptors and hand-shakes are what this is about.
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

    /// Two threads in each.
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

    /// Alone, if it is one rank.
    fn example(name: &str, ranks: usize) -> Job {
        let example = Bin::example(name);
        if ranks == 1 { example.alone() } else { example.ranks(ranks) }
    }

    /// An example that ends well, and leaves a picture.
    fn painted(name: &str, ranks: usize, arguments: &[&str]) -> Ended {
        let picture = std::env::temp_dir().join(format!("jobs-{name}-{ranks}-{}.png", std::process::id()));
        let ended = example(name, ranks).args(arguments).arg("--output").arg(&picture).run().ok();
        let written = std::fs::read(&picture).unwrap_or_else(|error| panic!("{error}: {ended}"));
        std::fs::remove_file(&picture).expect("it was read");
        assert!(written.starts_with(b"\x89PNG\r\n\x1a\n"), "no picture: {ended}");
        ended
    }

    /// As one strip, as strips that differ by a row, and as strips of a row each.
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

    /// 200 x 150 pixels are 4 x 3 tiles, of which those at two edges are smaller.
    #[test]
    fn mandelbrot() {
        for ranks in [1, 4] {
            let ended = painted("mandelbrot", ranks, &["--width", "200", "--limit", "300"]);
            ended.line_with("12 tiles in ");
            ended.line_with("2 tiles are the same when computed again");
            ended.line_with("the area of the set is about 1.5");
        }
    }

    /// On an odd number of ranks, too, and on more than there are keys.
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
            let ended =
                example("allreduce_sgd", ranks).args(["--weights", "100", "--steps", "100"]).run().ok();
            ended.line_with(&format!("a step on {ranks} ranks"));
            ended.line_with("and are the same on all ranks");
        }
    }

    /// What it does under mpirun is looked at by `cargo xtask test --only engines`.
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
}

mod idle {
    use super::*;

    const SECONDS: u64 = 4;

    /// A thread that spins takes as much as the machine has left for it, which is more than a tenth of a processor; if all
    /// do, they take all that there is.
    fn sleeps(ranks: usize, transport: &str, what: &[&str]) {
        let job = Bin::at(env!("CARGO_BIN_EXE_idle-rank")).ranks(ranks).arg(SECONDS.to_string());
        let ended = job.args(what).env("DECK_TRANSPORT", transport).run().ok();
        let peers = format!("with {} peers", ranks - 1);
        let lines = ended.stdout.lines().filter(|line| line.contains(&peers));
        let taken = |line: &str| line.split(' ').nth(3)?.parse::<u64>().ok();
        let taken: Vec<u64> = lines.map(|line| taken(line).expect("microseconds")).collect();
        assert_eq!(taken.len(), ranks, "{ended}");
        let (all, busiest) = (taken.iter().sum::<u64>(), taken.iter().max().copied().unwrap_or(0));
        println!("{transport} {what:?}: {ranks} ranks took {all} us of {SECONDS} s, the busiest {busiest}");
        assert!(busiest < SECONDS * 100_000, "{transport}: a rank took {busiest} us of {SECONDS} s: {ended}");
        assert!(all < SECONDS * 750_000, "{transport}: {all} us of {SECONDS} s: {ended}");
    }

    /// Neither ranks nor transports' threads have anything to do.
    #[test]
    fn connected_processes_have_no_busy_thread() {
        for transport in ["tcp", "udp", "shm"] {
            sleeps(64, transport, &[]);
        }
    }

    /// Waits look after other messages in between: they sleep in between, too.
    #[test]
    fn a_rank_whose_message_nobody_reads_has_no_busy_thread() {
        for transport in ["shm", "shm,tcp", "tcp", "udp"] {
            sleeps(3, transport, &["unread"]);
        }
    }
}

mod leave {
    use super::*;

    const RANKS: usize = 3;

    /// What ranks posted before they finished comes, whoever has to bring it and however late it is asked for.
    fn all_comes(transport: &str, protocols: &[&str]) {
        for (protocol, late) in protocols.iter().flat_map(|protocol| [(protocol, ""), (protocol, "late")]) {
            let job = Bin::at(env!("CARGO_BIN_EXE_leave-rank")).ranks(RANKS).arg(late);
            let ended = job.env("DECK_TRANSPORT", transport).env("DECK_PROTOCOL", protocol).run().ok();
            ended.line_with("24 messages came of each of 2 ranks");
        }
    }

    #[test]
    fn over_shared_memory() {
        all_comes("shm", &["auto", "eager", "copy", "rdma-write", "rdma-read", "handshake", "hand-off"]);
    }

    #[test]
    fn over_tcp() {
        all_comes("tcp", &["auto", "eager", "copy", "rdma-write", "rdma-read", "handshake"]);
    }

    #[test]
    fn over_udp() {
        all_comes("udp", &["auto", "eager", "copy", "rdma-write", "rdma-read", "handshake"]);
    }
}

mod nas_ft {
    use super::*;

    const PROTOCOLS: [&str; 7] =
        ["auto", "eager", "copy", "rdma-write", "rdma-read", "handshake", "hand-off"];

    /// Runs with these arguments, alone if on one rank.
    fn run(ranks: usize, arguments: &[&str]) -> Ended {
        let program = Bin::nas_ft();
        let job = if ranks == 1 { program.alone() } else { program.ranks(ranks) };
        job.args(arguments).run()
    }

    /// NPB's own checksums decide.
    fn verifies(ranks: usize, arguments: &[&str]) -> Ended {
        let ended = run(ranks, arguments).ok();
        assert_eq!(value(ended.line_with("Verification ")), "SUCCESSFUL", "{ended}");
        ended
    }

    /// What stands behind the `=` of a summary line.
    fn value(line: &str) -> &str {
        line.split_once('=').map_or("", |(_, value)| value.trim())
    }

    #[test]
    fn class_s_verifies_alone() {
        verifies(1, &["--class", "S"]);
    }

    #[test]
    fn class_s_verifies_on_2_ranks() {
        verifies(2, &["--class", "S"]);
    }

    #[test]
    fn class_s_verifies_on_4_ranks() {
        verifies(4, &["--class", "S"]);
    }

    #[test]
    fn class_w_verifies_on_2_ranks() {
        verifies(2, &["--class", "W"]);
    }

    /// Neither y nor z divides by six: blocks differ in length, and a rank's planes from its pencils.
    #[test]
    fn class_w_verifies_on_6_ranks() {
        verifies(6, &["--class", "W"]);
    }

    /// An array of 2 x 3: pairs exchange x for y, threes y for z.
    #[test]
    fn class_s_verifies_in_pencils_on_6_ranks() {
        let ended = verifies(6, &["--class", "S", "--layout", "pencil"]);
        ended.line_with("Processor array     :          2x  3");
    }

    #[test]
    fn a_loop_of_transforms_gives_the_input_back() {
        let ended = run(3, &["--class", "S", "--transforms", "2", "--profile"]).ok();
        ended.line_with("3 ranks, 2 rounds: forward");
        ended.line_with("memory, while all ranks copy");
    }

    #[test]
    fn every_order_verifies() {
        for order in ["triangle", "tournament", "hypercube"] {
            verifies(4, &["--class", "S", "--order", order]);
        }
        for order in ["triangle", "tournament"] {
            verifies(3, &["--class", "S", "--order", order]);
        }
    }

    #[test]
    fn every_protocol_verifies() {
        for protocol in PROTOCOLS {
            verifies(2, &["--class", "S", "--protocol", protocol]);
        }
    }

    /// A verification that nothing can fail would prove nothing.
    #[test]
    fn an_altered_alpha_is_unsuccessful() {
        let ended = run(2, &["--class", "S", "--alpha", "1.1e-6"]).fails();
        assert_eq!(value(ended.line_with("Verification ")), "UNSUCCESSFUL", "{ended}");
    }

    /// The library's own count of the payload against what the algorithm must move: per transpose all points of 16
    /// bytes but those that stay, which are those whose y and z a rank has both in planes and in pencils; there are
    /// two transposes in the starts and one in each of six iterations.
    #[test]
    fn mailboxes_carry_every_transposed_byte() {
        const EDGE: u64 = 64;
        const TRANSPOSES: u64 = 2 + 6;
        let shares: [&[u64]; 4] = [&[64], &[32, 32], &[21, 21, 22], &[16, 16, 16, 16]];
        for shares in shares {
            let ended = verifies(shares.len(), &["--class", "S"]);
            let stay: u64 = shares.iter().map(|share| share * share * EDGE).sum();
            let expected = TRANSPOSES * 16 * (EDGE.pow(3) - stay);
            let printed = value(ended.line_with("Transposed "));
            let bytes = printed.split_whitespace().next().and_then(|number| number.parse().ok());
            assert_eq!(bytes, Some(expected), "{ended}");
        }
    }

    #[test]
    fn an_order_that_cannot_serve_the_number_of_ranks_is_refused_with_the_reason() {
        let ended = run(3, &["--class", "S", "--order", "hypercube"]).fails();
        assert!(ended.stderr.contains("power of two"), "{ended}");
    }

    #[test]
    fn more_ranks_than_the_grid_has_planes_are_refused_with_the_most_it_can_take() {
        let ended = run(33, &["--class", "W", "--layout", "slab"]).fails();
        assert!(ended.stderr.contains("at most 32"), "{ended}");
    }
}

mod deckperf {
    use super::*;
    use std::collections::HashMap;

    const SIZES: [&str; 3] = ["0", "8", "65536"];
    const PROTOCOLS: [&str; 7] =
        ["copy", "eager", "rdma-write", "hand-off", "rdma-read", "handshake", "auto"];

    /// The rows of a short run, by column name. No figure is judged: tests say nothing about speed.
    fn latency(protocols: &str) -> Vec<HashMap<String, String>> {
        let sizes = SIZES.join(",");
        let job =
            Bin::deckperf().alone().args(["latency", "--format", "csv", "--time", "1", "--iterations", "20"]);
        let ended = job.args(["--no-pin", "--sizes", &sizes, "--protocol", protocols]).run().ok();
        let mut lines = ended.stdout.lines().map(|line| line.split(',').map(str::to_owned));
        let header: Vec<_> = lines.next().unwrap_or_else(|| panic!("no header: {ended}")).collect();
        let row = |cells: Vec<String>| {
            assert_eq!(cells.len(), header.len(), "{ended}");
            header.iter().cloned().zip(cells).collect()
        };
        lines.map(|cells| row(cells.collect())).collect()
    }

    #[test]
    fn csv_has_a_row_for_each_size_and_protocol() {
        let rows = latency(&PROTOCOLS.join(","));
        assert_eq!(rows.len(), SIZES.len() * PROTOCOLS.len());
        for size in SIZES {
            for protocol in PROTOCOLS {
                let matching: Vec<_> =
                    rows.iter().filter(|row| row["size"] == size && row["protocol"] == protocol).collect();
                let [row] = matching[..] else { panic!("{size} bytes by {protocol}: {matching:?}") };
                let figure: f64 = row["untouched_p50"].parse().expect("a number");
                assert!(figure > 0.0, "{row:?}");
            }
        }
    }

    /// The promise that sets the protocols apart, by the library's own count.
    #[test]
    fn hand_off_copies_nothing_and_copy_copies_twice() {
        let rows = latency("hand-off,copy");
        let copied = |protocol: &str| -> f64 {
            let row = rows.iter().find(|row| row["size"] == "65536" && row["protocol"] == protocol);
            row.expect("a row")["copied_bytes_per_message"].parse().expect("a number")
        };
        assert_eq!((copied("hand-off"), copied("copy")), (0.0, 2.0 * 65536.0));
    }

    #[test]
    fn the_vi_layer_has_a_row_for_each_transfer_look_and_number_of_vis() {
        let job = Bin::deckperf().alone().args(["latency", "--layer", "vi", "--format", "csv", "--no-pin"]);
        let ended = job.args(["--sizes", "8,4K", "--time", "1", "--iterations", "5"]).run().ok();
        let rows = |start: &str| ended.stdout.lines().filter(|line| line.starts_with(start)).count();
        // Four looks and, at 8 bytes, two ways to find the message among 10, 20, 30, 40, 100 and 1000 VIs, all of them
        // in use or all but one idle.
        let counts = ["8,send,", "8,rdma-write,", "4096,send,", "4096,rdma-write,"].map(rows);
        assert_eq!(counts, [4 + 2 * 6 * 2, 4, 4, 4], "{ended}");
    }

    /// What a comparison says by its exit status, of files that real runs wrote and of some made by hand. No figure is judged.
    #[test]
    fn compare_says_by_its_status_what_it_found() {
        let folder = std::env::temp_dir().join(format!("jobs-compare-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
        let file = |name: &str| folder.join(name).display().to_string();
        let written = |name: &str, text: &str| std::fs::write(file(name), text).expect("as above");
        let options = ["--sizes", "8,64K", "--protocol", "auto", "--no-pin", "--time", "0.2"];
        let job = Bin::deckperf().alone().args(["latency", "--format", "json", "--iterations", "5"]);
        written("real.json", &job.args(options).run().ok().stdout);
        let compared = |a: &str, b: &str| Bin::deckperf().alone().args(["compare", &file(a), &file(b)]).run();

        let same = compared("real.json", "real.json").ok();
        assert!(same.stdout.contains("Of 4 figures 0 got slower, 0 got faster"), "{same}");
        let made = |micros: &str| {
            let rounds = vec![micros; 20].join(",");
            let series = format!(
                r#"{{"test":"latency","library":"udeck","size":8,"unit":"us","better":"lower","rounds":[{rounds}]}}"#
            );
            format!(
                r#"{{"deckperf":1,"command":"messages","udeck":"1","date":"","machine":{{}},"method":[],"series":[{series}]}}"#
            )
        };
        written("one.json", &made("1.0"));
        written("slow.json", &made("1.1"));
        assert_eq!(compared("one.json", "slow.json").code(), 1);
        assert_eq!(compared("slow.json", "one.json").code(), 0);
        let other = compared("one.json", "real.json");
        assert_eq!(other.code(), 2, "{other}");
        assert!(other.stderr.contains("not comparable") && other.stderr.contains("--force"), "{other}");
        assert_eq!(compared("one.json", "missing.json").code(), 2);

        let deckperf = Bin::deckperf().path().display().to_string();
        let builds = ["compare", "--run-a", &deckperf, "--run-b", &deckperf, "--pairs", "4", "--", "latency"];
        let ended = Bin::deckperf().alone().args(builds).args(options).run();
        // Two builds that are one may differ by chance.
        assert!([0, 1].contains(&ended.code()) && ended.stdout.contains("By 4 pairs of runs"), "{ended}");
        std::fs::remove_dir_all(&folder).expect("as above");
    }

    /// A figure of ours for each row of this subcommand, by its title.
    fn compared(job: udeck_jobs::Job, command: &[&str]) -> Option<Vec<(String, f64)>> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            println!("skipped: `deckperf` compares on two processors, and this host has one");
            return None;
        }
        let ended = job.args(command).args(["--time", "1", "--format", "csv"]).run().ok();
        let ours = ended.stdout.lines().filter_map(|line| {
            let (title, rest) = line.strip_prefix('"')?.split_once("\",")?;
            let (_unit, figure) = rest.split_once(",ours,")?;
            Some((title.to_owned(), figure.split(',').next()?.parse().ok()?))
        });
        Some(ours.collect())
    }

    fn has_all_of_ours(rows: &[(String, f64)]) {
        for title in ["8 B", "64 KiB w+r, hand-off", "8 B rate", "1 MiB stream", "barrier, 8 ranks"] {
            assert!(rows.iter().any(|(row, figure)| row == title && *figure > 0.0), "{title}: {rows:?}");
        }
    }

    #[test]
    fn peers_needs_none() {
        if let Some(rows) = compared(Bin::deckperf().alone().env("PATH", "/nonexistent"), &["peers"]) {
            has_all_of_ours(&rows);
        }
    }

    /// Whatever that is on this host: it takes part, or it is said to be missing.
    #[test]
    fn peers_runs_what_is_installed() {
        if let Some(rows) = compared(Bin::deckperf().alone(), &["peers"]) {
            has_all_of_ours(&rows);
        }
    }

    #[test]
    fn peers_of_a_folder_without_any_says_what_it_looked_for() {
        let ended = Bin::deckperf().alone().args(["peers", "--peers", "/nonexistent"]).run().fails();
        for said in ["looked for /nonexistent/mpich/bin/mpirun, ", "`cargo xtask peers /nonexistent` gets"] {
            assert!(ended.stderr.contains(said), "{ended}");
        }
    }

    #[test]
    fn peers_starts_its_own_ranks() {
        let ended = Bin::deckperf().ranks(2).arg("peers").run().fails();
        assert!(ended.stderr.contains("run `deckperf peers` without deckrun"), "{ended}");
    }

    /// Each operation checks what it brings, and one that is wrong ends the run.
    #[test]
    fn collectives_has_a_row_for_each_operation_of_each_group() {
        let job = Bin::deckperf().alone().env("PATH", "/nonexistent");
        let Some(rows) = compared(job, &["collectives", "--ranks", "2,4"]) else { return };
        for operation in [
            "all-reduce 4 MiB",
            "broadcast 64 KiB",
            "broadcast 1 MiB w+r, hand-off",
            "all-to-all 1 MiB",
            "all-to-all 1 MiB w+r, hand-off",
            "barrier",
        ] {
            for ranks in [2, 4] {
                let title = format!("{operation}, {ranks} ranks");
                assert!(rows.iter().any(|(row, figure)| *row == title && *figure > 0.0), "{title}: {rows:?}");
            }
        }
        assert!(rows.iter().all(|(row, _)| !row.ends_with("8 ranks")), "{rows:?}");
    }

    #[test]
    fn collectives_starts_its_own_ranks() {
        let ended = Bin::deckperf().ranks(2).arg("collectives").run().fails();
        assert!(ended.stderr.contains("run `deckperf collectives` without deckrun"), "{ended}");
    }

    /// The rows of a short run of `cpu`, by column name.
    fn processor_time(contenders: &str) -> Option<Vec<HashMap<String, String>>> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            println!("skipped: `deckperf` measures on two processors, and this host has one");
            return None;
        }
        let job =
            Bin::deckperf().alone().args(["cpu", "--sizes", "100,4K", "--depths", "2", "--time", "0.1"]);
        let ended = job.args(["--format", "csv", "--contenders", contenders]).run().ok();
        let mut lines = ended.stdout.lines().map(|line| line.split(',').map(str::to_owned));
        let header: Vec<_> = lines.next().unwrap_or_else(|| panic!("no header: {ended}")).collect();
        Some(lines.map(|cells| header.iter().cloned().zip(cells).collect()).collect())
    }

    #[test]
    fn cpu_has_the_cost_of_both_sides_however_they_wait() {
        let Some(rows) = processor_time("udp-sockets,tcp-sockets,shm,tcp,udp,verbs") else { return };
        for contender in ["UDP sockets", "TCP sockets", "µDECK shm", "µDECK tcp", "µDECK udp", "µDECK verbs"]
        {
            for waiting in ["polling", "blocking"] {
                let loads: Vec<_> = rows
                    .iter()
                    .filter(|row| row["contender"] == contender && row["waiting"] == waiting)
                    .collect();
                assert_eq!(loads.len(), 2 + 2, "two sizes, streamed and paced: {rows:?}");
                loads.into_iter().for_each(has_cost);
            }
        }
    }

    fn has_cost(row: &HashMap<String, String>) {
        if row["contender"] == "µDECK verbs" && row["both_us"].is_empty() {
            return; // this host has no device
        }
        let figure = |name: &str| -> f64 {
            row[name].parse().unwrap_or_else(|_| panic!("{name} is no number in {row:?}"))
        };
        assert!(figure("both_us") > 0.0 && figure("messages_per_second") > 0.0, "{row:?}");
        for side in ["sender", "receiver"] {
            let [user, system] = ["user", "system"].map(|part| figure(&format!("{side}_{part}_us")));
            assert!(user >= 0.0 && system >= 0.0 && user + system > 0.0, "{row:?}");
            // All threads of a side share its core. A tick of the kernel's accounting, of a batch of 30 ms, is 13 %.
            let core = figure(&format!("{side}_core_percent"));
            assert!(core > 0.0 && core <= 115.0, "{row:?}");
        }
        assert!(row["contender"] == "UDP sockets" || row["lost"] == "0", "{row:?}");
    }

    #[test]
    fn cpu_starts_its_own_ranks() {
        let ended = Bin::deckperf().ranks(2).arg("cpu").run().fails();
        assert!(ended.stderr.contains("run `deckperf cpu` without deckrun"), "{ended}");
    }

    #[test]
    fn verify_checks_every_byte_over_every_protocol() {
        let ended = Bin::deckperf().alone().args(["verify", "--no-pin"]).run().ok();
        ended.line_with("every byte arrived as it was posted");
    }
}

mod deckrun {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};
    use udeck_jobs::{Job, Running};

    fn shells(ranks: usize, script: &str) -> Job {
        Bin::at("/bin/sh").ranks(ranks).args(["-c", script])
    }

    #[test]
    fn every_rank_runs_and_its_output_arrives() {
        let ended = shells(3, "echo here").run().ok();
        assert_eq!(ended.stdout.lines().filter(|line| line.ends_with("here")).count(), 3, "{ended}");
    }

    #[test]
    fn the_exit_status_of_a_failed_rank_is_the_jobs() {
        assert_eq!(shells(3, "exit 7").run().fails().code(), 7);
    }

    /// The other ranks would sleep for longer than the test's limit.
    #[test]
    fn a_rank_that_dies_takes_the_job_down() {
        let folder = std::env::temp_dir().join(format!("jobs-first-{}", std::process::id()));
        let script = format!("if mkdir {} 2>/dev/null; then kill -9 $$; fi; sleep 1000", folder.display());
        let ended = shells(3, &script).run();
        // Whoever made the folder was the one to die.
        std::fs::remove_dir(&folder).expect("some rank made the folder");
        ended.fails();
    }

    /// A child in the rank's group, one that left group and session, and one that has no parent any more.
    const FAMILY: &str =
        "sleep 1000 & setsid sleep 1000 & setsid sh -c 'sleep 1000 &'; echo ready of $PPID; wait";

    fn families(act: impl FnOnce(&Running)) -> Ended {
        shells(3, FAMILY).run_while(|job| {
            let _ = job.line_with("ready", 3);
            act(job);
        })
    }

    fn pid(number: u32) -> Pid {
        Pid::from_raw(number as i32).expect("a process's number")
    }

    /// The number that a user has: what `$!` is in a shell.
    #[test]
    fn killed_leaves_nothing_of_what_the_ranks_had_started() {
        let ended = families(|job| kill_process(pid(job.pid()), Signal::KILL).expect("it runs"));
        assert_eq!(ended.code(), 137, "{ended}");
        ended.clean();
    }

    /// The process whose children the ranks are.
    #[test]
    fn its_watcher_killed_leaves_nothing_either() {
        let ended = families(|job| {
            let line = job.line_with("ready of ", 1);
            let watcher: u32 = line.rsplit(' ').next().and_then(|word| word.parse().ok()).expect("a number");
            assert_ne!(watcher, job.pid(), "the ranks are children of another process");
            kill_process(pid(watcher), Signal::KILL).expect("it runs");
        });
        assert_eq!(ended.code(), 137, "{ended}");
        assert!(ended.stderr.contains("was lost (killed by SIGKILL)"), "{ended}");
        ended.clean();
    }

    /// As a shell's `kill %1` and a terminal do: both of its processes get it, and it must not count as a second one.
    #[test]
    fn a_signal_to_its_process_group_counts_once() {
        let ended =
            shells(2, "trap 'sleep 0.3; echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done")
                .run_while(|job| {
                    let _ = job.line_with("ready", 2);
                    kill_process_group(pid(job.pid()), Signal::TERM).expect("it runs");
                });
        assert_eq!(ended.code(), 143, "{ended}");
        assert_eq!(ended.stdout.matches("bye").count(), 2, "{ended}");
        assert!(!ended.stderr.contains("again"), "{ended}");
        ended.clean();
    }
}

mod stopped {
    use std::{thread, time::Duration};

    use rustix::process::{Pid, Signal, kill_process};
    use udeck_jobs::Job;

    use super::*;

    const TALKER: &str = env!("CARGO_BIN_EXE_hosts-talker");

    /// For longer than another host may be silent, as a debugger does: a process of this host is asked for, not the clock.
    fn goes_on_over(transport: &str) {
        let job = Job::new(Bin::deckrun().path());
        let options = ["-n", "3", "--transport", transport, "--detect", "2s", "--", TALKER, "ring"];
        let ended = job.args(options).run_while(|job| {
            let _ = job.line_with("ready", 3);
            let line = job.line_with("rank 1 pid ", 1);
            let number = line.split_whitespace().nth(3).and_then(|word| word.parse().ok());
            let pid = number.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no number in {line:?}"));
            kill_process(pid, Signal::STOP).expect("it runs");
            thread::sleep(Duration::from_secs(9));
            kill_process(pid, Signal::CONT).expect("it is stopped");
        });
        let ended = ended.ok();
        assert_eq!(ended.stdout.matches("is through").count(), 3, "{ended}");
    }

    #[test]
    fn a_rank_that_is_stopped_goes_on_over_udp() {
        goes_on_over("udp");
    }
}
