//! `deckrun` as its user meets it: exit codes, messages, output, bounds.

mod common;

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
};

use common::{Ran, Running, deckrun, sh};
use rustix::process::Signal;

#[test]
fn ranks_know_who_they_are() {
    let ran =
        Ran::of(sh(&["-n", "3", "--env", "GREETING=good day=1"], "echo $GREETING $DECK_RANK/$DECK_SIZE"));
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert_eq!(ran.lines(), ["good day=1 0/3", "good day=1 1/3", "good day=1 2/3"]);
}

#[test]
fn the_double_dash_may_be_left_out_and_the_programs_flags_are_its_own() {
    for dashes in [&["--"][..], &[]] {
        let mut command = deckrun(&["-n", "1"]);
        command.args(dashes).args(["printf", "%s,", "-n", "--help", "--", "-x"]);
        assert_eq!(Ran::of(command).lines(), ["-n,--help,--,-x,"]);
    }
}

/// The ranks get a SIGPIPE in any case: only deckrun can report the reason.
#[test]
fn an_output_that_cannot_be_written_is_told_with_the_reason() {
    let mut command = sh(&["-n", "1", "--tag-output"], "while echo line; do :; done");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = command.stdin(Stdio::null()).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let words = String::from_utf8(ran.stderr).unwrap();
    assert!(!ran.status.success(), "{words}");
    let told = "deckrun: the ranks' output cannot be written: No space left on device";
    assert_eq!(words.matches(told).count(), 1, "{words}");
}

#[test]
fn exit_codes_and_words() {
    let cases = [
        ("exit 0", &["-n", "3"][..], 0, ""),
        (
            "test $DECK_RANK != 1 || exit 3; sleep 600",
            &["-n", "3"],
            3,
            "rank 1 exited with code 3; ending ranks 0, 2",
        ),
        (
            "ulimit -c 0; test $DECK_RANK != 2 || kill -SEGV $$; sleep 600",
            &["-n", "3"],
            139,
            "rank 2 killed by SIGSEGV",
        ),
        ("exit 7", &["-n", "1"], 7, "rank 0 exited with code 7"),
        ("sleep 600", &["-n", "2", "--timeout", "50ms"], 124, "timeout after 50ms: ranks 0-1 still running"),
        (
            "test $DECK_RANK = 1 && sleep 600",
            &["-n", "2", "--on-failure", "continue", "--timeout", "3s"],
            124,
            "rank 1 still",
        ),
    ];
    for (script, options, code, words) in cases {
        let ran = Ran::of(sh(options, script));
        assert_eq!(ran.code, Some(code), "{script}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{script}: {}", ran.stderr);
    }
}

#[test]
fn the_others_may_go_on() {
    let script = "trap 'echo $DECK_RANK goes on; exit 0' TERM; echo ready; test $DECK_RANK = 1 && exit 4; \
                  while :; do sleep 0.02; done";
    let mut job = Running::start(&["-n", "3", "--on-failure", "continue"], script, 3);
    job.says("rank 1 exited with code 4\n");
    // The survivors are still there to be asked.
    job.signal(Signal::TERM);
    let ran = job.end();
    assert_eq!((ran.code, ran.lines()), (Some(143), vec!["0 goes on".into(), "2 goes on".into()]));
}

#[test]
fn the_first_failure_is_the_exit_code_though_others_go_on() {
    let script = "test $DECK_RANK = 1 && exit 4; echo $DECK_RANK";
    let ran = Ran::of(sh(&["-n", "3", "--on-failure", "continue"], script));
    assert_eq!((ran.code, ran.lines()), (Some(4), vec!["0".into(), "2".into()]));
}

/// The deaths are written when they happen, and once more at the end.
#[test]
fn a_job_whose_survivors_succeed_has_survived_its_deaths() {
    let survive = |script| Ran::of(sh(&["-n", "3", "--on-failure", "survive"], script));
    let ran = survive("test $DECK_RANK = 1 && kill -KILL $$; echo $DECK_RANK");
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["0".into(), "2".into()]), "{}", ran.stderr);
    let words =
        "deckrun: rank 1 killed by SIGKILL\ndeckrun: 2 of 3 ranks survived: rank 1 killed by SIGKILL\n";
    assert_eq!(ran.stderr, words);

    let ran = survive("test $DECK_RANK = 1 && kill -KILL $$; test $DECK_RANK = 0 || exit 5");
    assert_eq!(ran.code, Some(5), "a survivor failed: {}", ran.stderr);
    assert!(ran.stderr.ends_with("2 of 3 ranks were left: rank 1 killed by SIGKILL\n"), "{}", ran.stderr);

    let ran = survive("kill -KILL $$");
    assert_eq!(ran.code, Some(137), "nobody is left to succeed: {}", ran.stderr);
    assert_eq!(survive("exit 0").stderr, "");
}

