//! Tests of VIPL programs: under deckrun, and started by hand, when processes find each other by a host's table of
//! names.

use std::{
    ffi::OsStr,
    fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use udeck_jobs::{Job, memcheck, netns::Network};
use udeck_test_kit::free_port;

use super::tools::{Tool, alone, compiled, deckcc, has_said, installed, output, ranks, source};
use super::{Case, case};

const TRANSPORTS: [&str; 2] = ["shm", "tcp"];
/// Arguments of a program that takes none.
const NONE: &[&str] = &[];
const SECRET: &str = "a secret of these tests";

/// Examples that consist of two processes with different roles, and text of their output.
const PAIRS: [(&str, &str); 3] = [
    ("vip_pingpong", "completion queue, 4096 bytes"),
    ("vip_rdma", "client: 8 pieces of 8192 bytes written, and read back"),
    ("vip_notify", "client: the handler was called 100 times"),
];
/// Tests that consist of one process, and text of their output.
const ALONE: [(&str, &str); 5] = [
    ("vip_codes", "all codes are as they should be"),
    ("vip_queues", "all descriptors end as they should"),
    ("vip_threads", "threads do not disturb each other"),
    ("vip_served", "all are served"),
    ("vip_ends", "what has ended is over"),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for compiler in [Tool::Cc, Tool::Clang] {
        for (name, says) in PAIRS {
            cases.push(case(format!("{name}::{}", compiler.name()), &[compiler], move || {
                pair(&example(compiler, name), says)
            }));
        }
        cases.push(case(format!("vip_peer::{}", compiler.name()), &[compiler], move || {
            peers(&example(compiler, "vip_peer"))
        }));
        for (name, says) in ALONE {
            cases.push(case(format!("{name}::{}", compiler.name()), &[compiler], move || {
                one(&test(compiler, name, &[]), says)
            }));
        }
    }
    for compiler in [Tool::Gxx, Tool::Clangxx] {
        for (name, says) in ALONE {
            let title = format!("{name}::{}", compiler.name());
            cases.push(case(title, &[compiler], move || one(&as_cxx(compiler, name), says)));
        }
    }
    for (name, says) in ALONE {
        cases.push(case(format!("{name}::valgrind"), &[Tool::Cc, Tool::Valgrind], move || {
            under_valgrind(name, says)
        }));
        cases.push(case(format!("{name}::address_sanitizer"), &[Tool::Cc], move || {
            one(&test(Tool::Cc, name, &["-fsanitize=address"]), says)
        }));
    }
    for compiler in [Tool::Cc, Tool::Clang] {
        let name = format!("vip_thesis::two_hosts::{}", compiler.name());
        cases.push(case(name, &[compiler, Tool::Hosts], move || two_hosts(compiler)));
    }
    cases.push(case("vip_codes::service_levels", &[Tool::Cc], service_levels));
    cases.push(case("vip_lost::cc", &[Tool::Cc], dead_peer));
    cases.push(case("vip_largest::cc", &[Tool::Cc], largest));
    cases.push(case("vip_names::another_process_takes_over", &[Tool::Cc], takes_over));
    cases.push(case("vip_names::another_secret_does_not_connect", &[Tool::Cc], other_secret));
    cases.push(case("vip_names::no_secret_is_this_host_only", &[Tool::Cc], no_secret));
    cases.push(case("vip_names::encryption_is_kept", &[Tool::Cc], encrypted));
    cases
}

fn example(compiler: Tool, name: &str) -> PathBuf {
    let out = format!("{name}-{}", compiler.name());
    compiled(compiler, &format!("examples/c/{name}.c"), &["-pthread"], &out)
}

fn test(compiler: Tool, name: &str, flags: &[&str]) -> PathBuf {
    let out = format!("{name}-{}{}", compiler.name(), flags.concat());
    compiled(compiler, &format!("tests/bindings/capi/c/{name}.c"), &[&["-pthread"], flags].concat(), &out)
}

/// Compiles the same program as C++17.
fn as_cxx(compiler: Tool, name: &str) -> PathBuf {
    let program = output(&format!("{name}-{}", compiler.name()));
    let strict = ["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", "-x", "c++"];
    let file = source(&format!("tests/bindings/capi/c/{name}.c"));
    let _ = deckcc(compiler).args(strict).arg(file).args(["-pthread", "-o"]).arg(&program).run().ok();
    program
}

/// Processes that no launcher starts, and that find each other.
struct ByHand {
    settings: Vec<(&'static str, String)>,
}

/// A process in the background; dropping it kills the process.
struct Background(Child);

impl ByHand {
    fn new(transport: &str) -> ByHand {
        let own = [
            ("DECK_DIRECTORY_PORT", free_port().to_string()),
            ("DECK_DIRECTORY_SECRET", SECRET.to_owned()),
            ("DECK_TRANSPORT", transport.to_owned()),
        ];
        ByHand { settings: own.into() }
    }

    fn with(mut self, name: &'static str, value: &str) -> ByHand {
        self.settings.retain(|(set, _)| *set != name);
        self.settings.push((name, value.to_owned()));
        self
    }

    fn without(mut self, name: &str) -> ByHand {
        self.settings.retain(|(set, _)| *set != name);
        self
    }

    fn port(&self) -> &str {
        self.settings.iter().find(|(name, _)| *name == "DECK_DIRECTORY_PORT").map_or("", |(_, port)| port)
    }

    fn job(&self, program: &Path, arguments: &[impl AsRef<OsStr>]) -> Job {
        let job = alone(program).args(arguments);
        self.settings.iter().fold(job, |job, (name, value)| job.env(name, value))
    }

    /// Starts a process beside a job that is waited for.
    fn start(&self, program: &Path, arguments: &[impl AsRef<OsStr>]) -> Background {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        Background(command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display())))
    }
}

