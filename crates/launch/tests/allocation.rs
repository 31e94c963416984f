//! `deckrun` within the job of a batch system, simulated by environment variables and a command `srun` that
//! runs its words on this host. Slurm itself is tested in `tests/jobs/tests/engines`.

mod common;

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

use common::{Ran, sh};

/// A folder with such an `srun`, for `PATH`; removed when dropped.
struct Srun(PathBuf);

impl Srun {
    fn new(name: &str) -> Srun {
        let folder = std::env::temp_dir().join(format!("deckrun-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let script = "#!/bin/sh\nfor word; do case $word in\n--nodelist=*) NODE=${word#*=} ;; --*) ;; *) break ;; esac; shift; done\n\
                      export NODE\nexec \"$@\"\n";
        let srun = folder.join("srun");
        fs::write(&srun, script).unwrap();
        fs::set_permissions(&srun, fs::Permissions::from_mode(0o755)).unwrap();
        Srun(folder)
    }

    /// Sets the variables of Slurm's job 17: three tasks on n1, one on n2.
    fn allocated(&self, mut command: Command) -> Command {
        let path = format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap_or_default());
        command.env("PATH", path).env("SLURM_JOB_ID", "17").env("SLURM_JOB_NODELIST", "n[1-2]");
        command.env("SLURM_TASKS_PER_NODE", "3,1").env("SLURM_JOB_CPUS_PER_NODE", "4(x2)");
        command
    }
}

impl Drop for Srun {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_job_of_several_components_is_not_taken_for_its_first_one() {
    let srun = Srun::new("components");
    let run = |options: &[&str], components| {
        let mut job = srun.allocated(sh(&[&["--iface", "lo"], options].concat(), WHERE));
        job.env("SLURM_HET_SIZE", components);
        Ran::of(job)
    };
    let refused = run(&[], "2");
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    for words in ["SLURM_HET_SIZE=2", "first component only", "--hosts", "--het-group=0,1"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
    assert_eq!(run(&[], "1").lines().len(), 4);
    assert_eq!(run(&["--hosts", "localhost:2"], "2").lines(), ["0/2 here", "1/2 here"]);
}

const WHERE: &str = "echo $DECK_RANK/$DECK_SIZE ${NODE-here}";

#[test]
fn slurm_says_where_the_ranks_run_and_srun_starts_them() {
    let srun = Srun::new("slurm");
    let run = |options: &[&str]| Ran::of(srun.allocated(sh(&[&["--iface", "lo"], options].concat(), WHERE)));
    let all = run(&["--explain"]);
    assert_eq!(
        (all.code, all.lines()),
        (Some(0), ["0/4 n1", "1/4 n1", "2/4 n1", "3/4 n2"].map(String::from).into())
    );
    assert_eq!(all.stderr, "deckrun: hosts from Slurm's job 17: n1:3, n2:1; agent srun\n");
    let first = run(&["-n", "2"]);
    assert_eq!((first.lines(), first.stderr.as_str()), (["0/2 n1", "1/2 n1"].map(String::from).into(), ""));
    // In a batch script this host is one of the job's.
    let mut batch = srun.allocated(sh(&["--iface", "lo"], WHERE));
    batch.env("SLURMD_NODENAME", "n1");
    assert_eq!(Ran::of(batch).lines(), ["0/4 here", "1/4 here", "2/4 here", "3/4 n2"]);
}

#[test]
fn what_is_given_takes_precedence_over_the_allocation() {
    let srun = Srun::new("given");
    let run = |options: &[&str]| Ran::of(srun.allocated(sh(options, WHERE)));
    assert_eq!(run(&["-n", "6", "--hosts", "localhost:6"]).lines().len(), 6, "more than the allocation has");
    let file = srun.0.join("hosts");
    fs::write(&file, "localhost slots=2\n").unwrap();
    assert_eq!(run(&["--hostfile", file.to_str().unwrap()]).lines(), ["0/2 here", "1/2 here"]);
    let agent = run(&["--iface", "lo", "--explain", "--agent", "env NODE=my-{}"]);
    assert_eq!(agent.lines(), ["0/4 my-n1", "1/4 my-n1", "2/4 my-n1", "3/4 my-n2"]);
    assert!(agent.stderr.contains("n1:3, n2:1; agent env NODE=my-{}\n"), "{}", agent.stderr);
    // A rank that starts another job does not take the whole allocation again.
    let mut rank = srun.allocated(sh(&["-n", "2"], WHERE));
    rank.env("DECK_RANK", "0");
    assert_eq!(Ran::of(rank).lines(), ["0/2 here", "1/2 here"]);
}

/// Options, variables, and a part of the error that they cause.
type Wrong<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);

#[test]
fn what_cannot_be_is_said() {
    let srun = Srun::new("wrong");
    let run = |options: &[&str], variables: &[(&str, &str)]| {
        let mut command = srun.allocated(sh(options, WHERE));
        command.envs(variables.iter().copied());
        Ran::of(command)
    };
    let cases: [Wrong; 4] = [
        (
            &["-n", "5"],
            &[],
            "5 ranks and only 4 slots in Slurm's job 17: n1:3, n2:1. Start fewer ranks, ask Slurm for more tasks (salloc -n 5)",
        ),
        (&[], &[("SLURM_TASKS_PER_NODE", "3")], "deckrun: SLURM_TASKS_PER_NODE=3: its number of hosts is 1"),
        (&[], &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4")], "Start deckrun once"),
        (&[], &[("SLURM_JOB_NODELIST", "")], "--ranks <N>"),
    ];
    for (options, variables, words) in cases {
        let ran = run(options, variables);
        assert!(
            ran.code == Some(2) && ran.stderr.contains(words),
            "{options:?} {variables:?}: {}",
            ran.stderr
        );
    }
    // If hosts are given, faults in those of the allocation are not reported.
    let ran = run(&["--hosts", "localhost"], &[("SLURM_TASKS_PER_NODE", "3")]);
    assert_eq!((ran.code, ran.lines()), (Some(0), vec!["0/1 here".to_string()]), "{}", ran.stderr);
}

#[test]
fn pbs_and_lsf_say_where_the_ranks_run() {
    let folder = Srun::new("lists");
    let nodes = folder.0.join("nodes");
    fs::write(&nodes, "b\nlocalhost\nb\n").unwrap();
    let cases = [
        ("PBS_NODEFILE", nodes.to_str().unwrap(), "hosts from PBS' job: b:2, localhost:1; agent env NODE={}"),
        ("LSB_DJOB_HOSTFILE", nodes.to_str().unwrap(), "hosts from LSF's job: b:2, localhost:1;"),
        ("LSB_HOSTS", "b localhost b", "hosts from LSF's job: b:2, localhost:1;"),
        ("LSB_MCPU_HOSTS", "b 2 localhost 1", "hosts from LSF's job: b:2, localhost:1;"),
    ];
    for (variable, value, words) in cases {
        let mut command = sh(&["--iface", "lo", "--agent", "env NODE={}", "--explain"], WHERE);
        command.env(variable, value);
        let ran = Ran::of(command);
        assert_eq!(ran.lines(), ["0/3 b", "1/3 b", "2/3 here"], "{variable}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{variable}: {}", ran.stderr);
    }
}

#[test]
fn the_doctor_tells_of_the_allocation() {
    let srun = Srun::new("doctor");
    let examine = |options: &[&str], variables: &[(&str, &str)]| {
        let mut command =
            srun.allocated(common::deckrun(&[&["--doctor", "--iface", "lo"], options].concat()));
        command.envs(variables.iter().copied());
        let ran = Ran::of(command);
        // The doctor folds its lines.
        let text = String::from_utf8_lossy(&ran.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        (ran.code, text + &ran.stderr)
    };
    // Each of the two nodes examines itself.
    let (code, text) = examine(&[], &[]);
    assert_eq!((code, text.matches("A job can run on ").count()), (Some(0), 2), "{text}");
    let (code, text) = examine(&[], &[("SLURMD_NODENAME", "n1")]);
    assert!(text.contains("Slurm's job 17: n1:3, n2:1 (2 hosts, 4 slots); agent srun"), "{text}");
    assert_eq!((code, text.matches("A job can run on ").count()), (Some(0), 2), "{text}");
    let (code, text) = examine(&["--hosts", "localhost"], &[]);
    assert!(code == Some(0) && text.contains("not used for hosts that are given"), "{text}");
    let (code, text) = examine(&[], &[("SLURM_TASKS_PER_NODE", "3")]);
    assert!(
        code == Some(1)
            && text.contains("problem allocation SLURM_TASKS_PER_NODE=3: its number of hosts is 1"),
        "{text}"
    );
}
