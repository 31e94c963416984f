//! Parts as processes write them, or leave them, and the file that is merged from them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use udeck_trace::{
    Clock, ClockSample, Lane, MESSAGES, Merged, Opening, Part, check_place, is_merged, merge, now, part_path,
    parts_beside,
};

const JOB: u64 = 0xBEEF;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("trace-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn path(&self) -> PathBuf {
        self.0.join("job.json")
    }

    fn part(&self, rank: u32, lines: &str) -> PathBuf {
        self.part_of(JOB, rank, lines)
    }

    fn part_of(&self, job: u64, rank: u32, lines: &str) -> PathBuf {
        let path = part_path(&self.path(), job, rank);
        let job = format!(
            r#"{{"ph":"M","pid":{rank},"tid":0,"ts":0,"name":"udeck_job","args":{{"job":"{job:x}"}}}},"#
        );
        fs::write(&path, format!("[\n{job}\n{lines}")).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn lane(rank: u32, part: Option<PathBuf>, samples: &[ClockSample]) -> Lane {
    Lane { rank, host: "a".into(), part, clock: Clock(samples.to_vec()), is_complete: true }
}

fn events(path: &Path) -> Vec<Value> {
    let file: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    file["traceEvents"].as_array().unwrap().clone()
}

fn slice(rank: u32, ts: &str, dur: &str, name: &str) -> String {
    format!(
        r#"{{"ph":"X","pid":{rank},"tid":7,"ts":{ts},"dur":{dur},"name":"{name}","cat":"c","args":{{"ts":"9"}}}},"#
    ) + "\n"
}

fn arrow(kind: char, rank: u32, ts: &str, id: &str) -> String {
    format!(r#"{{"ph":"{kind}","pid":{rank},"tid":7,"ts":{ts},"id":"{id}","name":"message","cat":"udeck"}},"#)
        + "\n"
}

#[test]
fn another_hosts_times_are_moved_by_what_its_clock_is_off_at_that_time() {
    let folder = Folder::new("clocks");
    let first = folder.part(0, &slice(0, "100.000", "1.000", "a"));
    let second = folder.part(1, &(slice(1, "1000.000", "1.000", "b") + &slice(1, "1500.500", "1.000", "c")));
    // The clock is off by 800 µs at first, and by 900 µs a millisecond later.
    let sample = |at, offset| ClockSample { at, offset, error: 7 };
    let clock = [sample(1_000_000, -800_000), sample(2_000_000, -900_000)];
    let merged =
        merge(&folder.path(), &[lane(0, Some(first), &[]), lane(1, Some(second), &clock)], JOB, &|| true)
            .unwrap();
    assert_eq!((merged.events, merged.dropped), (3, 0));
    let times: Vec<_> = events(&folder.path()).iter().map(|event| event["ts"].as_f64().unwrap()).collect();
    assert_eq!(times, [0.0, 100.0, 550.45]);
    let file: Value = serde_json::from_str(&fs::read_to_string(folder.path()).unwrap()).unwrap();
    assert_eq!(file["otherData"]["clock_error_ns"], 7);
}

#[test]
fn of_a_part_that_was_cut_off_all_whole_events_are_taken_and_arrows_have_both_ends() {
    let folder = Folder::new("cut");
    let lines = slice(0, "5.000", "1.000", "inner")
        + &slice(0, "5.000", "9.000", "outer")
        + &arrow('s', 0, "5.000", "0x1")
        + &arrow('s', 0, "5.500", "0x2")
        + &arrow('f', 0, "6.000", "0x3")
        + &slice(0, "7.000", "1.000", "last");
    let first = folder.part(0, &lines[..lines.len() - 9]);
    let second = folder.part(1, &(slice(1, "6.000", "2.000", "in") + &arrow('f', 1, "7.000", "0x1")));
    let lanes = [lane(0, Some(first), &[]), lane(1, Some(second), &[]), lane(2, None, &[])];
    let merged = merge(&folder.path(), &lanes, JOB, &|| true).unwrap();
    assert_eq!(merged, Merged { events: 5, arrows: 1, ..Merged::default() });
    let names: Vec<_> =
        events(&folder.path()).iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["outer", "inner", "message", "in", "message"], "what lies around comes first");
}

/// The parts are lost, whatever their ranks have reported.
#[test]
fn a_part_that_is_not_there_or_leads_elsewhere_is_lost() {
    let folder = Folder::new("gone");
    let first = folder.part(0, &slice(0, "5.000", "1.000", "here"));
    let elsewhere = folder.0.join("elsewhere");
    fs::write(&elsewhere, slice(1, "1.000", "1.000", "secret")).unwrap();
    let link = part_path(&folder.path(), JOB, 1);
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let gone = part_path(&folder.path(), JOB, 2);
    let lanes = [
        lane(0, Some(first), &[]),
        lane(1, Some(link), &[]),
        lane(2, Some(gone.clone()), &[]),
        lane(3, Some(gone), &[]),
    ];
    merge(&folder.path(), &lanes, JOB, &|| true).unwrap();
    let file: Value = serde_json::from_str(&fs::read_to_string(folder.path()).unwrap()).unwrap();
    let states = [0, 1, 2, 3].map(|rank| file["otherData"]["ranks"][rank]["events"].clone());
    assert_eq!(states, ["complete", "lost", "lost", "lost"]);
    let names: Vec<_> = events(&folder.path()).iter().map(|event| event["name"].clone()).collect();
    assert_eq!(names, ["here"]);
}

/// The parts stay, and so does the earlier file.
#[test]
fn a_merge_that_is_out_of_time_says_so() {
    let folder = Folder::new("late");
    let part = folder.part(0, &slice(0, "5.000", "1.000", "here").repeat(20_000));
    fs::write(folder.path(), "before").unwrap();
    for looks in [0_u32, 3, 8] {
        let left = std::cell::Cell::new(looks);
        let may_go_on = || left.replace(left.get().saturating_sub(1)) > 0;
        let late = merge(&folder.path(), &[lane(0, Some(part.clone()), &[])], JOB, &may_go_on).unwrap_err();
        assert!(late.to_string().contains("time"), "{late}");
        let mut names: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        assert_eq!(names, [folder.path(), part.clone()]);
        assert_eq!(fs::read_to_string(folder.path()).unwrap(), "before");
    }
}

/// Numbers of postboxes are used again after very many.
#[test]
fn an_arrow_that_begins_or_ends_twice_is_left_out() {
    let folder = Folder::new("twice");
    let ids = ["0xffffffffffffffff", "0x1", "0x2", "0x3", "0x1", "0x4"];
    let begun: String = ids.iter().map(|id| arrow('s', 0, "5.000", id)).collect();
    let ended: String = ["0x4", "0x2", "0x1", "0x2", "0x5", "0xffffffffffffffff", "0x0"]
        .iter()
        .map(|id| arrow('f', 0, "6.000", id))
        .collect();
    let part = folder.part(0, &(begun + &ended));
    let merged = merge(&folder.path(), &[lane(0, Some(part), &[])], JOB, &|| true).unwrap();
    assert_eq!((merged.events, merged.arrows), (4, 2), "0x4 and the largest");
}

#[test]
fn parts_of_another_job_are_left_alone() {
    let folder = Folder::new("jobs");
    let part = folder.part(3, "");
    assert_eq!(parts_beside(&folder.path(), JOB), [(3, part)]);
    assert_eq!(parts_beside(&folder.path(), JOB + 1), []);
}

#[test]
fn two_jobs_with_one_path_do_not_write_into_each_others_parts() {
    let folder = Folder::new("two");
    let mine = folder.part(0, &slice(0, "1.000", "1.000", "mine"));
    folder.part_of(JOB + 1, 0, &slice(0, "1.000", "1.000", "theirs"));
    assert_eq!(parts_beside(&folder.path(), JOB), [(0, mine.clone())]);
    fs::write(folder.path(), "whatever").unwrap();
    assert!(!udeck_trace::is_merged(&folder.path(), JOB, &[]));
    merge(&folder.path(), &[lane(0, Some(mine), &[])], JOB, &|| true).unwrap();
    assert_eq!(events(&folder.path())[0]["name"], "mine");
    assert!(
        udeck_trace::is_merged(&folder.path(), JOB, &[])
            && !udeck_trace::is_merged(&folder.path(), JOB + 1, &[])
    );
}

#[test]
fn what_is_no_file_is_not_replaced_by_one_and_a_link_stays() {
    let folder = Folder::new("kinds");
    let merged = |path: &Path| merge(path, &[lane(0, None, &[])], JOB, &|| true);
    for (name, words) in [(".", "is a directory"), ("none/job.json", "No such file")] {
        let path = folder.0.join(name);
        let said = check_place(&path).unwrap_err().to_string();
        assert!(said.contains(words) && said.contains(name), "{said}");
        merged(&path).unwrap_err();
    }
    let said = check_place(Path::new("/dev/null")).unwrap_err().to_string();
    assert!(said.contains("no regular file"), "{said}");
    let (target, link) = (folder.0.join("target.json"), folder.0.join("link.json"));
    fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    check_place(&link).unwrap();
    merged(&link).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(events(&target).is_empty());
}

/// All tests of a process's part are one: its subscriber is set for ever.
#[test]
fn what_a_process_says_is_in_its_part() {
    const COUNT: u64 = 20_000;
    let folder = Folder::new("process");
    assert!(udeck_trace::install());
    tracing::info!("before there is a part");
    let opening = Opening { path: folder.path(), rank: 5, job: JOB, host: "a \"host\"".into() };
    let part = Part::open(&opening).unwrap();
    let (first, second) = (tracing::info_span!("first", n = 1), tracing::info_span!("second"));
    let (first, second) = (first.entered(), second.entered());
    drop(first);
    drop(second);
    {
        let _paused = udeck_trace::pause_recording();
        tracing::info!("not this");
    }
    let thread = std::thread::Builder::new().name("worker".into()).spawn(|| {
        for number in 0..COUNT {
            let start = now();
            tracing::event!(name: "post", target: MESSAGES, tracing::Level::TRACE, start_ns = start, end_ns = now(), rank = 6_u64, number);
        }
    });
    thread.unwrap().join().unwrap();
    tracing::trace!("too much");
    let solve = tracing::info_span!("solve", method = "by hand", residual = tracing::field::Empty, step = 0);
    for step in 1..=3 {
        solve.record("step", step).record("residual", tracing::field::debug(0.5 / f64::from(step)));
    }
    solve.in_scope(|| ());
    assert_eq!(part.write().unwrap(), 0, "events were dropped");
    let lanes = [lane(5, Some(part.path().to_owned()), &[])];
    merge(&folder.path(), &lanes, JOB, &|| true).unwrap();
    let events = events(&folder.path());
    let named = |name: &'static str| events.iter().filter(move |event| event["name"] == name);
    assert_eq!(named("post").count() as u64, COUNT);
    assert!(named("post").all(|event| event["pid"] == 6 && event["ph"] == "X"));
    assert!(named("trace written").count() > 0, "more than a buffer holds");
    let said: Vec<_> = events.iter().filter_map(|event| event["args"]["message"].as_str()).collect();
    assert_eq!(said, ["before there is a part"]);
    let text = fs::read_to_string(folder.path()).unwrap();
    let solved = text.lines().find(|line| line.contains("\"solve\"")).unwrap();
    assert_eq!(["step", "residual", "method"].map(|name| solved.matches(name).count()), [1; 3], "{solved}");
    let solved = &named("solve").next().unwrap()["args"];
    assert_eq!((&solved["step"], &solved["method"]), (&3.into(), &"by hand".into()), "{solved}");
    // `second` was entered inside of `first` and left after it: its rest is a slice of its own.
    assert_eq!((named("first").count(), named("second").count()), (1, 2));
    let times = |event: &Value| {
        let nanoseconds = |name: &str| (event[name].as_f64().unwrap() * 1000.0).round() as u64;
        (nanoseconds("ts"), nanoseconds("ts") + nanoseconds("dur"))
    };
    let (outer, inner) = (times(named("first").next().unwrap()), times(named("second").next().unwrap()));
    assert!(outer.0 <= inner.0 && inner.1 <= outer.1, "{outer:?} {inner:?}");
    let threads: Vec<_> = named("thread_name").map(|event| event["args"]["name"].as_str().unwrap()).collect();
    assert!(threads.contains(&"worker"), "{threads:?}");
    drop(part);
    tracing::info!("nobody wants to know");
}

/// A user without rights, who plants names in a folder that everybody writes to.
const STRANGER: u32 = 65534;

/// Plants a file under a name that can be predicted, as a stranger may.
fn plant(kind: &str, at: &Path, victim: &Path) {
    match kind {
        "link" => std::os::unix::fs::symlink(victim, at).unwrap(),
        "fifo" => rustix::fs::mkfifoat(rustix::fs::CWD, at, 0o666.into()).unwrap(),
        _ => fs::write(at, "planted").unwrap(),
    }
}

#[test]
fn a_part_is_written_into_nothing_that_was_there_before() {
    for kind in ["link", "fifo", "file"] {
        let folder = Folder::new(&format!("planted-{kind}"));
        let victim = folder.0.join("victim");
        fs::write(&victim, "kept").unwrap();
        plant(kind, &part_path(&folder.path(), JOB, 0), &victim);
        let opening = Opening { path: folder.path(), rank: 0, job: JOB, host: "a".into() };
        let error = Part::open(&opening).unwrap_err().to_string();
        assert!(error.contains("there already") && error.contains("rank-0.part"), "{kind}: {error}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept", "{kind}");
    }
}

#[test]
fn a_part_that_is_a_fifo_is_left_out_and_nobody_waits_for_it() {
    let folder = Folder::new("strange");
    let fifo = part_path(&folder.path(), JOB, 0);
    plant("fifo", &fifo, Path::new(""));
    // Root merges parts of all users.
    let strange = folder.part(1, &slice(1, "1.000", "1.000", "a"));
    let _ = std::os::unix::fs::chown(&strange, Some(STRANGER), None);
    let own = folder.part(2, &slice(2, "1.000", "1.000", "b"));
    let lanes = [lane(0, Some(fifo.clone()), &[]), lane(1, Some(strange), &[]), lane(2, Some(own), &[])];
    let merged = merge(&folder.path(), &lanes, JOB, &|| true).unwrap();
    assert_eq!((merged.events, merged.left_out), (2, vec![fifo]));
}

#[test]
fn a_trace_replaces_what_a_link_of_ours_leads_to_and_no_strangers() {
    let folder = Folder::new("links");
    let place = folder.0.join("elsewhere");
    fs::write(&place, "old").unwrap();
    std::os::unix::fs::symlink("elsewhere", folder.path()).unwrap();
    let own = folder.part(0, &slice(0, "1.000", "1.000", "a"));
    let merge = || merge(&folder.path(), &[lane(0, Some(own.clone()), &[])], JOB, &|| true);
    merge().unwrap();
    assert!(fs::symlink_metadata(folder.path()).unwrap().is_symlink());
    assert_eq!(events(&place).len(), 1);
    if std::os::unix::fs::lchown(folder.path(), Some(STRANGER), None).is_err() {
        return println!("skipped: only root gives a link away");
    }
    fs::write(&place, "kept").unwrap();
    let error = merge().unwrap_err().to_string();
    assert!(error.contains("another user made"), "{error}");
    assert_eq!(fs::read_to_string(&place).unwrap(), "kept");
}

#[test]
fn a_fifo_in_the_traces_place_is_no_trace() {
    let folder = Folder::new("fifo-place");
    plant("fifo", &folder.path(), Path::new(""));
    assert!(!is_merged(&folder.path(), JOB, &[]));
    assert!(check_place(&folder.path()).is_err());
}
