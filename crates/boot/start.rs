//! Start of a rank that deckrun did not start: it learns its number, and finds the others, by the services of
//! its launcher.
//!
//! ```text
//!   found      what the environment variables say: one of these, none, or one that cannot be used
//!   pmi1       PMI-1: lines of text over PMI_FD or PMI_PORT     MPICH's Hydra, Flux, others
//!   pmi2       PMI-2: commands with a length over PMI_FD        Slurm (srun --mpi=pmi2)
//!   pmix       PMIx: libpmix.so.2, loaded when it is needed     Open MPI, PRRTE, Slurm (srun --mpi=pmix)
//! ```
//!
//! [`Environment`] is all that µDECK uses of them: rank, size, and a small table of values that all ranks read
//! behind a fence. By it rank 0 publishes where it serves names; from then on everything is as under deckrun.

mod bootstrap;
mod error;
mod foreign_job;
mod found;
mod pmi;
mod pmi1;
mod pmi2;
mod pmix;
mod proxy;
mod proxy_conn;
mod rank_info;
mod secure;

use udeck_sys::Deadline;

pub use bootstrap::{DESCRIPTORS_PER_RANK, ENV_INTERFACE, Options};
pub use error::StartError;
pub(crate) use foreign_job::ForeignJob;
pub use found::{ENV_LAUNCH, Found, Launcher, detect};

use crate::{BootError, Client, local};

/// Joins the job in which this process was started; a process that is alone gets a world of one. Blocks until
/// all ranks have come, at most as long as the options say.
///
/// # Errors
/// [`BootError::Start`] says what was found and what to do; under deckrun those of [`Client::from_env`].
pub fn join(found: &Found, options: &Options) -> Result<Client, BootError> {
    let value = |name: &str| std::env::var(name).ok();
    let until = Deadline::after(options.limit);
    let environment: Box<dyn Environment> = match found.launcher {
        Launcher::Deckrun => {
            return Client::from_env()?.ok_or_else(|| no_deckrun().into());
        }
        Launcher::None => return alone(),
        Launcher::Pmi1 => Box::new(pmi1::Pmi1::open(&value, until)?),
        Launcher::Pmi2 => Box::new(pmi2::Pmi2::open(&value, until)?),
        Launcher::Pmix => Box::new(pmix::Pmix::open(&value, until)?),
    };
    bootstrap::bootstrap(environment, options)
}

fn no_deckrun() -> StartError {
    StartError::Unusable {
        by: "deckrun".into(),
        found: format!("{ENV_LAUNCH}=deckrun"),
        why: format!("{} is not set", crate::ENV_BOOT_FD),
        advice: "Start the program by `deckrun -n 2 -- …`, or leave the variable unset".into(),
    }
}

fn alone() -> Result<Client, BootError> {
    let no_service =
        |source| BootError::Io { what: "starting a name service in this process".into(), source };
    let (_, streams) = local::Job::new(1).map_err(no_service)?;
    Client::new(streams.into_iter().next().expect("a job of one has one stream"))
}

/// A launcher's services for one rank. Calls block until they are answered, at most until their deadline. After
/// an error no further call can succeed.
pub trait Environment: Send {
    /// Returns the launcher's name for people: "PMI-2 (Slurm)".
    fn title(&self) -> String;

    /// Returns this rank, 0 to `size` − 1.
    fn rank(&self) -> u32;

    /// Returns the number of ranks in the job.
    fn size(&self) -> u32;

    /// Returns the longest value that [`Environment::put`] takes, in bytes.
    fn longest_value(&self) -> usize;

    /// Publishes a value that the others may read after the next fence. A rank puts a key once. Several ranks
    /// may put the same key: each has its own value. Keys and values consist of letters, digits and `-`; a key
    /// has at most 16 bytes.
    ///
    /// # Errors
    /// [`StartError::Server`], [`StartError::Late`].
    fn put(&mut self, key: &str, value: &str, until: Deadline) -> Result<(), StartError>;

    /// Waits until all ranks have come to the fence.
    ///
    /// # Errors
    /// Those of [`Environment::put`].
    fn fence(&mut self, until: Deadline) -> Result<(), StartError>;

    /// Returns the value that `rank` has put under `key` before the last fence.
    ///
    /// # Errors
    /// Those of [`Environment::put`]; also if that rank has put nothing there.
    fn get(&mut self, rank: u32, key: &str, until: Deadline) -> Result<String, StartError>;

    /// Tells the launcher that this rank ends in order. Must be the last call.
    ///
    /// # Errors
    /// Those of [`Environment::put`].
    fn finalize(&mut self, until: Deadline) -> Result<(), StartError>;

    /// Tells whether an abort ends all ranks at once, by a signal that they cannot catch. The launcher must
    /// then be asked before the other ranks are told: their reaction could end the job before its answer, and
    /// with another exit code.
    fn kills_all_at_once(&self) -> bool {
        false
    }

    /// Asks for the end of the whole job with this exit code (1 to 255). Does not wait until it has ended.
    ///
    /// # Errors
    /// Those of [`Environment::put`].
    fn abort(&mut self, code: u8, why: &str, until: Deadline) -> Result<(), StartError>;
}
