//! Errors between a rank and the launcher that started it, if that is not deckrun.

use std::time::Duration;

/// Reasons why a start environment could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The variables name an environment that cannot be used. This is never treated as no environment: each
    /// process would become a world of one.
    #[error("this process was started by {by} ({found}), but {why}. {advice}")]
    Unusable {
        /// The launcher that started the process: "Slurm".
        by: String,
        /// The variables that name it, with their values.
        found: String,
        /// The missing part.
        why: String,
        /// The command to type instead.
        advice: String,
    },

    /// A setting has a value that does not exist.
    #[error("{variable}={} is none of {allowed}", value.escape_debug())]
    Setting {
        /// The environment variable.
        variable: &'static str,
        /// The variable's value.
        value: String,
        /// The allowed values.
        allowed: String,
    },

    /// No address leads to rank 0, which serves the job's names.
    #[error("rank {rank} cannot reach rank 0, which serves the names of this job ({tried}). {advice}")]
    Unreachable {
        /// The rank that tried.
        rank: u32,
        /// Each address, with the error.
        tried: String,
        /// Advice for the user.
        advice: String,
    },

    /// This host has no address that others could connect to.
    #[error("{0}")]
    Interface(String),

    /// The launcher's service answered with an error or with nonsense, or is gone.
    #[error("{environment}: {doing}: {why}")]
    Server {
        /// The environment's [title](super::Environment::title).
        environment: String,
        /// The request: "reading `udeck-root` of rank 0".
        doing: String,
        /// The service's reason.
        why: String,
    },

    /// The launcher's service did not answer in time.
    #[error("{environment}: {doing}: no answer within {waited:.1?}")]
    Late {
        /// The environment's [title](super::Environment::title).
        environment: String,
        /// The request.
        doing: String,
        /// How long the rank waited.
        waited: Duration,
    },
}
