//! The programs of Debian's `dapl2-utils`, by mode and transport.

use std::sync::{Mutex, PoisonError};

use super::Case;
use super::running::Place;

const TRANSPORTS: [&str; 3] = ["shm", "tcp", "udp"];

const REGISTRY: (&str, &str) = ("/etc/dat.conf", "libdapl2");

/// `dapltest -T T`: a name, and what it is asked for. `-V` validates what arrives, `-P` polls, `-r` uses reserved service points.
const TRANSACTIONS: [(&str, &str); 13] = [
    ("send", "-i 200 -t 1 -w 1 client SR 256 server SR 256"),
    ("send_large", "-i 10 -t 1 -w 1 -V client SR 1000000 2 server SR 1000000 2"),
    ("write", "-i 200 -t 1 -w 1 -V client SR 256 server RW 4096 server SR 256"),
    ("read", "-i 200 -t 1 -w 1 -V client SR 256 server RR 4096 server SR 256"),
    (
        "read_and_write_both",
        "-i 50 -V client RR 8192 2 server RW 8192 2 client SR 512 server RR 512 server SR 512 client RW 700",
    ),
    ("polling", "-i 100 -V -P client SR 1024 server RW 1024 client RR 1024 server SR 1024"),
    ("reserved_service_points", "-i 50 -V -r client SR 1024 server SR 1024"),
    ("threads", "-i 50 -V -t 8 -w 1 client SR 1024 server RW 2048 server SR 1024"),
    ("threads_polling", "-i 50 -V -P -t 4 -w 2 client SR 1024 server RR 2048 server SR 1024"),
    ("end_points", "-i 20 -V -t 1 -w 32 client SR 1024 3 server SR 1024 3"),
    (
        "threads_and_end_points",
        "-i 20 -V -t 4 -w 8 client SR 8192 2 server SR 256 client RR 512 server RW 16384",
    ),
    (
        "reap_on_receive",
        "-i 50 -V -t 2 -w 4 client RW 4096 1 server RW 2048 4 client SR 1024 4 server SR 4096 2 client SR 1024 3 -f server SR 2048 1 -f",
    ),
    ("many_iterations", "-i 5000 -t 1 -w 1 client SR 64 server SR 64"),
];

/// `dapltest -T P`, with how it waits.
const PERFORMANCE: [(&str, &str); 5] = [
    ("write_blocking", "-m b -i 1000 -p 16 RW 4096 2"),
    ("write_polling", "-m p -i 1000 -p 16 RW 4096 2"),
    ("read_blocking", "-m b -i 1000 -p 16 RR 4096 2"),
    ("read_polling", "-m p -i 1000 -p 16 RR 4096 2"),
    ("write_large", "-m b -i 50 -p 4 RW 1000000 1"),
];

/// `dapltest -T L`.
const LIMITS: [&str; 10] = [
    "limit_ia",
    "limit_pz",
    "limit_cno",
    "limit_evd",
    "limit_ep",
    "limit_rsp",
    "limit_psp",
    "limit_lmr",
    "limit_rpost",
    "limit_size_lmr",
];

/// `dapltest -T F`: its features, and how many cases of each have to pass. (Cases 13 and 15 of queryinfo pass an adapter's handle to a
/// call for another object: the registry follows it. The program itself calls case 5 unsupported.)
const FEATURES: [(&str, &[u32]); 6] = [
    ("hwconn", &[0, 1, 2, 3]),
    ("endpoint", &[0, 1, 2]),
    ("pz", &[0, 1, 2]),
    ("mem", &[0, 1, 2, 3, 4]),
    ("connmgt", &[0, 1]),
    ("queryinfo", &[0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 16, 17]),
];

