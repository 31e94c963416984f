//! The start of a job over several hosts, and the errors when it fails.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use udeck_jobs::{Ended, Job, netns::Network};

use super::{Case, RANK};

pub const CASES: &[Case] = &[
    ("ranks_meet", ranks_meet),
    ("ranks_meet_when_every_host_has_an_agent", ranks_meet_when_every_host_has_an_agent),
    ("the_default_interface_is_the_one_towards_the_first_host", the_default_interface),
    ("ipv6", ipv6),
    ("five_hundred_ranks_on_four_hosts_with_1024_descriptors", five_hundred_ranks),
    ("input_and_tagged_output", input_and_tagged_output),
    ("strangers_at_the_port_disturb_nothing", strangers),
    ("an_interface_that_does_not_exist", no_such_interface),
    ("an_interface_that_the_others_cannot_reach", unreachable_interface),
    ("a_firewall", firewall),
    ("a_name_that_does_not_resolve", unresolved_name),
    ("an_agent_that_fails", failing_agent),
    ("a_program_that_one_host_lacks", missing_program),
];

/// Line that a rank of `meet` prints at its end.
fn met(rank: usize, size: usize, network: &Network, host: usize, v6: bool) -> String {
    let address = if v6 { network.v6(host) } else { network.v4(host) };
    format!("rank {rank} of {size} on host {host} of {} at {address}", network.size())
}

fn all_met(ended: &Ended, network: &Network, slots: usize, v6: bool) {
    let size = slots * network.size();
    for rank in 0..size {
        ended.line_with(&met(rank, size, network, rank / slots, v6));
    }
    assert_eq!(ended.stdout.lines().count(), size, "{ended}");
}

fn ranks_meet() {
    let network = Network::new(3);
    let ended = network.deckrun(2).args(["--", RANK, "meet"]).run().ok();
    all_met(&ended, &network, 2, false);
    assert_eq!(ended.stderr, "");
}

fn ranks_meet_when_every_host_has_an_agent() {
    let network = Network::new(3);
    let hosts: Vec<_> = (0..3).map(|index| format!("{}:2", network.host(index))).collect();
    let job = network.bare_deckrun().args(["--hosts", &hosts.join(","), "--agent", "ip netns exec {}"]);
    let ended = job.args(["--iface", "eth0", RANK, "meet"]).run().ok();
    all_met(&ended, &network, 2, false);
}

/// A file that is removed with its test.
pub(super) struct File(PathBuf);

impl File {
    pub(super) fn script(name: &str, text: &str) -> File {
        let path = std::env::temp_dir().join(format!("jobs-{name}-{}", std::process::id()));
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("a writable folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own file");
        File(path)
    }

