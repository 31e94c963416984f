//! A process whose table of descriptors is full leaves those who connect waiting, says once what it is short of, and serves
//! them when there is room. It is a process of its own here: this one needs its descriptors.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::prey;
use super::rogue::Rogue;

const NAME: &str = "tests::hostile::shortage::a_process_without_descriptors_serves_later";
/// Set in the process that runs out of them.
const IS_SHORT: &str = "UDECK_TEST_IS_SHORT_OF_DESCRIPTORS";
const DESCRIPTORS: u64 = 64;

#[test]
fn a_process_without_descriptors_serves_later() {
    if std::env::var_os(IS_SHORT).is_some() {
        return run_out_and_recover();
    }
    let mut short = Short::start();
    let mut early = Rogue::silent(&short.address);
    let told = short.line_of_errors();
    assert!(told.contains("cannot accept connections"), "{told}");
    assert!(
        told.contains(&format!("file descriptors: soft limit {DESCRIPTORS}; raise it with ulimit -n")),
        "{told}"
    );
    short.recover();
    early.meet(prey::SECRET, None).expect("it was left in the backlog, and is served now");
    drop(Rogue::admitted(&short.address));
    short.end_without_another_word();
}

/// In the other process, as its lines of input say.
fn run_out_and_recover() {
    // Ends a hang.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(60));
        std::process::exit(2);
    });
    let nic = prey::nic();
    let limit = Rlimit { current: Some(DESCRIPTORS), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let hoard: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let address = String::from_utf8(nic.attributes().address.clone()).unwrap();
    println!("\naddress {address}");
    let mut lines = std::io::stdin().lines();
    lines.next().expect("when to recover").unwrap();
    drop(hoard);
    assert!(lines.next().is_none(), "the end of the input is the end");
}

struct Short {
    process: Child,
    errors: BufReader<std::process::ChildStderr>,
    address: Vec<u8>,
}

impl Short {
    fn start() -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(IS_SHORT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let errors = BufReader::new(process.stderr.take().unwrap());
        let mut lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
        let address =
            lines.find_map(|line| Some(line.unwrap().strip_prefix("address ")?.as_bytes().to_vec()));
        Short { process, errors, address: address.expect("its address") }
    }

    fn line_of_errors(&mut self) -> String {
        let mut line = String::new();
        self.errors.read_line(&mut line).unwrap();
        line
    }

    fn recover(&mut self) {
        self.process.stdin.as_mut().unwrap().write_all(b"recover\n").unwrap();
    }

    fn end_without_another_word(mut self) {
        drop(self.process.stdin.take());
        let mut more = String::new();
        self.errors.read_to_string(&mut more).unwrap();
        assert_eq!(more, "");
        assert!(self.process.wait().unwrap().success());
    }
}
