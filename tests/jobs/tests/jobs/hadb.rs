//! The highly available database: its clients check every answer, and all tables when the run is over. These tests check that it
//! reports this, and that it counts the messages of its flows.

use udeck_jobs::{Bin, Ended};

const CHECKED: &str = "CHECKED ";

fn run(line: &str) -> Ended {
    Bin::hadb().alone().args(line.split(' ')).run()
}

/// A server is killed in the middle of the run: at the end of one mix, and at the beginning of the next.
fn survives(link: &str, victim: usize) {
    let line = format!("{link} --time 0.5 --kill 0.7 --victim {victim} --mix 4tup-run,tpcb,blob");
    let ended = run(&line).ok();
    assert!(ended.line_with(CHECKED).contains(&format!("server {victim} was killed")), "{ended}");
    let resumed = |what: &str| ended.stdout.lines().filter(|line| line.contains(what)).count();
    assert_eq!([resumed("lost its server: resumed"), resumed("kept its server: resumed")], [1, 1], "{ended}");
}

#[test]
fn nothing_acknowledged_is_lost_when_a_server_is_killed_over_shared_memory() {
    survives("--transport shm", 0);
    survives("--transport shm", 1);
}

#[test]
fn nothing_acknowledged_is_lost_when_a_server_is_killed_over_tcp() {
    survives("--transport tcp", 0);
    survives("--transport tcp", 1);
}

#[test]
fn nothing_acknowledged_is_lost_when_a_server_is_killed_over_udp() {
    survives("--transport udp", 1);
}

#[test]
fn nothing_acknowledged_is_lost_when_a_server_is_killed_over_bare_sockets() {
    survives("--link bare", 0);
    survives("--link bare", 1);
}

#[test]
fn nothing_acknowledged_is_lost_when_a_server_is_killed_over_udapl_and_shared_memory() {
    survives("--link dat --transport shm", 0);
    survives("--link dat --transport shm", 1);
}

#[test]
fn nothing_acknowledged_is_lost_when_a_server_is_killed_over_udapl_and_networks() {
    survives("--link dat --transport tcp", 0);
    survives("--link dat --transport udp", 1);
}

/// A server is killed, the spare takes its place, and then the other server is killed, too.
fn survives_twice(link: &str, victim: usize) {
    let second = 1 - victim;
    let line = format!(
        "{link} --spares 1 --time 0.7 --kill 0.2 --victim {victim} --kill-again --mix 4tup-run,tpcb,blob"
    );
    let ended = run(&line).ok();
    let checked = ended.line_with(CHECKED);
    assert!(checked.contains("on server 4 are what was acknowledged"), "{ended}");
    assert!(checked.contains(&format!("server {victim} was killed; server {second} was killed")), "{ended}");
    let count = |what: &str| ended.stdout.lines().filter(|line| line.contains(what)).count();
    assert!(count(": two servers again after") >= 1, "{ended}");
    // By chance, no client may have asked for rows of a half after one of the deaths.
    let halves = ended.stdout.lines().filter(|line| line.starts_with("half ")).count();
    assert_eq!(halves, 2, "{ended}");
}

#[test]
fn a_second_death_is_survived_once_the_spare_has_joined() {
    survives_twice("--transport shm", 0);
    survives_twice("--transport tcp", 1);
    survives_twice("--link dat --transport shm", 1);
}

/// The second spare plays the node that comes back: it is empty, and copies everything.
#[test]
fn a_second_spare_makes_two_servers_again_after_a_second_death() {
    let ended =
        run("--transport shm --spares 2 --time 0.7 --kill 0.2 --kill-again --mix 4tup-run,tpcb,blob").ok();
    let checked = ended.line_with(CHECKED);
    assert!(checked.contains("on server 4 and server 5, alike on both"), "{ended}");
    assert!(checked.contains("server 1 was killed; server 0 was killed"), "{ended}");
}

