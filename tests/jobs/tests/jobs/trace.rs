//! Traces of jobs (`DECK_TRACE`): files that viewers accept, and their contents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use udeck_jobs::trace_format::Trace;
use udeck_jobs::{Bin, Ended, Job};

/// Path of a trace, in a folder of its own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("jobs-trace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for a trace");
        Folder(folder)
    }

    fn trace(&self) -> PathBuf {
        self.0.join("job.json")
    }

    /// Reads the trace, and checks that nothing else is left.
    fn read(&self, ended: &Ended) -> Trace {
        let files: Vec<_> = std::fs::read_dir(&self.0).expect("it was made").flatten().collect();
        let names: Vec<_> = files.iter().map(|file| file.file_name()).collect();
        assert_eq!(names, ["job.json"], "{ended}");
        Trace::read(&self.trace())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn program() -> Bin {
    Bin::at(env!("CARGO_BIN_EXE_trace-rank"))
}

fn count<'a>(events: impl Iterator<Item = &'a serde_json::Value>) -> usize {
    events.count()
}

/// Every message has been posted and retrieved, so every one must have an arrow.
fn all_have_arrows(trace: &Trace) {
    let (posts, retrieves) = (count(trace.named("post")), count(trace.named("retrieve")));
    assert!(posts > 0 && posts == retrieves, "{posts} posts and {retrieves} retrieves");
    assert_eq!((count(trace.of_kind("s")), count(trace.of_kind("f"))), (posts, posts));
    assert_eq!(trace.file["otherData"]["dropped_events"], 0);
}

#[test]
fn nas_ft_on_four_ranks() {
    let folder = Folder::new("nas-ft");
    let job = Bin::nas_ft().ranks(4).args(["--class", "S"]).env("DECK_TRACE", folder.trace());
    let ended = job.run().ok();
    let trace = folder.read(&ended);
    for rank in 0..4 {
        let name = trace.named("process_name").find(|event| event["pid"] == rank).expect("a process");
        let name = name["args"]["name"].as_str().expect("a name");
        assert!(name.starts_with(&format!("rank {rank} on host ")), "{name}");
        assert_eq!(trace.rank(rank)["events"], "complete");
        assert!(trace.named("post").any(|event| event["pid"] == rank), "rank {rank} posts");
    }
    all_have_arrows(&trace);
}

/// Messages go by every protocol and way to retrieve, over a network and within a host: both sides count the
/// same.
#[test]
fn every_message_has_an_arrow_whatever_way_it_takes() {
    for transport in ["shm", "tcp", "udp"] {
        let folder = Folder::new(transport);
        let job = program().ranks(3).arg("ring").env("DECK_TRACE", folder.trace());
        let ended = job.env("DECK_TRANSPORT", transport).run().ok();
        let trace = folder.read(&ended);
        all_have_arrows(&trace);
        let protocols: Vec<_> = trace.named("post").map(|event| event["args"]["protocol"].clone()).collect();
        let expected = if transport == "shm" { "hand-off" } else { "eager" };
        for protocol in ["eager", "copy", expected] {
            assert!(protocols.iter().any(|one| one == protocol), "{transport}: {protocol}");
        }
        for call in ["barrier", "all_reduce"] {
            assert!(count(trace.named(call)) >= 3, "{transport}: {call}");
        }
        // While the nonblocking call is under way, its thread is at a barrier.
        let [begun, over] = ["b", "e"].map(|kind| trace.of_kind(kind).collect::<Vec<_>>());
        assert_eq!((begun.len(), over.len()), (3, 3), "{transport}: nonblocking calls");
        assert!(begun.iter().chain(&over).all(|event| event["name"] == "all_reduce"));
        assert!(begun.iter().all(|event| event["args"]["members"] == 3));
        let aside = trace.named("retrieve").find(|event| event["args"]["tag"] == 7).expect("that with a tag");
        assert_eq!(aside["args"]["mailbox"], "ring");
    }
}