#[test]
fn tagged_lines_stay_whole() {
    const LINES: usize = 300;
    let script =
        format!("i=0; while test $i -lt {LINES}; do printf 'one'; echo \" two $i\"; i=$((i+1)); done");
    let ran = Ran::of(sh(&["-n", "4", "--tag-output"], &script));
    let lines = String::from_utf8(ran.stdout).unwrap();
    for rank in 0..4 {
        let tag = format!("[{rank}] ");
        let own: Vec<_> =
            lines.lines().filter_map(|line| line.strip_prefix(&tag)).map(String::from).collect();
        let wanted: Vec<_> = (0..LINES).map(|i| format!("one two {i}")).collect();
        assert_eq!(own, wanted, "rank {rank}");
    }
    assert_eq!(lines.lines().count(), 4 * LINES);
}

#[test]
fn tagged_output_may_be_anything() {
    let ran = Ran::of(sh(&["-n", "1", "--tag-output"], r"printf 'a\377b\n\nlast'; printf 'oops' >&2"));
    assert_eq!(ran.stdout, b"[0] a\xffb\n[0] \n[0] last\n");
    assert_eq!(ran.stderr, "[0] oops\n");
}

#[test]
fn tagged_output_whose_reader_goes_ends_the_ranks() {
    let mut child =
        sh(&["-n", "2", "--tag-output"], "while :; do echo y; done").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGPIPE));
}

#[test]
fn only_rank_0_has_the_standard_input() {
    let mut command = sh(&["-n", "2"], "echo $DECK_RANK: $(cat)");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"words").unwrap();
    assert_eq!(Ran::from(child.wait_with_output().unwrap()).lines(), ["0: words", "1:"]);
}

#[test]
fn binding_is_as_asked() {
    let script = "echo ${DECK_BIND-any} $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)";
    let usable = udeck_sys::usable_cpus();
    let ranks = (usable.len() + 1).to_string();
    let mut bound: Vec<_> = usable.iter().map(|cpu| format!("{cpu} {cpu}")).collect();
    bound.push(bound[0].clone());
    bound.sort();
    assert_eq!(Ran::of(sh(&["-n", &ranks, "--bind", "core"], script)).lines(), bound);

    assert_eq!(Ran::of(sh(&["-n", "1"], script)).lines(), [format!("{0} {0}", usable[0])]);
    for free in [&["-n", "1", "--bind", "none"][..], &["-n", &ranks]] {
        for line in Ran::of(sh(free, script)).lines() {
            assert!(line.starts_with("any "), "{free:?}: {line}");
        }
    }
}

/// Also a rank that is bound to one processor knows how many processors all ranks share.
#[test]
fn ranks_know_how_many_processors_they_share() {
    let shared = std::thread::available_parallelism().unwrap().to_string();
    for bind in ["core", "none"] {
        let ran = Ran::of(sh(&["-n", "2", "--bind", bind], "echo $DECK_CPUS"));
        assert_eq!(ran.lines(), [&*shared, &*shared], "--bind {bind}");
    }
}

#[test]
fn bad_requests_say_what_is_wrong() {
    let folder = std::env::temp_dir();
    let plain = folder.join(format!("deckrun-plain-{}", std::process::id()));
    fs::write(&plain, "no program").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    let (folder, plain_path) = (folder.to_str().unwrap(), plain.to_str().unwrap());
    let cases: [(&[&str], i32, &str); 18] = [
        (&["-n", "0", "true"], 2, "at least one rank"),
        (&["-n", "4097", "true"], 2, "at most 4096"),
        (&["-n", "x", "true"], 2, "invalid digit"),
        (&["-n", "-1", "true"], 2, "-1"),
        (&["true"], 2, "--ranks <N>"),
        (&["-n", "2"], 2, "<PROGRAM>"),
        (&["-n", "2", "--"], 2, "<PROGRAM>"),
        (&["-n", "2", ""], 2, "no program given"),
        (&["-n", "2", "--bogus", "true"], 2, "--bogus"),
        (&["-n", "2", "--env", "A", "true"], 2, "NAME=VALUE"),
        (&["-n", "2", "--env", "=1", "true"], 2, "NAME=VALUE"),
        (&["-n", "2", "--env", "DECK_RANK=1", "true"], 2, "DECK_RANK"),
        (&["-n", "2", "--env", "DECK_CPUS=1", "true"], 2, "DECK_CPUS"),
        (&["-n", "2", "--timeout", "soon", "true"], 2, "60s"),
        (&["-n", "2", "--bind", "socket", "true"], 2, "core"),
        (&["-n", "2", "no-such-program-anywhere"], 127, "no-such-program-anywhere: no such program"),
        (&["-n", "2", plain_path], 126, "chmod +x"),
        (&["-n", "2", folder], 126, "cannot be run"),
    ];
    for (options, code, words) in cases {
        let ran = Ran::of(deckrun(options));
        assert_eq!(ran.code, Some(code), "{options:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{options:?}: {}", ran.stderr);
    }
    fs::remove_file(&plain).unwrap();
}

