//! MPI libraries: how their programs are built, and how their jobs are started.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{
    job::last_lines,
    library::{Found, Library},
    targets::Setting,
};

/// Source of the program that every MPI runs.
const SOURCE: &str = include_str!("peer.c");

/// Files that the source includes, with their names.
const HEADERS: [(&str, &str); 2] =
    [("collectives.h", include_str!("collectives.h")), ("cpu.h", include_str!("cpu.h"))];

/// Source of a preloaded library that keeps MPICH's ranks in the session of this process, where the ranks of Open MPI and µDECK
/// are. MPICH's launcher gives each rank a session of its own, and Linux gives each session a scheduling group (autogroup), in
/// which a rank is alone: its `sched_yield` yields to nobody, and a barrier of more ranks than processors takes time slices.
const SAME_SESSION: &str = "#include <unistd.h>\npid_t setsid(void) { return getsid(0); }\n";

/// An implementation of MPI.
#[derive(Debug)]
pub struct Mpi {
    /// Description of the library.
    pub library: Library,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Its launcher puts each rank into a session of its own.
    Mpich,
    OpenMpi,
}

/// An installation that was found, with its program built.
#[derive(Debug)]
pub struct Installed {
    /// Place and release of the installation.
    pub found: Found,
    /// Its implementation of MPI.
    pub mpi: &'static Mpi,
    program: PathBuf,
    preload: Option<PathBuf>,
}

/// All MPIs, in the order of the columns. Where several MPIs live side by side, Debian's programs are called `mpicc.mpich`.
pub const MPIS: [Mpi; 2] = [
    Mpi {
        library: Library {
            name: "MPICH",
            folder: "mpich",
            packages: "mpich libmpich-dev",
            is_fetched: true,
            program: "mpirun",
            aliases: &["mpirun.mpich"],
            version: ["", ""],
            mark: "HYDRA",
        },
        kind: Kind::Mpich,
    },
    Mpi {
        library: Library {
            name: "Open MPI",
            folder: "openmpi",
            packages: "openmpi-bin libopenmpi-dev",
            is_fetched: true,
            program: "mpirun",
            aliases: &["mpirun.openmpi"],
            version: ["", ""],
            mark: "Open",
        },
        kind: Kind::OpenMpi,
    },
];

impl Mpi {
    /// Builds the program into `scratch`, in files named by `number`.
    ///
    /// # Errors
    /// The compiler's messages.
    pub fn install(&'static self, found: Found, scratch: &Path, number: usize) -> Result<Installed, String> {
        let program = scratch.join(format!("program-{number}"));
        self.build(&found, &["-O3"], SOURCE, &program)?;
        let preload = match self.kind {
            Kind::Mpich => {
                let library = scratch.join(format!("session-{number}.so"));
                self.build(&found, &["-shared", "-fPIC"], SAME_SESSION, &library)?;
                Some(library)
            }
            Kind::OpenMpi => None,
        };
        Ok(Installed { mpi: self, found, program, preload })
    }

    fn build(&self, found: &Found, flags: &[&str], source: &str, output: &Path) -> Result<(), String> {
        let file = output.with_extension("c");
        let headers = HEADERS.map(|(name, text)| (output.with_file_name(name), text));
        for (file, text) in headers.iter().map(|(file, text)| (file, *text)).chain([(&file, source)]) {
            fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let mut command = found.prefix.command(&found.name.replace("mpirun", "mpicc"));
        command.args(flags).args(["-w", "-o"]).arg(output).arg(&file).stdin(Stdio::null());
        let built = command.output();
        let compiler = command.get_program().display();
        match built {
            Ok(built) if built.status.success() => Ok(()),
            Ok(built) => {
                let said = last_lines(&String::from_utf8_lossy(&built.stderr));
                Err(format!("{compiler} cannot build the peer's program ({}){said}", built.status))
            }
            Err(error) => Err(format!("{compiler}: {error} (apt install {})", self.library.packages)),
        }
    }

    /// Flags, and settings for UCX, on which MPICH is built. They keep the MPI's messages off shared memory, over the loopback
    /// device.
    fn network(&self) -> (&'static [&'static str], &'static [(&'static str, &'static str)]) {
        match self.kind {
            Kind::OpenMpi => (
                &["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"],
                &[],
            ),
            // `UCX_NET_DEVICES=lo` is not set: with it, the UCX in MPICH 5 finds no way from rank to rank. Between
            // addresses of one host the system takes the loopback device in any case.
            Kind::Mpich => (&[], &[("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self")]),
        }
    }

