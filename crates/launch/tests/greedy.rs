//! A rank on another host that asks the name service for more than it reads: only its own requests wait.

mod common;

use std::{
    env, fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use common::{LONG, Ran, deckrun, wait_until_none_is_left};
use udeck_boot::{
    Client, ENV_BOOT_FD, ENV_RANK,
    wire::{Call, Frames, FromServer, Maker, Reply, Request, VERSION, encode},
};

/// The variable with the folder of the ranks' signs for each other; set in the ranks.
const FOLDER: &str = "DECKRUN_TEST_FOLDER";
/// The key that all ranks read.
const KEY: &str = "big";
const BIG: usize = 64 << 10;
/// Number of the greedy rank's requests: far more than may be queued for one rank, or for one host.
const MANY: u64 = 2000;

fn soon() -> Instant {
    Instant::now() + LONG
}

fn frame(id: u64, call: Call) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(&Request { id, call }, &mut frame).unwrap();
    frame
}

fn wait_for(sign: &Path) {
    let limit = soon();
    while !sign.exists() {
        assert!(Instant::now() < limit, "nobody made {}", sign.display());
        thread::sleep(Duration::from_millis(5));
    }
}

/// No test, but the program of the ranks, if the variable is set.
#[test]
fn rank() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else { return };
    match env::var(ENV_RANK).unwrap().as_str() {
        "2" => be_greedy(&folder),
        rank => be_modest(rank == "0", &folder),
    }
}

fn be_modest(is_first: bool, folder: &Path) {
    let client = Client::from_env().unwrap().unwrap();
    if is_first {
        client.put(KEY, &vec![7; BIG], soon()).unwrap();
    }
    wait_for(&folder.join("asked"));
    for _ in 0..100 {
        assert_eq!(client.get(KEY, true, soon()).unwrap().len(), BIG);
    }
    let (own, other) = if is_first { ("0", "1") } else { ("1", "0") };
    client.put(own, b"", soon()).unwrap();
    client.get(other, true, soon()).unwrap();
    fs::write(folder.join("read"), b"").unwrap();
    client.finish(soon()).unwrap();
}

fn be_greedy(folder: &Path) {
    let mut stream = udeck_sys::inherited_stream(&env::var(ENV_BOOT_FD).unwrap()).unwrap();
    let get = |wait| Call::Get { key: KEY.into(), wait, maker: Maker::Anyone };
    let mut frames = Frames::default();
    let mut scratch = vec![0; BIG];
    let mut next = |stream: &mut std::os::unix::net::UnixStream| loop {
        if let Some(message) = frames.decode::<FromServer>().unwrap() {
            return message;
        }
        let read = stream.read(&mut scratch).unwrap();
        assert!(read > 0, "the launcher hangs up");
        frames.push(&scratch[..read]);
    };
    stream.write_all(&frame(0, Call::Hello { version: VERSION })).unwrap();
    stream.write_all(&frame(0, get(Some(LONG)))).unwrap();
    assert!(matches!(next(&mut stream), FromServer::Reply { reply: Reply::Welcome(_), .. }));
    assert!(matches!(next(&mut stream), FromServer::Reply { id: 0, reply: Reply::Record(_) }));
    stream.write_all(&(1..=MANY).flat_map(|id| frame(id, get(None))).collect::<Vec<_>>()).unwrap();
    fs::write(folder.join("asked"), b"").unwrap();
    wait_for(&folder.join("read"));
    let mut answered = 0;
    while answered < MANY {
        // News of the others' ends comes between the answers.
        if let FromServer::Reply { id, reply } = next(&mut stream) {
            answered += 1;
            assert!(id == answered && matches!(&reply, Reply::Record(record) if record.value.len() == BIG));
        }
    }
    stream.write_all(&frame(MANY + 1, Call::Done)).unwrap();
    while !matches!(next(&mut stream), FromServer::Reply { reply: Reply::Ok, .. }) {}
}

#[test]
fn a_rank_that_asks_for_more_than_it_reads_waits_and_its_host_lives() {
    let folder = env::temp_dir().join(format!("deckrun-greedy-{}", std::process::id()));
    for (name, hosts) in [("elsewhere", &["--hosts", "b:3"][..]), ("here", &["-n", "3"])] {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).unwrap();
        let mark = format!("DECKRUN_TEST_MARK=greedy-{name}.{}", std::process::id());
        let told = format!("{FOLDER}={}", folder.display());
        let mut job = deckrun(hosts);
        job.args(["--agent", "env NODE={}", "--iface", "lo", "--env", &mark, "--env", &told]);
        job.arg(env::current_exe().unwrap()).args(["--exact", "rank", "--nocapture"]);
        let ran = Ran::of(job);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{name}: {:?}", ran.lines());
        wait_until_none_is_left(&mark);
    }
    fs::remove_dir_all(folder).unwrap();
}