/// Options behind the program belong to it, as with env, ssh and mpiexec.
#[test]
fn what_stands_behind_the_program_is_its_own() {
    let cases: [(&[&str], &[&str]); 5] = [
        (&["-n", "2", "echo", "--timeout", "5", "x"], &["--timeout 5 x"; 2]),
        (&["-n", "1", "echo", "a", "-n", "8"], &["a -n 8"]),
        (&["-n", "2", "printf", "%s\\n", "--version"], &["--version"; 2]),
        (&["-n", "2", "echo", "a", "--", "--doctor"], &["a -- --doctor"; 2]),
        (&["-n", "2", "--", "echo", "--help", "--", "-n"], &["--help -- -n"; 2]),
    ];
    for (arguments, lines) in cases {
        let ran = Ran::of(deckrun(arguments));
        assert_eq!(
            (ran.code, ran.lines()),
            (Some(0), lines.iter().map(|l| l.to_string()).collect()),
            "{arguments:?}: {}",
            ran.stderr
        );
    }
}

#[test]
fn help_has_examples() {
    let ran = Ran::of(deckrun(&["--help"]));
    assert_eq!(ran.code, Some(0));
    assert!(String::from_utf8_lossy(&ran.stdout).contains("deckrun -n 4 ./hello"));
}

/// Runs `deckrun` under `ulimit -n`, which sets both limits: the job cannot raise its own.
fn limited(descriptors: u32, arguments: &str) -> Ran {
    let script = format!("ulimit -n {descriptors} && exec \"$0\" {arguments}");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_deckrun")]).stdin(Stdio::null());
    Ran::of(command)
}

#[test]
fn five_hundred_ranks_need_no_more_than_1024_descriptors() {
    let ran = limited(1024, "-n 500 -- sh -c 'echo $DECK_RANK'");
    assert_eq!((ran.code, ran.lines().len()), (Some(0), 500), "{}", ran.stderr);
}

#[test]
fn a_soft_limit_is_raised_for_the_launcher_and_not_for_the_ranks() {
    let script = "ulimit -Sn 100 && exec \"$0\" -n 60 --bind none -- sh -c 'ulimit -Sn'";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_deckrun")]).stdin(Stdio::null());
    let ran = Ran::of(command);
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["100".to_string(); 60]), "{}", ran.stderr);
}

#[test]
fn a_hard_limit_that_is_too_low_is_said() {
    let ran = limited(100, "-n 60 true");
    assert_eq!(ran.code, Some(125));
    assert!(ran.stderr.contains("ulimit -Hn"), "{}", ran.stderr);
}

/// The findings depend on the machine; that each section has one does not.
#[test]
fn the_doctor_looks_at_this_host() {
    let ran = Ran::of(deckrun(&["--doctor"]));
    let text = String::from_utf8(ran.stdout.clone()).unwrap();
    assert_eq!(ran.code, Some(0), "{text}{}", ran.stderr);
    for subject in [
        "kernel",
        "processors",
        "memory",
        "descriptors",
        "locked memory",
        "lo ",
        "memfd",
        "huge pages",
        "/dev/shm",
        "buffers",
        "devices",
        "libibverbs.so.1",
        "librdmacm.so.1",
        "same host",
        "other hosts",
    ] {
        assert!(text.lines().any(|line| line.contains(&format!(" {subject}"))), "{subject}: {text}");
    }
    assert!(text.contains("A job can run on ") && !text.contains('\x1b'), "{text}");
}

#[test]
fn the_doctor_looks_at_all_hosts_and_fails_if_one_of_them_is_no_good() {
    let hosts = ["--doctor", "--hosts", "localhost,b,c", "--agent", "env NODE={}", "--iface", "lo"];
    let ran = Ran::of(deckrun(&hosts));
    let text = String::from_utf8(ran.stdout.clone()).unwrap();
    assert_eq!((ran.code, text.matches("A job can run on ").count()), (Some(0), 3), "{text}");
    // The hosts' reports do not know of each other.
    let ran = Ran::of(deckrun(&[&hosts[..], &["--transport", "shm"]].concat()));
    let text = String::from_utf8(ran.stdout.clone()).unwrap();
    assert_eq!((ran.code, text.matches("No job can run on ").count()), (Some(1), 1), "{text}");
    assert!(text.contains("none of them reaches another host"), "{text}");
    let ran = Ran::of(deckrun(&["--doctor", "--hosts", "localhost,b", "--agent", "false", "--iface", "lo"]));
    let text = String::from_utf8(ran.stdout.clone()).unwrap();
    assert_eq!((ran.code, text.contains("exited with code 1")), (Some(1), true), "{text}");
    let mut command = deckrun(&["--doctor"]);
    command.env("DECK_TRANSPORT", "pigeon");
    let ran = Ran::of(command);
    let text = String::from_utf8(ran.stdout.clone()).unwrap();
    assert!(ran.code == Some(1) && text.contains("there are: shm, verbs, tcp, udp"), "{text}");
}
