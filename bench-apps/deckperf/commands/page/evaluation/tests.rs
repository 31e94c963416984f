//! Tests of the page's figures, from series as the commands write them.

use serde_json::json;

use super::*;

fn ratio(median: f64) -> Ratio {
    Ratio { median, low: median, high: median, rounds: 3 }
}

#[test]
fn the_crossing_is_the_size_from_which_all_larger_ones_are_ahead() {
    let of = |medians: &[f64]| {
        let sizes = (0..).map(|power| 1 << power);
        Crossing::of(&sizes.zip(medians).map(|(size, &median)| (size, ratio(median))).collect::<Vec<_>>())
    };
    assert_eq!(of(&[1.5, 0.9, 1.2, 0.8, 0.7]), Some(Crossing::From(8)));
    assert_eq!(of(&[0.9, 0.9]), Some(Crossing::Always));
    assert_eq!(of(&[0.9, 1.0]), Some(Crossing::Never));
    assert_eq!(of(&[]), None);
    assert_eq!(Crossing::From(4096).words(), "from 4 KiB on");
    assert_eq!(Crossing::Never.words(), "from no size on", "the write may be ahead at a smaller one");
}

/// A run with these series: test, protocol, size, ranks, labels, and the figures of its rounds.
fn run(command: &str, series: Vec<serde_json::Value>) -> Source {
    let all = series.into_iter().map(|mut one| {
        let base = json!({ "library": "udeck", "transport": "shm", "unit": "us", "better": "lower" });
        for (name, value) in base.as_object().expect("an object") {
            if one.get(name).is_none() {
                one[name] = value.clone();
            }
        }
        one
    });
    let raw = json!({
        "deckperf": 1, "command": command, "udeck": "1", "date": "", "machine": {}, "method": [],
        "series": all.collect::<Vec<_>>(),
    });
    Source::parse(command.into(), raw).expect("a run")
}

fn vi(transfer: &str, look: &str, size: u64, times: [f64; 3]) -> serde_json::Value {
    json!({ "test": "latency", "protocol": transfer, "size": size, "rounds": times,
            "labels": { "look": look, "vis": "1", "traffic": "one-busy" } })
}

#[test]
fn send_and_write_cross_where_the_write_is_ahead() {
    let times = |factor: f64| [1.0, 4.0, 2.0].map(|weather| factor * weather);
    let source = run(
        "vi",
        vec![
            vi("send", POLLED, 8, times(1.0)),
            vi("send", POLLED, 4096, times(3.0)),
            vi("send", ASLEEP, 8, times(5.0)),
            vi("rdma-write", POLLED, 8, times(1.5)),
            vi("rdma-write", POLLED, 4096, times(2.0)),
        ],
    );
    let mut charts = Vec::new();
    let body = body(&[source], &mut charts).expect("figures");
    for part in [
        "blocking ÷ non-blocking, send/receive, 8 B, over shm</td><td>39.98 ÷ 12.33 = 3.24</td><td class=\"number\">5.00<",
        "RDMA write ÷ send/receive, non-blocking, 8 B, over shm</td><td>19.46 ÷ 12.33 = 1.58</td><td class=\"number\">1.50<",
        "ahead, non-blocking, over shm</td><td>above 2 KB</td><td class=\"number\">from 4 KiB on<",
    ] {
        assert!(body.contains(part), "{part} is missing in {body}");
    }
    let [chart] = &charts[..] else { panic!("one chart: {charts:?}") };
    let names: Vec<&str> = chart.lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!(
        names,
        ["send/receive, non-blocking", "RDMA write, non-blocking"],
        "of one point there is no line"
    );
}

#[test]
fn more_clones_are_compared_with_ten_and_both_models_with_each_other() {
    let clones = |receive: &str, clones: &str, size: u64, time: f64| {
        json!({ "test": "latency", "size": size, "rounds": [time, time, time],
                "labels": { "receive": receive, "clones": clones, "beside": "nothing" } })
    };
    let of = |receive: &str, base: f64| {
        run(
            "clones",
            vec![
                clones(receive, "10", 8, base),
                clones(receive, "30", 8, 1.25 * base),
                clones(receive, "40", 8, 1.5 * base),
                clones(receive, "10", 65536, 10.0 * base),
                clones(receive, "30", 65536, 10.0 * base),
                clones(receive, "40", 65536, 10.0 * base),
                // The published curves end at 64 KB.
                clones(receive, "10", 1 << 20, 100.0 * base),
                clones(receive, "30", 1 << 20, 900.0 * base),
                clones(receive, "40", 1 << 20, 900.0 * base),
            ],
        )
    };
    let mut charts = Vec::new();
    let body = body(&[of("wq", 4.0), of("cq", 1.0)], &mut charts).expect("figures");
    for part in [
        "wq: time with 30 VIs ÷ with 10, at its worst size, 8 B, over shm</td><td>1.08 at most</td><td class=\"number\">1.25<",
        "cq: time with 40 VIs ÷ with 10, at its worst size, 8 B, over shm</td><td>below 1.03</td><td class=\"number\">1.50<",
        "cq ÷ wq: time with 30 VIs, 64 KiB, over shm</td><td>about 0.85 at 64 KB</td><td class=\"number\">0.250<",
    ] {
        assert!(body.contains(part), "{part} is missing in {body}");
    }
    let axes: Vec<(&str, usize)> =
        charts.iter().map(|chart| (chart.x.title.as_str(), chart.lines.len())).collect();
    assert_eq!(axes, [("clones", 2), ("bytes in a message", 2)]);
}

