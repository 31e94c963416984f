//! Duties at the end of a rank that deckrun did not start: towards its launcher, and at rank 0 towards the
//! other ranks.

use std::{
    fmt,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use udeck_sys::{Deadline, stderr_line};

use super::Environment;
use crate::{BootError, Ranks};

/// Time after which rank 0 says for which ranks it waits at the end.
const REPORT_AFTER: Duration = Duration::from_secs(10);
/// How long the last answers may take to be sent when all other ranks have ended.
const FLUSH: Duration = Duration::from_secs(2);
/// Minimum time for the launcher's answer to a late goodbye.
const GOODBYE: Duration = Duration::from_secs(10);
/// How long the news of an abort may take to be sent to the others, if this process serves names.
const ABORT_NEWS: Duration = Duration::from_millis(100);
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A rank that another launcher started.
pub(crate) struct ForeignJob {
    environment: Mutex<Box<dyn Environment>>,
    title: String,
    kills_all_at_once: bool,
    /// The name service, at rank 0.
    serving: Mutex<Option<Serving>>,
}

/// The name service that rank 0 runs for the others.
pub(crate) struct Serving(JoinHandle<Result<(), String>>);

impl Serving {
    pub fn new(proxy: JoinHandle<Result<(), String>>) -> Serving {
        Serving(proxy)
    }
}

impl ForeignJob {
    pub fn new(environment: Box<dyn Environment>, serving: Option<Serving>) -> ForeignJob {
        ForeignJob {
            title: environment.title(),
            kills_all_at_once: environment.kills_all_at_once(),
            environment: Mutex::new(environment),
            serving: Mutex::new(serving),
        }
    }

    /// Returns the launcher that has started this process.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Leaves the job after this rank's goodbye. Rank 0 serves names until all others have ended, however long
    /// that takes: their job would end with it. `left` returns the ranks that have not ended.
    pub fn leave(&self, left: impl Fn() -> Vec<u32>, deadline: Instant) -> Result<(), BootError> {
        let mut until = Deadline::from(deadline);
        // The lock is not held during the wait: an abort needs it, too.
        let serving = self.serving.lock().take();
        if let Some(Serving(proxy)) = serving {
            let (began, mut has_said, mut flushed) = (Instant::now(), false, None);
            while !proxy.is_finished() {
                let left = left();
                let all_have_ended = left.is_empty();
                if all_have_ended && flushed.get_or_insert_with(|| Deadline::after(FLUSH)).passed() {
                    break;
                }
                if !all_have_ended
                    && began.elapsed() > REPORT_AFTER
                    && !std::mem::replace(&mut has_said, true)
                {
                    stderr_line(format_args!(
                        "udeck: rank 0 has finished, and serves names until {} have, too",
                        Ranks(&left)
                    ));
                }
                std::thread::sleep(CHECK_INTERVAL);
            }
            // The caller's deadline may have passed meanwhile, and the launcher was not asked yet.
            until = until.max(Deadline::after(GOODBYE));
        }
        Ok(self.environment.lock().finalize(until)?)
    }

    /// Tells whether the launcher is asked for an abort before the other ranks are told of it.
    pub fn kills_all_at_once(&self) -> bool {
        self.kills_all_at_once
    }

    /// Asks the launcher to end the job.
    pub fn abort(&self, code: u8, why: &str, deadline: Deadline) -> Result<(), BootError> {
        if !self.kills_all_at_once && self.serving.lock().is_some() {
            std::thread::sleep(ABORT_NEWS);
        }
        let locked = self.environment.try_lock_until(deadline.instant());
        locked.map_or(Ok(()), |mut environment| Ok(environment.abort(code, why, deadline)?))
    }
}

impl fmt::Debug for ForeignJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForeignJob").field("title", &self.title).finish_non_exhaustive()
    }
}
