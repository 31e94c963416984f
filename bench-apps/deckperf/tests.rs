//! Tests of complete measurements, by ranks that are threads of a test.

use super::*;
use crate::report::{aligned, data};

/// Runs a command line on two ranks that are threads of this test; returns rank 0's output, or its error.
fn run(line: &'static str) -> String {
    run_of(2, line)
}

fn run_of(ranks: usize, line: &'static str) -> String {
    let (found, printed) = std::sync::mpsc::channel();
    udeck::run_local(ranks, move |world| {
        let task = Cli::try_parse_from(line.split(' ')).and_then(Cli::task).expect(line);
        let leads = world.rank() == 0;
        let text = play(&world, &task, &[]).and_then(|printed| printed).expect(line);
        world.finish()?;
        if leads {
            found.send(text).expect("the test waits for it");
        }
        Ok(())
    })
    .expect(line);
    printed.recv().expect("rank 0 printed")
}

#[test]
fn two_ranks_verify() {
    let text = run("deckperf verify --no-pin --sizes 0,8,4K");
    // Each of 0, 8 and 4096 with offsets up to three makes 18 sizes; 64 messages each way.
    let bytes = 128 * 7 * ((0..4).sum::<u64>() + (5..12).sum::<u64>() + (4093..4100).sum::<u64>());
    let start = format!("verified {} messages, {bytes} bytes", 18 * 7 * 128);
    assert!(text.starts_with(&start), "{text}, not {start}");
}

#[test]
fn two_ranks_measure_exactly_what_was_asked_for() {
    let text =
        run("deckperf latency --no-pin --sizes 8,4K --protocol rdma-write --iterations 2 --time 0.01 \
         --format csv");
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.lines().nth(2).is_some_and(|row| row.starts_with("4096,rdma-write,latency,us,")), "{text}");
}

#[test]
fn a_handicap_is_said() {
    let text = run("deckperf --no-pin --sizes 8 --protocol auto --iterations 20 --time 0.01 --handicap 50 \
         --format json");
    assert!(text.contains("handicap: rank 0 stands still for 50 % of the time"), "{text}");
}

#[test]
fn two_ranks_explain() {
    let text = run("deckperf --explain --no-pin --sizes 40,41");
    for line in ["# receive model  cq (DECK_RECEIVE)", "hand-off=41,rdma-write=4194304,rdma-read=never"] {
        assert!(text.contains(line), "{line:?} is missing in {text}");
    }
    let text = text.replace(&format!("\n{}", " ".repeat(24)), " ");
    let rows: Vec<&str> = text.lines().rev().take(2).collect();
    assert!(rows[1].contains("40  eager ") && rows[1].contains("hand-off begins at 41 bytes"), "{text}");
    assert!(rows[0].contains("41  hand-off "), "{text}");
}

/// Renders every command's report, with its longest names and all of its columns.
#[test]
fn reports_fit_eighty_columns() {
    let all = "copy,eager,rdma-write,hand-off,rdma-read,handshake,auto";
    for (ranks, command) in [
        (2, format!("latency --sizes 8,1M --iterations 2 --protocol {all}")),
        (2, format!("--stats --sizes 8 --iterations 2 --protocol {all}")),
        (2, "latency --percentiles --sizes 1M --iterations 2".to_owned()),
        (2, "--explain".to_owned()),
        (2, "overlap --sizes 4M --iterations 1".to_owned()),
        (2, "clones --sizes 4K --clones 1,20 --stream --flooding 20 --iterations 2".to_owned()),
        (2, "costs --ranks 0 --connections 30".to_owned()),
        (2, "registration --sizes 4K,1M --iterations 2".to_owned()),
        (2, "--layer dat --sizes 8,70000 --iterations 2".to_owned()),
        (4, "multi-pair --pairs 1,2 --sizes 1M --iterations 1".to_owned()),
        (4, "matrix --iterations 1".to_owned()),
        (4, "incast --ranks 2,4 --sizes 4K --iterations 20".to_owned()),
    ] {
        let time = if command == "--explain" { "" } else { " --time 0.01" };
        let line = format!("deckperf {command} --no-pin{time}");
        let text = run_of(ranks, line.clone().leak());
        let long: Vec<&str> = text.lines().filter(|line| line.chars().count() > aligned::WIDTH).collect();
        assert!(long.is_empty(), "{line}: {long:#?}");
    }
}

