//! Jobs of this very program: `launch_self`, and the ranks' view of their launcher.
//!
//! `main` launches itself once per scenario and checks the outcome; run as a rank, it plays its part.

use std::{
    env,
    os::unix::process::ExitStatusExt,
    process::Command,
    sync::mpsc,
    time::{Duration, Instant},
};

use deckrun::{Bind, End, Job, OnFailure, Outcome, RankFailure, launch_self};
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Signal, getpid, kill_process};
use udeck_boot::{BootError, Client, ENV_BOOT_FD, Event, Record};

const SCENARIO: &str = "DECKRUN_TEST_SCENARIO";
const RANKS: u32 = 3;

type Part = fn(&Client);

/// Scenarios: the part of each rank, and the job's expected failures. All run with `Continue`: every rank's own
/// checks count.
const SCENARIOS: [(&str, Part, &[RankFailure]); 5] = [
    ("ranks_find_each_other", find_each_other, &[]),
    (
        "a_crash_is_news_with_its_signals_name",
        crash,
        &[RankFailure { rank: 2, end: End::Killed(libc::SIGKILL) }],
    ),
    ("an_exit_without_goodbye_is_news_and_no_failure", leave_in_silence, &[]),
    ("a_ranks_children_do_not_hold_its_connection", have_a_child, &[]),
    ("a_process_joins_once", join_twice, &[]),
];

fn main() {
    if let Ok(name) = env::var(SCENARIO) {
        let (_, play, _) = SCENARIOS.iter().find(|(known, ..)| *known == name).expect("a known scenario");
        return play(&Client::from_env().unwrap().expect("a rank has a launcher"));
    }
    assert!(Client::from_env().unwrap().is_none(), "nobody has launched this process");
    let trials = SCENARIOS.map(|(name, _, failures)| {
        Trial::test(name, move || {
            let job = Job::new(RANKS).env(SCENARIO, name).bind(Bind::None).on_failure(OnFailure::Continue);
            let outcome = launch_self(job.timeout(LONG)).unwrap().expect("this process is no rank");
            assert_eq!(outcome, Outcome { failures: failures.to_vec(), ..Outcome::default() });
            Ok(())
        })
    });
    let (arguments, names) = arguments();
    let is_asked_for = |trial: &Trial| {
        let fits =
            |name: &String| if arguments.exact { trial.name() == name } else { trial.name().contains(name) };
        names.is_empty() || names.iter().any(fits)
    };
    libtest_mimic::run(&arguments, trials.into_iter().filter(is_asked_for).collect()).exit();
}

/// Splits off the names of tests: libtest takes several, libtest-mimic one.
fn arguments() -> (Arguments, Vec<String>) {
    const WITH_VALUE: [&str; 5] = ["--skip", "--test-threads", "--format", "--color", "--logfile"];
    let (mut flags, mut names) = (Vec::new(), Vec::new());
    let mut words = env::args();
    flags.extend(words.next());
    while let Some(word) = words.next() {
        if WITH_VALUE.contains(&word.as_str()) {
            flags.push(word);
            flags.extend(words.next());
        } else if word.starts_with('-') {
            flags.push(word);
        } else {
            names.push(word);
        }
    }
    // One after another: a process launches one job at a time.
    (Arguments { test_threads: Some(1), ..Arguments::from_iter(flags) }, names)
}

/// Upper bound of any wait, far enough for a slow machine; no test waits for it unless it fails.
const LONG: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + LONG
}

/// Waits for the first event about another rank.
fn news(client: &Client) -> Event {
    let (sender, receiver) = mpsc::channel();
    client.on_event(Box::new(move |event| {
        let _ = sender.send(event.clone());
    }));
    receiver.recv_timeout(LONG).expect("no event came")
}

fn find_each_other(client: &Client) {
    assert!(launch_self(Job::new(2)).unwrap().is_none(), "a rank does not launch itself again");
    let me = client.welcome().rank;
    assert_eq!(env::var("DECK_RANK").unwrap(), me.to_string());
    assert_eq!((client.welcome().size, env::var("DECK_SIZE").unwrap()), (RANKS, RANKS.to_string()));
    client.register(&format!("box{me}"), &[me as u8], soon()).unwrap();
    let next = (me + 1) % RANKS;
    let found = client.lookup(&format!("box{next}"), true, soon()).unwrap();
    assert_eq!(found, Record { owner: next, value: vec![next as u8] });
    client.fence(soon()).unwrap();
    client.finish(soon()).unwrap();
}

fn crash(client: &Client) {
    client.fence(soon()).unwrap();
    if client.welcome().rank == 2 {
        kill_process(getpid(), Signal::KILL).unwrap();
        panic!("survived SIGKILL");
    }
    assert_eq!(news(client), Event::RankLost { rank: 2, how: "killed by SIGKILL".into() });
    let broken = client.fence(soon());
    assert!(matches!(&broken, Err(BootError::PeerLost { rank: 2, .. })), "{broken:?}");
    stay_until_all_know(client);
}

fn leave_in_silence(client: &Client) {
    client.fence(soon()).unwrap();
    if client.welcome().rank == 2 {
        return;
    }
    let how = "exited with code 0 without saying goodbye".into();
    assert_eq!(news(client), Event::RankLost { rank: 2, how });
    stay_until_all_know(client);
}

/// Waits until ranks 0 and 1 have both heard of rank 2: neither may end before.
fn stay_until_all_know(client: &Client) {
    let me = client.welcome().rank;
    client.put(&format!("knows{me}"), b"", soon()).unwrap();
    client.get(&format!("knows{}", 1 - me), true, soon()).unwrap();
    client.finish(soon()).unwrap();
}

fn have_a_child(client: &Client) {
    let descriptor = env::var(ENV_BOOT_FD).unwrap();
    let script = format!("test ! -e /proc/self/fd/{descriptor}");
    let status = Command::new("/bin/sh").args(["-c", &script]).status().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None), "descriptor {descriptor} was inherited");
    client.finish(soon()).unwrap();
}

fn join_twice(client: &Client) {
    let again = Client::from_env();
    assert!(matches!(&again, Err(BootError::AlreadyJoined)), "{again:?}");
    let words = again.unwrap_err().to_string();
    assert!(words.contains("already") && !words.contains(ENV_BOOT_FD), "{words}");
    client.finish(soon()).unwrap();
}
