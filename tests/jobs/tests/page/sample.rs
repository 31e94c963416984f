//! Made-up runs, with everything that a page can show: their drawings are known.

use serde_json::{Value, json};

/// Number of rounds in each series.
pub const ROUNDS: usize = 12;
const SIZES: [u64; 6] = [0, 8, 512, 4 << 10, 64 << 10, 1 << 20];
/// An unusual name, which a file may contain nevertheless.
pub const HOSTILE: &str = "</script><img src=x onerror=alert(1)> & \"Co\" 1.0";

/// Runs, with the names of the files into which they are written.
pub fn runs() -> Vec<(&'static str, Value)> {
    vec![
        ("shm.json", messages("shm", &["copy", "eager", "rdma-write", "hand-off"], 1.0)),
        ("tcp.json", messages("tcp", &["copy", "eager", "rdma-write"], 40.0)),
        ("peers.json", peers()),
        ("cpu.json", cpu()),
        ("matrix.json", matrix()),
    ]
}

/// Number of charts of all runs: four for each of two transports and four for both; one of peers; four of
/// processor time.
pub const CHARTS: usize = 4 + 4 + 4 + 1 + 4;
/// Number of figures in all runs.
pub fn figures() -> usize {
    let series = |run: &Value| run["series"].as_array().map_or(0, Vec::len);
    // One round of the first series of each run is missing.
    runs().iter().map(|(_, run)| series(run) * ROUNDS - 1).sum()
}

fn run(command: &str, series: Vec<Value>) -> Value {
    let mut series = series;
    series[0]["rounds"][3] = Value::Null;
    json!({
        "deckperf": 1,
        "command": command,
        "udeck": "1.2.3",
        "date": "2026-01-02 03:04 UTC",
        "machine": { "cpu": "Some CPU with a long name @ 2.45 GHz", "cores": 2, "kernel": "Linux 6.1", "build": "rustc 1.95.0, optimised",
                     "pinning": "pinned to cores 0 and 1", "transport": "shm0; copy has 4 fragments of at most 64 KiB under way" },
        "method": ["interleaved: every contender of a size runs one batch", "latency is half the round trip of a ping-pong"],
        "series": series,
    })
}

fn series(key: Value, unit: &str, middle: f64) -> Value {
    let better = if unit.starts_with("us") { "lower" } else { "higher" };
    // The values are scattered by up to a tenth around the middle, in the same way in each run.
    let rounds: Vec<f64> = (0..ROUNDS)
        .map(|round| middle * (0.9 + 0.2 * ((round * 7 + 3) % ROUNDS) as f64 / ROUNDS as f64))
        .collect();
    let mut series = json!({ "unit": unit, "better": better, "rounds": rounds });
    for (name, value) in key.as_object().into_iter().flatten() {
        series[name] = value.clone();
    }
    series
}

fn messages(transport: &str, protocols: &[&str], slower: f64) -> Value {
    let mut all = Vec::new();
    for (at, protocol) in protocols.iter().enumerate() {
        for payload in ["untouched", "written+read"] {
            let touched = if payload == "untouched" { 1.0 } else { 1.7 };
            for size in SIZES {
                let factor = slower * touched * (1.0 + at as f64 * 0.6);
                let copied = if *protocol == "hand-off" { 0 } else { size * (2 - at as u64 % 2) };
                let key = |test: &str| {
                    json!({ "test": test, "library": "udeck", "transport": transport, "protocol": protocol, "payload": payload,
                            "size": size, "copied_bytes_per_message": copied })
                };
                let time = factor * (0.08 + size as f64 / 40_000.0);
                all.push(series(key("latency"), "us", time));
                if size > 0 {
                    all.push(series(key("bandwidth"), "MB/s", size as f64 / time));
                }
            }
        }
    }
    for (at, limit) in ["line", "memcpy", "two-memcpys"].iter().enumerate() {
        for size in SIZES {
            let time = 0.05 + at as f64 * (0.005 + size as f64 / 70_000.0);
            all.push(series(
                json!({ "test": "latency", "library": "limit", "protocol": limit, "size": size }),
                "us",
                time,
            ));
        }
    }
    run("messages", all)
}