#[test]
fn two_ranks_stream() {
    let text =
        run("deckperf bandwidth --no-pin --sizes 8,5000 --protocol copy,auto --iterations 2 --time 0.01 \
         --window 5");
    assert!(
        text.contains("# Bandwidth (MB/s), written+read\n# Size          copy        auto\n8 "),
        "{text}"
    );
    assert!(!text.contains("Latency"), "{text}");
}

#[test]
fn two_ranks_measure_off_cache() {
    for test in ["latency", "bandwidth --window 8", "latency --percentiles"] {
        for protocols in ["copy,eager,rdma-write,hand-off", "rdma-read,handshake,auto"] {
            // 1 MiB gives more messages than a pool has buffers.
            let line = format!(
                "deckperf {test} --off-cache --no-pin --sizes 8,100,1M --payload written+read --protocol {protocols} --iterations 6 --time \
                 0.01"
            );
            let text = run(line.leak()).replace("\n#          ", " ");
            assert!(text.contains("off-cache: the sender takes 1024 buffers of 8,"), "{text}");
            assert!(text.contains("still in the caches: 8, 100"), "{text}");
        }
    }
    assert!(!run("deckperf latency --no-pin --sizes 8 --iterations 2 --time 0.01").contains("off-cache"));
    for option in ["--off-cache", "--off-cache --percentiles"] {
        let line =
            format!("deckperf latency {option} --no-pin --sizes 8 --iterations 2 --time 0.01 --format json");
        let value: serde_json::Value = serde_json::from_str(&run(line.leak())).expect("valid JSON");
        assert_eq!(value["machine"]["memory"], "off-cache");
    }
}

#[test]
fn two_ranks_stream_both_ways() {
    // The window of large messages does not fit into any queue: both ranks would wait for room at once.
    let text = run(
        "deckperf bibandwidth --no-pin --sizes 8,256K --iterations 2 --time 0.01 --window 64 --format csv",
    );
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 1 + 2 * 4, "{text}");
    assert!(rows[1].starts_with("8,copy,bibandwidth,MB/s,"), "{text}");
    let figures = |row: &&str| row.split(',').skip(4).take(4).all(|cell| cell.parse::<f64>().is_ok());
    assert!(rows[1..].iter().all(figures), "{text}");
}

#[test]
fn two_ranks_time_every_round_trip() {
    let text = run(
        "deckperf latency --percentiles --no-pin --sizes 8,4K --protocol auto --payload untouched --iterations 50 \
         --time 0.01 --format json",
    );
    let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    let rows = value["tables"]["untouched"].as_array().expect("a table");
    assert_eq!(rows.len(), 2, "{text}");
    for row in rows {
        assert!(row["messages"].as_u64().is_some_and(|messages| messages >= 5 * 50), "{text}");
        let at = |name: &str| row[name].as_u64().expect("a percentile");
        assert!(at("p50") > 0 && at("p50") <= at("p99") && at("p99.99") <= at("max"), "{text}");
    }
    assert!(data::Run::parse(&text).expect("the common form").series.len() > 1);
}

#[test]
fn four_ranks_stream_in_pairs() {
    let text = run_of(
        4,
        "deckperf multi-pair --pairs 1,2 --no-pin --sizes 8,64K --iterations 2 --time 0.01 --window 5 --format csv",
    );
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let heads: Vec<String> = rows[1..].iter().map(|row| row[..2].join(" ")).collect();
    assert_eq!(heads, ["8 1", "8 2", "65536 1", "65536 2"], "{text}");
    assert!(
        rows[1..].iter().flatten().all(|cell| cell.parse::<f64>().is_ok_and(|figure| figure > 0.0)),
        "{text}"
    );
}

#[test]
fn three_ranks_are_measured_pair_by_pair() {
    let text = run_of(3, "deckperf matrix --no-pin --iterations 2 --time 0.01 --format json");
    let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    for name in ["latency_8", "bandwidth_65536"] {
        for (from, to) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            let cell = &value["tables"][name][from][to.to_string()];
            assert!(cell.as_f64().is_some_and(|figure| figure > 0.0), "{name} {from} {to}: {text}");
        }
        assert!(value["tables"][name][1]["1"].is_null(), "{text}");
    }
    let series = data::Run::parse(&text).expect("the common form").series;
    assert_eq!(series.iter().filter(|series| series.key.ranks == Some(3)).count(), 3 + 6);
}

