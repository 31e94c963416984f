//! Jobs over several hosts, run on one: the agent is `env`, which starts the "remote" deckrun on this host.
//! Real networks are tested in `tests/jobs`.

mod common;

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt, process::CommandExt},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use common::{LONG, Ran, Running, deckrun, left, sh, wait_until_none_is_left};
use rustix::process::{Pid, Signal, kill_process};

/// Two ranks on each of three hosts; the middle one is this host.
const HOSTS: [&str; 6] = ["--hosts", "b:2,localhost:2,c:2", "--agent", "env NODE={}", "--iface", "lo"];

const LOITER: &str = "echo ready; while :; do sleep 0.02; done";

fn options<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&HOSTS, more].concat()
}

#[test]
fn ranks_fill_the_hosts_in_their_order() {
    let ran = Ran::of(sh(&options(&["--env", "X=a b"]), "echo $DECK_RANK/$DECK_SIZE ${NODE-here} $X"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let wanted = ["0/6 b a b", "1/6 b a b", "2/6 here a b", "3/6 here a b", "4/6 c a b", "5/6 c a b"];
    assert_eq!(ran.lines(), wanted);
    let fewer = Ran::of(sh(&options(&["-n", "3"]), "echo $DECK_RANK/$DECK_SIZE ${NODE-here}"));
    assert_eq!(fewer.lines(), ["0/3 b", "1/3 b", "2/3 here"]);
}

#[test]
fn files_say_the_hosts_as_well() {
    let path = std::env::temp_dir().join(format!("deckrun-hosts-{}", std::process::id()));
    fs::write(&path, "# two\nb slots=2 # here\nlocalhost\n").unwrap();
    let path = path.to_str().unwrap();
    for way in [["--hostfile", path], ["--hosts", &format!("@{path}")]] {
        let command = [&way[..], &HOSTS[2..]].concat();
        assert_eq!(Ran::of(sh(&command, "echo $DECK_RANK ${NODE-here}")).lines(), ["0 b", "1 b", "2 here"]);
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn exit_codes_and_words_are_those_of_one_host() {
    let cases = [
        (
            "test $DECK_RANK != 4 || exit 3; sleep 600",
            &[][..],
            3,
            "rank 4 exited with code 3; ending ranks 0-3, 5",
        ),
        (
            "ulimit -c 0; test $DECK_RANK != 2 || kill -SEGV $$; sleep 600",
            &[],
            139,
            "rank 2 killed by SIGSEGV; ending ranks 0-1, 3-5",
        ),
        ("sleep 600", &["--timeout", "300ms"], 124, "timeout after 300ms: ranks 0-5 still running"),
        ("test $DECK_RANK != 5 || exit 4", &["--on-failure", "continue"], 4, "rank 5 exited with code 4\n"),
    ];
    for (script, more, code, words) in cases {
        let ran = Ran::of(sh(&options(more), script));
        assert_eq!(ran.code, Some(code), "{script}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{script}: {}", ran.stderr);
    }
}

#[test]
fn bad_requests_say_what_is_wrong() {
    let list = |list: &'static str| vec!["--hosts", list, "true"];
    let cases: [(Vec<&str>, i32, &str); 13] = [
        (list("b:x"), 2, "column 1: `x` is no number of slots"),
        (list("a,-b"), 2, "column 3: `-b`: a host's name must not begin with `-`"),
        (list("@/nonexistent"), 2, "cannot read /nonexistent"),
        (vec!["--hostfile", "/nonexistent", "true"], 2, "cannot read /nonexistent"),
        (options(&["-n", "7", "true"]), 2, "7 ranks and only 6 slots: b:2,localhost:2,c:2"),
        (
            vec!["--hosts", "b", "--iface", "fe80::1%lo", "--agent", "env NODE={}", "true"],
            2,
            "a link-local address means nothing",
        ),
        (options(&["--detect", "1s", "true"]), 2, "at least 2s"),
        (options(&["--transport", "pigeon", "true"]), 2, "shm, verbs, tcp, udp"),
        (options(&["no-such-program-anywhere"]), 127, "no-such-program-anywhere: no such program"),
        (options(&["/tmp"]), 126, "/tmp: cannot be run"),
        (vec!["--hosts", "b", "--iface", "lo", "--agent", "false", "true"], 125, "host b, agent: `false b "),
        (
            options(&["--remote-deckrun", "/nonexistent", "true"]),
            125,
            "--remote-deckrun says where deckrun lies",
        ),
        (
            vec!["--hosts", "b", "--iface", "lo", "--agent", "true", "--start-timeout", "200ms", "true"],
            125,
            "host b, connect: no connection to 127.0.0.1:",
        ),
    ];
    for (arguments, code, words) in cases {
        let ran = Ran::of(deckrun(&arguments));
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn options_for_the_ranks_reach_them() {
    let script = "echo $DECK_TRANSPORT $DECK_DETECT";
    let ran = Ran::of(sh(&options(&["-n", "4", "--transport", "tcp", "--detect", "5s"]), script));
    assert_eq!(ran.lines(), ["tcp 5"; 4]);
}

#[test]
fn the_node_mode_is_no_secret_but_no_use_either() {
    for arguments in [&["--node"][..], &["--node", "x"], &["--node", "127.0.0.1:1/0/1000"]] {
        let ran = Ran::of(deckrun(arguments));
        assert!(ran.stderr.contains("for deckrun itself"), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.code, Some(93));
    }
    assert!(!String::from_utf8_lossy(&Ran::of(deckrun(&["--help"])).stdout).contains("--node"));
}

#[test]
fn the_secret_is_in_no_command_line_and_no_environment() {
    // The secret would be 64 hexadecimal digits in a row: the test looks for them in this rank's parent, which
    // is the node, and in the rank itself.
    let script = "tr '\\0' '\\n' </proc/$PPID/cmdline; tr '\\0' '\\n' </proc/$PPID/environ; env; \
        for fd in 0 1 2; do echo node $(readlink /proc/$PPID/fd/$fd); done; \
        for fd in /proc/$$/fd/*; do echo own $(readlink $fd); done; echo looked";
    let ran = Ran::of(sh(&["--hosts", "b", "--agent", "env NODE={}", "--iface", "lo"], script));
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(text.contains("--node\n127.0.0.1:") && text.contains("looked"), "{text}");
    let digits = |word: &str| word.len() >= 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(!text.split(|c: char| !c.is_ascii_alphanumeric()).any(digits), "{text}");
    // The rank does not have the pipe either by which the node got it.
    let input =
        text.lines().find_map(|line| line.strip_prefix("node pipe:")).expect("the node's input is a pipe");
    let own: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("own ")).collect();
    assert!(own.len() >= 4 && own.iter().all(|fd| fd.strip_prefix("pipe:") != Some(input)), "{text}");
}

#[test]
fn output_whose_reader_is_slow_comes_whole_and_one_whose_reader_goes_ends_the_ranks() {
    let ran = Ran::of(sh(&options(&["--tag-output"]), "seq 20000"));
    let lines = String::from_utf8(ran.stdout).unwrap();
    for rank in 0..6 {
        let tag = format!("[{rank}] ");
        let own = lines.lines().filter_map(|line| line.strip_prefix(&tag));
        assert!(own.eq((1..=20000).map(|n| n.to_string())), "rank {rank}");
    }
    let hosts = ["--hosts", "b:2,c:2", "--agent", "env NODE={}", "--iface", "lo"];
    let mut child = sh(&hosts, "while :; do echo y; done").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGPIPE));
}

#[test]
fn signals_reach_all_hosts() {
    let script = format!("trap 'echo bye $DECK_RANK; exit 0' TERM; {LOITER}");
    let job = Running::start(&options(&[]), &script, 6);
    let mark = job.mark();
    job.signal(Signal::TERM);
    let ran = job.end();
    assert_eq!(ran.code, Some(143), "{}", ran.stderr);
    assert_eq!(ran.lines(), ["bye 0", "bye 1", "bye 2", "bye 3", "bye 4", "bye 5"]);
    assert!(ran.stderr.contains("SIGTERM: passed on to ranks 0-5"), "{}", ran.stderr);
    assert_eq!(left(&mark), [""; 0]);
}

#[test]
fn ranks_of_other_hosts_that_do_not_end_when_asked_are_killed() {
    let job = Running::start(&options(&[]), &format!("trap '' TERM; {LOITER}"), 6);
    let mark = job.mark();
    job.signal(Signal::TERM);
    let ran = job.end();
    assert_eq!(ran.code, Some(143));
    assert!(ran.stderr.contains("ranks 0-5 did not end when asked: killing"), "{}", ran.stderr);
    assert_eq!(left(&mark), [""; 0]);
}

/// A rank's family: a child in its group, and one that left group and session.
const FAMILY: &str = "sleep 600 & setsid sh -c 'echo ready; sleep 600' & wait";

#[test]
fn killing_the_launcher_ends_even_what_the_ranks_of_other_hosts_started() {
    let hosts = ["--hosts", "b:2,c:2", "--agent", "env NODE={}", "--iface", "lo"];
    let job = Running::start(&hosts, FAMILY, 4);
    let mark = job.mark();
    assert!(left(&mark).len() >= 12, "the mark finds the ranks and their children");
    job.signal(Signal::KILL);
    assert_eq!(job.exit_code(), None);
    wait_until_none_is_left(&mark);
}

/// Returns a node's process: the nodes of a job are children of its launcher's watcher.
fn node_of(job: &Running, index: usize) -> Pid {
    let limit = Instant::now() + LONG;
    let children =
        |of: &str| fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    loop {
        let watcher = children(&job.pid().to_string());
        let children = children(watcher.trim());
        for pid in children.split_whitespace() {
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if command.contains("--node\x00127.0.0.1:") && command.contains(&format!("/{index}/")) {
                return Pid::from_raw(pid.parse().unwrap()).unwrap();
            }
        }
        assert!(Instant::now() < limit, "no node {index} among {children}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_node_that_is_killed_loses_its_ranks() {
    let job = Running::start(&options(&[]), FAMILY, 6);
    let mark = job.mark();
    kill_process(node_of(&job, 1), Signal::KILL).unwrap();
    let ran = job.end();
    assert_eq!(ran.code, Some(137), "{}", ran.stderr);
    let [lost, then] =
        ["ranks 4-5 lost with host c (its deckrun has ended: deckrun: on ", ": killed); ending ranks 0-3"];
    assert!(ran.stderr.contains(lost) && ran.stderr.contains(then), "{}", ran.stderr);
    wait_until_none_is_left(&mark);
}

/// ssh does the same when the network fails or a user ends it: the node is told to end, and cleans up.
#[test]
fn a_node_that_is_told_to_end_ends_everything_on_its_host() {
    let mut job = Running::start(&options(&["--on-failure", "continue"]), FAMILY, 6);
    let mark = job.mark();
    kill_process(node_of(&job, 0), Signal::TERM).unwrap();
    job.says("ranks 0-1 lost with host b (its deckrun has ended: deckrun: on ");
    job.says("told to end");
    job.signal(Signal::TERM);
    let ran = job.end();
    assert!(ran.stderr.contains("SIGTERM: passed on to ranks 2-5"), "the others went on: {}", ran.stderr);
    assert_eq!(left(&mark), [""; 0]);
}

#[test]
fn a_start_that_is_interrupted_leaves_nothing() {
    // An agent that never starts a node.
    let agent = std::env::temp_dir().join(format!("deckrun-agent-{}", std::process::id()));
    fs::write(&agent, "#!/bin/sh\nsleep 600\n").unwrap();
    let agent = agent.to_str().unwrap();
    let command = format!("sh {agent}");
    let mut command = deckrun(&["--hosts", "b,c", "--iface", "lo", "--agent", &command, "true"]);
    let mark = format!("interrupted-{}", std::process::id());
    let child = command.env("DECKRUN_TEST_MARK", &mark).stderr(Stdio::piped()).spawn().unwrap();
    let mark = format!("DECKRUN_TEST_MARK={mark}");
    let limit = Instant::now() + LONG;
    while left(&mark).len() < 5 {
        assert!(Instant::now() < limit, "the agents do not start");
        thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(143), "{}", ran.stderr);
    assert!(ran.stderr.contains("SIGTERM before all hosts were there"), "{}", ran.stderr);
    wait_until_none_is_left(&mark);
    fs::remove_file(agent).unwrap();
}

#[test]
fn words_of_agents_do_not_steer_the_terminal() {
    let folder = std::env::temp_dir().join(format!("deckrun-words-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("agent"), "printf 'no\\033[2J\\033]0;title\\007way\\n' >&2; exit 1").unwrap();
    let agent = format!("sh {}", folder.join("agent").display());
    for doctor in [&[][..], &["--doctor"]] {
        let options = [&["--hosts", "b", "--iface", "lo", "--agent", &agent], doctor, &["true"]].concat();
        let ran = Ran::of(deckrun(&options));
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &ran.stderr;
        assert!(
            said.contains("no\\u{1b}[2J") && said.contains("way") && !said.contains(['\x1b', '\x07']),
            "{said:?}"
        );
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_doctor_that_is_killed_leaves_no_agent() {
    let folder = std::env::temp_dir().join(format!("deckrun-doctor-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("agent"), format!(": >{}/begun; exec sleep 600", folder.display())).unwrap();
    let agent = format!("sh {}", folder.join("agent").display());
    let mark = format!("DECKRUN_TEST_MARK=doctor.{}", std::process::id());
    let mut command = deckrun(&["--doctor", "--hosts", "b", "--iface", "lo", "--agent", &agent]);
    let (name, value) = mark.split_once('=').unwrap();
    let mut child = command.env(name, value).stdout(Stdio::null()).spawn().unwrap();
    let limit = Instant::now() + LONG;
    while !folder.join("begun").exists() {
        assert!(Instant::now() < limit, "the agent does not start");
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_none_is_left(&mark);
    fs::remove_dir_all(&folder).unwrap();
}

/// A stranger that connects over and over, and says nothing, does not keep the hosts out.
#[test]
fn strangers_do_not_prevent_the_start() {
    let folder = std::env::temp_dir().join(format!("deckrun-strangers-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    // An agent whose node waits until the strangers have connected.
    let agent = "#!/bin/sh\ncd $(dirname $0)\nshift\necho $3 >new && mv new argument\n\
                 until test -e go; do sleep 0.02; done\nexec \"$@\"\n";
    fs::write(folder.join("agent"), agent).unwrap();
    let agent = format!("sh {}", folder.join("agent").display());
    let options = ["--hosts", "b", "--iface", "lo", "--agent", &agent];
    let mut child = deckrun(&[&options[..], &["echo", "here"]].concat());
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let limit = Instant::now() + LONG;
    let argument = loop {
        match fs::read_to_string(folder.join("argument")) {
            Ok(argument) => break argument,
            Err(_) => assert!(Instant::now() < limit, "the agent does not start"),
        }
        thread::sleep(Duration::from_millis(5));
    };
    let root = argument.split('/').next().unwrap().parse().unwrap();
    let mut strangers = Vec::new();
    // More strangers than there are places and waiting connections in the kernel; each of them stays.
    for number in 0..450 {
        strangers.extend(TcpStream::connect_timeout(&root, Duration::from_millis(20)).ok());
        if number == 200 {
            fs::write(folder.join("go"), "").unwrap();
        }
    }
    let ran = Ran::from(child.wait_with_output().unwrap());
    drop(strangers);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["here".to_string()]), "{}", ran.stderr);
}

/// Stands between a root and its only node. `meanwhile` runs once the node has connected. The root's messages
/// after the handshake are passed on in one piece, when this number of frames is there.
fn pass_on_in_one_piece(
    listener: &TcpListener,
    root: &std::path::Path,
    meanwhile: impl FnOnce(),
    frames: usize,
) {
    // A hello and a proof.
    const ANSWER: usize = 48 + 20;
    const TAG: usize = 16;
    let (mut node, _) = listener.accept().unwrap();
    let root: SocketAddr = fs::read_to_string(root).unwrap().trim().parse().unwrap();
    let mut root = TcpStream::connect(root).unwrap();
    let (mut from_node, mut to_root) = (node.try_clone().unwrap(), root.try_clone().unwrap());
    thread::spawn(move || io::copy(&mut from_node, &mut to_root));
    meanwhile();
    let mut answer = [0; ANSWER];
    root.read_exact(&mut answer).unwrap();
    node.write_all(&answer).unwrap();
    let mut held = Vec::new();
    for _ in 0..frames {
        let mut length = [0; 4];
        root.read_exact(&mut length).unwrap();
        let mut rest = vec![0; u32::from_le_bytes(length) as usize + TAG];
        root.read_exact(&mut rest).unwrap();
        held.extend([&length[..], &rest].concat());
    }
    node.write_all(&held).unwrap();
    thread::spawn(move || io::copy(&mut root, &mut node));
}

/// Writes an agent whose node connects to this address. The agent leaves the root's address in the file `root`
/// beside it.
fn agent_by_way_of(folder: &std::path::Path, address: SocketAddr) -> String {
    fs::create_dir_all(folder).unwrap();
    let agent = format!(
        "#!/bin/sh\nshift\necho ${{3%%/*}} >{0}/new && mv {0}/new {0}/root\nexec \"$1\" \"$2\" {address}/${{3#*/}}\n",
        folder.display()
    );
    fs::write(folder.join("agent"), agent).unwrap();
    format!("sh {}", folder.join("agent").display())
}

#[test]
fn input_that_comes_with_the_start_reaches_the_rank() {
    let folder = std::env::temp_dir().join(format!("deckrun-one-piece-{}", std::process::id()));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let agent = agent_by_way_of(&folder, listener.local_addr().unwrap());
    let mut command =
        deckrun(&["--hosts", "b", "--iface", "lo", "--agent", &agent, "--timeout", "60s", "cat"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    // Three frames: the start, the input, and the input's end.
    pass_on_in_one_piece(&listener, &folder.join("root"), || {}, 3);
    let ran = Ran::from(child.wait_with_output().unwrap());
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["hello".to_string()]), "{}", ran.stderr);
}

#[test]
fn a_stop_that_comes_with_the_start_stops_the_rank() {
    let folder = std::env::temp_dir().join(format!("deckrun-one-stop-{}", std::process::id()));
    let mark = format!("DECKRUN_TEST_MARK=one-stop.{}", std::process::id());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let agent = agent_by_way_of(&folder, listener.local_addr().unwrap());
    let mut command = sh(
        &["--hosts", "b", "--iface", "lo", "--agent", &agent, "--env", &mark],
        "while :; do sleep 0.02; done",
    );
    // A group without a shell cannot be stopped.
    let mut child = command.process_group(0).stderr(Stdio::null()).spawn().unwrap();
    let stop = || kill_process(Pid::from_child(&child), Signal::TSTP).unwrap();
    // Two frames: the start and the stop.
    pass_on_in_one_piece(&listener, &folder.join("root"), stop, 2);
    let limit = Instant::now() + LONG;
    let is_stopped = |pid: &String| {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
    };
    while !left(&mark).iter().any(is_stopped) {
        if Instant::now() > limit {
            child.kill().unwrap();
            panic!("the rank runs on");
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_none_is_left(&mark);
    fs::remove_dir_all(&folder).unwrap();
}

/// An agent that is called ssh has a shell at its other end. The one here refuses a word in which it sees a
/// pattern. (zsh and tcsh do so by themselves.)
#[test]
fn a_remote_shell_takes_ipv6_addresses_and_paths_of_any_bytes_as_they_are() {
    let Ok(_) = TcpListener::bind("[::1]:0") else { return println!("skipped: no IPv6 here") };
    let folder = std::env::temp_dir().join(format!("deckrun-shell-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let ssh = folder.join("ssh");
    fs::write(&ssh, "#!/bin/sh\nshift\nexec bash -O failglob -c \"$*\"\n").unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o700)).unwrap();
    let deckrun_there = folder.join(std::ffi::OsStr::from_bytes(b"it's caf\xe9 `[x]` $HOME \xff!"));
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_deckrun"), &deckrun_there).unwrap();
    let mut command = deckrun(&["--hosts", "b", "--iface", "::1", "--agent", ssh.to_str().unwrap()]);
    command.arg("--remote-deckrun").arg(&deckrun_there).args(["echo", "here"]);
    let ran = Ran::of(command);
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["here".to_string()]), "{}", ran.stderr);
}
