//! deckperf as users run it: each command has the promised rows and exit status.

use super::*;
use std::collections::HashMap;

const SIZES: [&str; 3] = ["0", "8", "65536"];
const PROTOCOLS: [&str; 7] = ["copy", "eager", "rdma-write", "hand-off", "rdma-read", "handshake", "auto"];

/// Rows of a short run, by column name. No figure is judged: tests say nothing about speed.
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

/// The promise that distinguishes the protocols, by the library's own count.
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
    // There are four polls and, at 8 bytes, two ways to find the message among 10, 20, 30, 40, 100 and 1000 VIs,
    // all of them in use or all but one idle.
    let counts = ["8,send,", "8,rdma-write,", "4096,send,", "4096,rdma-write,"].map(rows);
    assert_eq!(counts, [4 + 2 * 6 * 2, 4, 4, 4], "{ended}");
}

/// The test runs over transports whose ranks are processes. No figure is judged.
#[test]
fn udapl_is_measured_and_verified_over_each_transport() {
    for transport in ["shm", "tcp", "udp"] {
        let common = ["--layer", "dat", "--transport", transport, "--no-pin", "--sizes", "8,64K"];
        let job = Bin::deckperf().alone().args(["--format", "csv", "--time", "1", "--iterations", "3"]);
        let ended = job.args(["--window", "8"]).args(common).run().ok();
        let rows = |start: &str| ended.stdout.lines().filter(|line| line.starts_with(start)).count();
        // There are latency and bandwidth at two levels.
        for start in [
            "8,send,",
            "8,rdma-write,",
            "8,rdma-read,",
            "65536,send,",
            "65536,rdma-write,",
            "65536,rdma-read,",
        ] {
            assert_eq!(rows(start), 4, "{transport}, {start}: {ended}");
        }
        let verified = Bin::deckperf().alone().args(["verify", "--perturb", "1"]).args(common).run().ok();
        assert!(
            verified.stdout.contains("6 sizes by send/receive, RDMA write and RDMA read, both ways"),
            "{verified}"
        );
    }
}

/// The jobs are real, and `nas-ft` lies beside `deckperf`. No figure is judged.
#[test]
fn ft_has_a_row_for_each_number_of_ranks_and_a_column_for_each_way() {
    let job = Bin::deckperf().alone().args(["ft", "--class", "S", "--ranks", "2", "--transport", "shm"]);
    let ended = job.args(["--time", "0.1", "--format", "csv"]).run().ok();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let ["ranks,shm/auto,shm/handshake", alone, two] = lines[..] else { panic!("{ended}") };
    assert!(alone.starts_with("1,") && two.starts_with("2,"), "{ended}");
    assert!(two.split(',').skip(1).all(|cell| cell.parse::<f64>().is_ok_and(|ratio| ratio > 0.0)), "{ended}");
}

/// Exit statuses of a comparison, for files that real runs wrote and some made by hand. No figure is judged.
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
    // Two builds from one source may differ by chance.
    assert!([0, 1].contains(&ended.code()) && ended.stdout.contains("By 4 pairs of runs"), "{ended}");
    std::fs::remove_dir_all(&folder).expect("as above");
}

/// Figures of this library for each row of the subcommand, by the row's title.
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

/// Peer libraries of this host take part, or are reported as missing.
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

/// Each operation checks its result, and a wrong one ends the run.
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

/// Rows of a short run of `cpu`, by column name.
fn processor_time(contenders: &str) -> Option<Vec<HashMap<String, String>>> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("skipped: `deckperf` measures on two processors, and this host has one");
        return None;
    }
    let job = Bin::deckperf().alone().args(["cpu", "--sizes", "100,4K", "--depths", "2", "--time", "0.1"]);
    let ended = job.args(["--format", "csv", "--contenders", contenders]).run().ok();
    let mut lines = ended.stdout.lines().map(|line| line.split(',').map(str::to_owned));
    let header: Vec<_> = lines.next().unwrap_or_else(|| panic!("no header: {ended}")).collect();
    Some(lines.map(|cells| header.iter().cloned().zip(cells).collect()).collect())
}

#[test]
fn cpu_has_the_cost_of_both_sides_however_they_wait() {
    let Some(rows) = processor_time("udp-sockets,tcp-sockets,shm,tcp,udp,verbs,dat-shm,dat-tcp,dat-udp")
    else {
        return;
    };
    let mailboxes = ["µDECK shm", "µDECK tcp", "µDECK udp", "µDECK verbs"];
    let others = ["UDP sockets", "TCP sockets", "uDAPL shm", "uDAPL tcp", "uDAPL udp"];
    for contender in mailboxes.into_iter().chain(others) {
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
        // All threads of a side share its core, and other programs can only lower the figure. Two clocks differ a little.
        let core = figure(&format!("{side}_core_percent"));
        assert!(core > 0.0 && core <= 105.0, "{row:?}");
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