impl Background {
    fn ends_well(mut self) {
        for _ in 0..2400 {
            if let Some(status) = self.0.try_wait().expect("it is ours") {
                assert!(status.success(), "the other process: {status}");
                return;
            }
            sleep(Duration::from_millis(50));
        }
        panic!("the other process does not end");
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn one(program: &Path, says: &str) {
    for transport in TRANSPORTS {
        has_said(ranks(program, 1, transport).run().clean(), says);
        has_said(ByHand::new(transport).job(program, NONE).run().clean(), says);
    }
}

fn pair(program: &Path, says: &str) {
    for transport in TRANSPORTS {
        has_said(ranks(program, 2, transport).run().clean(), says);
        let by_hand = ByHand::new(transport);
        let server = by_hand.start(program, &["server"]);
        has_said(by_hand.job(program, &["client", "localhost"]).run(), says);
        server.ends_well();
    }
}

/// Over tcp a VI has the level that it asks for, if levels have shares.
fn service_levels() {
    let (program, says) = (test(Tool::Cc, "vip_codes", &[]), ALONE[0].1);
    let (name, shares) = ("DECK_LEVELS", "5:50,0:50");
    has_said(ranks(&program, 1, "tcp").env(name, shares).run().clean(), says);
    has_said(ByHand::new("tcp").with(name, shares).job(&program, NONE).run().clean(), says);
}

/// The client kills itself.
fn dead_peer() {
    let program = test(Tool::Cc, "vip_lost", &[]);
    for transport in TRANSPORTS {
        let by_hand = ByHand::new(transport);
        let client = by_hand.start(&program, &["client", "localhost"]);
        has_said(by_hand.job(&program, &["server"]).run(), "a dead peer is an error");
        drop(client);
    }
}

/// The test also runs where the library has memory for only one such message.
fn largest() {
    let program = test(Tool::Cc, "vip_largest", &[]);
    for transport in TRANSPORTS {
        for memory in ["2M", "512M"] {
            let by_hand = ByHand::new(transport).with("DECK_ARENA", memory);
            has_said(by_hand.job(&program, NONE).run().clean(), "the longest messages arrive");
        }
    }
}

fn peers(program: &Path) {
    let says = "peer: hello, peer";
    for transport in TRANSPORTS {
        has_said(ranks(program, 2, transport).run().clean(), says);
        let by_hand = ByHand::new(transport);
        let other = by_hand.start(program, &["localhost"]);
        has_said(by_hand.job(program, &["localhost"]).run(), says);
        other.ends_well();
    }
}

/// Each side sends to the other: started by hand it finds the peer by its address, under deckrun by its rank.
fn two_hosts(compiler: Tool) {
    let program = test(compiler, "vip_thesis", &[]);
    let network = Network::new(2);
    let by_hand = ByHand::new("tcp");
    let [here, there] = [0, 1].map(|index| network.v4(index).to_string());
    let words = |index: usize, own: &str, other: &str| {
        let own = format!("DECK_IFACE={own}");
        let program = program.display().to_string();
        ["netns", "exec", network.host(index), "env", &own, &program, other].map(str::to_owned)
    };
    let ip = Path::new("ip");
    let other = by_hand.start(ip, &words(1, &there, &here));
    let says = format!("with {there}: a message to {here}");
    has_said(by_hand.job(ip, &words(0, &here, &there)).run(), &says);
    other.ends_well();

    let script = format!("exec {} rank$((1 - DECK_RANK))", program.display());
    let deckrun = |words: &[&str]| {
        let job =
            network.on(0, &installed("bin/deckrun")).args(["--hosts", &network.list(1), "--iface", &here]);
        job.args(["--agent", "ip netns exec"]).args(words).args(["--", "sh", "-c", &script]).run()
    };
    for words in [&[][..], &["--encrypt"]] {
        let ended = deckrun(words).ok();
        for (own, other) in [(0, 1), (1, 0)] {
            let _ = ended.line_with(&format!("with rank{other}: a message to rank{own}"));
        }
    }
    let refused = deckrun(&["--encrypt", "--transport", "tcp"]).fails();
    assert!(refused.stderr.contains("tcp0 does not encrypt"), "{refused}");
}

fn under_valgrind(name: &str, says: &str) {
    let program = test(Tool::Cc, name, &[]);
    for transport in TRANSPORTS {
        has_said(ByHand::new(transport).job(&program, NONE).inside(memcheck()).run(), says);
    }
}

/// The process that serves the names dies, and processes that still wait are found nevertheless.
fn takes_over() {
    let pingpong = example(Tool::Cc, "vip_pingpong");
    let by_hand = ByHand::new("tcp");
    // The first process waits for a peer that never comes, and serves the names.
    let first = by_hand.start(&example(Tool::Cc, "vip_peer"), &["localhost"]);
    wait_for_table(by_hand.port());
    let server = by_hand.start(&pingpong, &["server"]);
    sleep(Duration::from_millis(500)); // so that it is known to the first, most often
    drop(first);
    has_said(by_hand.job(&pingpong, &["client", "localhost"]).run(), "completion queue, 4096 bytes");
    server.ends_well();
}

fn wait_for_table(port: &str) {
    let to = format!("127.0.0.1:{port}");
    for _ in 0..1200 {
        if TcpStream::connect(&to).is_ok() {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("nobody serves names at {to}");
}

/// The refused client is told the reason.
fn other_secret() {
    let program = example(Tool::Cc, "vip_pingpong");
    let by_hand = ByHand::new("tcp");
    let server = by_hand.start(&program, &["server"]);
    wait_for_table(by_hand.port());
    let port = by_hand.port().to_owned();
    let other = ByHand::new("tcp")
        .with("DECK_DIRECTORY_PORT", &port)
        .with("DECK_DIRECTORY_SECRET", "quite another secret");
    let refused = other.job(&program, &["client", "localhost"]).run().fails();
    assert!(refused.stderr.contains("does not know our secret"), "{refused}");
    has_said(by_hand.job(&program, &["client", "localhost"]).run(), "completion queue, 4096 bytes");
    server.ends_well();
}

/// Processes that may be on several hosts have NICs that encrypt, or none.
fn encrypted() {
    let program = example(Tool::Cc, "vip_pingpong");
    let by_hand = ByHand::new("tcp").with("DECK_ENCRYPT", "1");
    let refused = by_hand.job(&program, &["server"]).run().fails();
    assert!(refused.stderr.contains("tcp0 does not encrypt"), "{refused}");
    for by_hand in [by_hand.without("DECK_TRANSPORT"), ByHand::new("tcp,udp").with("DECK_ENCRYPT", "1")] {
        let server = by_hand.start(&program, &["server"]);
        has_said(by_hand.job(&program, &["client", "localhost"]).run(), "completion queue, 4096 bytes");
        server.ends_well();
    }
}

fn no_secret() {
    let program = example(Tool::Cc, "vip_pingpong");
    let folder = output("runtime");
    fs::create_dir_all(&folder).expect("a folder of ours");
    let folder = folder.to_string_lossy();
    let by_hand = ByHand::new("tcp").without("DECK_DIRECTORY_SECRET").with("XDG_RUNTIME_DIR", &folder);
    // No host has this address (RFC 5737).
    let refused = by_hand.job(&program, &["client", "192.0.2.1"]).run().fails();
    assert!(refused.stderr.contains("DECK_DIRECTORY_SECRET"), "{refused}");
    let server = by_hand.start(&program, &["server"]);
    has_said(by_hand.job(&program, &["client", "localhost"]).run(), "completion queue, 4096 bytes");
    server.ends_well();
}