#[test]
fn a_spare_and_the_server_that_is_left_agree() {
    let ended = run("--transport shm --spares 1 --time 0.5 --kill 0.2 --mix tpcb,blob").ok();
    assert!(ended.line_with(CHECKED).contains("on server 0 and server 4, alike on both"), "{ended}");
}

#[test]
fn nothing_acknowledged_is_lost_when_a_server_is_killed_that_has_sockets_for_clients_and_the_library_for_servers()
 {
    survives("--client-link bare --node-link dat --transport shm", 0);
    survives("--client-link bare --node-link dat --transport tcp", 1);
    survives("--client-link bare --node-link mailboxes --transport tcp", 0);
}

/// Number of messages as counted by a run of one mix only.
fn messages_of(mix: &str, remote: u32, link: &str) -> f64 {
    let line = format!("{link} --mix {mix} --remote {remote} --time 0.2 --format csv");
    let ended = run(&line).ok();
    let [names, values] = [0, 1].map(|at| ended.stdout.lines().nth(at).unwrap_or("").split(','));
    let column = names.zip(values).find(|(name, _)| *name == "messages_per_transaction");
    column.and_then(|(_, value)| value.parse().ok()).unwrap_or_else(|| panic!("no such column: {ended}"))
}

#[test]
fn transactions_take_the_messages_of_their_flows() {
    let flows = [("1tup-read", [2.0, 6.0]), ("4tup-run", [12.0, 14.0]), ("tpcb", [4.0, 6.0])];
    for link in
        ["--transport shm", "--transport bare-udp", "--link dat", "--client-link bare --node-link dat"]
    {
        for (mix, messages) in flows {
            let counted = [0, 1].map(|remote| messages_of(mix, remote, link));
            assert_eq!(counted, messages, "{mix}, {link}");
        }
    }
}

#[test]
fn four_clients_and_both_servers_agree() {
    let ended = run("--time 0.3 --clients 4 --remote 0.5").ok();
    assert!(ended.line_with(CHECKED).contains("on server 0 and server 1, alike on both"), "{ended}");
}

/// Each server's BLOBs reach both servers, and the clients that read them: by RDMA, over each transport.
#[test]
fn all_mixes_over_udapl_are_what_was_acknowledged() {
    for transport in ["shm", "tcp", "udp"] {
        let line = format!("--link dat --transport {transport} --time 0.3 --clients 4 --remote 0.5");
        let ended = run(&line).ok();
        assert!(ended.line_with(CHECKED).contains("on server 0 and server 1, alike on both"), "{ended}");
        assert!(ended.line_with("end points over").contains(transport), "{ended}");
    }
}

#[test]
fn it_runs_as_ranks_of_a_launcher() {
    for ranks in [3, 6] {
        let ended = Bin::hadb().ranks(ranks).args(["--time", "0.2", "--format", "json"]).run().ok();
        assert!(ended.stdout.contains("\"findings\": []"), "{ended}");
        assert!(ended.stdout.contains(&format!("2 servers and {} clients", ranks - 2)), "{ended}");
    }
    let refused = Bin::hadb().ranks(2).run().fails();
    assert!(refused.stderr.contains("takes 3 to 6 ranks"), "{refused}");
    let refused = Bin::hadb().ranks(3).args(["--clients", "4"]).run().fails();
    assert!(refused.stderr.contains("takes 6 ranks"), "{refused}");
}

#[test]
fn what_would_never_happen_is_refused_once() {
    let ended = run("--time 1 --mix tpcb --kill 5").fails();
    assert_eq!(ended.stderr.matches("the run is over after 1 s").count(), 1, "{ended}");
    assert_eq!(ended.code(), 2, "{ended}");
    // Ten BLOBs are inserted and deleted long before the time of these mixes is over.
    let ended = run("--mix blob-insert,blob-delete --blobs 10 --time 60 --kill 100").fails();
    assert_eq!(ended.stderr.matches("all transactions had ended").count(), 1, "{ended}");
    assert_eq!(ended.code(), 2, "{ended}");
}
