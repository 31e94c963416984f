//! Options of a job: the program to run, and how.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
    time::Duration,
};

use udeck_boot::{
    ENV_BIND, ENV_BOOT_FD, ENV_CLOCK_FD, ENV_CPUS, ENV_RANK, ENV_SIZE, ENV_WAITS_FD, MAX_RANKS,
};

use crate::{
    Allocation, Hosts, LaunchError,
    control::DETECT,
    hosts::{Share, own_names},
    ranks::Work,
    remote::agent_command::AgentCommand,
};

/// Default time to bring the other hosts into the job.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The variable that asks for explanations of choices (`1`).
const EXPLAIN: &str = "DECK_EXPLAIN";

/// Variables that the launcher sets for each rank.
pub(crate) const OWN_VARIABLES: [&str; 7] =
    [ENV_BOOT_FD, ENV_CLOCK_FD, ENV_WAITS_FD, ENV_RANK, ENV_SIZE, ENV_BIND, ENV_CPUS];

/// A job to start: its number of ranks, its program and its options.
#[derive(Debug, Clone)]
pub struct Job {
    /// The number of ranks; `None` fills the hosts' slots.
    pub(crate) ranks: Option<u32>,
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) bind: Bind,
    pub(crate) tag_output: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) watchdog: Option<Duration>,
    pub(crate) on_failure: OnFailure,
    pub(crate) hosts: Option<Hosts>,
    /// The source of `hosts`, if the user gave none.
    pub(crate) allocation: Option<Allocation>,
    pub(crate) agent: AgentCommand,
    pub(crate) interface: Option<String>,
    pub(crate) remote_deckrun: PathBuf,
    pub(crate) start_limit: Duration,
    pub(crate) detect: Duration,
}

/// Processors on which a rank may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Bind {
    /// [`Core`](Bind::Core) if there are at least as many usable processors as ranks, else [`None`](Bind::None).
    #[default]
    Auto,
    /// Rank `r` runs on the `r`-th processor that the launcher may use, beginning again when they run out. Two
    /// such jobs at the same time take the same processors.
    Core,
    /// A rank may run wherever the launcher may.
    None,
}

/// Effect of one rank's failure (an exit code other than 0, or a signal) on the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnFailure {
    /// The other ranks are sent SIGTERM, and two seconds later SIGKILL.
    #[default]
    Abort,
    /// The other ranks go on, and learn of the failure as an event. The job has failed all the same.
    Continue,
    /// The other ranks go on, and the job's end is theirs: a rank that a signal killed, or that was lost with
    /// its host, does not count ([`Outcome::survived`](crate::Outcome::survived)). A rank that exits with a
    /// code other than 0 counts, because that code is its own report of a failure.
    Survive,
}

impl Job {
    /// Makes a job of `ranks` ranks, 1 to 4096, with the default options.
    pub fn new(ranks: u32) -> Job {
        Job { ranks: Some(ranks), ..Job::empty() }
    }

    /// Makes a job of as many ranks as these hosts have slots, with the default options.
    pub fn filling(hosts: Hosts) -> Job {
        Job { hosts: Some(hosts), ..Job::empty() }
    }

    fn empty() -> Job {
        Job {
            ranks: None,
            program: OsString::new(),
            args: Vec::new(),
            env: Vec::new(),
            bind: Bind::default(),
            tag_output: false,
            timeout: None,
            watchdog: None,
            on_failure: OnFailure::default(),
            hosts: None,
            allocation: None,
            agent: AgentCommand::default(),
            interface: None,
            remote_deckrun: "deckrun".into(),
            start_limit: START_LIMIT,
            detect: DETECT,
        }
    }

    /// Sets the program that every rank runs: a path, or a name to find along `PATH`.
    pub fn program(mut self, program: impl Into<OsString>) -> Job {
        self.program = program.into();
        self
    }

    /// Adds arguments for the program.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Job {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable for the ranks, over what they inherit from this process.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Job {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the processors on which the ranks run.
    pub fn bind(mut self, bind: Bind) -> Job {
        self.bind = bind;
        self
    }

    /// Sets whether every line that a rank writes begins with its number: `[2] `. Lines never mix. A line over
    /// 64 KiB is passed on as it comes, while the other ranks wait for its end; if they wait for 2 s, their
    /// lines interrupt it, and its rest begins with `[2]+ `. Untagged lines do not mix either, unless this
    /// process's standard output or error is a terminal: the ranks of this host then write to it themselves.
    pub fn tag_output(mut self, tag: bool) -> Job {
        self.tag_output = tag;
        self
    }

    /// Sets a time limit for the job, from the start of its first rank. The job is ended when the limit has
    /// passed.
    pub fn timeout(mut self, limit: Duration) -> Job {
        self.timeout = Some(limit);
        self
    }

    /// Writes to standard error what each rank waits for, and who waits for whom, when no rank has made
    /// progress for this time. A rank that computes makes progress, and so does one whose waits are shorter
    /// than this time.
    pub fn watchdog(mut self, limit: Duration) -> Job {
        self.watchdog = Some(limit);
        self
    }

    /// Sets the effect of one rank's failure on the others.
    pub fn on_failure(mut self, then: OnFailure) -> Job {
        self.on_failure = then;
        self
    }

