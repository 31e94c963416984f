//! The hosts that a batch system has given to the job in which deckrun runs: Slurm's, PBS' and LSF's environment variables.
//!
//! Nothing here does I/O but [`Allocation::find`], which reads the environment and the file that one of the variables may name.

mod lists;
mod short_forms;
mod slurm;

use std::{
    env, fmt,
    fs::File,
    io::{self, Read},
    net::IpAddr,
};

use udeck_boot::ENV_RANK;

use crate::{Hosts, hosts::own_names, remote::agent_command::AgentCommand, words::printable};

/// Upper bound of a host file, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// Maximum part of a variable's value in an error text, in characters.
const MAX_SHOWN: usize = 120;

/// Maximum number of hosts in a text for people.
const MAX_NAMED: usize = 16;

/// Hosts and slots that a batch system has given to this job: what [`Job::allocated`](crate::Job::allocated) runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    manager: Manager,
    /// The job's number, as the manager writes it.
    job: Option<String>,
    hosts: Hosts,
    /// The manager's name for the host of this process, if it gives one.
    here: Option<String>,
}

/// A batch system that gives hosts to jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manager {
    Slurm,
    Pbs,
    Lsf,
}

/// An environment variable of a batch system that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}. {remedy}", self.fault())]
pub struct AllocationError {
    variable: &'static str,
    value: String,
    what: String,
    remedy: String,
}

/// The environment and the files of a process; a test gives its own.
struct Surroundings<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    file: &'a dyn Fn(&str) -> io::Result<String>,
}

impl Allocation {
    /// Returns the hosts of the Slurm, PBS or LSF job in which this process runs, or `None` outside such a job.
    /// A rank of a µDECK job gets `None`, too: a deckrun that a rank starts stays on its host, because
    /// otherwise each rank would take the whole allocation again.
    ///
    /// # Errors
    /// When a variable of the batch system makes no sense, and in a step of Slurm that has several tasks.
    pub fn find() -> Result<Option<Allocation>, AllocationError> {
        let variable = |name: &str| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Allocation::within(&Surroundings { variable: &variable, file: &read })
    }

    fn within(around: &Surroundings<'_>) -> Result<Option<Allocation>, AllocationError> {
        if around.variable(ENV_RANK).is_some() {
            return Ok(None);
        }
        match slurm::find(around)? {
            Some(found) => Ok(Some(found)),
            None => lists::find(around),
        }
    }

    /// The hosts, each with its slots.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    pub(crate) fn manager(&self) -> Manager {
        self.manager
    }

    /// Returns a function that tells whether a name is this host's. Within an allocation a host's name may have
    /// its domain, or not.
    pub(crate) fn is_here(&self) -> impl Fn(&str) -> bool + use<> {
        let (is_own, here) = (own_names(), self.here.clone());
        move |name| {
            let first = name.split('.').next().unwrap_or_default();
            let by_first = name.parse::<IpAddr>().is_err() && is_own(first);
            by_first || is_own(name) || here.as_deref() == Some(name)
        }
    }

    /// Returns what the user can do to get more slots, for errors.
    pub(crate) fn more(&self, ranks: u32) -> String {
        match self.manager {
            Manager::Slurm => format!("ask Slurm for more tasks (salloc -n {ranks})"),
            Manager::Pbs => format!("ask PBS for more (-l select=N:mpiprocs=M, together {ranks})"),
            Manager::Lsf => format!("ask LSF for more slots (bsub -n {ranks})"),
        }
    }
}

/// Writes `Slurm's job 17: n1:2, n2:2`.
impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = if self.manager == Manager::Pbs { "'" } else { "'s" };
        write!(f, "{}{owner} job", self.manager)?;
        self.job.iter().try_for_each(|job| write!(f, " {}", printable(job)))?;
        write!(f, ": {}", self.hosts.first_ones(MAX_NAMED))
    }
}

impl fmt::Display for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Manager::Slurm => "Slurm",
            Manager::Pbs => "PBS",
            Manager::Lsf => "LSF",
        })
    }
}

impl Manager {
    /// Returns the agent that starts deckrun on the allocation's other hosts.
    pub(crate) fn agent(self) -> AgentCommand {
        match self {
            Manager::Slurm => AgentCommand::Srun,
            Manager::Pbs | Manager::Lsf => AgentCommand::Ssh,
        }
    }
}

impl AllocationError {
    fn new(variable: &'static str, value: &str, what: impl Into<String>) -> AllocationError {
        let remedy =
            "Correct it, or say by --hosts where the ranks run: a:2,b:2, or localhost:4 for this host alone";
        AllocationError { variable, value: value.into(), what: what.into(), remedy: remedy.into() }
    }

    /// Returns the variable, its value, and the fault.
    pub(crate) fn fault(&self) -> String {
        format!("{}={}: {}", self.variable, shown(&self.value), self.what)
    }

    /// Returns what the user can do about the fault.
    pub(crate) fn remedy(&self) -> &str {
        &self.remedy
    }

    fn advise(self, remedy: &str) -> AllocationError {
        AllocationError { remedy: remedy.into(), ..self }
    }
}

impl Surroundings<'_> {
    /// Returns a variable's value. An empty variable counts as unset.
    fn variable(&self, name: &str) -> Option<String> {
        (self.variable)(name).filter(|value| !value.is_empty())
    }

    /// Returns the first of these variables that is set.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.variable(name)?)))
    }
}

fn read(path: &str) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_FILE).read_to_string(&mut text)?;
    Ok(text)
}

fn shown(value: &str) -> String {
    let value = printable(value);
    match value.char_indices().nth(MAX_SHOWN) {
        Some((at, _)) => format!("{}\u{2026}", &value[..at]),
        None => value,
    }
}

#[cfg(test)]
mod tests;
