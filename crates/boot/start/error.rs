//! What can go wrong between a rank and the launcher that started it, if that is not deckrun.

use std::time::Duration;

/// Why a start environment could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The variables name an environment of which no use can be made. It is never taken for none: that would be as many
    /// worlds of one as there are processes.
    #[error("this process was started by {by} ({found}), but {why}. {advice}")]
    Unusable {
        /// Who started it: "Slurm".
        by: String,
        /// The variables that say so, with their values.
        found: String,
        /// What is missing.
        why: String,
        /// What to type instead.
        advice: String,
    },

    /// A setting has no such value.
    #[error("{variable}={} is none of {allowed}", value.escape_debug())]
    Setting {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        allowed: String,
    },

    /// No address leads to rank 0, which serves the job's names.
    #[error("rank {rank} cannot reach rank 0, which serves the names of this job ({tried}). {advice}")]
    Unreachable {
        /// The rank that tried.
        rank: u32,
        /// Each address, and what became of it.
        tried: String,
        /// What to do.
        advice: String,
    },

    /// This host has no address that others could connect to.
    #[error("{0}")]
    Interface(String),

    /// The launcher's service answered with an error, with nonsense, or is gone.
    #[error("{environment}: {doing}: {why}")]
    Server {
        /// Its [title](super::Environment::title).
        environment: String,
        /// What was asked: "reading `udeck-root` of rank 0".
        doing: String,
        /// Its reason.
        why: String,
    },

    /// The launcher's service did not answer in time.
    #[error("{environment}: {doing}: no answer within {waited:.1?}")]
    Late {
        /// Its [title](super::Environment::title).
        environment: String,
        /// What was asked.
        doing: String,
        /// How long it was waited for.
        waited: Duration,
    },
}
