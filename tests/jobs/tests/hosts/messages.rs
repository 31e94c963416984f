//! Messages between ranks on several hosts: the transports that connect them, and the effects of failures.

use std::{process::Command, thread, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use udeck_jobs::{Bin, Ended, Job, Running, netns::Network, trace_format::Trace};

use super::starting::File;
use super::{Case, TALKER, skip};

const LEAVER: &str = env!("CARGO_BIN_EXE_leave-rank");

pub const CASES: &[Case] = &[
    ("messages_of_all_sizes_by_all_protocols", all_protocols),
    ("messages_over_udp", over_udp),
    ("messages_over_udp_through_a_slow_interface", over_slow_udp),
    ("a_path_too_narrow_for_udp_is_named", over_narrow_udp),
    ("messages_over_ipv6", over_v6),
    ("service_levels_have_their_shares_of_a_narrow_path", levels),
    ("service_levels_have_their_shares_over_udp", levels_over_udp),
    ("what_ranks_posted_comes_when_they_have_left", left_behind),
    ("the_choice_of_transports_is_explained", explained),
    ("what_is_to_be_encrypted_leaves_a_host_by_udp", encrypted),
    ("who_insists_on_encryption_takes_nothing_else_from_other_hosts", encrypted_by_one),
    ("ranks_of_one_host_and_two_users_use_the_network", two_users),
    ("nas_ft_on_three_hosts", nas_ft),
    ("collective_calls_on_three_hosts", collective_calls),
    ("a_trace_of_three_hosts_has_one_time", traced),
    ("a_deadlock_over_hosts_is_told_with_its_circle", deadlock),
    ("a_rank_that_is_killed_is_an_error_to_who_waits", killed_rank),
    ("a_host_cut_off_is_an_error_to_who_waits", cut_off),
    ("a_rank_that_is_stopped_holds_up_its_messages_only", stopped_rank),
    ("deckrun_killed_leaves_no_talker", killed_deckrun),
];

/// Checks the output of a job with two ranks on each host: ranks of one host share memory, the others use a
/// network.
fn exchanged(ended: &Ended, network: &str) {
    for rank in 0..6 {
        ended.line_with(&format!("rank {rank} has seen 120 messages"));
        for peer in (0..6).filter(|peer| *peer != rank) {
            let transport = if rank / 2 == peer / 2 { "shm" } else { network };
            ended.line_with(&format!("rank {rank} -> rank {peer}: {transport}"));
        }
    }
}

fn all_protocols() {
    let network = Network::new(3);
    exchanged(&network.deckrun(2).args(["--", TALKER, "exchange"]).run().ok().clean(), "tcp");
}

/// Sends bulk data of three levels, more than the path takes, and compares the share of each that arrives. Without shares the
/// same program reports that levels have no effect.
fn levels() {
    levels_over("tcp");
}

fn levels_over_udp() {
    levels_over("udp");
}

fn levels_over(transport: &str) {
    let network = Network::new(2);
    network.narrow(1, "100mbit").unwrap_or_else(|why| skip(why));
    let job = || {
        let job = network.deckrun(1).args(["--transport", transport, "--"]);
        job.arg(Bin::example("levels").path()).arg("2").env("DECK_EXPLAIN", "1")
    };
    let encrypted = if transport == "udp" { ", encrypted" } else { "" };
    let way = format!("rank 0 -> rank 1: {transport}{encrypted}");
    let ended = job().env("DECK_LEVELS", "7:10@2,5:45,3:27,0:18").run().ok().clean();
    assert!(ended.stderr.contains(&format!("{way}, level 5")), "{ended}");
    for (level, share) in [(5, 50.0), (3, 30.0), (0, 20.0)] {
        let line = ended.line_with(&format!("level {level}: "));
        let words = line.split(':').nth(1).and_then(|rest| rest.split('%').next()).unwrap_or_default();
        let got: f64 = words.trim().parse().expect("a share");
        assert!((got - share).abs() <= 2.0, "level {level} has {got} % and not {share}\n{ended}");
    }
    let ended = job().run().ok().clean();
    let words = format!("{way}, where level 5 has no effect (see DECK_LEVELS)");
    assert!(ended.stderr.contains(&words), "{ended}");
    let ended = job().env("DECK_LEVELS", "5:50,x").run();
    assert!(ended.stderr.contains("LEVEL:SHARE"), "{ended}");
    assert!(!ended.status.is_some_and(|status| status.success()), "{ended}");
}

/// Runs two ranks on each of three hosts, with the algorithms for hosts and with those for a network.
fn collective_calls() {
    let network = Network::new(3);
    let all =
        &["all_reduce", "long_all_reduce", "broadcast", "reduce", "all_gather", "all_to_all", "scan"][..];
    let some = &["long_all_reduce", "all_gather"];
    for (transport, algorithm, calls) in
        [("shm,tcp", "auto", all), ("shm,tcp", "ring", some), ("shm,udp", "auto", some)]
    {
        for call in calls {
            let job = network.deckrun(2).args(["--transport", transport, "--"]);
            let job = job.args([env!("CARGO_BIN_EXE_group-rank"), call]).env("DECK_GROUP", algorithm);
            let ended = job.run().ok().clean();
            for rank in 0..6 {
                ended.line_with(&format!("rank {rank}: right"));
            }
        }
    }
}

/// The hosts of this test have one clock, so the truth is known: a comparison finds no difference beyond its error.
fn traced() {
    let network = Network::new(3);
    let path = std::env::temp_dir().join(format!("hosts-trace-{}.json", std::process::id()));
    let job = network.deckrun(2).args(["--", env!("CARGO_BIN_EXE_trace-rank"), "ring"]);
    let ended = job.env("DECK_TRACE", &path).run().ok().clean();
    let trace = Trace::read(&path);
    std::fs::remove_file(&path).expect("it was read");
    for rank in 0..6 {
        let of_rank = trace.rank(rank);
        assert_eq!(of_rank["events"], "complete", "{ended}");
        let [offset, error] = ["clock_offset_ns", "clock_error_ns"].map(|name| of_rank[name].as_i64());
        let (offset, error) = (offset.expect("an offset"), error.expect("an error"));
        assert_eq!(error == 0, rank < 2, "rank {rank} was compared: {of_rank}");
        assert!(offset.abs() <= error, "{of_rank}");
    }
    // The trace has at least each message of the ring. The hosts share their files here, and no part replaces
    // another.
    let [posts, arrows] = ["X", "f"].map(|kind| {
        trace.of_kind(kind).filter(|event| event["name"] == "post" || event["name"] == "message").count()
    });
    assert!(posts >= 6 * 41 && arrows == posts, "{posts} posts, {arrows} arrows");
}

/// Each rank posts to the next one, on the next host, and no rank retrieves.
fn deadlock() {
    let network = Network::new(3);
    let job = network.deckrun(1).args(["--watchdog", "1s", "--", env!("CARGO_BIN_EXE_stuck-rank"), "post"]);
    let ended = job.run_while(|job| {
        let _ = job.complaint_with("deadlock:", 1);
        end(job);
    });
    for step in ["0 posts to \"b\" of 1", "1 posts to \"c\" of 2", "2 posts to \"a\" of 0"] {
        let told = |line: &str| line.starts_with("deadlock:") && line.contains(step);
        assert!(ended.stderr.lines().any(told), "{ended}");
    }
    let _ = ended.clean();
}

fn over_udp() {
    let network = Network::new(3);
    let job = network.deckrun(2).args(["--transport", "shm,udp", "--", TALKER, "exchange"]);
    exchanged(&job.run().ok().clean(), "udp");
}

/// The socket refuses data that the interface does not take.
fn over_slow_udp() {
    let network = Network::new(2);
    network.slow_down(0, "400mbit").unwrap_or_else(|why| skip(why));
    let job = network.deckrun(1).args(["--transport", "udp", "--", TALKER, "flood"]);
    job.run().ok().clean().line_with("144 messages came");
}

/// QUIC has no datagram shorter than 1,200 bytes. A host whose own interface is too narrow reports this at once; a host whose
/// path is narrow behind its interface reports it when no answer has come.
fn over_narrow_udp() {
    let network = Network::new(2);
    let job = |transport: &str| network.deckrun(1).args(["--transport", transport, "--", TALKER, "exchange"]);
    network.set_path_mtu(1, 1200);
    let ended = job("udp").run().fails();
    let said = ended.stderr.replace('\n', " ");
    assert!(
        said.contains("an MTU below 1228 answers nothing") && said.contains("--transport tcp has no"),
        "{ended}"
    );
    network.configure(1, &["link", "set", "eth0", "mtu", "1200"]);
    let ended = job("udp").run().fails();
    assert!(ended.stderr.contains("the MTU of eth0 is 1200, and QUIC needs 1228"), "{ended}");
    job("tcp").run().ok().clean().line_with("rank 1 has seen");
}

/// The agents know their hosts by name, the interface is given by its other address.
fn over_v6() {
    let network = Network::new(3);
    let address = network.v6(0).to_string();
    let job = network.bare_deckrun().args(["--hosts", &network.list(2), "--agent", "ip netns exec"]);
    exchanged(&job.args(["--iface", &address, "--", TALKER, "exchange"]).run().ok().clean(), "tcp");
}

/// The sender has gone, and cannot repeat lost data.
fn left_behind() {
    let network = Network::new(3);
    for transport in ["shm,tcp", "shm,udp"] {
        let job = network.deckrun(2).args(["--transport", transport, "--", LEAVER, "late"]);
        job.run().ok().clean().line_with("24 messages came of each of 5 ranks");
    }
}

fn encrypted() {
    let network = Network::new(2);
    let ended =
        network.deckrun(2).args(["--encrypt", "--explain", "--", TALKER, "exchange"]).run().ok().clean();
    let ways: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("deck: rank ")).collect();
    let to = |from: usize, to: usize| {
        let way = format!("deck: rank {from} -> rank {to}: ");
        ways.iter()
            .find_map(|line| Some(line.split_once(&way)?.1.to_owned()))
            .unwrap_or_else(|| panic!("{ended}"))
    };
    assert_eq!(to(0, 1), "shm", "{ended}");
    assert!(
        to(0, 2).starts_with("udp, encrypted (") && to(0, 2).contains("tcp: it is not encrypted"),
        "{ended}"
    );
    let ended = network
        .deckrun(2)
        .args(["--encrypt", "--transport", "shm,tcp", "--", TALKER, "exchange"])
        .run()
        .fails();
    assert!(
        ended.stderr.contains("none of shm, tcp encrypts") && ended.stderr.contains("add one that does"),
        "{ended}"
    );
}

