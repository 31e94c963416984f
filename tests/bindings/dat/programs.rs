//! The programs of Debian's `dapl2-utils`, by mode and transport.

use std::sync::{Mutex, PoisonError};

use super::Case;
use super::running::Place;

const TRANSPORTS: &[&str] = &["shm", "tcp", "udp"];

const REGISTRY: (&str, &str) = ("/etc/dat.conf", "libdapl2");

/// Modes of `dapltest -T T`: a name, and the arguments. `-V` validates what arrives, `-P` polls, `-r` uses reserved service
/// points.
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

/// Modes of `dapltest -T P`, with the kind of its waits.
const PERFORMANCE: [(&str, &str); 5] = [
    ("write_blocking", "-m b -i 1000 -p 16 RW 4096 2"),
    ("write_polling", "-m p -i 1000 -p 16 RW 4096 2"),
    ("read_blocking", "-m b -i 1000 -p 16 RR 4096 2"),
    ("read_polling", "-m p -i 1000 -p 16 RR 4096 2"),
    ("write_large", "-m b -i 50 -p 4 RW 1000000 1"),
];

/// Modes of `dapltest -T L`.
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

/// Features of `dapltest -T F`, and the cases of each that must pass. (Cases 13 and 15 of queryinfo pass an adapter's handle to a
/// call for another object: the registry follows it. The program itself calls case 5 unsupported.)
const FEATURES: [(&str, &[u32]); 6] = [
    ("hwconn", &[0, 1, 2, 3]),
    ("endpoint", &[0, 1, 2]),
    ("pz", &[0, 1, 2]),
    ("mem", &[0, 1, 2, 3, 4]),
    ("connmgt", &[0, 1]),
    ("queryinfo", &[0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 14, 16, 17]),
];

/// The other programs, each a server and a client with the same arguments.
const PAIRS: [(&str, &str, &str, &str); 20] = [
    ("dtest", "blocking", "-B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "polling", "-p -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "cno", "-c -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "write_streaming", "-w -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "write_ping_pong", "-W -D -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "write_one_way", "-u -w -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "write_all_sizes", "-W -a -B 4 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "write_sizes_by_step", "-W -a -i 7777 -B 4 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "signal_rate", "-w -S 4 -B 32 -b 4096", "DAPL Test Complete. PASSED"),
    ("dtest", "times", "-t -B 8 -b 65536", "DAPL Test Complete. PASSED"),
    ("dtest", "late_accept", "-d 1 -B 8 -b 4096", "DAPL Test Complete. PASSED"),
    ("dtest", "verbose", "-v -B 2 -b 4096", "DAPL Test Complete. PASSED"),
    ("dtestcm", "thousand_connections", "", "EP free:"),
    ("dtestcm", "burst", "-b 20 -c 200", "EP free:"),
    ("dtestcm", "waiting", "-w -c 100", "EP free:"),
    ("dtestcm", "many_service_points", "-m -c 100", "EP free:"),
    ("dtestsrq", "one_connection", "-b 1024", "RC SRQ Test Complete."),
    ("dtestsrq", "connections", "-b 1024 -c 4 -B 8", "RC SRQ Test Complete."),
    ("dtestsrq", "bursts", "-b 1024 -c 2 -B 4 -t 10", "RC SRQ Test Complete."),
    ("dtestsrq", "without_a_shared_queue", "-b 1024 -S 0", "RC none SRQ Test Complete."),
];

pub fn cases() -> Vec<Case> {
    super::transports(TRANSPORTS).iter().flat_map(|transport| cases_over(transport)).collect()
}

