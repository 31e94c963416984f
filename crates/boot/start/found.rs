//! Detection of the launcher that started this process, by its environment variables.

use std::fmt;

use super::StartError;
use crate::ENV_BOOT_FD;

/// The environment variable that selects the start environment.
pub const ENV_LAUNCH: &str = "DECK_LAUNCH";

/// Ways in which a rank finds its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// By deckrun, which has started the rank.
    Deckrun,
    /// By PMI-1: MPICH's Hydra, Flux.
    Pmi1,
    /// By PMI-2: Slurm.
    Pmi2,
    /// By PMIx: Open MPI, PRRTE, Slurm.
    Pmix,
    /// No launcher: a world of one.
    None,
}

const ALL: [(Launcher, &str); 5] = [
    (Launcher::Deckrun, "deckrun"),
    (Launcher::Pmi1, "pmi1"),
    (Launcher::Pmi2, "pmi2"),
    (Launcher::Pmix, "pmix"),
    (Launcher::None, "none"),
];

impl Launcher {
    /// Returns the launcher's name in [`ENV_LAUNCH`].
    pub fn name(self) -> &'static str {
        ALL.iter().find(|(launcher, _)| *launcher == self).map_or("none", |(_, name)| name)
    }
}

/// The detected launcher, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The launcher.
    pub launcher: Launcher,
    /// The decisive variables, with their values.
    pub because: String,
}

/// The environment: returns a variable's value.
pub(crate) type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Detects the launcher that started this process.
///
/// # Errors
/// [`StartError::Setting`]; [`StartError::Unusable`] if a launcher has started several processes, and offers no
/// service by which they could find each other.
pub fn detect(vars: &dyn Fn(&str) -> Option<String>) -> Result<Found, StartError> {
    let found = |launcher, names: &[&str]| Found { launcher, because: Shown(vars, names).to_string() };
    if let Some(value) = vars(ENV_LAUNCH) {
        let chosen = ALL.iter().find(|(_, name)| *name == value);
        let (launcher, _) = chosen.ok_or_else(|| StartError::Setting {
            variable: ENV_LAUNCH,
            value,
            allowed: "deckrun, pmi1, pmi2, pmix, none".into(),
        })?;
        return Ok(found(*launcher, &[ENV_LAUNCH]));
    }
    let is_set = |name: &str| vars(name).is_some();
    if is_set(ENV_BOOT_FD) {
        return Ok(found(Launcher::Deckrun, &[ENV_BOOT_FD]));
    }
    if is_set("PMIX_RANK") && is_set("PMIX_NAMESPACE") {
        return Ok(found(Launcher::Pmix, &["PMIX_NAMESPACE", "PMIX_RANK"]));
    }
    if is_set("PMI_FD") {
        // Slurm's step sets both variables; Hydra's processes have PMI_FD, which no step of Slurm's has set.
        let is_slurm = is_set("SLURM_STEP_ID") && is_set("PMI_JOBID") && !is_set("HYDI_CONTROL_FD");
        let launcher = if is_slurm { Launcher::Pmi2 } else { Launcher::Pmi1 };
        return Ok(found(launcher, &["PMI_FD", "PMI_RANK", "PMI_SIZE", "SLURM_STEP_ID"]));
    }
    if is_set("PMI_PORT") {
        return Ok(found(Launcher::Pmi1, &["PMI_PORT", "PMI_ID"]));
    }
    several_without_service(vars)?;
    Ok(found(Launcher::None, &[]))
}

/// Launchers that set the number of processes, and the options by which they offer a service.
const COUNTS: [(&str, &[&str], &str, &str); 4] = [
    (
        "SLURM_STEP_NUM_TASKS",
        &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"],
        "Slurm's srun",
        "Type `srun --mpi=pmi2 …` or `srun --mpi=pmix …` (`srun --mpi=list` says which there are), or start \
         deckrun once in the allocation: `salloc … deckrun -- …`",
    ),
    (
        "OMPI_COMM_WORLD_SIZE",
        &["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"],
        "Open MPI's mpirun",
        "Start it by an mpirun that offers PMIx (Open MPI 4 or later), or by deckrun",
    ),
    (
        "PMI_SIZE",
        &["PMI_SIZE", "PMI_RANK"],
        "a launcher with PMI",
        "PMI_FD or PMI_PORT is missing: does something between the launcher and this program clear the environment or \
         close descriptors? Or start it by deckrun",
    ),
    (
        "MV2_COMM_WORLD_SIZE",
        &["MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"],
        "MVAPICH2's mpirun_rsh",
        "Start it by mpiexec (Hydra), by srun, or by deckrun",
    ),
];

