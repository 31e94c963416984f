//! A process whose table of descriptors is full: callers wait in the backlog, the shortage is printed once, and
//! callers are served when there is room. The short process is a child, because the test process needs its
//! descriptors.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use udeck_via::{Cq, Error, NetAddress, RejectKind};

use super::attacker::Attacker;
use super::victim::{self, Victim};
use crate::peer_socket_wire::Datagram;

const NAME: &str = "tests::hostile::shortage::a_process_without_descriptors_serves_later";
/// Set in the process that runs out of descriptors.
const IS_SHORT: &str = "UDECK_TEST_IS_SHORT_OF_DESCRIPTORS";
const DESCRIPTORS: u64 = 64;

const CONNECTS: &str = "tests::hostile::shortage::a_connect_without_descriptors_leaves_nothing_behind";
/// Set in the process that connects: the address.
const CONNECTS_TO: &str = "UDECK_TEST_CONNECTS_TO";

#[test]
fn a_process_without_descriptors_serves_later() {
    if std::env::var_os(IS_SHORT).is_some() {
        return run_out_and_recover();
    }
    let mut short = Short::start(NAME);
    let mut early = Attacker::silent(&short.address);
    let told = short.line_of_errors();
    assert!(told.contains("cannot accept connections"), "{told}");
    assert!(
        told.contains(&format!("file descriptors: soft limit {DESCRIPTORS}; raise it with ulimit -n")),
        "{told}"
    );
    short.recover();
    early.meet(victim::SECRET, None).expect("it was left in the backlog, and is served now");
    drop(Attacker::admitted(&short.address));
    short.end_without_another_word();
}

const KEEPS: &str = "tests::hostile::shortage::a_request_without_descriptors_waits";

/// A request without room for the descriptor of its control segment ends nothing: it waits.
#[test]
fn a_request_without_descriptors_waits() {
    if std::env::var_os(IS_SHORT).is_some() {
        return run_out_and_recover();
    }
    let mut short = Short::start(KEEPS);
    short.recover();
    let peer = Attacker::admitted(&short.address);
    short.run_out();
    peer.ask_in_vain();
    let told = short.line_of_errors();
    assert!(told.contains("cannot accept connections") && told.contains("raise it with ulimit -n"), "{told}");
    short.recover();
    let answer = peer.receive().expect("the link is there").datagram;
    let nobody = RejectKind::NoListener.into();
    assert!(matches!(&answer, Datagram::Refuse { rejection, .. } if *rejection == nobody), "{answer:?}");
    drop(peer);
    short.end_without_another_word();
}

/// Runs in the child process, as its lines of input say.
fn run_out_and_recover() {
    // The process exits after a minute, which ends a hang.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(60));
        std::process::exit(2);
    });
    let nic = victim::nic();
    let limit = Rlimit { current: Some(DESCRIPTORS), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let all = || std::iter::from_fn(|| File::open("/dev/null").ok()).collect::<Vec<_>>();
    let mut hoard = all();
    let address = String::from_utf8(nic.attributes().address.clone()).unwrap();
    println!("\naddress {address}");
    for line in std::io::stdin().lines() {
        hoard = if line.unwrap() == "run out" { all() } else { Vec::new() };
        println!("done");
    }
    drop(hoard);
}

/// A process that connects with too few descriptors to spare gets an error and keeps nothing of the attempt. As soon
/// as it has enough, it connects. Each further descriptor lets the attempt fail at a later step: the socket, the
/// watch for the peer's death, the reactor's duplicate of either, the control segment, the peer's segments.
#[test]
fn a_connect_without_descriptors_leaves_nothing_behind() {
    if let Some(address) = std::env::var_os(CONNECTS_TO) {
        return connect_with_few(address.as_encoded_bytes());
    }
    let mut victim = Victim::new();
    let connector = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CONNECTS, "--nocapture"])
        .env(CONNECTS_TO, OsStr::from_bytes(victim.address()))
        .output()
        .unwrap();
    assert!(connector.status.success(), "{}", String::from_utf8_lossy(&connector.stderr));
    victim.serves_the_honest(1);
}

/// Runs in the child process.
fn connect_with_few(address: &[u8]) {
    let limit = Rlimit { current: Some(DESCRIPTORS), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let to = NetAddress { host: address.to_vec(), discriminator: b"nobody".to_vec() };
    let without_nic = victim::descriptors();
    for spare in 0.. {
        victim::await_descriptors(without_nic);
        let nic = victim::nic();
        let queue = Cq::new(&nic).unwrap();
        let connect = || {
            let queue = queue.handle();
            victim::vi(&nic)
                .connect(&to, &queue, &queue, &[], victim::soon())
                .expect_err("nobody listens there")
        };
        let before = victim::descriptors();
        let mut hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        hoard.truncate(hoard.len() - spare);
        let error = connect();
        drop(hoard);
        // The peer has answered, so the two have met.
        if matches!(error, Error::NoMatch(_)) {
            assert!(spare > 3, "with {spare} to spare");
            break;
        }
        victim::await_descriptors(before);
        let again = connect();
        assert!(matches!(again, Error::NoMatch(_)), "{again}; with {spare} to spare it was: {error}");
    }
}

struct Short {
    process: Child,
    words: Lines<BufReader<ChildStdout>>,
    errors: BufReader<ChildStderr>,
    address: Vec<u8>,
}

impl Short {
    fn start(test: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(IS_SHORT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = BufReader::new(process.stderr.take().unwrap());
        let mut words = BufReader::new(process.stdout.take().unwrap()).lines();
        let address =
            words.find_map(|line| Some(line.unwrap().strip_prefix("address ")?.as_bytes().to_vec()));
        Short { process, words, errors, address: address.expect("its address") }
    }

    fn line_of_errors(&mut self) -> String {
        let mut line = String::new();
        self.errors.read_line(&mut line).unwrap();
        line
    }

    fn recover(&mut self) {
        self.tell("recover\n");
    }

    fn run_out(&mut self) {
        self.tell("run out\n");
    }

    fn tell(&mut self, line: &str) {
        self.process.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        assert!(self.words.any(|word| word.unwrap() == "done"), "it has ended");
    }

    fn end_without_another_word(mut self) {
        drop(self.process.stdin.take());
        let mut more = String::new();
        self.errors.read_to_string(&mut more).unwrap();
        assert_eq!(more, "");
        assert!(self.process.wait().unwrap().success());
    }
}