fn cases_over(transport: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |program, mode, name, run: Box<dyn FnOnce(Place) + Send>| {
        cases.push(make(program, mode, name, transport, run));
    };
    for (name, words) in TRANSACTIONS {
        let end = "End of Work -- Client Exiting";
        case("dapltest", "T", name, Box::new(move |place| dapltest(&place, "T", words, end)));
    }
    for (name, words) in PERFORMANCE {
        case("dapltest", "P", name, Box::new(move |place| dapltest(&place, "P", words, "raw: ")));
    }
    for (program, name, words, says) in PAIRS {
        case(program, "pair", name, Box::new(move |place| pair(&place, program, words, says)));
    }
    if Place::servers_are_elsewhere() {
        return cases;
    }
    for name in LIMITS {
        case("dapltest", "L", name, Box::new(move |place| limit(&place, name)));
    }
    for (name, numbers) in FEATURES {
        case("dapltest", "F", name, Box::new(move |place| feature(&place, name, numbers)));
    }
    case("dapltest", "T", "server_is_killed", Box::new(|place| killed(&place)));
    case("dtestx", "refusal", "no_extensions", Box::new(|place| refused(&place)));
    cases
}

fn make(
    program: &'static str,
    mode: &str,
    name: &str,
    transport: &str,
    run: Box<dyn FnOnce(Place) + Send>,
) -> Case {
    let file = match program {
        "dapltest" => "/usr/bin/dapltest",
        "dtest" => "/usr/bin/dtest",
        "dtestcm" => "/usr/bin/dtestcm",
        "dtestsrq" => "/usr/bin/dtestsrq",
        _ => "/usr/bin/dtestx",
    };
    let needs = vec![(file, "dapl2-utils"), REGISTRY];
    let name = format!("{program}::{mode}::{name}::{transport}");
    let transport = transport.to_owned();
    Case { name, needs, run: Box::new(move || run(Place::new(&transport))) }
}

/// Checks that the output contains no word of failure.
fn is_well(said: &str) {
    for word in ["rror", "FAIL", "ailed", "mismatch", "nexpected"] {
        assert!(!said.contains(word), "it says {word:?}:\n{said}");
    }
}

/// Runs dapltest with a server of its own, which is told to end afterwards.
fn dapltest(place: &Place, mode: &str, words: &str, end: &str) {
    let mut server = place.serve("dapltest", "-T S -D udeck");
    server.say("Service Point Ready");
    let host = place.server();
    let said = place.run("dapltest", &format!("-T {mode} -D udeck -s {host} {words}"));
    assert!(said.contains(end), "it does not say {end:?}:\n{said}");
    is_well(&said);
    place.run("dapltest", &format!("-T Q -D udeck -s {host}"));
    server.succeed();
}

fn limit(place: &Place, name: &str) {
    let said = place.run("dapltest", &format!("-T L -D udeck -w 4 -m 200 {name}"));
    assert!(said.contains(name), "{said}");
    is_well(&said);
}

fn feature(place: &Place, name: &str, numbers: &[u32]) {
    for number in numbers {
        let said = place.run("dapltest", &format!("-T F -D udeck -f {name} -s localhost case{number}"));
        assert!(said.contains("Result: PASS"), "case {number}:\n{said}");
    }
}

/// The client learns that its server is gone, and ends.
fn killed(place: &Place) {
    let mut server = place.serve("dapltest", "-T S -D udeck");
    server.say("Service Point Ready");
    let words = "-T T -D udeck -s localhost -d -i 100000000 -t 2 -w 2 client SR 256 server SR 256";
    let mut client = place.start("client", "dapltest", words);
    client.say("Begin...");
    server.kill();
    client.end();
}

/// The program needs extensions for InfiniBand, and prints that there are none.
fn refused(place: &Place) {
    let said = place.start("alone", "dtestx", "-P udeck").end();
    assert!(said.contains("IB extension not supported"), "{said}");
}

/// TCP port over which `dtest`'s two processes exchange parameters.
const DTEST_PORT: u16 = 15828;

/// Runs a server and a client. They have fixed ports, so one pair runs at a time.
fn pair(place: &Place, program: &str, words: &str, says: &str) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut server = place.serve(program, &format!("-P udeck {words}"));
    server.say(match program {
        "dtest" => "waiting for client",
        "dtestsrq" => "Accepting...",
        _ => "waiting for client",
    });
    if program == "dtest" {
        // The server prints this before it listens.
        server.listens(DTEST_PORT);
    }
    let said = place.run(program, &format!("-P udeck {words} -h {}", place.server()));
    let served = server.succeed();
    for said in [said, served] {
        assert!(said.contains(says), "it does not say {says:?}:\n{said}");
        is_well(&said);
    }
}