fn several_without_service(vars: Vars<'_>) -> Result<(), StartError> {
    let counts = COUNTS.iter().find(|(count, ..)| {
        vars(count).and_then(|value| value.trim().parse::<u32>().ok()).is_some_and(|processes| processes > 1)
    });
    let Some((_, shown, by, advice)) = counts else { return Ok(()) };
    Err(StartError::Unusable {
        by: (*by).into(),
        found: Shown(vars, shown).to_string(),
        why: "it offers nothing by which its processes could find each other".into(),
        advice: format!("{advice}. {ENV_LAUNCH}=none makes each process a world of its own"),
    })
}

/// Writes variables that are set, in the form that a shell takes.
pub(crate) struct Shown<'a>(pub Vars<'a>, pub &'a [&'a str]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shown(vars, names) = self;
        let set = names.iter().filter_map(|name| Some((name, vars(name)?)));
        for (nth, (name, value)) in set.enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={}", value.escape_debug())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look_at(set: &[(&str, &str)]) -> Result<Found, StartError> {
        let value =
            |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
        detect(&value)
    }

    fn launcher(set: &[(&str, &str)]) -> Launcher {
        look_at(set).unwrap().launcher
    }

    const SRUN: [(&str, &str); 3] =
        [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "4")];
    const HYDRA: [(&str, &str); 3] = [("PMI_FD", "7"), ("PMI_RANK", "0"), ("PMI_SIZE", "4")];
    const OPEN_MPI: [(&str, &str); 3] =
        [("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "x"), ("OMPI_COMM_WORLD_SIZE", "4")];

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        assert_eq!(launcher(&[]), Launcher::None);
        assert_eq!(launcher(&[(ENV_BOOT_FD, "5")]), Launcher::Deckrun);
        assert_eq!(launcher(&HYDRA), Launcher::Pmi1);
        assert_eq!(launcher(&[("PMI_PORT", "h:1"), ("PMI_ID", "0")]), Launcher::Pmi1);
        assert_eq!(launcher(&OPEN_MPI), Launcher::Pmix);
        let with = |more: &[(&'static str, &'static str)]| [&SRUN[..], more].concat();
        assert_eq!(launcher(&with(&[("PMI_FD", "7"), ("PMI_JOBID", "1.0")])), Launcher::Pmi2);
        assert_eq!(launcher(&with(&[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "x")])), Launcher::Pmix);
    }

    #[test]
    fn the_launcher_nearest_to_the_process_counts() {
        let both = |one: &[(&'static str, &'static str)], other| [one, other].concat();
        // deckrun under srun, Open MPI's mpirun in Slurm, Hydra in Slurm.
        assert_eq!(launcher(&both(&SRUN, &[(ENV_BOOT_FD, "5")][..])), Launcher::Deckrun);
        assert_eq!(launcher(&both(&SRUN, &OPEN_MPI[..])), Launcher::Pmix);
        let hydra = both(&HYDRA, &[("PMI_JOBID", "1.0"), ("HYDI_CONTROL_FD", "8")][..]);
        assert_eq!(launcher(&both(&SRUN, &hydra)), Launcher::Pmi1);
    }

    #[test]
    fn the_setting_goes_before_everything_and_is_checked() {
        for (expected, name) in ALL {
            assert_eq!(launcher(&[&HYDRA[..], &[(ENV_LAUNCH, name)]].concat()), expected);
            assert_eq!(expected.name(), name);
        }
        let error = look_at(&[(ENV_LAUNCH, "slurm")]).unwrap_err().to_string();
        assert_eq!(error, "DECK_LAUNCH=slurm is none of deckrun, pmi1, pmi2, pmix, none");
    }

    #[test]
    fn several_processes_without_a_service_are_never_worlds_of_one() {
        for count in COUNTS.iter().map(|(count, ..)| *count) {
            let error = look_at(&[(count, "4")]).unwrap_err().to_string();
            assert!(error.contains(&format!("{count}=4")) && error.contains("deckrun"), "{error}");
            assert_eq!(launcher(&[(count, "1")]), Launcher::None, "one process needs nobody");
            assert_eq!(launcher(&[(count, "4"), (ENV_LAUNCH, "none")]), Launcher::None);
        }
        let error = look_at(&SRUN).unwrap_err().to_string();
        assert!(error.contains("SLURM_PROCID=1") && error.contains("srun --mpi=pmi2"), "{error}");
    }

    #[test]
    fn what_was_found_is_shown_in_one_line() {
        assert_eq!(look_at(&HYDRA).unwrap().because, "PMI_FD=7, PMI_RANK=0, PMI_SIZE=4");
        assert_eq!(look_at(&[("PMI_FD", "7\n8")]).unwrap().because, "PMI_FD=7\\n8");
    }
}