/// Two ranks run on host 0, of which rank 0 requires encryption, and one on host 1, which does not. All listen on the
/// network.
fn encrypted_by_one() {
    let network = Network::new(2);
    let hosts = format!("localhost:2,{}:1", network.host(1));
    let interface = network.v4(0).to_string();
    let run = |transports: &str| {
        let job = network.bare_deckrun().args([
            "--hosts",
            &hosts,
            "--agent",
            "ip netns exec",
            "--iface",
            &interface,
        ]);
        job.args(["--", TALKER, "encrypt", transports]).run().ok().clean()
    };
    let way = |ended: &Ended, from: usize, to: usize| {
        let way = format!("rank {from} -> rank {to}: ");
        let said = ended.stdout.lines().find_map(|line| line.strip_prefix(&way));
        said.unwrap_or_else(|| panic!("{way}: {ended}")).to_owned()
    };
    let ended = run("tcp");
    assert_eq!(way(&ended, 1, 0), "tcp", "on one host: {ended}");
    let refused = way(&ended, 2, 0);
    assert!(refused.contains("not sent") && refused.contains("DECK_ENCRYPT=1"), "{ended}");
    let refused = way(&ended, 0, 2);
    assert!(refused.contains("not sent") && refused.contains("not encrypted"), "{ended}");
    let ended = run("tcp,udp");
    assert_eq!(way(&ended, 1, 0), "tcp", "on one host: {ended}");
    for (from, to) in [(2, 0), (0, 2)] {
        let taken = way(&ended, from, to);
        assert!(taken.starts_with("udp: tcp not possible: it is not encrypted"), "{ended}");
    }
    assert_eq!(way(&ended, 2, 1), "tcp", "neither insists: {ended}");
}

