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
struct Facts {
    allocation: Result<Option<Allocation>, AllocationError>,
    /// The agent of a job that runs on the allocation.
    agent: Option<AgentCommand>,
    variable: fn(&str) -> Option<String>,
    program: fn(&str) -> Option<PathBuf>,
    pmix: Result<String, String>,
}

/// Examines this host, and tells whether `job` has hosts.
pub(super) fn find(job: &Job) -> (Section, bool) {
    let allocation = Allocation::find();
    let has_hosts = job.hosts.is_some() || allocation.is_ok();
    let agent = job.allocation.as_ref().map(|_| job.agent.clone());
    let facts = Facts { allocation, agent, variable, program, pmix: library(PMIX) };
    (Section::new("launchers", findings(&facts)), has_hosts)
}

fn findings(facts: &Facts) -> Vec<Finding> {
    vec![allocation(facts), started_by(facts), srun(facts), mpiexec(facts), pmix(facts)]
}

fn allocation(facts: &Facts) -> Finding {
    let found = match &facts.allocation {
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
    match &facts.agent {
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
fn started_by(facts: &Facts) -> Finding {
    let variable = |name: &str| (facts.variable)(name).map(|value| printable(&value));
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

fn srun(facts: &Facts) -> Finding {
    let is_needed = facts.agent == Some(AgentCommand::Srun);
    match ((facts.program)("srun"), &facts.pmix) {
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

fn mpiexec(facts: &Facts) -> Finding {
    let found = ["mpiexec", "mpirun"].iter().find_map(|name| Some((*name, (facts.program)(name)?)));
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

fn pmix(facts: &Facts) -> Finding {
    match &facts.pmix {
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

    fn facts() -> Facts {
        Facts {
            allocation: Ok(None),
            agent: None,
            variable: |_| None,
            program: |_| None,
            pmix: Err("cannot open".into()),
        }
    }

    fn text(facts: &Facts) -> String {
        let line = |one: Finding| {
            format!("{} | {} | {} | {}\n", one.mark, one.subject, one.state, one.remedy.unwrap_or_default())
        };
        findings(facts).into_iter().map(line).collect()
    }

    #[test]
    fn where_there_is_nothing_nothing_is_amiss() {
        let text = text(&facts());
        assert_eq!(text.matches("ok |").count(), text.lines().count(), "{text}");
        for words in
            ["none: no job of Slurm", "no srun, mpirun or mpiexec", "srun | not found", "Debian: libpmix2"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn what_is_there_comes_with_what_to_type() {
        let here = Facts {
            variable: |name| match name {
                "SLURM_STEP_ID" => Some("3".into()),
                "SLURM_PROCID" | "PMI_RANK" => Some("2".into()),
                "SLURM_STEP_NUM_TASKS" | "PMI_SIZE" => Some("4".into()),
                "PMIX_NAMESPACE" => Some("slurm.pmix.1.0".into()),
                _ => None,
            },
            program: |name| Some(Path::new("/opt/none/bin").join(name)),
            pmix: Ok("/lib/libpmix.so.2".into()),
            ..facts()
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
        let said = text(&Facts { pmix: Err(String::new()), ..here });
        assert!(said.contains("/opt/none/bin/srun | srun --mpi=pmi2 -n 4 PROGRAM"), "{said}");
    }

    #[test]
    fn an_srun_that_is_needed_and_missing_is_a_problem() {
        let said = text(&Facts { agent: Some(AgentCommand::Srun), ..facts() });
        assert!(
            said.contains("problem | srun | not found along PATH") && said.contains("--agent ssh"),
            "{said}"
        );
    }
}
