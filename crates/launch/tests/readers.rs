//! Slow readers of deckrun's output, and readers that do not read at all: a paused `less` is enough.

mod common;

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::fd::OwnedFd,
    path::PathBuf,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{LONG, Ran, left, sh, wait_until_none_is_left};
use rustix::{
    io::{Errno, ioctl_fionbio},
    pipe::pipe,
    process::{Pid, Signal, kill_process},
};

/// Jobs that write on this host directly, through deckrun, and from other hosts.
const WAYS: [&[&str]; 3] = [
    &["-n", "2"],
    &["-n", "2", "--tag-output"],
    &["--hosts", "b,localhost", "--agent", "env NODE={}", "--iface", "lo", "--tag-output"],
];

/// A job of two ranks whose output nobody reads, from the very beginning.
struct Unread {
    child: Child,
    mark: String,
    folder: PathBuf,
    /// Reading ends, kept open against SIGPIPEs.
    readers: [OwnedFd; 2],
}

impl Unread {
    /// Starts the job, and returns once both ranks have begun with `then`, which is part of a shell's script.
    fn start(name: &str, options: &[&str], then: &str) -> Unread {
        let folder = std::env::temp_dir().join(format!("deckrun-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mark = format!("DECKRUN_TEST_MARK={name}.{}", std::process::id());
        let script = format!("cd {}; : >$DECK_RANK; {then}", folder.display());
        let [stdout, stderr] = [full(), full()];
        let mut command = sh(&[options, &["--env", &mark]].concat(), &script);
        let child = command.stdout(Stdio::from(stdout.1)).stderr(Stdio::from(stderr.1)).spawn().unwrap();
        let job = Unread { child, mark, folder, readers: [stdout.0, stderr.0] };
        let limit = Instant::now() + LONG;
        while !(0..2).all(|rank| job.folder.join(rank.to_string()).exists()) {
            assert!(Instant::now() < limit, "the ranks do not start: {options:?}");
            thread::sleep(Duration::from_millis(5));
        }
        job
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the exit code, and checks that no process is left.
    fn end(mut self) -> Option<i32> {
        let limit = Instant::now() + LONG;
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            if Instant::now() > limit {
                self.signal(Signal::KILL);
                panic!("deckrun waits for its reader; of its job there are {:?}", left(&self.mark));
            }
            thread::sleep(Duration::from_millis(5));
        };
        wait_until_none_is_left(&self.mark);
        code
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // The job has ended before, unless the test has failed.
        let _ = self.child.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Makes a full pipe.
fn full() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    while !matches!(rustix::io::write(&writer, &[b'\n'; 4096]), Err(Errno::AGAIN)) {}
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// All output of the ranks has been read, and not all of it is written, when deckrun reports their ends.
#[test]
fn words_about_ends_come_behind_those_of_the_ranks_at_a_late_reader() {
    let options = ["-n", "2", "--on-failure", "continue"];
    // The ranks' parent need not be the process that was started.
    let then = "r=$DECK_RANK; mkfifo say.$r end.$r; echo $PPID >parent; : >ready.$r; read x <say.$r; echo last of $r >&2
                exec >&- 2>&-; read x <end.$r; exit 1";
    let job = Unread::start("unread-words", &options, then);
    let limit = Instant::now() + LONG;
    let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < limit, "not in time: {what}");
            thread::sleep(Duration::from_millis(5));
        }
    };
    let tell = |what: &str| {
        for rank in 0..2 {
            let fifo = job.folder.join(format!("{what}.{rank}"));
            File::options().write(true).open(fifo).unwrap().write_all(b"\n").unwrap();
        }
    };
    wait_until("ranks", &|| (0..2).all(|rank| job.folder.join(format!("ready.{rank}")).exists()));
    let parent = fs::read_to_string(job.folder.join("parent")).unwrap();
    let threads = PathBuf::from(format!("/proc/{}/task", parent.trim_end()));
    let of_threads = |file: &str| {
        let threads = fs::read_dir(&threads).unwrap().flatten();
        let texts: Vec<_> = threads.flat_map(|thread| fs::read_to_string(thread.path().join(file))).collect();
        texts.concat()
    };
    let reads = || of_threads("comm").contains("deck-output");
    let children = || of_threads("children").split_whitespace().count();
    wait_until("deckrun reads", &reads);
    let before = children();
    tell("say");
    wait_until("deckrun has read all", &|| !reads());
    tell("end");
    wait_until("deckrun has seen the ends", &|| children() + 2 <= before);
    let mut text = String::new();
    File::from(job.readers[1].try_clone().unwrap()).read_to_string(&mut text).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    let is_own: Vec<_> = lines.iter().map(|line| line.starts_with("deckrun: rank ")).collect();
    assert_eq!(is_own, [false, false, true, true], "{lines:?}");
    assert_eq!(job.end(), Some(1));
}

#[test]
fn a_timeout_ends_a_job_whose_output_nobody_reads() {
    for way in WAYS {
        let job = Unread::start("unread-timeout", &[way, &["--timeout", "3s"]].concat(), "exec yes");
        assert_eq!(job.end(), Some(124), "{way:?}");
    }
}

#[test]
fn a_signal_ends_a_job_whose_output_nobody_reads() {
    for way in WAYS {
        let job = Unread::start("unread-signal", way, "exec yes");
        job.signal(Signal::TERM);
        assert_eq!(job.end(), Some(143), "{way:?}");
    }
}

#[test]
fn killing_a_launcher_whose_output_nobody_reads_leaves_nothing() {
    for way in WAYS {
        let job = Unread::start("unread-kill", way, "exec yes");
        job.signal(Signal::KILL);
        assert_eq!(job.end(), None, "{way:?}");
    }
}

#[test]
fn a_failure_ends_the_others_although_nobody_reads_of_it() {
    for way in WAYS {
        let job = Unread::start(
            "unread-failure",
            way,
            "test $DECK_RANK = 0 && until test -e 1; do sleep 0.02; done && exit 3; sleep 600",
        );
        wait_until_none_is_left(&job.mark);
        // The message that the job has failed is still to be read.
        job.signal(Signal::TERM);
        assert_eq!(job.end(), Some(3), "{way:?}");
    }
}

#[test]
fn a_job_that_has_ended_waits_for_its_reader_until_it_is_told_not_to() {
    let mut job = Unread::start("unread-end", WAYS[1], "echo last");
    wait_until_none_is_left(&job.mark);
    assert!(job.child.try_wait().unwrap().is_none(), "what the ranks wrote is not thrown away");
    job.signal(Signal::TERM);
    assert_eq!(job.end(), Some(143));
}

/// Joins a line's pieces as the manual describes: `[2]+ ` begins the rest of an interrupted line.
fn joined(output: &[u8], ranks: usize) -> Vec<Vec<Vec<u8>>> {
    let mut lines = vec![Vec::<Vec<u8>>::new(); ranks];
    for line in output.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n') {
        let end = line.iter().position(|byte| *byte == b']').unwrap();
        let rank: usize = std::str::from_utf8(&line[1..end]).unwrap().parse().unwrap();
        match &line[end + 1..] {
            [b' ', text @ ..] => lines[rank].push(text.to_vec()),
            [b'+', b' ', text @ ..] => lines[rank].last_mut().unwrap().extend_from_slice(text),
            other => panic!("{:?}", &other[..other.len().min(20)]),
        }
    }
    lines
}

