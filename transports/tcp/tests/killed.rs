//! A real peer process that is killed or stopped, as its peer sees it.

use std::process::{Child, Command};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use udeck_via::{Error, NetAddress, Nic};

use super::{LentEnd, check, listen, nic, nic_with, pair, soon};

const ADDRESS: &str = "UDECK_TCP_TEST_PEER";

/// The peer process that the other tests start: it connects, prints a line, and waits. Not a test of its own.
#[test]
fn peer() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let nic = nic();
    let mut end = LentEnd::new(&nic);
    end.connect(&NetAddress { host: address.into_bytes(), discriminator: b"door".to_vec() }).unwrap();
    end.vi.send_inline(Some(1), b"", b"here").unwrap();
    let _ = end.arrival();
    end.vi.send_inline(Some(2), b"", b"still here").unwrap();
    let _ = end.arrival();
}

/// Starts the peer process, and connects it to an end of `nic`.
fn start(nic: &Nic) -> (Child, LentEnd) {
    let (listener, to) = listen(nic);
    let mut end = LentEnd::new(nic);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::killed::peer", "--nocapture"])
        .env(ADDRESS, String::from_utf8(to.host).unwrap())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    end.accept(&listener);
    assert_eq!(end.arrival().unwrap().immediate, Some(1));
    (child, end)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Stops all threads of the process, and waits until they have stopped.
fn stop(child: &Child) {
    signal(child, Signal::STOP);
    let tasks = format!("/proc/{}/task", child.id());
    let has_stopped = |task: std::fs::DirEntry| {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("State:") && line.contains('T'))
    };
    while !std::fs::read_dir(&tasks).unwrap().all(|task| has_stopped(task.unwrap())) {
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_process_is_lost() {
    let nic = nic();
    let (mut child, mut end) = start(&nic);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(matches!(end.end(), Error::Lost(_)));
    let (mut left, mut right) = pair(&nic, &nic);
    check(&mut left, &mut right);
}

/// The process is stopped for longer than a silent host would live, with a message in flight to it. Then it goes on.
#[test]
fn a_stopped_process_goes_on() {
    let detect = Duration::from_secs(2);
    let nic = nic_with(|options| options.detect = detect);
    let (mut child, mut end) = start(&nic);
    stop(&child);
    end.vi.send_inline(Some(3), b"", b"are you there?").unwrap();
    std::thread::sleep(detect * 3);
    assert!(end.vi.arrival().unwrap().is_none(), "it is connected, and says nothing");
    signal(&child, Signal::CONT);
    assert_eq!(end.arrival().unwrap().immediate, Some(2));
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = soon();
    assert!(matches!(end.end(), Error::Lost(_)) && !deadline.passed());
}