fn explained() {
    let network = Network::new(2);
    let ended = network.deckrun(2).args(["--explain", "--", TALKER, "exchange"]).run().ok().clean();
    let said =
        |what: &str| assert!(ended.stderr.lines().any(|line| line.starts_with(what)), "{what}: {ended}");
    said("deck: rank 0 -> rank 1: shm");
    said("deck: rank 0 -> rank 2: tcp (shm: ");
    said("deck: rank 3 -> rank 0: tcp (shm: ");
}

/// The ranks are like containers that share a network namespace, but not a user namespace: they find each other by the
/// names of sockets, and share no memory.
fn two_users() {
    const OTHER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    for program in [Bin::deckrun().path(), TALKER.as_ref()] {
        let may_run = Command::new("setpriv").args(OTHER).args(["test", "-x"]).arg(program).status();
        if !may_run.is_ok_and(|status| status.success()) {
            skip(format!("another user may not run {}", program.display()));
        }
    }
    let network = Network::new(1);
    let agent = File::script(network.host(0), &format!("shift; exec setpriv {} \"$@\"", OTHER.join(" ")));
    let (hosts, interface) = ("localhost:2,other:2", network.v4(0).to_string());
    let job = network.bare_deckrun().args(["--hosts", hosts, "--agent", agent.path(), "--iface", &interface]);
    let ended = job.args(["--explain", "--", TALKER, "exchange"]).run().ok().clean();
    for rank in 0..4 {
        for peer in (0..4).filter(|peer| *peer != rank) {
            let way = if rank / 2 == peer / 2 { "shm" } else { "tcp (shm: shared memory with process " };
            let said = format!("deck: rank {rank} -> rank {peer}: {way}");
            assert!(ended.stderr.lines().any(|line| line.starts_with(&said)), "{said}: {ended}");
        }
    }
}

