//! Slurm's variables: hosts and slots of its jobs and steps.

use super::{
    Allocation, AllocationError, Manager, Surroundings,
    short_forms::{names, numbers},
    shown,
};
use crate::Hosts;

const NODELISTS: [&str; 2] = ["SLURM_JOB_NODELIST", "SLURM_NODELIST"];
const TASKS: &str = "SLURM_TASKS_PER_NODE";
const PROCESSORS: &str = "SLURM_JOB_CPUS_PER_NODE";
const PER_TASK: &str = "SLURM_CPUS_PER_TASK";

/// Ranks that each host takes, and the variable that says so.
struct Slots {
    variable: &'static str,
    value: String,
    each: Vec<u32>,
}

pub(super) fn find(around: &Surroundings<'_>) -> Result<Option<Allocation>, AllocationError> {
    let Some((variable, list)) = around.first(&NODELISTS) else { return Ok(None) };
    refuse_several_tasks(around)?;
    refuse_several_components(around)?;
    let wrong = |what: String| AllocationError::new(variable, &list, what);
    let names = names(&list).map_err(wrong)?;
    let Some(slots) = slots(around)? else {
        let what = format!("the ranks of each host are unknown: neither {TASKS} nor {PROCESSORS} is set");
        return Err(wrong(what));
    };
    if slots.each.len() != names.len() {
        let (its, theirs, list) = (slots.each.len(), names.len(), shown(&list));
        let what = format!("its number of hosts is {its}, that of {variable}={list} is {theirs}");
        return Err(AllocationError::new(slots.variable, &slots.value, what));
    }
    let hosts = Hosts::counted(names.into_iter().zip(slots.each)).map_err(wrong)?;
    Ok(Some(Allocation {
        manager: Manager::Slurm,
        job: around.first(&["SLURM_JOB_ID", "SLURM_JOBID"]).map(|(_, id)| id),
        hosts,
        here: around.variable("SLURMD_NODENAME"),
    }))
}

/// Returns the slots of each host. In a step the job's variable has the step's own tasks: then only the job's
/// processors can be used.
fn slots(around: &Surroundings<'_>) -> Result<Option<Slots>, AllocationError> {
    let in_step = around.variable("SLURM_STEP_ID").is_some();
    let of_step = around.variable("SLURM_STEP_TASKS_PER_NODE");
    let tasks = around.variable(TASKS).filter(|tasks| !in_step || of_step.as_ref() != Some(tasks));
    if let Some(value) = tasks {
        let each = numbers(&value).map_err(|what| AllocationError::new(TASKS, &value, what))?;
        return Ok(Some(Slots { variable: TASKS, value, each }));
    }
    let Some(value) = around.variable(PROCESSORS) else { return Ok(None) };
    let per_task = match around.variable(PER_TASK) {
        Some(text) => number(PER_TASK, &text)?.max(1),
        None => 1,
    };
    let processors = numbers(&value).map_err(|what| AllocationError::new(PROCESSORS, &value, what))?;
    let each = processors.into_iter().map(|processors| (processors / per_task).max(1)).collect();
    Ok(Some(Slots { variable: PROCESSORS, value, each }))
}

/// Refuses a step of several tasks: each of them would start the whole job.
fn refuse_several_tasks(around: &Surroundings<'_>) -> Result<(), AllocationError> {
    if around.variable("SLURM_STEP_ID").is_none() {
        return Ok(());
    }
    // A later task may not know the number of tasks.
    for (variable, most) in [("SLURM_STEP_NUM_TASKS", 1), ("SLURM_PROCID", 0)] {
        let Some(text) = around.variable(variable) else { continue };
        if number(variable, &text)? > most {
            let what =
                "deckrun is one of several tasks of a step of Slurm, and each of them would start all ranks";
            return Err(AllocationError::new(variable, &text, what).advise(
                "Start deckrun once, without srun before it, or by `srun -n 1`; or have srun start the program itself: \
                 srun --mpi=pmi2 PROGRAM; if each task is to start a job of its own: deckrun --hosts localhost:4 PROGRAM",
            ));
        }
    }
    Ok(())
}

/// Refuses a heterogeneous job: variables without a component's number describe the first component only, and
/// srun starts nodes of the others by `--het-group` only.
fn refuse_several_components(around: &Surroundings<'_>) -> Result<(), AllocationError> {
    for variable in ["SLURM_HET_SIZE", "SLURM_PACK_SIZE"] {
        let Some(text) = around.variable(variable) else { continue };
        if number(variable, &text)? > 1 {
            let what = "deckrun would use the first component only of this heterogeneous job of Slurm";
            return Err(AllocationError::new(variable, &text, what).advise(
                "Say by --hosts where the ranks run: a:2,b:2 (`srun --het-group=0,1 hostname` lists the hosts); or have srun start \
                 the program itself: srun --mpi=pmi2 --het-group=0,1 PROGRAM",
            ));
        }
    }
    Ok(())
}

fn number(variable: &'static str, text: &str) -> Result<u32, AllocationError> {
    text.parse().map_err(|_| AllocationError::new(variable, text, "this is no number"))
}
