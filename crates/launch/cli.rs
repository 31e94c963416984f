//! The command line of deckrun, and the job that it describes.

mod values;

use std::{env, ffi::OsString, path::PathBuf, time::Duration};

use clap::{CommandFactory, Parser, ValueEnum, ValueHint, error::ErrorKind};
use deckrun::{Allocation, Hosts, Job, OnFailure};
use udeck_cli::Generate;

use self::values::{detection, duration, hosts, hosts_of_file, transports, variable};

/// Lines have at most 80 columns: a narrower terminal is rare, and wrapped lines are hard to read.
const EXAMPLES: &str = "\
Examples:
  deckrun -n 4 ./hello                    four ranks of ./hello
  deckrun -n 4 --tag-output ./hello       lines begin with their rank: [2] ...
  deckrun -n 8 --timeout 60s -- ./ring --laps 3
                                          ended after a minute at the latest
  deckrun -n 2 --env DECK_SETUP_TIMEOUT=5 ./ring
                                          a setting for this job
  deckrun -n 4 --on-failure continue ./worker
                                          the others go on when a rank fails
  deckrun -n 4 --on-failure survive ./farm
                                          and the job succeeds if they do

  deckrun -n 4 --watchdog 10s ./hello     if nothing moves for 10 s: who waits
                                          for whom
  deckrun --status 4711                   the same at once, of the job that
                                          process 4711 runs
  deckrun --doctor                        what a job would find on this host,
                                          and what to do about it
  deckrun --doctor --hosts a:2,b:2        the same on all hosts of a job

  deckrun --hosts a:2,b:2 ./hello         ranks 0-1 on host a, 2-3 on host b,
                                          by ssh
  deckrun -n 3 --hosts localhost:2,b:2 ./hello
                                          ranks 0-1 here, rank 2 on b
  deckrun --hosts '[2001:db8::7]:4' ./hello
                                          an IPv6 address stands in brackets
  deckrun --hostfile cluster --iface eth1 ./hello
                                          lines `a slots=2`; they reach this
                                          host by its eth1
  deckrun --hosts a:2,b:2 --agent 'ip netns exec' ./hello
                                          not ssh, but: ip netns exec a COMMAND
  deckrun --hosts a:2 --agent 'docker exec -i {}' ./hello
                                          the host's name stands at {}

  salloc -N 2 -n 8 deckrun ./hello        in a job of Slurm: on its hosts, as
                                          many ranks as it has tasks, by srun
  deckrun -n 4 --explain ./hello          there: on the first 4; and say where
                                          the hosts come from
  deckrun -n 4 --hosts localhost:4 ./hello
                                          there: on this host alone

Environment:
  DECK_TRANSPORT  as --transport
  DECK_ENCRYPT    1: as --encrypt
  DECK_EXPLAIN    1: as --explain
  DECK_DETECT     as --detect, in seconds
  DECK_IFACE      as --iface
  DECK_TRACE      a file for a trace of the job, for Perfetto and Chrome,
                  or, if its name ends in .vef, for deckfabric; of a job
                  that is ended or fails, too
  DECK_DEADLINE   seconds that a call of a rank waits for another rank [600]
  DECK_...        every other setting of the library, too, is passed on to
                  ranks on all hosts

Exit code:
  0         all ranks exited with 0; with --on-failure survive all that
            were not killed
  1 to 255  otherwise: the first failed rank's own, 128 + N if signal N
            killed it
  2         wrong usage
  124       the time of --timeout was up
  125       the system or a host refused, or output could not be written
  126       the program cannot be run
  127       there is no such program
  128 + N   deckrun was sent signal N
  137       the rank was lost with its host";

/// Starts the ranks of a µDECK job, on this host or on several, and watches over them.
///
/// A rank finds its job by itself (udeck::init). Rank 0 reads deckrun's standard input; the others read none. deckrun passes
/// SIGINT, SIGTERM and SIGHUP on to all ranks, and kills those that are still there two seconds later, or at a second signal.
/// SIGTSTP (Ctrl-Z) stops the ranks on all hosts until SIGCONT (`fg`, `bg`). No time limit, of deckrun or of a rank, counts the
/// time between. SIGQUIT (Ctrl-\) has deckrun write what the ranks are doing. However the job ends, nothing that it started keeps running, on any host.
///
/// In a job of Slurm, PBS or LSF (salloc, sbatch, qsub, bsub) deckrun takes hosts and slots from it, unless --hosts or --hostfile
/// names others: without -n all slots, with -n the first ones. In Slurm it starts itself on them by srun. Start it once there, not by srun.
///
/// On another host the ranks run in the folder of the same name. They have that host's environment and, of this host's, the
/// variables named DECK_...; the program must be installed there, too.
#[derive(Debug, Parser)]
#[command(name = "deckrun", version, after_help = EXAMPLES, max_term_width = 100)]
#[command(override_usage = "deckrun [OPTIONS] [--] <PROGRAM> [ARGUMENTS]...")]
pub(crate) struct Cli {
    /// How many ranks to start, 1 to 4096. Without it, as many as the hosts can take.
    // Required, unless hosts are given: see `job`.
    #[arg(short = 'n', long = "ranks", value_name = "N")]
    ranks: Option<u32>,