#[test]
fn tagged_lines_of_any_length_are_lines() {
    const LENGTH: usize = 5_000_000;
    let script = format!("head -c {LENGTH} /dev/zero | tr '\\0' $DECK_RANK; echo; echo short");
    let alone = Ran::of(sh(&["-n", "1", "--tag-output"], &script));
    let lines: Vec<_> = alone.stdout.split(|byte| *byte == b'\n').map(<[u8]>::len).collect();
    assert_eq!(
        lines,
        ["[0] ".len() + LENGTH, "[0] short".len(), 0],
        "nobody waits for its end, so it is not broken"
    );
    let hosts = ["--hosts", "b,localhost,c", "--agent", "env NODE={}", "--iface", "lo"];
    for way in [&["-n", "3"][..], &hosts] {
        let ran = Ran::of(sh(&[way, &["--tag-output"]].concat(), &script));
        assert_eq!(ran.code, Some(0), "{way:?}: {}", ran.stderr);
        for (rank, lines) in joined(&ran.stdout, 3).into_iter().enumerate() {
            assert_eq!(lines.len(), 2, "{way:?}, rank {rank}");
            assert!(
                lines[0].len() == LENGTH && lines[0].iter().all(|byte| *byte == b'0' + rank as u8),
                "rank {rank}"
            );
            assert_eq!(lines[1], b"short");
        }
    }
}

/// A line that never ends does not hold up the other ranks' output.
#[test]
fn a_line_without_end_is_broken_for_the_others() {
    let script = "if test $DECK_RANK = 0; then head -c 100000 /dev/zero | tr '\\0' x; read word; echo $word; \
                  else echo other; fi";
    let mut command = sh(&["-n", "2", "--tag-output"], script);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut typed, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut text = Vec::new();
    // The other rank's line comes although rank 0's has no end yet. Only then rank 0 writes its end.
    let mut reader = std::io::BufReader::new(stdout);
    while !String::from_utf8_lossy(&text).contains("[1] other\n") {
        let before = text.len();
        std::io::BufRead::read_until(&mut reader, b'\n', &mut text).unwrap();
        assert!(text.len() > before, "the job has ended: {}", text.len());
    }
    typed.write_all(b"end\n").unwrap();
    std::io::Read::read_to_end(&mut reader, &mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let lines = joined(&text, 2);
    assert_eq!((lines[0].len(), lines[0][0].len(), &lines[1][..]), (1, 100_003, &[b"other".to_vec()][..]));
}