#[test]
fn three_ranks_send_to_one() {
    let text = run_of(
        4,
        "deckperf incast --ranks 2,4 --no-pin --sizes 8,5000 --iterations 20 --time 0.01 --window 5 --format csv",
    );
    let (floods, short) = text.split_once("\n\n").expect("two tables");
    let rows = |table: &str| -> Vec<Vec<f64>> {
        let row = |line: &str| line.split(',').map(|cell| cell.parse().expect("a figure")).collect();
        table.lines().skip(1).map(row).collect()
    };
    let floods = rows(floods);
    assert_eq!(
        floods.iter().map(|row| (row[0], row[1])).collect::<Vec<_>>(),
        [(8.0, 1.0), (8.0, 3.0), (5000.0, 1.0), (5000.0, 3.0)]
    );
    assert!(
        floods.iter().all(|row| row[2] > 0.0 && row[5] > 0.0 && row[5] <= 1.0 && row[6] <= row[7]),
        "{text}"
    );
    let short = rows(short);
    assert!(short.len() == 4 && short.iter().all(|row| row[2] >= 100.0 && row[3] <= row[8]), "{text}");
}

#[test]
fn a_job_that_is_too_small_is_refused() {
    let task = Cli::try_parse_from(["deckperf", "incast", "--ranks", "4", "--no-pin"]).and_then(Cli::task);
    let task = task.expect("a task");
    udeck::run_local(2, move |world| {
        let error = play(&world, &task, &[]).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("needs 4 ranks or more, this job has 2"), "{error}");
        world.finish()
    })
    .expect("both ranks refuse");
}

#[test]
fn two_ranks_measure_registration() {
    let text = run("deckperf registration --no-pin --sizes 4K,1M --iterations 3 --time 0.01 --format csv");
    let (medians, _) = text.split_once("\n\n").expect("two tables");
    let rows: Vec<Vec<&str>> = medians.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!((rows.len(), rows[0][4], rows[1][0], rows[2][0]), (3, "hit", "4096", "1048576"), "{text}");
    let measured = |row: &Vec<&str>| row[1..].iter().all(|cell| cell.parse::<f64>().is_ok());
    assert!(rows[1..].iter().all(measured), "{text}");
}

#[test]
fn two_ranks_measure_virtual_interfaces() {
    let text = run("deckperf --layer vi --no-pin --sizes 0,8,5000 --iterations 2 --time 0.01");
    for title in [
        "# Latency (us), send/receive\n# Size    work-queue          cq     cq-wait   cq-asleep",
        "# Latency (us), RDMA write with immediate data\n",
        "# Bandwidth (MB/s), send/receive\n# Size    work-queue          cq     cq-wait\n",
        "# Bandwidth (MB/s), RDMA write with immediate data\n",
        "# Latency (us) of 8 bytes, send/receive, spread over all VIs\n# VIs     work-queue          cq\n1 ",
        "# Latency (us) of 8 bytes, send/receive, one busy VI among idle ones\n# VIs     work-queue          cq\n1 ",
        "\n1000 ",
    ] {
        assert!(text.contains(title), "{title:?} is missing in {text}");
    }
    let figures = |row: &&str| row.starts_with("5000 ") || row.starts_with("1000 ");
    for row in text.lines().filter(figures) {
        // The machine's limits, in the last two of seven columns, are missing on some hosts.
        assert!(row.split_whitespace().take(5).all(|cell| cell != "-"), "{text}");
    }
}

#[test]
fn two_ranks_stream_between_virtual_interfaces() {
    let text =
        run("deckperf bandwidth --layer vi --no-pin --sizes 4K,100 --window 5 --iterations 2 --time 0.01 \
         --format csv");
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 1 + 2 * 2 * 3, "{text}");
    assert!(rows[1].starts_with("100,send,work-queue,1,one-busy,bandwidth,MB/s,"), "{text}");
    let figure = |row: &&str| row.split(',').nth(7).is_some_and(|cell| cell.parse::<f64>().is_ok());
    assert!(rows[1..].iter().all(figure), "{text}");
}

/// One end of each transfer, at both levels; the output has a figure for each.
#[test]
fn two_ranks_measure_udapl_beside_virtual_interfaces() {
    let text = run(
        "deckperf --layer dat --no-pin --sizes 0,8,70000 --window 5 --iterations 2 --time 0.01 --format csv",
    );
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    let heads: Vec<String> = rows[1..].iter().map(|row| row[..4].join(" ")).collect();
    for transfer in ["send", "rdma-write", "rdma-read"] {
        for level in ["dat", "vi"] {
            for (test, sizes) in [("latency", &[0, 8, 70_000][..]), ("bandwidth", &[8, 70_000])] {
                for size in sizes {
                    let head = format!("{size} {transfer} {level} {test}");
                    assert_eq!(heads.iter().filter(|known| **known == head).count(), 1, "{head}: {text}");
                }
            }
        }
    }
    assert_eq!(rows.len(), 1 + 2 * 3 * (3 + 2), "{text}");
    let figure = |row: &Vec<&str>| row[5].parse::<f64>().is_ok_and(|figure| figure > 0.0);
    assert!(rows[1..].iter().all(figure), "{text}");
}