    /// Bind a host's r-th rank to its r-th usable processor, or let ranks run anywhere.
    ///
    /// Two bound jobs share the same processors.
    #[arg(long, value_enum, default_value_t, value_name = "WHERE")]
    bind: BindArg,

    /// Begin each line that a rank writes with its number: "[2] ".
    ///
    /// Lines never mix. A line over 64 KiB is passed on as it comes, while the other ranks wait for its end. If they wait for
    /// 2 s, their lines interrupt it, and its rest begins with "[2]+ ". Without this option the same holds, without marks, where
    /// deckrun writes to a file or a pipe. On a terminal the ranks of this host then write for themselves.
    #[arg(long)]
    tag_output: bool,

    /// End the job after this time: 500ms, 60s, 5m, 2h; a bare number is in seconds.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,

    /// When no rank has made progress for this time, write to standard error what each rank waits for, since when, and who waits
    /// for whom.
    ///
    /// SIGQUIT (Ctrl-\) has the same written at once.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    watchdog: Option<Duration>,

    /// Start nothing, but write what the ranks of the deckrun with this process number are doing.
    ///
    /// The report says what each rank waits for, since when, and who waits for whom.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) status: Option<u32>,

    /// Effect on the other ranks when a rank exits with a code other than 0, is killed, or is lost with its host.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    on_failure: OnFailureArg,

    /// Set an environment variable for the ranks; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,

    /// Use only these transports, the best first, with commas between them: shm, verbs, tcp, udp.
    ///
    /// By default: shm within a host; between hosts verbs where there is a device for it, otherwise tcp.
    #[arg(long, value_name = "LIST", value_parser = transports)]
    transport: Option<String>,

    /// Let messages leave a host encrypted and authenticated only.
    ///
    /// Messages take transports that do so on the whole path: udp. Within a host they take shared memory. What deckruns say to each
    /// other (output, names, ends of ranks) is always encrypted and authenticated.
    #[arg(long)]
    encrypt: bool,

    /// Write to standard error which transport each rank uses to each other rank, and why no better one.
    ///
    /// Each line comes when a rank first uses a transport. In a job of a batch system, the source of the hosts is written, too.
    #[arg(long)]
    explain: bool,

    /// Start nothing, but report what a job would find here and on the given hosts.
    ///
    /// Devices, limits, networks, the transport that it would take, and what to do where something is missing. Exit code 0 if
    /// a job could run, otherwise 1.
    #[arg(long)]
    pub(crate) doctor: bool,

    /// The hosts and how many ranks each can take: a:2,b:2, or @FILE.
    ///
    /// Hosts are filled one after the other. By default those of the Slurm, PBS or LSF job in which deckrun runs, otherwise this
    /// host.
    #[arg(long, value_name = "LIST", value_parser = hosts, value_hint = ValueHint::Hostname, help_heading = "Several hosts")]
    hosts: Option<Hosts>,

    /// A file with a host a line: `name`, `name:2` or `name slots=2`; `#` begins a comment.
    #[arg(long, value_name = "FILE", value_parser = hosts_of_file, value_hint = ValueHint::FilePath, conflicts_with = "hosts", help_heading = "Several hosts")]
    hostfile: Option<Hosts>,

    /// The command that runs a command on another host, instead of ssh (in a job of Slurm: instead of srun).
    ///
    /// The command is these words, then the host's name, then the command. If `{}` is among the words, the name takes its place.
    #[arg(long, value_name = "COMMAND", value_parser = clap::builder::NonEmptyStringValueParser::new(), value_hint = ValueHint::CommandString, help_heading = "Several hosts")]
    agent: Option<String>,

    /// Where the other hosts reach this one: an interface or an address.
    ///
    /// By default the address by which this host reaches the first of them. Nothing ever listens on all interfaces. The
    /// variable DECK_IFACE says the same.
    #[arg(long, value_name = "NAME|ADDRESS", help_heading = "Several hosts")]
    iface: Option<String>,

    /// The path of deckrun on the other hosts; by default the same as here.
    #[arg(long, value_name = "PATH", help_heading = "Several hosts")]
    remote_deckrun: Option<PathBuf>,

    /// How long the hosts may take to start their ranks.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "30s", help_heading = "Several hosts")]
    start_timeout: Duration,

    /// A host that gives no answer for this time counts as lost; at least 2s, by default 10s.
    #[arg(long, value_name = "TIME", value_parser = detection, help_heading = "Several hosts")]
    detect: Option<Duration>,

    #[command(flatten)]
    pub(crate) generate: Generate,

