//! What to run, and how: the options of a job.

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

/// How long bringing the other hosts into the job may take, unless told otherwise.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Whether choices are explained (`1`).
const EXPLAIN: &str = "DECK_EXPLAIN";

/// What the launcher sets for each rank.
pub(crate) const OWN_VARIABLES: [&str; 7] =
    [ENV_BOOT_FD, ENV_CLOCK_FD, ENV_WAITS_FD, ENV_RANK, ENV_SIZE, ENV_BIND, ENV_CPUS];

/// A job to be: how many ranks, of which program, and how to treat them.
#[derive(Debug, Clone)]
pub struct Job {
    /// `None`: as many as the hosts have slots.
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
    /// Where `hosts` come from, if they were not given.
    pub(crate) allocation: Option<Allocation>,
    pub(crate) agent: AgentCommand,
    pub(crate) interface: Option<String>,
    pub(crate) remote_deckrun: PathBuf,
    pub(crate) start_limit: Duration,
    pub(crate) detect: Duration,
}

/// Which processors a rank may run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Bind {
    /// [`Core`](Bind::Core) if there are at least as many usable processors as ranks, else [`None`](Bind::None).
    #[default]
    Auto,
    /// Rank `r` on the `r`-th processor that the launcher may use, beginning again when they run out. Two such jobs at
    /// the same time take the same processors.
    Core,
    /// Wherever the launcher itself may.
    None,
}

/// What a rank's failure (an exit code other than 0, or a signal) means to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnFailure {
    /// They are sent SIGTERM, and two seconds later SIGKILL.
    #[default]
    Abort,
    /// They go on, and learn of it as an event.
    Continue,
}

impl Job {
    /// A job of `ranks` ranks, 1 to 4096, with the default options.
    pub fn new(ranks: u32) -> Job {
        Job { ranks: Some(ranks), ..Job::empty() }
    }

    /// A job of as many ranks as these hosts have slots, with the default options.
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

    /// The program that every rank runs: a path, or a name to find along `PATH`.
    pub fn program(mut self, program: impl Into<OsString>) -> Job {
        self.program = program.into();
        self
    }

    /// More arguments for the program.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Job {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable for the ranks, over what they inherit from this process.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Job {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Which processors the ranks run on.
    pub fn bind(mut self, bind: Bind) -> Job {
        self.bind = bind;
        self
    }

    /// Whether every line that a rank writes is led by its number: `[2] `. Lines never mix. One over 64 KiB is passed on as it
    /// comes, while the others wait for its end; if it keeps them waiting for 2 s, their lines break it, and its rest is led by
    /// `[2]+ `. Untagged lines do not mix either, unless this process's standard output or error is a terminal, to which the ranks
    /// of this host then write themselves.
    pub fn tag_output(mut self, tag: bool) -> Job {
        self.tag_output = tag;
        self
    }

    /// How long the job may take from the start of its first rank; then it is ended.
    pub fn timeout(mut self, limit: Duration) -> Job {
        self.timeout = Some(limit);
        self
    }

    /// Says on standard error what each rank waits for, and who waits for whom, when no rank has made progress for this long.
    /// A rank that computes makes progress, and one that waits for less long each time.
    pub fn watchdog(mut self, limit: Duration) -> Job {
        self.watchdog = Some(limit);
        self
    }

    /// What a rank's failure means to the others.
    pub fn on_failure(mut self, then: OnFailure) -> Job {
        self.on_failure = then;
        self
    }

    /// On which hosts the ranks run, instead of this one only. They are filled one after the other.
    pub fn hosts(mut self, hosts: Hosts) -> Job {
        self.hosts = Some(hosts);
        self.allocation = None;
        self
    }

    /// On the hosts that a batch system has given to this process ([`Allocation::find`]), by its own agent: in Slurm `srun`. Hosts
    /// and an agent that are given behind it take precedence.
    pub fn allocated(mut self, allocation: Allocation) -> Job {
        self.agent = allocation.manager().agent();
        self.hosts = Some(allocation.hosts().clone());
        self.allocation = Some(allocation);
        self
    }

    /// What starts a command on another host: the words of `command`, then the host's name, or with `{}` in it that name
    /// in its place; then the command's words. Unless told, `ssh` with options that keep it from asking for anything.
    pub fn agent(mut self, command: &str) -> Job {
        self.agent = AgentCommand::new(command);
        self
    }

    /// Where the other hosts reach this one: an interface's name, or an address of this host. Unless told, the address by
    /// which this host reaches the first of them.
    pub fn interface(mut self, name_or_address: impl Into<String>) -> Job {
        self.interface = Some(name_or_address.into());
        self
    }

    /// Where `deckrun` lies on the other hosts: a path, or (unless told) a name to find along their `PATH`.
    pub fn remote_deckrun(mut self, path: impl Into<PathBuf>) -> Job {
        self.remote_deckrun = path.into();
        self
    }

    /// How long bringing the other hosts into the job may take, until all of their ranks have started (30 s unless told).
    pub fn start_limit(mut self, limit: Duration) -> Job {
        self.start_limit = limit;
        self
    }

    /// After how long without any answer another host counts as lost (10 s unless told; at least 2 s). A process that is
    /// stopped is not: its kernel answers.
    pub fn detect_timeout(mut self, limit: Duration) -> Job {
        self.detect = limit.max(Duration::from_secs(2));
        self
    }

    /// Which ranks run where, in their order.
    pub(crate) fn shares(&self) -> Result<Vec<Share>, LaunchError> {
        match (&self.hosts, self.ranks) {
            (Some(hosts), ranks) => match &self.allocation {
                None => hosts.place(ranks, own_names()),
                Some(allocation) => {
                    hosts.place(ranks, allocation.is_here()).map_err(|error| told_of(allocation, error))
                }
            },
            (None, ranks) => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                Ok(vec![Share { host, first: 0, count: ranks.unwrap_or(1), here: true }])
            }
        }
    }

    /// Where the hosts come from, if they were not given, and somebody wants explanations.
    pub(crate) fn explanation(&self) -> Option<String> {
        let asked = self.variable(EXPLAIN).or_else(|| std::env::var(EXPLAIN).ok());
        let allocation = self.allocation.as_ref().filter(|_| asked.as_deref() == Some("1"))?;
        Some(format!("hosts from {allocation}; agent {}", self.agent.title()))
    }

    /// A variable that the job sets for its ranks.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let set = self.env.iter().rev().find(|(set, _)| set == name);
        set.map(|(_, value)| value.to_string_lossy().into_owned())
    }

    /// What of it is this host's.
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

/// Hosts that nobody gave cannot be given more slots.
fn told_of(allocation: &Allocation, error: LaunchError) -> LaunchError {
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