    /// Sets the hosts on which the ranks run, instead of this one only. They are filled one after the other.
    pub fn hosts(mut self, hosts: Hosts) -> Job {
        self.hosts = Some(hosts);
        self.allocation = None;
        self
    }

    /// Runs the ranks on the hosts that a batch system has given to this process ([`Allocation::find`]), by its
    /// own agent: in Slurm `srun`. Hosts and an agent that are set after this call take precedence.
    pub fn allocated(mut self, allocation: Allocation) -> Job {
        self.agent = allocation.manager().agent();
        self.hosts = Some(allocation.hosts().clone());
        self.allocation = Some(allocation);
        self
    }

    /// Sets the command that starts a command on another host: the words of `command`, then the host's name (or
    /// the name in place of `{}`), then the words of the command to start. The default is `ssh`, with options
    /// that keep it from asking for anything.
    pub fn agent(mut self, command: &str) -> Job {
        self.agent = AgentCommand::new(command);
        self
    }

    /// Sets where the other hosts reach this one: an interface's name, or an address of this host. The default
    /// is the address by which this host reaches the first of them.
    pub fn interface(mut self, name_or_address: impl Into<String>) -> Job {
        self.interface = Some(name_or_address.into());
        self
    }

    /// Sets where `deckrun` lies on the other hosts: a path, or a name to find along their `PATH` (the
    /// default).
    pub fn remote_deckrun(mut self, path: impl Into<PathBuf>) -> Job {
        self.remote_deckrun = path.into();
        self
    }

    /// Sets the time limit for bringing the other hosts into the job, until all of their ranks have started.
    /// The default is 30 s.
    pub fn start_limit(mut self, limit: Duration) -> Job {
        self.start_limit = limit;
        self
    }

    /// Sets the time without any answer after which another host counts as lost. The default is 10 s, the
    /// minimum 2 s. A stopped process is not lost: its kernel answers.
    pub fn detect_timeout(mut self, limit: Duration) -> Job {
        self.detect = limit.max(Duration::from_secs(2));
        self
    }

    /// Returns the placement of the ranks, in rank order.
    pub(crate) fn shares(&self) -> Result<Vec<Share>, LaunchError> {
        match (&self.hosts, self.ranks) {
            (Some(hosts), ranks) => match &self.allocation {
                None => hosts.place(ranks, own_names()),
                Some(allocation) => hosts
                    .place(ranks, allocation.is_here())
                    .map_err(|error| for_allocation(allocation, error)),
            },
            (None, ranks) => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                Ok(vec![Share { host, first: 0, count: ranks.unwrap_or(1), here: true }])
            }
        }
    }

    /// Returns where the hosts come from, if the user gave none and asked for explanations.
    pub(crate) fn explanation(&self) -> Option<String> {
        let asked = self.variable(EXPLAIN).or_else(|| std::env::var(EXPLAIN).ok());
        let allocation = self.allocation.as_ref().filter(|_| asked.as_deref() == Some("1"))?;
        Some(format!("hosts from {allocation}; agent {}", self.agent.title()))
    }

    /// Returns a variable that the job sets for its ranks.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let set = self.env.iter().rev().find(|(set, _)| set == name);
        set.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    /// Returns the part of the job that runs on the host of `share`.
    pub(crate) fn work(&self, share: &Share, size: u32) -> Work {
        Work {
            program: self.program.clone(),
            args: self.args.clone(),
            env: self.env.clone(),
            bind: self.bind,
            first: share.first,
            count: share.count,
            size,
        }
    }

    pub(crate) fn check(&self) -> Result<(), LaunchError> {
        match self.ranks {
            Some(0) => return Err(LaunchError::NoRanks),
            Some(asked) if asked > MAX_RANKS => return Err(LaunchError::TooManyRanks { asked }),
            _ => {}
        }
        if self.program.is_empty() {
            return Err(LaunchError::NoProgram);
        }
        let bad = |(name, value): &(OsString, OsString)| Some((name.clone(), fault(name, value)?));
        match self.env.iter().find_map(bad) {
            Some((name, why)) => Err(LaunchError::BadVariable { name, why }),
            None => Ok(()),
        }
    }
}

/// Rewrites an error about slots for hosts that the user did not give, and cannot give more slots.
fn for_allocation(allocation: &Allocation, error: LaunchError) -> LaunchError {
    match error {
        LaunchError::TooFewSlots { ranks, slots, .. } => LaunchError::SmallAllocation {
            ranks,
            slots,
            hosts: allocation.to_string(),
            more: allocation.more(ranks),
        },
        other => other,
    }
}

fn fault(name: &OsStr, value: &OsStr) -> Option<&'static str> {
    let has = |text: &OsStr, byte| text.as_encoded_bytes().contains(&byte);
    if name.is_empty() || has(name, b'=') {
        return Some("a name must not be empty nor contain `=`");
    }
    if has(name, 0) || has(value, 0) {
        return Some("neither name nor value may contain a zero byte");
    }
    OWN_VARIABLES.iter().any(|own| name == *own).then_some("deckrun sets this one itself, for each rank")
}