/// Explanation, counters and trace name one protocol for a message, whatever its sender does: over a network,
/// for example, `eager` sends a long message from where it lies, like `hand-off`.
#[test]
fn a_trace_names_the_protocol_that_was_explained() {
    let usual = "hand-off=41";
    let lower = "hand-off=never,rdma-write=64K,rdma-read=4K";
    for (nth, (transport, trust, auto)) in [
        ("shm", "job", usual),
        ("shm", "job", lower),
        ("shm", "none", usual),
        ("tcp", "job", usual),
        ("tcp", "job", lower),
        ("udp", "none", usual),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = Folder::new(&format!("planned-{nth}"));
        let job = program().ranks(2).arg("planned").env("DECK_TRACE", folder.trace());
        let job = job.env("DECK_TRANSPORT", transport).env("DECK_TRUST", trust).env("DECK_AUTO", auto);
        let ended = job.run().ok();
        let trace = folder.read(&ended);
        let words = ended.stdout.lines().filter_map(|line| line.split_once("planned ")?.1.split_once(' '));
        let planned: BTreeMap<u64, &str> =
            words.map(|(bytes, protocol)| (bytes.parse().expect("a length"), protocol)).collect();
        let differs = |event: &&serde_json::Value| {
            let bytes = event["args"]["bytes"].as_u64().and_then(|bytes| planned.get(&bytes));
            bytes.is_some_and(|protocol| event["args"]["protocol"] != *protocol)
        };
        let posts = trace.named("post").filter(|event| event["args"]["mailbox"] == "planned");
        let steps = trace.named("step").filter(|event| event["args"]["bytes"].as_u64() > Some(40));
        let (posts, steps): (Vec<_>, Vec<_>) = (posts.collect(), steps.collect());
        assert_eq!(posts.len(), planned.len(), "{ended}");
        assert!(steps.iter().any(|event| event["args"]["protocol"] == "eager"), "{transport} {trust} {auto}");
        let wrong: Vec<_> = posts.into_iter().chain(steps).filter(differs).collect();
        assert!(wrong.is_empty(), "{transport} {trust} {auto}: {wrong:#?}\n{planned:?}");
    }
}

#[test]
fn a_rank_that_is_killed_leaves_what_it_has_written() {
    let folder = Folder::new("killed");
    let ended = Job::new(Bin::deckrun().path())
        .args(["-n", "3", "--on-failure", "continue", "--"])
        .arg(program().path())
        .arg("killed")
        .env("DECK_TRACE", folder.trace())
        .run()
        .fails();
    ended.line_with("rank 1 is lost");
    let trace = folder.read(&ended);
    let states = [0, 1, 2].map(|rank| trace.rank(rank)["events"].as_str().unwrap_or_default().to_owned());
    assert_eq!(states, ["complete", "incomplete", "complete"]);
    assert!(trace.named("post").any(|event| event["pid"] == 1), "what rank 1 posted");
}

/// The trace serves to explain a hang: the parts have everything that was written until then.
#[test]
fn the_trace_of_a_job_that_ends_without_rank_0_is_merged_by_deckrun() {
    for word in ["first-killed", "interrupted"] {
        let folder = Folder::new(word);
        // A shell's background jobs ignore SIGINT, and so do the programs that they start.
        let job = Job::new(Path::new("env")).args(["--default-signal=INT"]).arg(Bin::deckrun().path());
        let job = job.args(["-n", "3", "--"]).arg(program().path()).arg(word);
        let ended = job.env("DECK_TRACE", folder.trace()).run().fails();
        assert!(ended.stderr.contains("what 3 of 3 ranks had written"), "{ended}");
        let trace = folder.read(&ended);
        for rank in 0..3 {
            let of_rank = trace.rank(rank);
            assert_eq!(of_rank["events"], "incomplete", "{word}: {of_rank}");
            assert_ne!(of_rank["host"], "", "{word}");
            assert!(trace.named("post").any(|event| event["pid"] == rank), "{word}: what rank {rank} posted");
        }
    }
}

#[test]
fn a_part_that_there_is_no_room_for_is_named_and_merged_as_far_as_it_goes() {
    let folder = Folder::new("full");
    // The kernel would end a process that writes too much.
    let ended = program().ranks(3).arg("full").env("DECK_TRACE", folder.trace()).run().ok();
    assert!(ended.stderr.contains("rank 1: its part of the trace ends early"), "{ended}");
    assert!(ended.stderr.contains(".rank-1.part"), "{ended}");
    let trace = folder.read(&ended);
    let states = [0, 1, 2].map(|rank| trace.rank(rank)["events"].as_str().unwrap_or_default().to_owned());
    assert_eq!(states, ["complete", "incomplete", "complete"]);
    assert!(trace.named("post").any(|event| event["pid"] == 1), "what rank 1 posted");
}