/// The other programs, each a server and a client with the same words.
const PAIRS: [(&str, &str, &str, &str); 9] = [
    ("dtest", "blocking", "-B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "polling", "-p -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "cno", "-c -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "write_streaming", "-w -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "write_ping_pong", "-W -D -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtestcm", "thousand_connections", "", "EP free:"),
    ("dtestcm", "burst", "-b 20", "EP free:"),
    ("dtestsrq", "one_connection", "-b 1024", "RC SRQ Test Complete."),
    ("dtestsrq", "connections", "-b 1024 -c 4 -B 8", "RC SRQ Test Complete."),
];

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for transport in TRANSPORTS {
        for (name, words) in TRANSACTIONS {
            let end = "End of Work -- Client Exiting";
            cases.push(case("dapltest", "T", name, transport, move || dapltest(transport, "T", words, end)));
        }
        for (name, words) in PERFORMANCE {
            cases.push(case("dapltest", "P", name, transport, move || {
                dapltest(transport, "P", words, "raw: ")
            }));
        }
        for name in LIMITS {
            cases.push(case("dapltest", "L", name, transport, move || limit(transport, name)));
        }
        for (name, numbers) in FEATURES {
            cases.push(case("dapltest", "F", name, transport, move || feature(transport, name, numbers)));
        }
        cases.push(case("dapltest", "T", "server_is_killed", transport, move || killed(transport)));
        for (program, name, words, says) in PAIRS {
            cases.push(case(program, "pair", name, transport, move || pair(transport, program, words, says)));
        }
    }
    cases
}

fn case(
    program: &'static str,
    mode: &str,
    name: &str,
    transport: &str,
    run: impl FnOnce() + Send + 'static,
) -> Case {
    let file = match program {
        "dapltest" => "/usr/bin/dapltest",
        "dtest" => "/usr/bin/dtest",
        "dtestcm" => "/usr/bin/dtestcm",
        _ => "/usr/bin/dtestsrq",
    };
    let needs = vec![(file, "dapl2-utils"), REGISTRY];
    Case { name: format!("{program}::{mode}::{name}::{transport}"), needs, run: Box::new(run) }
}

/// None of these words stands in what a program says when all is well.
fn is_well(said: &str) {
    for word in ["rror", "FAIL", "ailed", "mismatch", "nexpected"] {
        assert!(!said.contains(word), "it says {word:?}:\n{said}");
    }
}

/// A server of its own, which is told to end afterwards.
fn dapltest(transport: &str, mode: &str, words: &str, end: &str) {
    let place = Place::new(transport);
    let mut server = place.start("server", "dapltest", "-T S -D udeck");
    server.say("Service Point Ready");
    let said = place.run("dapltest", &format!("-T {mode} -D udeck -s localhost {words}"));
    assert!(said.contains(end), "it does not say {end:?}:\n{said}");
    is_well(&said);
    place.run("dapltest", "-T Q -D udeck -s localhost");
    server.succeed();
}

fn limit(transport: &str, name: &str) {
    let place = Place::new(transport);
    let said = place.run("dapltest", &format!("-T L -D udeck -w 4 -m 200 {name}"));
    assert!(said.contains(name), "{said}");
    is_well(&said);
}

fn feature(transport: &str, name: &str, numbers: &[u32]) {
    let place = Place::new(transport);
    for number in numbers {
        let said = place.run("dapltest", &format!("-T F -D udeck -f {name} -s localhost case{number}"));
        assert!(said.contains("Result: PASS"), "case {number}:\n{said}");
    }
}

/// The client learns that its server is gone, and ends.
fn killed(transport: &str) {
    let place = Place::new(transport);
    let mut server = place.start("server", "dapltest", "-T S -D udeck");
    server.say("Service Point Ready");
    let words = "-T T -D udeck -s localhost -d -i 100000000 -t 2 -w 2 client SR 256 server SR 256";
    let mut client = place.start("client", "dapltest", words);
    client.say("Begin...");
    server.kill();
    client.end();
}

/// `dtest`'s two processes exchange parameters over this port of TCP's.
const DTEST_PORT: u16 = 15828;

/// They have fixed ports, so one pair runs at a time.
fn pair(transport: &str, program: &str, words: &str, says: &str) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new(transport);
    let mut server = place.start("server", program, &format!("-P udeck {words}"));
    server.say(match program {
        "dtest" => "waiting for client",
        "dtestsrq" => "Accepting...",
        _ => "waiting for client",
    });
    if program == "dtest" {
        // It says that before it listens.
        server.listens(DTEST_PORT);
    }
    let said = place.run(program, &format!("-P udeck {words} -h localhost"));
    let served = server.succeed();
    for said in [said, served] {
        assert!(said.contains(says), "it does not say {says:?}:\n{said}");
        is_well(&said);
    }
}