fn nas_ft() {
    let network = Network::new(3);
    let program = Bin::nas_ft();
    let path = program.path().to_str().expect("a plain name");
    let ended = network.deckrun(2).args(["--", path, "--class", "W"]).run().ok().clean();
    assert!(ended.stdout.to_lowercase().contains("verif"), "{ended}");
}

fn enduring(network: &Network) -> Job {
    let options = ["--detect", "2s", "--on-failure", "continue", "--", TALKER, "endure"];
    network.deckrun(2).args(options)
}

/// Process number of a rank that has printed that it is ready.
fn pid_of(job: &Running, rank: u32) -> Pid {
    let line = job.line_with(&format!("rank {rank} pid "), 1);
    let number = line.split_whitespace().nth(3).and_then(|word| word.parse().ok());
    number.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no number in {line:?}"))
}

/// Ends a job whose survivors would wait for ever.
fn end(job: &Running) {
    kill_process(Pid::from_raw(job.pid() as i32).expect("a process number"), Signal::TERM).expect("it runs");
}

/// Number of losses that ranks have learned of up to now. While the job is being ended, the last ranks learn of the
/// others' end, too.
fn losses(job: &Running) -> usize {
    job.so_far().matches("learns").count()
}

fn all_ready(job: &Running) {
    let _ = job.line_with("ready", 6);
}

fn killed_rank() {
    let network = Network::new(3);
    let mut learnt = 0;
    let ended = enduring(&network).run_while(|job| {
        all_ready(job);
        kill_process(pid_of(job, 5), Signal::KILL).expect("it runs");
        let _ = job.line_with("learns: rank 5 ", 5);
        learnt = losses(job);
        end(job);
    });
    for rank in 0..5 {
        ended.line_with(&format!("rank {rank} learns: rank 5 "));
    }
    assert_eq!(learnt, 5, "nobody else was lost: {ended}");
    let _ = ended.clean();
}

fn cut_off() {
    let network = Network::new(3);
    let mut learnt = 0;
    let ended = enduring(&network).run_while(|job| {
        all_ready(job);
        network.set_link(2, false);
        for lost in [4, 5] {
            let _ = job.line_with(&format!("learns: rank {lost} "), 4);
        }
        learnt = losses(job);
        end(job);
    });
    for rank in 0..4 {
        for lost in [4, 5] {
            ended.line_with(&format!("rank {rank} learns: rank {lost} "));
        }
    }
    assert_eq!(learnt, 8, "nobody else was lost: {ended}");
    let _ = ended.clean();
}

/// The rank is stopped for longer than a host may be silent.
fn stopped_rank() {
    let network = Network::new(3);
    let ended = network.deckrun(2).args(["--detect", "2s", "--", TALKER, "ring"]).run_while(|job| {
        all_ready(job);
        kill_process(pid_of(job, 2), Signal::STOP).expect("it runs");
        thread::sleep(Duration::from_secs(5));
        kill_process(pid_of(job, 2), Signal::CONT).expect("it is stopped");
    });
    let ended = ended.ok();
    assert_eq!(ended.stdout.matches("is through").count(), 6, "{ended}");
    let _ = ended.clean();
}

fn killed_deckrun() {
    let network = Network::new(3);
    let ended = enduring(&network).run_while(|job| {
        all_ready(job);
        let root = Pid::from_raw(job.pid() as i32).expect("a process number");
        kill_process(root, Signal::KILL).expect("it runs");
    });
    assert_eq!(ended.code(), 128 + 9, "{ended}");
    let _ = ended.clean();
}