fn peers() -> Value {
    let libraries = [("udeck", "auto"), ("UCX 1.22.0", "send"), (HOSTILE, "send")];
    let mut all = Vec::new();
    for (at, (library, way)) in libraries.iter().enumerate() {
        for size in [8, 4 << 10, 1 << 20] {
            let key = json!({ "test": "latency", "library": library, "transport": "shm", "protocol": way, "payload": "untouched",
                              "size": size, "ranks": 2, "labels": { "row": format!("{size} B") } });
            all.push(series(key, "us", (1.0 + at as f64) * (0.1 + size as f64 / 20_000.0)));
        }
    }
    let ratio =
        |value: f64| json!({ "value": value, "low_95": value * 0.95, "high_95": value * 1.05, "rounds": 12 });
    let row = |title: &str, ratio_to: f64, verdict: &str| {
        json!({ "title": title, "test": "latency", "ranks": 2, "bytes": 8, "payload": "untouched", "protocol": "auto", "unit": "us",
                "ours": 0.1, "best_peer": "UCX 1.22.0",
                "others": [{ "name": "limit", "figure": 0.07, "rounds": 12, "ours_ratio": ratio(1.4) },
                           { "name": "UCX 1.22.0", "figure": 0.2, "rounds": 12, "ours_ratio": ratio(ratio_to) },
                           { "name": HOSTILE, "figure": 0.3, "rounds": 12, "ours_ratio": ratio(0.33) }],
                "targets": [{ "against": "the best peer", "ratio": ratio(ratio_to), "wanted": "<=0.9", "verdict": verdict, "goal": "beat-peers" }] })
    };
    let mut run = run("peers", all);
    run["rows"] = json!([
        row("8 B", 0.5, "met"),
        row("8 B w+r", 0.9, "inconclusive"),
        row("barrier, 8 ranks", 1.2, "missed")
    ]);
    run["missing"] = json!(["libfabric: not installed (apt install libfabric-bin)"]);
    run
}

fn cpu() -> Value {
    let contenders =
        [("udeck", "shm", "µDECK shm"), ("udeck", "tcp", "µDECK tcp"), ("sockets", "tcp", "TCP sockets")];
    let (mut all, mut rows) = (Vec::new(), Vec::new());
    for (at, (library, transport, name)) in contenders.into_iter().enumerate() {
        for waiting in ["polling", "blocking"] {
            for (size, rate) in [(100, 0), (4000, 0), (64_000, 0), (100, 1000)] {
                let mut labels = json!({ "waiting": waiting, "buffers": if rate > 0 { "50" } else { "64" } });
                if rate > 0 {
                    labels["per-second"] = json!(rate.to_string());
                }
                let micros = (1.0 + at as f64) * (0.2 + f64::from(size) / 900.0) + f64::from(rate) / 100.0;
                let key = |test: &str| json!({ "test": test, "library": library, "transport": transport, "payload": "written+read", "size": size, "labels": labels });
                all.push(series(key("processor-time"), "us", micros));
                if rate == 0 {
                    all.push(series(key("message-rate"), "M/s", 1.0 / micros));
                }
                rows.push(json!({
                    "contender": name, "waiting": waiting, "bytes": size, "depth": if rate > 0 { 50 } else { 64 }, "paced_per_second": rate,
                    "messages_per_second": 1e6 / micros, "sender_user_us": micros / 4.0, "sender_system_us": micros / 4.0,
                    "sender_core_percent": 50.0, "receiver_user_us": micros / 4.0, "receiver_system_us": micros / 4.0,
                    "receiver_core_percent": 50.0, "both_us": micros, "low_95": micros, "high_95": micros,
                    "us_per_megabit": micros / f64::from(size) / 8e-6, "lost": 0, "rounds": ROUNDS,
                }));
            }
        }
    }
    let mut cpu = run("cpu", all);
    cpu["tables"] = json!({ "cpu": rows });
    cpu
}

fn matrix() -> Value {
    let pairs = (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).filter(|(from, to)| from != to);
    let all = pairs.map(|(from, to): (u32, u32)| {
        let key = json!({ "test": "latency", "library": "udeck", "transport": "shm", "protocol": "auto", "size": 8,
                          "labels": { "from": from.to_string(), "to": to.to_string() } });
        series(key, "us", 0.1 + 0.2 * f64::from(from.abs_diff(to)))
    });
    run("matrix", all.collect())
}