/// The program uses a subscriber of its own, and the one that `udeck::init` installs.
#[test]
fn a_programs_own_spans_are_in_the_trace() {
    for word in ["own", "plain"] {
        let folder = Folder::new(word);
        let ended = program().ranks(2).arg(word).env("DECK_TRACE", folder.trace()).run().ok();
        let trace = folder.read(&ended);
        for rank in 0..2 {
            let of_rank = |name: &'static str| trace.named(name).filter(move |event| event["pid"] == rank);
            let solve = of_rank("solve").next().unwrap_or_else(|| panic!("{word}: rank {rank} has no span"));
            assert_eq!((&solve["ph"], &solve["args"]["cells"]), (&"X".into(), &1000.into()));
            assert_eq!(solve["args"]["method"], "\"by\"\nhand");
            let times = |event: &serde_json::Value| {
                let nanoseconds = |name: &str| (event[name].as_f64().unwrap_or(0.0) * 1000.0).round() as u64;
                (nanoseconds("ts"), nanoseconds("ts") + nanoseconds("dur"))
            };
            let (from, to) = times(solve);
            let inside = of_rank("post").filter(|post| {
                let (start, end) = times(post);
                from <= start && end <= to
            });
            assert!(count(inside) > 20, "{word}: posts inside of the span");
        }
        let half = trace.of_kind("i").find(|event| event["args"]["message"] == "half way");
        assert_eq!(half.expect("the program's event")["args"]["residual"], 0.5);
        all_have_arrows(&trace);
    }
}

/// Spans by `World::span`: with the subscriber that `udeck::init` installs, and with one of the program's own. That slices
/// do not cross is checked when the trace is read.
#[test]
fn spans_by_the_world_are_slices_of_their_threads() {
    for word in ["spans", "own-spans"] {
        let folder = Folder::new(word);
        let ended = program().ranks(2).arg(word).env("DECK_TRACE", folder.trace()).run().ok();
        assert!(ended.stderr.contains("shown as \"other spans\""), "{ended}");
        let trace = folder.read(&ended);
        for rank in 0..2 {
            let named = |name: &'static str| -> Vec<_> {
                let of_rank = trace.named(name).filter(|event| event["pid"] == rank);
                of_rank.filter(|event| event["cat"] == "udeck::span").collect()
            };
            let kinds = |name| named(name).iter().map(|event| event["ph"].to_string()).collect::<String>();
            for name in ["unnamed span", "on a thread", "crosses second", "panics", "after leaks"] {
                assert_eq!(kinds(name), "\"X\"", "{word}: {name}");
            }
            assert_eq!(kinds("outer"), "\"X\"".repeat(2), "{word}: names stay known");
            assert_eq!(kinds("inner \"of\"\n"), "\"X\"".repeat(3), "{word}");
            for name in ["crosses first", "moves"] {
                assert_eq!(kinds(name), "\"b\"\"e\"", "{word}: {name}");
            }
            assert!(named("never ends").is_empty(), "{word}");
            let (outer, own) = (named("outer")[0], named("on a thread")[0]);
            assert_ne!(outer["tid"], own["tid"], "{word}");
            let thread = trace.named("thread_name").find(|event| event["tid"] == own["tid"]);
            assert_eq!(thread.expect("its name")["args"]["name"], "solver", "{word}");
            let end = |event: &serde_json::Value| {
                event["ts"].as_f64().zip(event["dur"].as_f64()).map(|(start, length)| start + length)
            };
            let is_inside = |event: &&serde_json::Value| {
                event["pid"] == rank && event["tid"] == outer["tid"] && end(event) <= end(outer)
            };
            assert_eq!(count(trace.named("barrier").filter(is_inside)), 4, "{word}");
            let long = named(LONG_NAME);
            assert_eq!((long.len(), &long[0]["args"]), (1, &serde_json::Value::Null), "{word}");
            // 1,100 names, and ten before them that are kept.
            assert_eq!(named("other spans").len(), 1110 - 1024, "{word}");
        }
        assert_eq!(trace.file["otherData"]["dropped_events"], 0);
    }
}

/// The first 128 bytes of a long name.
const LONG_NAME: &str = "longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglong";

#[test]
fn a_subscriber_without_the_layer_is_told() {
    let folder = Folder::new("foreign");
    let ended = program().ranks(2).arg("foreign").env("DECK_TRACE", folder.trace()).run().ok();
    assert!(ended.stderr.contains("udeck::trace::layer()"), "{ended}");
}

#[test]
fn a_file_that_cannot_be_written_is_an_error_that_names_it() {
    for path in ["/proc/trace.json", "/no-such-folder/trace.json", "/dev/null"] {
        let ended = Bin::example("hello").ranks(2).env("DECK_TRACE", Path::new(path)).run().fails();
        assert!(ended.stderr.contains("DECK_TRACE") && ended.stderr.contains(path), "{ended}");
    }
}
