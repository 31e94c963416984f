//! The launchers: their command lines, and their reactions to the death of a rank.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::geteuid;
use udeck_jobs::{Bin, Job};

use super::slurm;

/// Time limit of a job: it only ends a hang.
const LIMIT: Duration = Duration::from_secs(150);
/// Variable with the folder of `cargo xtask peers`.
const PEERS: &str = "UDECK_PEERS";

/// A way to start a job: `program words.. options.. -n N behind.. rank`.
#[derive(Debug)]
pub struct Launcher {
    pub name: &'static str,
    pub engine: Engine,
    words: &'static [&'static str],
    behind: &'static [&'static str],
    /// Options with which a killed rank takes no other with it; `None`: it always does.
    pub survivors: Option<&'static [&'static str]>,
    /// Options with which a killed rank takes all others with it.
    pub no_survivors: &'static [&'static str],
    /// Options that place the ranks on the nodes in turn.
    pub cyclic: Option<&'static [&'static str]>,
    /// Options with which the ranks do not get their launcher's services.
    pub without_services: Option<&'static [&'static str]>,
    /// Exit code of the launcher when a rank aborts the job, whatever code the rank gives.
    pub abort_code: Option<i32>,
}

/// Software that has to be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Deckrun,
    Slurm,
    Hydra,
    OpenMpi,
    Prrte,
}

pub const ENGINES: &[Engine] =
    &[Engine::Deckrun, Engine::Slurm, Engine::Hydra, Engine::OpenMpi, Engine::Prrte];

const NONE: Launcher = Launcher {
    name: "",
    engine: Engine::Deckrun,
    words: &[],
    behind: &[],
    survivors: None,
    no_survivors: &[],
    cyclic: None,
    without_services: None,
    abort_code: None,
};

const SLURM: Launcher = Launcher {
    engine: Engine::Slurm,
    survivors: Some(&["--no-kill", "--kill-on-bad-exit=0"]),
    no_survivors: &["--kill-on-bad-exit=1"],
    cyclic: Some(&["-m", "cyclic"]),
    ..NONE
};

pub const LAUNCHERS: &[Launcher] = &[
    Launcher { name: "deckrun", behind: &["--"], survivors: Some(&["--on-failure", "continue"]), ..NONE },
    Launcher {
        name: "slurm_pmi2",
        words: &["-N", "2", "--mpi=pmi2"],
        without_services: Some(&["--mpi=none"]),
        abort_code: Some(137),
        ..SLURM
    },
    Launcher { name: "slurm_pmix", words: &["-N", "2", "--mpi=pmix"], ..SLURM },
    Launcher { name: "hydra", engine: Engine::Hydra, ..NONE },
    Launcher {
        name: "openmpi",
        engine: Engine::OpenMpi,
        words: &["--allow-run-as-root", "--oversubscribe"],
        survivors: Some(&["--enable-recovery"]),
        ..NONE
    },
    Launcher {
        name: "prrte",
        engine: Engine::Prrte,
        words: &["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE"],
        survivors: Some(&["--runtime-options", "recoverable"]),
        ..NONE
    },
];

impl Launcher {
    /// A job of `ranks` ranks of this program, to be completed by its arguments.
    pub fn job(&self, options: &[&str], ranks: usize, program: &Path) -> Job {
        let job = Job::new(&self.engine.program()).limit(LIMIT).args(self.words).args(options);
        let job = job.arg("-n").arg(ranks.to_string()).args(self.behind).arg(program);
        match self.engine {
            Engine::Slurm => job.env("SLURM_CONF", slurm::configuration()),
            _ => job,
        }
    }
}

impl Engine {
    /// Name in `UDECK_ENGINES` and in the summary.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Deckrun => "deckrun",
            Engine::Slurm => "slurm",
            Engine::Hydra => "hydra",
            Engine::OpenMpi => "openmpi",
            Engine::Prrte => "prrte",
        }
    }

    /// Why it cannot be used here; `None`: it can.
    pub fn missing(self) -> Option<String> {
        let none_of = |programs: &[&str], packages: &str| {
            let missing = programs.iter().find(|program| on_path(program).is_none())?;
            Some(format!("no {missing} ({packages})"))
        };
        match self {
            Engine::Deckrun => None,
            Engine::Slurm => none_of(
                &["srun", "sinfo", "slurmctld", "slurmd", "munged", "setsid"],
                "Debian: slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins libpmix-dev",
            )
            .or_else(|| (!geteuid().is_root()).then(|| "slurmd needs root".into())),
            Engine::Hydra => none_of(&["mpiexec.hydra"], "Debian: mpich"),
            Engine::OpenMpi => none_of(&["mpirun.openmpi"], "Debian: openmpi-bin libpmix2"),
            Engine::Prrte => prterun().is_none().then(|| {
                format!("no prterun ({PEERS}=DIR names the folder that `cargo xtask peers DIR` has filled)")
            }),
        }
    }

    fn program(self) -> PathBuf {
        match self {
            Engine::Deckrun => Bin::deckrun().path().to_owned(),
            Engine::Slurm => PathBuf::from("srun"),
            Engine::Hydra => PathBuf::from("mpiexec.hydra"),
            Engine::OpenMpi => PathBuf::from("mpirun.openmpi"),
            Engine::Prrte => prterun().expect("asked for before"),
        }
    }
}

fn prterun() -> Option<PathBuf> {
    let below = env::var_os(PEERS).map(|folder| Path::new(&folder).join("openmpi/bin/prterun"));
    below.filter(|path| path.is_file()).or_else(|| on_path("prterun"))
}

/// Finds a program, also in folders for root only, which have daemons.
fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}
