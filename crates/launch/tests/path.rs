//! Attacks from the path between two hosts: the attacker can end a job. It cannot have anything run, nor read or
//! change a message.

mod common;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use common::{LONG, Ran, sh, wait_until_none_is_left};

/// A change of a piece in transit.
type Change = fn(&[u8]) -> Vec<u8>;

/// A job whose one other host is reached through a proxy that changes the data.
struct Intercepted {
    child: Child,
    mark: String,
    folder: PathBuf,
    /// Bytes that passed, in both directions.
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Intercepted {
    fn start(name: &str, script: &str, down: Change, up: Change) -> Intercepted {
        Intercepted::start_after(name, script, down, up, &[])
    }

    /// Starts the job. Before the proxy passes a connection on, it closes one for each item of `closed`, each
    /// after this number of bytes from the node.
    fn start_after(
        name: &str,
        script: &str,
        down: Change,
        up: Change,
        closed: &'static [usize],
    ) -> Intercepted {
        let folder = std::env::temp_dir().join(format!("deckrun-path-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = listener.local_addr().unwrap();
        // The agent makes the node connect to the proxy, and tells the proxy where the root is.
        let agent = format!(
            "#!/bin/sh\ncd $(dirname $0)\nshift\necho $3 >new && mv new argument\nexec $1 $2 {proxy}/${{3#*/}}\n"
        );
        fs::write(folder.join("agent"), agent).unwrap();
        let agent = format!("sh {}", folder.join("agent").display());
        let mark = format!("DECKRUN_TEST_MARK=path-{name}.{}", std::process::id());
        let options = ["--hosts", "b", "--iface", "lo", "--agent", &agent, "--env", &mark];
        let child = sh(&options, script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (argument, down_seen, up_seen) = (folder.join("argument"), Arc::clone(&seen), Arc::clone(&seen));
        // The thread ends with the connections.
        thread::spawn(move || {
            for &said in closed {
                listener.accept().unwrap().0.read_exact(&mut vec![0; said]).unwrap();
            }
            let from_node = listener.accept().unwrap().0;
            let to_root = TcpStream::connect(root(&argument)).unwrap();
            let (to_node, from_root) = (from_node.try_clone().unwrap(), to_root.try_clone().unwrap());
            let upwards = thread::spawn(move || pass_on(from_node, to_root, up, &up_seen));
            pass_on(from_root, to_node, down, &down_seen);
            upwards.join().unwrap();
        });
        Intercepted { child, mark, folder, seen }
    }

    fn end(self) -> Ran {
        let ran = Ran::from(self.child.wait_with_output().unwrap());
        wait_until_none_is_left(&self.mark);
        fs::remove_dir_all(&self.folder).unwrap();
        ran
    }
}

/// Returns the address to which the node was to connect.
fn root(argument: &PathBuf) -> SocketAddr {
    let limit = Instant::now() + LONG;
    loop {
        if let Ok(text) = fs::read_to_string(argument) {
            return text.split('/').next().unwrap().parse().unwrap();
        }
        assert!(Instant::now() < limit, "the agent does not start");
        thread::sleep(Duration::from_millis(5));
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, change: Change, seen: &Mutex<Vec<u8>>) {
    let mut piece = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        seen.lock().unwrap().extend_from_slice(&piece[..length]);
        if to.write_all(&change(&piece[..length])).is_err() {
            break;
        }
    }
    // If one side closes, the other side is closed, too.
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

fn same(piece: &[u8]) -> Vec<u8> {
    piece.to_vec()
}

/// Length of a frame of no bytes, which is a proof, and of a frame of one, such as a message without data.
const PROOF: usize = 20;
const SHORTEST: usize = PROOF + 1;

fn is_handshake(piece: &[u8]) -> bool {
    piece.starts_with(b"uDECKrun") || piece.len() == PROOF
}

/// Changes the last byte of each piece that is longer than the first message, which has no data.
fn change(piece: &[u8]) -> Vec<u8> {
    let mut piece = piece.to_vec();
    if !is_handshake(&piece) && piece.len() > SHORTEST {
        *piece.last_mut().unwrap() ^= 1;
    }
    piece
}

/// Sends everything but the hand-shake twice.
fn twice(piece: &[u8]) -> Vec<u8> {
    if is_handshake(piece) { piece.to_vec() } else { [piece, piece].concat() }
}

#[test]
fn what_is_run_and_written_cannot_be_read_on_the_path() {
    let job = Intercepted::start("read", "echo harmless", same, same);
    let seen = Arc::clone(&job.seen);
    let ran = job.end();
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["harmless".into()]), "{}", ran.stderr);
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty() && !seen.windows(8).any(|words| words == b"harmless"));
}

#[test]
fn what_was_changed_or_repeated_on_the_path_is_not_taken() {
    // The job is ended by the change of the rank's output, and not by the rank.
    const SCRIPT: &str = "echo harmless; exec sleep 600";
    let cases: [(&str, Change, Change); 2] = [("changed", same, change), ("repeated", same, twice)];
    for (name, down, up) in cases {
        let ran = Intercepted::start(name, SCRIPT, down, up).end();
        assert_eq!(ran.code, Some(137), "{name}: {}", ran.stderr);
        assert!(
            ran.stderr.contains("lost with host b (a frame from it was changed in transit"),
            "{name}: {}",
            ran.stderr
        );
        let printed = String::from_utf8_lossy(&ran.stdout);
        assert!(name == "repeated" || printed.is_empty(), "{name}: {printed}");
    }
    // The node ends its ranks, and the root learns of its end.
    let ran = Intercepted::start("repeated-down", SCRIPT, twice, same).end();
    assert_eq!(ran.code, Some(137), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("the root is gone: a frame from it was changed in transit"),
        "{}",
        ran.stderr
    );
}

/// A root that is besieged by strangers sends the slowest away, and an honest node may be among them.
#[test]
fn a_node_that_is_sent_away_unheard_comes_again() {
    let ran = Intercepted::start_after("again", "echo here", same, same, &[0, 1, 10, 0, 1]).end();
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["here".into()]), "{}", ran.stderr);
}