#[test]
fn two_ranks_check_every_byte_of_udapl() {
    let text = run("deckperf verify --layer dat --no-pin --sizes 0,41,70000 --perturb 1");
    // Sizes 0, 1, 40 to 42 and 69999 to 70001 by three transfers, both ways: 64 of each small one, 59 of each large one.
    let bytes = 3 * 2 * (64 * (1 + 40 + 41 + 42) + 59 * (69_999 + 70_000 + 70_001));
    let start = format!("verified {} transfers of uDAPL, {bytes} bytes", 3 * 2 * (5 * 64 + 3 * 59));
    assert!(text.starts_with(&start), "{text}, not {start}");
}

#[test]
fn a_message_that_udapl_does_not_carry_is_refused() {
    let task = Cli::try_parse_from(["deckperf", "latency", "--layer", "dat", "--no-pin", "--sizes", "65M"]);
    let task = task.and_then(Cli::task).expect("a task");
    udeck::run_local(2, move |world| {
        let error = play(&world, &task, &[]).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("use smaller --sizes"), "{error}");
        world.finish()
    })
    .expect("both ranks refuse");
}

#[test]
fn two_ranks_overlap() {
    let text = run("deckperf overlap --no-pin --sizes 8,70000 --iterations 2 --time 0.01 --format csv");
    let (sender, receiver) = text.split_once("\n\n").expect("a table per side");
    for table in [sender, receiver] {
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(rows.len(), 1 + 2 * plan::PROTOCOLS.len(), "{text}");
        assert_eq!(rows[0][..2], ["size", "protocol"]);
        let measured = |row: &Vec<&str>| row[2..].iter().all(|cell| cell.parse::<f64>().is_ok());
        assert!(rows[1..].iter().all(measured), "{text}");
    }
}

#[test]
fn two_ranks_measure_clones() {
    let text =
        run("deckperf clones --no-pin --sizes 8,600 --clones 20,1 --flooding 20 --iterations 2 --time 0.01 \
             --format csv");
    let (latency, flood) = text.split_once("\n\n").expect("two tables");
    let firsts = |table: &str| -> Vec<String> {
        table.lines().map(|row| row.split(',').take(2).collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(firsts(latency), ["size clones", "8 1", "8 20", "8 1", "600 1", "600 20", "600 1"]);
    let rows: Vec<Vec<&str>> = flood.lines().skip(1).map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.iter().map(|row| row[..2].join(" ")).collect::<Vec<_>>(), ["8 20", "600 20"]);
    for row in &rows {
        let [blocks, bound] = [9, 10].map(|at| row[at].parse::<u64>().expect("a count"));
        assert!(blocks <= bound, "{text}");
    }
    assert!(rows[1][9] != "0", "a flood of messages in the arena: {text}");
}

#[test]
fn the_busy_clone_streams_beside_idle_ones_without_a_flood() {
    let text = run(
        "deckperf clones --no-pin --sizes 8 --clones 2,40 --flooding 0 --stream --iterations 2 --time 0.01 \
         --format json",
    );
    let run = data::Run::parse(&text).expect("a run");
    let of = |test: &str, clones: &str| {
        run.series.iter().any(|one| {
            let has =
                |label: &str, value: &str| one.key.labels.get(label).is_some_and(|found| found == value);
            one.key.test == test && has("clones", clones) && has("receive", "cq") && one.figures().len() > 1
        })
    };
    for test in ["latency", "bandwidth"] {
        assert!(of(test, "2") && of(test, "40"), "{text}");
    }
    let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(value["tables"]["flood"].is_null(), "{text}");
}

#[test]
fn two_ranks_measure_costs() {
    let text = run("deckperf costs --no-pin --ranks 0 --connections 30 --time 0.01 --format json");
    let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    let tables = &value["tables"];
    assert_eq!(tables["making"].as_array().map(Vec::len), Some(3), "{text}");
    assert!(tables["making"][0]["p50"].as_f64().is_some_and(|time| time > 0.0), "{text}");
    assert_eq!(tables["idle_connection"][0]["connections"], 30);
    assert!(tables["blocked"][0]["seconds"].as_f64().is_some_and(|time| time >= 0.01), "{text}");
    assert!(tables["start"].is_null(), "no ranks were asked for");
}