    pub(super) fn path(&self) -> &str {
        self.0.to_str().expect("a plain name")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An agent that knows hosts by their addresses, as ssh does.
fn agent_by_address(network: &Network) -> File {
    let arms = (0..network.size())
        .map(|index| format!("{}|{}) ns={};;", network.v4(index), network.v6(index), network.host(index)));
    let arms: String = arms.collect();
    File::script(network.host(0), &format!("case $1 in {arms} esac; shift; exec ip netns exec $ns \"$@\""))
}

fn the_default_interface() {
    let network = Network::new(3);
    let agent = agent_by_address(&network);
    let hosts = format!("localhost:2,{}:2,{}:2", network.v4(1), network.v4(2));
    let job = network.bare_deckrun().args(["--hosts", &hosts, "--agent", agent.path(), RANK, "meet"]);
    all_met(&job.run().ok(), &network, 2, false);
}

fn ipv6() {
    let network = Network::new(3);
    let agent = agent_by_address(&network);
    let hosts = format!("localhost:2,[{}]:2,[{}]:2", network.v6(1), network.v6(2));
    let job = network.bare_deckrun().args(["--hosts", &hosts, "--agent", agent.path(), RANK, "meet"]);
    all_met(&job.run().ok(), &network, 2, true);
}

/// `ulimit -n` sets both limits, so deckrun cannot raise its own on any host.
fn five_hundred_ranks() {
    let network = Network::new(4);
    let deckrun = network.deckrun(125).args(["--", RANK, "meet"]);
    let script = format!(
        "ulimit -n 1024 && exec {}",
        deckrun.to_string().replace("ip netns exec --iface", "'ip netns exec' --iface")
    );
    let ended = Job::new("sh".as_ref()).args(["-c", &script]).run().ok();
    all_met(&ended, &network, 125, false);
}

fn input_and_tagged_output() {
    let network = Network::new(2);
    let hosts = format!("{}:2,localhost:1", network.host(1));
    let job = network.bare_deckrun().args(["--hosts", &hosts, "--agent", "ip netns exec", "--iface", "eth0"]);
    let script = "test $DECK_RANK != 0 || cat; echo $DECK_RANK >&2; seq 3000";
    let deckrun = job.args(["--tag-output", "--", "sh", "-c"]).to_string();
    let deckrun = deckrun.replace("ip netns exec --iface", "'ip netns exec' --iface");
    let line = format!("seq 100000 | {deckrun} '{script}'");
    let ended = Job::new("sh".as_ref()).args(["-c", &line]).run().ok();
    for (rank, input) in [(0, 100_000), (1, 0), (2, 0)] {
        let tag = format!("[{rank}] ");
        let own = ended.stdout.lines().filter_map(|line| line.strip_prefix(&tag));
        let wanted = (1..=input).chain(1..=3000).map(|number| number.to_string());
        assert!(own.eq(wanted), "rank {rank} of {ended}");
        assert!(ended.stderr.lines().any(|line| line == format!("[{rank}] {rank}")), "{}", ended.stderr);
    }
}

fn strangers() {
    let network = Network::new(2);
    let agent =
        File::script("intruder", &format!("ns=$1; shift; exec ip netns exec $ns {RANK} intrude \"$@\""));
    let hosts = format!("localhost:1,{}:1", network.host(1));
    let job = network.bare_deckrun().args(["--hosts", &hosts, "--agent", agent.path(), "--iface", "eth0"]);
    let ended = job.args([RANK, "meet"]).run().ok();
    all_met(&ended, &network, 1, false);
    let told: Vec<_> = ended.stderr.lines().collect();
    let [refused] = told[..] else { panic!("not one line: {ended}") };
    assert!(refused.contains(&format!("refused a connection from {}", network.v4(1))), "{ended}");
}

/// Checks that the job ends with this code and an error that has all of the words.
fn refused(job: Job, code: i32, words: &[&str]) {
    let ended = job.run().clean();
    assert_eq!(ended.code(), code, "{ended}");
    for word in words {
        assert!(ended.stderr.contains(word), "nothing of {word:?}: {ended}");
    }
    assert!(ended.stdout.is_empty(), "no rank has run: {ended}");
}

fn no_such_interface() {
    let network = Network::new(2);
    let job = |asked: &str| {
        network.bare_deckrun().args([
            "--hosts",
            &network.list(1),
            "--agent",
            "ip netns exec",
            "--iface",
            asked,
            "true",
        ])
    };
    let own = format!("eth0 {}, lo ::1, eth0 {}", network.v4(0), network.v6(0));
    refused(job("eth7"), 2, &["--iface eth7", "no such interface", &own]);
    refused(job("10.77.0.2"), 2, &["--iface 10.77.0.2", "no interface of this host has this address", &own]);
    refused(job("0.0.0.0"), 2, &["--iface 0.0.0.0", "no interface of this host", &own]);
}

/// deckrun with an interface of the root that the other hosts do not reach.
fn with_another_interface(network: &Network) -> Job {
    network.configure(0, &["link", "add", "eth1", "type", "veth", "peer", "name", "eth2"]);
    network.configure(0, &["addr", "add", "10.88.0.1/24", "dev", "eth1"]);
    network.configure(0, &["link", "set", "eth1", "up"]);
    network.configure(0, &["link", "set", "eth2", "up"]);
    let job = network.bare_deckrun().args(["--hosts", &network.list(1), "--agent", "ip netns exec"]);
    job.args(["--iface", "eth1"])
}

fn unreachable_interface() {
    let network = Network::new(2);
    let host = format!("host {}, connect", network.host(1));
    let job = with_another_interface(&network).arg("true");
    refused(job, 125, &[&host, "cannot reach 10.88.0.1:", "unreachable"]);
}

/// Packets from the other host to this interface are lost silently.
fn firewall() {
    let network = Network::new(2);
    network.configure(1, &["route", "add", "10.88.0.0/24", "dev", "eth0"]);
    let nobody =
        ["neigh", "add", "10.88.0.1", "lladdr", "02:00:00:00:00:77", "dev", "eth0", "nud", "permanent"];
    network.configure(1, &nobody);
    let host = format!("host {}, connect", network.host(1));
    // The other host's deckrun tries for two thirds of this limit; the rest is for its start and its error.
    let job = with_another_interface(&network).args(["--start-timeout", "6s", "true"]);
    refused(job, 125, &[&host, "cannot reach 10.88.0.1:", "timed out", "firewall"]);
}

fn unresolved_name() {
    let network = Network::new(1);
    let job = network.bare_deckrun().args(["--hosts", "localhost:1,no-such-host.invalid:1", "true"]);
    refused(job, 125, &["host no-such-host.invalid, resolve", "does not resolve", "--iface"]);
}

fn failing_agent() {
    let network = Network::new(2);
    let job = |agent: &str| {
        let hosts = format!("localhost:1,{}:1,nowhere:1", network.host(1));
        network.bare_deckrun().args(["--hosts", &hosts, "--agent", agent, "--iface", "eth0", "true"])
    };
    refused(
        job("ip netns exec"),
        125,
        &["host nowhere, agent", "exited with code 255", "Cannot open network namespace"],
    );
    refused(job("no-such-agent -x"), 125, &["agent: cannot run `no-such-agent -x ", "--agent"]);
}

fn missing_program() {
    let network = Network::new(3);
    let program = std::env::temp_dir().join(format!("jobs-only-here-{}", std::process::id()));
    fs::create_dir(&program).expect("a writable folder");
    fs::copy("/bin/true", program.join("prog")).expect("a program");
    let path = program.join("prog").display().to_string();
    let folder = program.display();
    // On the last host an empty folder hides the program: each `ip netns exec` has its own mounts.
    let hide =
        format!("if test $0 = {}; then mount -t tmpfs none {folder}; fi; exec \"$@\"", network.host(2));
    let agent =
        File::script("hider", &format!("ns=$1; shift; exec ip netns exec $ns sh -c '{hide}' $ns \"$@\""));
    let job = network.bare_deckrun().args([
        "--hosts",
        &network.list(1),
        "--iface",
        "eth0",
        "--agent",
        agent.path(),
    ]);
    refused(job.arg(&path), 127, &[&format!("host {}: {path}: no such program", network.host(2))]);
    fs::remove_dir_all(&program).expect("our own folder");
}
