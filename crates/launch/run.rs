//! Running a job behind a guard, one at a time in a process.

use std::env;

use parking_lot::Mutex;
use udeck_boot::{ENV_RANK, start};

use crate::{Job, LaunchError, Outcome, guard, supervise};

impl Job {
    /// Starts the ranks and blocks until all of them, and all processes that they started, have ended. Writes
    /// to standard error how ranks failed.
    ///
    /// A reader of this process's output that does not read holds up only the ranks that write: time limits,
    /// signals and failures end a job all the same. A job that has ended by itself waits for its reader, unless
    /// a signal comes. A job that was ended by a time limit or a signal waits until the reader has taken
    /// nothing for 2 s.
    ///
    /// During this call SIGINT, SIGTERM and SIGHUP are taken from this thread and passed on to the ranks. At
    /// SIGQUIT it writes what the ranks are doing. SIGTSTP stops the ranks and then this process until it is
    /// continued; no time limit of the job or of a rank counts the time between. Any new child of this process
    /// counts as the job's. Call this from the main thread, before there are other threads: only then is there
    /// a process between this one and the ranks, which ends all processes of the ranks if this process is
    /// killed.
    ///
    /// # Errors
    /// When the job cannot be started, or cannot be ended, or when its ranks' output cannot be written though
    /// none of them failed. A job that runs and fails is an [`Outcome`].
    pub fn run(self) -> Result<Outcome, LaunchError> {
        self.check()?;
        let shares = self.shares()?;
        // The guards of two jobs would each hold the other job's pipes open, and wait for its ranks as orphans.
        let _only = ONLY.try_lock().ok_or(LaunchError::Busy)?;
        let said = guard::run(|cgroup| guard::encoded(supervise::run(&self, &shares, cgroup)));
        let said = said.map_err(LaunchError::system("starting a process to watch over the job"))?;
        guard::decoded(said, &self.program)
    }
}

/// Runs this very program, with its own arguments, as the ranks of `job`. Returns `None` if this process is a
/// rank already, of deckrun or of another launcher (then `udeck::init` finds the others, or says why not). For
/// a program that a user starts without a launcher.
///
/// # Errors
/// Those of [`Job::run`], and when the program cannot find itself.
pub fn launch_self(job: Job) -> Result<Option<Outcome>, LaunchError> {
    let found = start::detect(&|name| env::var(name).ok());
    let launched = found.map_or(true, |found| found.launcher != start::Launcher::None);
    if launched || env::var_os(ENV_RANK).is_some() {
        return Ok(None);
    }
    let program = env::current_exe().map_err(LaunchError::system("finding this program's own file"))?;
    job.program(program).args(env::args_os().skip(1)).run().map(Some)
}

/// Locked while a job of this process runs.
static ONLY: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use udeck_boot::MAX_RANKS;

    use super::*;

    #[test]
    fn a_process_runs_one_job_at_a_time() {
        let _first = ONLY.lock();
        assert!(matches!(Job::new(1).program("true").run(), Err(LaunchError::Busy)));
    }

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