    /// The program, a path or a name to find along PATH, and its arguments.
    ///
    /// Everything behind the program belongs to it, even what looks like an option of deckrun.
    // One list for program and arguments: behind its first word clap takes no option any more.
    #[arg(trailing_var_arg = true, num_args = 1.., value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments, required_unless_present_any = ["doctor", "status"])]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum BindArg {
    /// Like `core` if a host has at least as many usable processors as ranks, else as `none`.
    #[default]
    Auto,
    /// One processor per rank, in order, beginning again when they run out.
    Core,
    /// Wherever deckrun itself may run.
    None,
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum OnFailureArg {
    /// The other ranks are ended: SIGTERM, two seconds later SIGKILL.
    #[default]
    Abort,
    /// The other ranks go on, and the exit code is that of the first failed rank.
    Continue,
    /// The other ranks go on. The exit code is 0 if all of them exit with 0: a rank that a signal killed, or that was lost with
    /// its host, does not count.
    Survive,
}

impl Cli {
    /// Tells whether neither `--hosts` nor `--hostfile` was given.
    pub(crate) fn has_no_hosts(&self) -> bool {
        self.hosts.is_none() && self.hostfile.is_none()
    }

    /// Builds the job that the options ask for; `allocation` is used if no hosts are given. Ends the process if
    /// the number of ranks can't be found.
    pub(crate) fn job(self, allocation: Option<Allocation>) -> Job {
        let given = self.hosts.or(self.hostfile);
        let mut job = match (self.ranks, given, allocation) {
            (Some(ranks), Some(hosts), _) => Job::new(ranks).hosts(hosts),
            (None, Some(hosts), _) => Job::filling(hosts),
            (Some(ranks), None, Some(allocation)) => Job::new(ranks).allocated(allocation),
            (None, None, Some(allocation)) => Job::filling(allocation.hosts().clone()).allocated(allocation),
            (Some(ranks), None, None) => Job::new(ranks),
            (None, None, None) if self.doctor => Job::new(1),
            (None, None, None) => no_ranks(),
        };
        let mut command = self.command.into_iter();
        job = job
            .program(command.next().unwrap_or_default())
            .args(command)
            .tag_output(self.tag_output)
            .start_limit(self.start_timeout)
            .bind(match self.bind {
                BindArg::Auto => deckrun::Bind::Auto,
                BindArg::Core => deckrun::Bind::Core,
                BindArg::None => deckrun::Bind::None,
            })
            .on_failure(match self.on_failure {
                OnFailureArg::Abort => OnFailure::Abort,
                OnFailureArg::Continue => OnFailure::Continue,
                OnFailureArg::Survive => OnFailure::Survive,
            });
        if let Some(path) = self.remote_deckrun.or_else(|| env::current_exe().ok()) {
            job = job.remote_deckrun(path);
        }
        if let Some(command) = self.agent {
            job = job.agent(&command);
        }
        if let Some(interface) = self.iface.or_else(|| env::var(udeck_boot::start::ENV_INTERFACE).ok()) {
            job = job.interface(interface);
        }
        if let Some(name) = self.transport {
            job = job.env("DECK_TRANSPORT", name);
        }
        if self.encrypt {
            job = job.env("DECK_ENCRYPT", "1");
        }
        if self.explain {
            job = job.env("DECK_EXPLAIN", "1");
        }
        if let Some(limit) = self.detect {
            // The transports' own limit is in whole seconds.
            job = job.detect_timeout(limit).env("DECK_DETECT", limit.as_secs().to_string());
        }
        for (name, value) in self.env {
            job = job.env(name, value);
        }
        if let Some(limit) = self.watchdog {
            job = job.watchdog(limit);
        }
        match self.timeout {
            Some(limit) => job.timeout(limit),
            None => job,
        }
    }
}

/// Ends the process with clap's words for a missing required option.
fn no_ranks() -> ! {
    let words = "the following required arguments were not provided:\n  --ranks <N>";
    Cli::command().error(ErrorKind::MissingRequiredArgument, format!("{words}\n")).exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_has_eighty_columns() {
        let mut command = Cli::command().term_width(80);
        for help in [command.render_help().to_string(), command.render_long_help().to_string()] {
            let wrapped =
                EXAMPLES.lines().find(|line| !help.contains(&format!("{line}\n")) && !line.is_empty());
            assert_eq!(wrapped, None, "a line of the examples does not fit");
        }
    }

    #[test]
    fn what_stands_behind_the_program_is_its_own() {
        let words =
            ["deckrun", "-n", "2", "echo", "-n", "8", "--timeout", "5", "--version", "--", "--doctor", "-x"];
        let cli = Cli::try_parse_from(words).unwrap();
        assert_eq!((cli.ranks, cli.timeout, cli.doctor), (Some(2), None, false));
        assert_eq!(cli.command, words[3..]);
        let dashes = Cli::try_parse_from(["deckrun", "-n", "2", "--", "-x", "--", "-n"]).unwrap();
        assert_eq!(dashes.command, ["-x", "--", "-n"]);
        assert!(
            Cli::try_parse_from(["deckrun", "-n", "2", "--bogus", "true"]).is_err(),
            "before it options are ours"
        );
    }
}
