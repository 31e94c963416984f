//! PBS' and LSF's variables: lists in which a host stands as often as it has slots, or with its number of slots
//! behind it.

use super::{Allocation, AllocationError, Manager, Surroundings, short_forms::MAX_HOSTS};
use crate::Hosts;

const NODEFILE: &str = "PBS_NODEFILE";
const COUNTED: &str = "LSB_MCPU_HOSTS";
const REPEATED: &str = "LSB_HOSTS";
const HOSTFILE: &str = "LSB_DJOB_HOSTFILE";

type Found = Result<Option<Allocation>, AllocationError>;

pub(super) fn find(around: &Surroundings<'_>) -> Found {
    match around.variable(NODEFILE) {
        Some(path) => {
            let pairs = of_file(around, NODEFILE, &path)?;
            allocation(around, Manager::Pbs, "PBS_JOBID", (NODEFILE, &path), pairs)
        }
        None => lsf(around),
    }
}

fn lsf(around: &Surroundings<'_>) -> Found {
    // LSF leaves `LSB_HOSTS` out if it would be long.
    let Some((variable, value)) = around.first(&[COUNTED, REPEATED, HOSTFILE]) else { return Ok(None) };
    let pairs = match variable {
        COUNTED => counted(&value).map_err(|what| AllocationError::new(COUNTED, &value, what))?,
        REPEATED => value.split_whitespace().map(once).collect(),
        _ => of_file(around, variable, &value)?,
    };
    allocation(around, Manager::Lsf, "LSB_JOBID", (variable, &value), pairs)
}

fn allocation(
    around: &Surroundings<'_>,
    manager: Manager,
    job: &str,
    (variable, value): (&'static str, &str),
    pairs: Vec<(String, u32)>,
) -> Found {
    let wrong = |what: String| AllocationError::new(variable, value, what);
    if pairs.is_empty() {
        return Err(wrong("no host is in it".into()));
    }
    let hosts = Hosts::counted(pairs).map_err(wrong)?;
    Ok(Some(Allocation { manager, job: around.variable(job), hosts, here: None }))
}

/// Reads a file with a line for each slot.
fn of_file(
    around: &Surroundings<'_>,
    variable: &'static str,
    path: &str,
) -> Result<Vec<(String, u32)>, AllocationError> {
    let text = (around.file)(path).map_err(|error| {
        AllocationError::new(
            variable,
            path,
            format!("the list of hosts, this file, cannot be read ({error})"),
        )
    })?;
    Ok(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(once).collect())
}

/// Reads pairs like `a 2 b 4`.
fn counted(text: &str) -> Result<Vec<(String, u32)>, String> {
    let words: Vec<_> = text.split_whitespace().collect();
    let pair = |pair: &[&str]| match pair {
        [name, number] => match number.parse::<u32>() {
            Ok(slots) if (1..=MAX_HOSTS as u32).contains(&slots) => Ok(((*name).to_owned(), slots)),
            _ => Err(format!("`{number}` behind `{name}` is no number of slots")),
        },
        _ => Err(format!("the number of slots behind `{}` is missing", pair.concat())),
    };
    words.chunks(2).map(pair).collect()
}

fn once(name: &str) -> (String, u32) {
    (name.to_owned(), 1)
}