    /// Flags of the launcher. Open MPI counts processors for itself and yields only if it finds fewer than ranks, so the
    /// flags tell it which is the case.
    fn flags(&self, oversubscribed: bool) -> &'static [&'static str] {
        match (self.kind, oversubscribed) {
            (Kind::OpenMpi, false) => {
                &["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "0"]
            }
            (Kind::OpenMpi, true) => {
                &["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
            }
            (Kind::Mpich, _) => &[],
        }
    }

    /// Settings of the launcher. Ranks of MPICH spin and never yield, so more ranks than processors wait for time slices: 8
    /// ms a barrier. With these settings they sleep after one poll without news, as briefly as the system can (15 µs a
    /// barrier). MPICH 4.0 does not know them.
    fn settings(&self, oversubscribed: bool) -> &'static [(&'static str, &'static str)] {
        match (self.kind, oversubscribed) {
            (Kind::Mpich, true) => &[
                ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
                ("MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "1"),
            ],
            _ => &[],
        }
    }

    /// Settings and flags of the launcher as a user would type them.
    fn words(&self, oversubscribed: bool) -> String {
        typed(self.settings(oversubscribed), &[self.flags(oversubscribed)])
    }
}

/// Settings and flags as a user would type them, for the report.
fn typed(settings: &[(&str, &str)], flags: &[&[&str]]) -> String {
    let settings = settings.iter().map(|(name, value)| format!("{name}={value}"));
    settings.chain(flags.concat().iter().map(ToString::to_string)).collect::<Vec<_>>().join(" ")
}

impl Installed {
    /// Command that starts `ranks` ranks of the program.
    pub fn command(&self, ranks: usize, processors: usize, setting: Setting) -> Command {
        let mut command = self.found.prefix.command(self.found.name);
        let oversubscribed = ranks > processors;
        command.args(["-n", &ranks.to_string()]).args(self.mpi.flags(oversubscribed));
        command.envs(self.mpi.settings(oversubscribed).iter().copied());
        if setting.is_network() {
            let (flags, settings) = self.mpi.network();
            command.args(flags).envs(settings.iter().copied()).env("DECKPERF_NO_WINDOW", "1");
        }
        command.arg(&self.program);
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        // Without these, Open MPI (PRTE, since release 5) starts nothing for root, the only user of many containers.
        if rustix::process::geteuid().is_root() {
            for of in ["OMPI", "PRTE"] {
                command.env(format!("{of}_ALLOW_RUN_AS_ROOT"), "1");
                command.env(format!("{of}_ALLOW_RUN_AS_ROOT_CONFIRM"), "1");
            }
        }
        command
    }

    /// Settings and flags as a user would type them, for the report.
    pub fn flags(&self, setting: Setting) -> String {
        if setting.is_network() {
            let (flags, settings) = self.mpi.network();
            return typed(settings, &[self.mpi.flags(false), flags]);
        }
        let alone = Some(self.mpi.words(false)).filter(|words| !words.is_empty());
        let (alone, crowded) = (alone.unwrap_or("no flags".to_owned()), self.mpi.words(true));
        let mut text = format!("{alone}; with more ranks than processors {crowded}");
        if self.preload.is_some() {
            text += "; all ranks in one session, so that they yield to each other";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::{library::Prefix, scratch::Scratch};

    fn found(name: &'static str) -> Found {
        Found { version: String::new(), prefix: Prefix::System, name }
    }

    #[test]
    fn a_compiler_that_fails_is_quoted() {
        let scratch = Scratch::new().expect("a folder");
        // `false` stands for a compiler that refuses.
        let why = MPIS[0].install(found("false"), scratch.path(), 0).expect_err("refuses");
        assert!(why.starts_with("false cannot build the peer's program (exit status: 1)"), "{why}");
        let why = MPIS[1].install(found("no-such-mpirun"), scratch.path(), 1).expect_err("no file");
        assert!(
            why.starts_with("no-such-mpicc: ") && why.ends_with("(apt install openmpi-bin libopenmpi-dev)"),
            "{why}"
        );
    }

    #[test]
    fn a_folders_own_compiler_and_launcher_are_used() {
        let prefix = Prefix::Folder("/p/mpich".into());
        let found = Found { version: String::new(), prefix, name: "mpirun" };
        let scratch = Scratch::new().expect("a folder");
        let why = MPIS[0].install(found.clone(), scratch.path(), 0).expect_err("no file");
        assert!(why.starts_with("/p/mpich/bin/mpicc: "), "{why}");
        let installed = Installed { found, mpi: &MPIS[0], program: "program".into(), preload: None };
        let command = installed.command(2, 2, Setting::Memory);
        assert_eq!(command.get_program(), "/p/mpich/bin/mpirun");
    }

    #[test]
    fn over_a_network_nobody_uses_shared_memory() {
        let installed =
            |mpi| Installed { mpi, found: found("mpirun"), program: "program".into(), preload: None };
        let [mpich, open] = [installed(&MPIS[0]), installed(&MPIS[1])];
        let setting = Setting::Network("tcp");
        let command = mpich.command(2, 2, setting);
        assert!(
            command.get_envs().any(|(name, value)| name == "UCX_TLS" && value == Some("tcp,self".as_ref()))
        );
        assert!(open.command(2, 2, setting).get_args().any(|word| word == "tcp,self"));
        assert!(!open.command(2, 2, Setting::Memory).get_args().any(|word| word == "tcp,self"));
        assert!(
            mpich.flags(setting).contains("MPIR_CVAR_NOLOCAL=1")
                && open.flags(setting).contains("btl tcp,self")
        );
    }

    #[test]
    fn ranks_yield_when_there_are_more_of_them_than_processors() {
        for mpi in &MPIS {
            let yields = |crowded| {
                let words = mpi.words(crowded);
                words.ends_with("mpi_yield_when_idle 1")
                    || words.starts_with("MPIR_CVAR_CH4_PROGRESS_THROTTLE=1 ")
            };
            assert!(!yields(false) && yields(true));
        }
    }
}