/// A series of FT, of class S.
fn ft(ranks: u64, way: Option<(&str, &str)>, speeds: [f64; 3]) -> serde_json::Value {
    let mut one = json!({ "test": "ft", "unit": "Mop/s", "better": "higher", "ranks": ranks, "rounds": speeds,
                          "labels": { "class": "S" } });
    if let Some((transport, protocol)) = way {
        (one["transport"], one["protocol"]) = (json!(transport), json!(protocol));
    }
    one
}

fn named(name: &str, mut source: Source) -> Source {
    name.clone_into(&mut source.name);
    source
}

/// The second file is of a machine that is ten times as fast.
#[test]
fn each_file_of_ft_has_its_own_base() {
    let of = |name: &str, speed: f64, two: f64| {
        let speeds = |times: f64| [times * speed; 3];
        let two = ft(2, Some(("tcp", "auto")), speeds(two));
        named(name, run("ft", vec![ft(1, None, speeds(1.0)), two]))
    };
    let found = speed_ups(&[of("a.json", 100.0, 1.5), of("b.json", 1000.0, 1.25)]);
    let found: Vec<_> = found.iter().map(|(way, series)| (way.as_str(), series[0].figures())).collect();
    let [one, other] = ["tcp, auto, class S (a.json)", "tcp, auto, class S (b.json)"];
    assert_eq!(found, [(one, vec![1.5; 3]), (other, vec![1.25; 3])]);
}

#[test]
fn files_and_transports_are_not_compared_with_each_other() {
    let of = |name: &str, transport: &str, write: f64| {
        let mut all = [vi("send", POLLED, 8, [1.0; 3]), vi("rdma-write", POLLED, 8, [write; 3])];
        all.iter_mut().for_each(|one| one["transport"] = json!(transport));
        named(name, run("vi", all.to_vec()))
    };
    let sources = [of("a.json", "shm", 1.5), of("b.json", "shm", 2.5), of("c.json", "tcp", 3.5)];
    let body = body(&sources, &mut Vec::new()).expect("figures");
    for (what, here) in [("shm (a.json)", "1.50"), ("shm (b.json)", "2.50"), ("tcp", "3.50")] {
        let row = format!(
            "non-blocking, 8 B, over {what}</td><td>19.46 ÷ 12.33 = 1.58</td><td class=\"number\">{here}<"
        );
        assert!(body.contains(&row), "{row} is missing in {body}");
    }
    // Only one of these files has writes, so there is no ratio.
    let single = |name: &str, transfer: &str| named(name, run("vi", vec![vi(transfer, POLLED, 8, [1.0; 3])]));
    assert!(super::body(&[single("a", "send"), single("b", "rdma-write")], &mut Vec::new()).is_none());
}

#[test]
fn the_bandwidth_of_figure_7_6_is_that_of_long_messages() {
    let of = |size: u64| {
        let one = |protocol: &str, rate: f64| {
            json!({ "test": "bandwidth", "protocol": protocol, "size": size, "rounds": [rate, rate, rate],
                    "payload": "untouched", "unit": "MB/s", "better": "higher" })
        };
        body(&[run("messages", vec![one("handshake", 8.0), one("eager", 10.0)])], &mut Vec::new())
    };
    let body = of(4 << 20).expect("a row");
    assert!(body.contains("0.800 to 0.800; DECK/GM, the published 226"), "{body}");
    assert!(of(64 << 10).is_none(), "at 64 KiB, DECK/GM has another bandwidth");
}

#[test]
fn speed_ups_stand_beside_table_7_1() {
    let source = run(
        "ft",
        vec![
            ft(1, None, [100.0, 200.0, 50.0]),
            ft(2, Some(("tcp", "handshake")), [150.0, 300.0, 75.0]),
            ft(4, Some(("tcp", "handshake")), [160.0, 320.0, 80.0]),
        ],
    );
    let mut charts = Vec::new();
    let body = body(&[source], &mut charts).expect("figures");
    assert!(body.contains("DECK/VIA (published)</th><td class=\"number\">1.557</td>"), "{body}");
    let ours = body.split("µDECK, tcp, handshake, class S</th>").nth(1).expect("a row of ours");
    let row = ours.split("</tr>").next().expect("a row");
    assert!(row.contains(">1.50<") && row.contains(">1.60<") && row.contains(">–<"), "{row}");
    assert_eq!((charts.len(), charts[0].lines[0].points.len()), (1, 2));
}

#[test]
fn runs_of_other_commands_have_none_of_these_figures() {
    assert!(body(&[run("matrix", Vec::new())], &mut Vec::new()).is_none());
}
