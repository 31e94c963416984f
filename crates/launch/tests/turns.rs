//! deckrun's system calls while it watches over a job, counted and made to fail by strace. Without strace,
//! these tests are skipped.

mod common;

use std::{
    collections::HashMap,
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use common::Ran;

/// Runs `deckrun` with these words under strace, which writes to the file.
fn traced(trace: &[&str], words: &[&str]) -> Option<(Command, PathBuf)> {
    static TRACES: AtomicU32 = AtomicU32::new(0);
    let may_trace = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    if !may_trace.as_ref().is_ok_and(|tried| tried.status.success()) {
        eprintln!("skipped: strace does not run here ({may_trace:?})");
        return None;
    }
    let number = TRACES.fetch_add(1, Ordering::Relaxed);
    let file = env::temp_dir().join(format!("launch-turns-{}.{number}", std::process::id()));
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o"]).arg(&file).args(trace);
    command.arg(env!("CARGO_BIN_EXE_deckrun")).args(words).stdin(Stdio::null());
    Some((command, file))
}

const ELSEWHERE: [&str; 4] = ["--agent", "env NODE={}", "--iface", "lo"];

/// The job has ranks that sleep, and one that writes lines. Each line costs the watching process a frame and a
/// turn of its loop.
const RANKS: usize = 48;
const LINES: usize = 60;

/// Maximum cost of a line or an end for a watching process: a few checks for dead children.
const EACH: usize = 8;

#[test]
fn what_a_frame_costs_does_not_grow_with_the_ranks() {
    // First the ranks belong to the node that receives the lines, and then to the root, which receives them
    // from another host's node.
    for (hosts, writer) in [(format!("b:{RANKS}"), 0), (format!("localhost:{RANKS},b:1"), RANKS)] {
        let script = format!(
            "test $DECK_RANK = {writer} || exec sleep 600; \
             i=0; while [ $i != {LINES} ]; do echo $i; i=$((i + 1)); sleep 0.01; done; exit 3"
        );
        let words = [&["--hosts", &hosts][..], &ELSEWHERE, &["sh", "-c", &script]].concat();
        let Some((command, file)) = traced(&["-e", "trace=waitid"], &words) else { return };
        let ran = Ran::of(command);
        let trace = fs::read_to_string(&file).unwrap();
        fs::remove_file(file).unwrap();
        assert_eq!((ran.code, ran.lines().len()), (Some(3), LINES), "{}", ran.stderr);
        let mut asked = HashMap::<&str, usize>::new();
        for call in trace.lines().filter(|line| line.contains("waitid(")) {
            *asked.entry(call.split(' ').next().unwrap()).or_default() += 1;
        }
        let most = asked.into_values().max().unwrap();
        assert!(most > LINES / 4, "{most}: this counts no turns");
        assert!(most <= EACH * (LINES + RANKS), "{hosts}: {most} looks for dead children by one process");
    }
}

#[test]
fn a_job_whose_name_service_fails_ends_and_says_so() {
    // The name service calls one of these. No other thread here does.
    const CALLS: &str = "epoll_wait,epoll_pwait,epoll_pwait2";
    let inject = ["-e", &format!("trace={CALLS}"), "-e", &format!("inject={CALLS}:error=EIO")];
    let Some((command, file)) = traced(&inject, &["-n", "2", "sleep", "600"]) else { return };
    let ran = Ran::of(command);
    fs::remove_file(file).unwrap();
    assert_eq!(ran.code, Some(125), "{}", ran.stderr);
    assert!(ran.stderr.contains("the name service has failed; ending ranks 0-1"), "{}", ran.stderr);
}
