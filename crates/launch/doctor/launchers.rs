//! Ways to start a program on this host: a batch system's allocation, the launcher that has started this
//! process, and the programs and libraries of other launchers.

use std::{
    env,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use udeck::doctor::{Finding, Section};
use udeck_sys::library;

use crate::{Allocation, AllocationError, Job, remote::agent_command::AgentCommand, words::printable};

const PMIX: &str = "libpmix.so.2";

/// The facts that [`findings`] reports.
struct Seen {
    allocation: Result<Option<Allocation>, AllocationError>,
    /// The agent of a job that runs on the allocation.
    agent: Option<AgentCommand>,
    variable: fn(&str) -> Option<String>,
    program: fn(&str) -> Option<PathBuf>,
    pmix: Result<String, String>,
}

/// Examines this host, and tells whether `job` has hosts.
pub(super) fn look(job: &Job) -> (Section, bool) {
    let allocation = Allocation::find();
    let has_hosts = job.hosts.is_some() || allocation.is_ok();
    let agent = job.allocation.as_ref().map(|_| job.agent.clone());
    let seen = Seen { allocation, agent, variable, program, pmix: library(PMIX) };
    (Section::new("launchers", findings(&seen)), has_hosts)
}

fn findings(seen: &Seen) -> Vec<Finding> {
    vec![allocation(seen), started_by(seen), srun(seen), mpiexec(seen), pmix(seen)]
}

fn allocation(seen: &Seen) -> Finding {
    let found = match &seen.allocation {
        Err(error) => return Finding::problem("allocation", error.fault(), error.remedy()),
        Ok(None) => {
            return Finding::ok("allocation", "none: no job of Slurm, PBS or LSF")
                .advise("deckrun -n 4 PROGRAM");
        }
        Ok(Some(found)) => found,
    };
    let (hosts, slots) = (found.hosts().len(), found.hosts().slots());
    let counted = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let whole = format!("{found} ({}, {})", counted(hosts as u64, "host"), counted(slots.into(), "slot"));
    match &seen.agent {
        Some(agent) => {
            Finding::ok("allocation", format!("{whole}; agent {}", agent.title())).advise(format!(
                "deckrun PROGRAM starts {} there; --hosts localhost:4 stays on this host",
                counted(slots.into(), "rank")
            ))
        }
        None => Finding::ok("allocation", format!("{whole}; not used for hosts that are given")),
    }
}

/// Reports the launcher that has started this process as one of several, according to the environment.
fn started_by(seen: &Seen) -> Finding {
    let variable = |name: &str| (seen.variable)(name).map(|value| printable(&value));
    let of = |rank: &str, size: &str| match (variable(rank), variable(size)) {
        (Some(rank), Some(size)) => format!(", rank {rank} of {size}"),
        (Some(rank), None) => format!(", rank {rank}"),
        _ => String::new(),
    };
    let mut all = Vec::new();
    if let Some(step) = variable("SLURM_STEP_ID") {
        all.push(format!("Slurm, as step {step}{}", of("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")));
    }
    if variable("PMIX_NAMESPACE").is_some() {
        all.push(format!("PMIx{}", of("PMIX_RANK", "OMPI_COMM_WORLD_SIZE")));
    }
    if ["PMI_FD", "PMI_PORT", "PMI_RANK"].iter().any(|name| variable(name).is_some()) {
        all.push(format!("PMI{}", of("PMI_RANK", "PMI_SIZE")));
    }
    match all.is_empty() {
        true => Finding::ok("started by", "no srun, mpirun or mpiexec"),
        false => Finding::ok("started by", all.join("; ")),
    }
}

fn srun(seen: &Seen) -> Finding {
    let is_needed = seen.agent == Some(AgentCommand::Srun);
    match ((seen.program)("srun"), &seen.pmix) {
        (Some(path), Ok(_)) => Finding::ok("srun", path.display().to_string()).advise(
            "srun --mpi=pmix -n 4 PROGRAM, or --mpi=pmi2 (srun --mpi=list has what this Slurm knows)",
        ),
        (Some(path), Err(_)) => {
            Finding::ok("srun", path.display().to_string()).advise("srun --mpi=pmi2 -n 4 PROGRAM")
        }
        (None, _) if is_needed => Finding::problem(
            "srun",
            "not found along PATH, and deckrun starts itself by it on this job's other hosts",
            "put Slurm's programs on PATH, or take another agent: --agent ssh",
        ),
        (None, _) => Finding::ok("srun", "not found along PATH: only clusters with Slurm have it"),
    }
}

fn mpiexec(seen: &Seen) -> Finding {
    let found = ["mpiexec", "mpirun"].iter().find_map(|name| Some((*name, (seen.program)(name)?)));
    let Some((name, path)) = found else {
        return Finding::ok("mpiexec", "not found along PATH: MPICH or Open MPI would bring it");
    };
    // Distributions have a chain of links that ends at a more specific name.
    let real = path.canonicalize().unwrap_or_else(|_| path.clone());
    let file = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let whose = match file.as_str() {
        "mpiexec.hydra" | "hydra" => " (MPICH's Hydra)",
        "orterun" | "mpirun.openmpi" => " (Open MPI)",
        "prterun" | "prte" => " (PRRTE)",
        _ => "",
    };
    Finding::ok("mpiexec", format!("{}{whose}", path.display())).advise(format!("{name} -n 4 PROGRAM"))
}

fn pmix(seen: &Seen) -> Finding {
    match &seen.pmix {
        Ok(path) => Finding::ok(PMIX, path.clone()),
        Err(_) => Finding::ok(
            PMIX,
            "not there: programs need it under srun --mpi=pmix, Open MPI's mpirun and PRRTE's prterun (Debian: libpmix2)",
        ),
    }
}

fn variable(name: &str) -> Option<String> {
    env::var_os(name).map(|value| value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
}

/// Returns the first executable of this name along PATH.
fn program(name: &str) -> Option<PathBuf> {
    let can_run = |path: &Path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| can_run(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> Seen {
        Seen {
            allocation: Ok(None),
            agent: None,
            variable: |_| None,
            program: |_| None,
            pmix: Err("cannot open".into()),
        }
    }

    fn text(seen: &Seen) -> String {
        let line = |one: Finding| {
            format!("{} | {} | {} | {}\n", one.mark, one.subject, one.seen, one.remedy.unwrap_or_default())
        };
        findings(seen).into_iter().map(line).collect()
    }

    #[test]
    fn where_there_is_nothing_nothing_is_amiss() {
        let text = text(&seen());
        assert_eq!(text.matches("ok |").count(), text.lines().count(), "{text}");
        for words in
            ["none: no job of Slurm", "no srun, mpirun or mpiexec", "srun | not found", "Debian: libpmix2"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn what_is_there_comes_with_what_to_type() {
        let here = Seen {
            variable: |name| match name {
                "SLURM_STEP_ID" => Some("3".into()),
                "SLURM_PROCID" | "PMI_RANK" => Some("2".into()),
                "SLURM_STEP_NUM_TASKS" | "PMI_SIZE" => Some("4".into()),
                "PMIX_NAMESPACE" => Some("slurm.pmix.1.0".into()),
                _ => None,
            },
            program: |name| Some(Path::new("/opt/none/bin").join(name)),
            pmix: Ok("/lib/libpmix.so.2".into()),
            ..seen()
        };
        let said = text(&here);
        for words in [
            "Slurm, as step 3, rank 2 of 4; PMIx; PMI, rank 2 of 4",
            "/opt/none/bin/srun | srun --mpi=pmix -n 4 PROGRAM",
            "/opt/none/bin/mpiexec | mpiexec -n 4 PROGRAM",
            "/lib/libpmix.so.2",
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
        let said = text(&Seen { pmix: Err(String::new()), ..here });
        assert!(said.contains("/opt/none/bin/srun | srun --mpi=pmi2 -n 4 PROGRAM"), "{said}");
    }

    #[test]
    fn an_srun_that_is_needed_and_missing_is_a_problem() {
        let said = text(&Seen { agent: Some(AgentCommand::Srun), ..seen() });
        assert!(
            said.contains("problem | srun | not found along PATH") && said.contains("--agent ssh"),
            "{said}"
        );
    }
}
