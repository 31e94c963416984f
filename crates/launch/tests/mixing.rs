//! Output of several ranks without tags: whole lines, and every byte.

mod common;

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use common::{Ran, sh};

/// Jobs on this host, and on several hosts.
const WAYS: [&[&str]; 3] = [
    &["-n", "12"],
    &["--hosts", "b:6,localhost:6", "--agent", "env NODE={}", "--iface", "lo"],
    &["--hosts", "b:6,c:6", "--agent", "env NODE={}", "--iface", "lo"],
];

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("deckrun-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn fifo(&self, name: &str) {
        assert!(Command::new("mkfifo").arg(self.0.join(name)).status().unwrap().success());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the job with its standard output and error in these files, and reads them.
fn written(mut command: Command, stdout: &Path, stderr: Option<&Path>) -> [String; 2] {
    let out = File::create(stdout).unwrap();
    let err = stderr.map_or_else(|| out.try_clone().unwrap(), |path| File::create(path).unwrap());
    command.stdout(out).stderr(err).status().unwrap();
    let text = |path| fs::read_to_string(path).unwrap();
    [text(stdout), stderr.map(text).unwrap_or_default()]
}

/// Each rank writes a line in three pieces, as the standard library writes the error of a `main`, and each
/// piece after the rank before it.
#[test]
fn lines_that_ranks_write_in_pieces_by_turns_are_whole() {
    let folder = Folder::new("mixing");
    for (way, to) in WAYS.iter().flat_map(|way| [(way, "1"), (way, "2")]) {
        for step in 0..3 {
            (0..12).for_each(|rank| folder.fifo(&format!("{step}.{rank}")));
        }
        // A rank waits for the same piece of the rank before; rank 0 waits for the previous piece of the last
        // rank.
        let script = format!(
            "cd {}; r=$DECK_RANK
             turn() {{
                 test $1 = 0 -a $r = 0 || read x <$1.$r
                 printf \"$2\" >&{to}
                 if test $r -lt 11; then : >$1.$((r+1)); elif test $1 -lt 2; then : >$(($1+1)).0; fi
             }}
             turn 0 'Error: '; turn 1 \"rank $r is broken\"; turn 2 '\\n'; exit 1",
            folder.0.display()
        );
        let command = sh(&[way, &["--on-failure", "continue"][..]].concat(), &script);
        let [text, _] = written(command, &folder.0.join("log"), None);
        let (own, ranks): (Vec<_>, Vec<_>) = text.lines().partition(|line| line.starts_with("deckrun: "));
        assert_eq!(own.len(), 12, "{way:?}: {text}");
        let mut ranks = ranks;
        ranks.sort_unstable();
        let mut wanted: Vec<_> = (0..12).map(|rank| format!("Error: rank {rank} is broken")).collect();
        wanted.sort_unstable();
        assert_eq!(ranks, wanted, "{way:?}, descriptor {to}");
        for step in 0..3 {
            (0..12).for_each(|rank| fs::remove_file(folder.0.join(format!("{step}.{rank}"))).unwrap());
        }
    }
}

#[test]
fn what_a_rank_writes_to_output_and_error_stays_in_its_order_in_one_file() {
    let folder = Folder::new("order");
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $DECK_RANK out $i; echo $DECK_RANK err $i >&2; done";
    for (way, tag) in WAYS.iter().flat_map(|way| [(way, None), (way, Some("--tag-output"))]) {
        let options: Vec<_> = way.iter().copied().chain(tag).collect();
        let [text, _] = written(sh(&options, script), &folder.0.join("log"), None);
        for rank in 0..12 {
            let (lead, mark) = (format!("{rank} "), format!("[{rank}] "));
            let lines = text.lines().filter_map(|line| match tag {
                Some(_) => line.strip_prefix(&mark)?.strip_prefix(&lead),
                None => line.strip_prefix(&lead),
            });
            let wanted: Vec<_> = (1..10).flat_map(|i| [format!("out {i}"), format!("err {i}")]).collect();
            assert_eq!(lines.collect::<Vec<_>>(), wanted, "{options:?}, rank {rank}");
        }
        let script = "echo out; echo err >&2";
        let [out, err] = written(sh(&options, script), &folder.0.join("out"), Some(&folder.0.join("err")));
        assert_eq!((out.lines().count(), err.lines().count()), (12, 12), "{options:?}: {out}{err}");
        assert!(!out.contains("err") && !err.contains("out"), "{options:?}: {out}{err}");
    }
}

/// Any bytes of one rank among several, and of a job's only rank, come through unchanged.
#[test]
fn bytes_come_through_unchanged() {
    let folder = Folder::new("bytes");
    let mut bytes: Vec<u8> = (0..600_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    // Neither a line that is longer than any buffer nor the end of the output has an LF.
    bytes[100_000..400_000].iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = 0);
    *bytes.last_mut().unwrap() = b'x';
    let input = folder.0.join("bytes");
    fs::write(&input, &bytes).unwrap();
    let hosts = ["--agent", "env NODE={}", "--iface", "lo", "--hosts"];
    let ways: [&[&str]; 5] = [
        &["-n", "1"],
        &["-n", "3"],
        &[&hosts[..], &["b,localhost,c"]].concat(),
        &[&hosts[..], &["b"]].concat(),
        &[&hosts[..], &["b:3"]].concat(),
    ];
    for way in ways {
        let script = format!("test $DECK_RANK = 0 || exit 0; cat {}", input.display());
        let ran = Ran::of(sh(way, &script));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{way:?}");
        assert!(ran.stdout == bytes, "{way:?}: {} bytes of {}", ran.stdout.len(), bytes.len());
    }
}

/// A prompt, dots and a bar have no LF for as long as a reader waits for them.
#[test]
fn an_unfinished_line_comes_to_a_reader_and_goes_on() {
    let remote = ["--hosts", "b:2,c", "--agent", "env NODE={}", "--iface", "lo"];
    for (way, lead) in [(&["-n", "3"][..], ""), (&["-n", "3", "--tag-output"], "[0] "), (&remote, "")] {
        let script = "test $DECK_RANK = 0 || exit 0; printf 'name? '; read name; echo hello $name";
        let mut child = sh(way, script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut typed, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let asked = format!("{lead}name? ");
        let mut text = vec![0; asked.len()];
        stdout.read_exact(&mut text).unwrap();
        assert_eq!(text, asked.as_bytes(), "{way:?}");
        typed.write_all(b"Ada\n").unwrap();
        stdout.read_to_end(&mut text).unwrap();
        assert_eq!(String::from_utf8_lossy(&text), format!("{asked}hello Ada\n"), "{way:?}");
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn the_only_rank_of_a_job_writes_where_deckrun_does() {
    let folder = Folder::new("alone");
    let script = "test -f /dev/stdout && echo a file >&2";
    let [_, err] = written(sh(&["-n", "1"], script), &folder.0.join("out"), Some(&folder.0.join("err")));
    assert_eq!(err, "a file\n");
}

/// Each rank writes at its end, and deckrun reports its end.
#[test]
fn last_words_come_before_deckruns_words_about_the_end() {
    let folder = Folder::new("last");
    let remote = ["--hosts", "b:2,localhost", "--agent", "env NODE={}", "--iface", "lo"];
    for way in [&["-n", "3"][..], &["-n", "3", "--tag-output"], &remote] {
        let script = "test $DECK_RANK = 1 || exec sleep 600; seq 1000 >&2; printf 'Error: last' >&2; exit 1";
        let [text, _] = written(sh(way, script), &folder.0.join("log"), None);
        let lines: Vec<_> = text.lines().collect();
        let about =
            lines.iter().position(|line| *line == "deckrun: rank 1 exited with code 1; ending ranks 0, 2");
        let last = lines.iter().position(|line| line.ends_with("Error: last"));
        assert_eq!((last, about), (Some(1000), Some(1001)), "{way:?}: {text}");
    }
}

#[test]
fn output_that_cannot_be_written_is_said_and_fails_the_job() {
    for way in [&["-n", "2"][..], &["-n", "2", "--tag-output"]] {
        let mut command = sh(way, "test $DECK_RANK = 1 || echo words");
        command.stdout(File::options().write(true).open("/dev/full").unwrap());
        let ran = Ran::from(command.stderr(Stdio::piped()).output().unwrap());
        assert_eq!(ran.code, Some(125), "{way:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("No space left on device"), "{way:?}: {}", ran.stderr);
    }
}

/// deckrun's own message here is that lines may mix, for lack of descriptors.
#[test]
fn deckruns_own_words_do_not_fail_a_job_when_they_cannot_be_written() {
    let job = sh(&["-n", "4"], "exit 0");
    let mut limited = Command::new("/bin/sh");
    limited.args(["-c", "ulimit -n 70; exec \"$@\"", "sh"]).arg(job.get_program()).args(job.get_args());
    for variable in job.get_envs() {
        limited.env_remove(variable.0);
    }
    let ran = Ran::from(limited.output().unwrap());
    assert!(ran.code == Some(0) && ran.stderr.contains("may mix"), "{}", ran.stderr);
    let full = || File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(limited.stderr(full()).status().unwrap().code(), Some(0));
    let mut ranks_words = sh(&["-n", "4"], "test $DECK_RANK != 1 || echo words >&2");
    assert_eq!(ranks_words.stderr(full()).status().unwrap().code(), Some(125));
}
