//! What to run, and how: the options of a job.

use std::{
    env,
    ffi::{OsStr, OsString},
    time::Duration,
};

use udeck_boot::{ENV_BIND, ENV_BOOT_FD, ENV_CPUS, ENV_RANK, ENV_SIZE, MAX_RANKS};

use crate::{LaunchError, Outcome, supervise};

/// A job to be: how many ranks, of which program, and how to treat them.
#[derive(Debug, Clone)]
pub struct Job {
    pub(crate) ranks: u32,
    pub(crate) program: OsString,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) bind: Bind,
    pub(crate) tag_output: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) on_failure: OnFailure,
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
        Job {
            ranks,
            program: OsString::new(),
            args: Vec::new(),
            env: Vec::new(),
            bind: Bind::default(),
            tag_output: false,
            timeout: None,
            on_failure: OnFailure::default(),
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

    /// Whether every line that a rank writes is led by its number: `[2] `. Lines stay whole up to 64 KiB.
    pub fn tag_output(mut self, tag: bool) -> Job {
        self.tag_output = tag;
        self
    }

    /// How long the job may take from the start of its first rank; then it is ended.
    pub fn timeout(mut self, limit: Duration) -> Job {
        self.timeout = Some(limit);
        self
    }

    /// What a rank's failure means to the others.
    pub fn on_failure(mut self, then: OnFailure) -> Job {
        self.on_failure = then;
        self
    }

    /// Starts the ranks and blocks until all of them, and everything that they started, have ended. Says on standard
    /// error what became of ranks that failed.
    ///
    /// Meanwhile SIGINT, SIGTERM and SIGHUP are taken from this thread and passed on to the ranks, and any new child of
    /// this process counts as the job's. So call this from the main thread, before there are others.
    ///
    /// # Errors
    /// When the job cannot be started, or cannot be ended. A job that runs and fails is an [`Outcome`].
    pub fn run(self) -> Result<Outcome, LaunchError> {
        self.check()?;
        supervise::run(&self)
    }

    fn check(&self) -> Result<(), LaunchError> {
        match self.ranks {
            0 => return Err(LaunchError::NoRanks),
            asked if asked > MAX_RANKS => return Err(LaunchError::TooManyRanks { asked }),
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

/// Runs this very program, with its own arguments, as the ranks of `job`; `None` when it is a rank already. For a
/// program that is started bare and needs company.
///
/// # Errors
/// Those of [`Job::run`], and when the program cannot find itself.
pub fn launch_self(job: Job) -> Result<Option<Outcome>, LaunchError> {
    if env::var_os(ENV_RANK).is_some() {
        return Ok(None);
    }
    let program = env::current_exe().map_err(LaunchError::system("finding this program's own file"))?;
    job.program(program).args(env::args_os().skip(1)).run().map(Some)
}

fn fault(name: &OsStr, value: &OsStr) -> Option<&'static str> {
    let has = |text: &OsStr, byte| text.as_encoded_bytes().contains(&byte);
    if name.is_empty() || has(name, b'=') {
        return Some("a name must not be empty nor contain `=`");
    }
    if has(name, 0) || has(value, 0) {
        return Some("neither name nor value may contain a zero byte");
    }
    [ENV_BOOT_FD, ENV_RANK, ENV_SIZE, ENV_BIND, ENV_CPUS]
        .iter()
        .any(|own| name == *own)
        .then_some("deckrun sets this one itself, for each rank")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_checked_before_anything_starts() {
        let job = |ranks| Job::new(ranks).program("true");
        assert!(matches!(job(0).run(), Err(LaunchError::NoRanks)));
        assert!(matches!(job(MAX_RANKS + 1).run(), Err(LaunchError::TooManyRanks { .. })));
        assert!(matches!(Job::new(1).run(), Err(LaunchError::NoProgram)));
        for (name, value) in [("", "x"), ("a=b", "x"), ("a", "x\0"), (ENV_RANK, "7")] {
            let result = job(1).env(name, value).run();
            assert!(matches!(result, Err(LaunchError::BadVariable { .. })), "{name:?}={value:?}");
        }
    }
}
