//! MPI libraries: which are installed, how their programs are built, and how their jobs are started.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use super::{job::last_lines, targets::Course};

/// The program that every MPI runs.
const SOURCE: &str = include_str!("peer.c");

/// MPICH's launcher gives each rank a session of its own, and Linux each session a scheduling group (autogroup), in
/// which a rank is alone: its `sched_yield` yields to nobody, and a barrier of more ranks than processors takes time
/// slices. Preloaded, this keeps the ranks in our session, where Open MPI's and ours are.
const SAME_SESSION: &str = "#include <unistd.h>\npid_t setsid(void) { return getsid(0); }\n";

/// An implementation of MPI, as Debian packs it, or as the only one of a system.
#[derive(Debug)]
pub struct Mpi {
    /// As its makers call it.
    pub name: &'static str,
    /// What brings it, in Debian.
    pub packages: &'static str,
    /// Of its programs where several MPIs live side by side: `mpicc.mpich`.
    suffix: &'static str,
    /// In what `mpirun --version` says.
    mark: &'static str,
    /// Its launcher puts each rank into one.
    own_sessions: bool,
}

/// One that is here, with its program built.
#[derive(Debug)]
pub struct Installed {
    /// Which.
    pub mpi: &'static Mpi,
    /// Of the library, as its launcher says.
    pub version: String,
    launcher: OsString,
    program: PathBuf,
    preload: Option<PathBuf>,
}

/// In the order of the columns.
pub const MPIS: [Mpi; 2] = [
    Mpi {
        name: "MPICH",
        packages: "mpich libmpich-dev",
        suffix: ".mpich",
        mark: "HYDRA",
        own_sessions: true,
    },
    Mpi {
        name: "Open MPI",
        packages: "openmpi-bin libopenmpi-dev",
        suffix: ".openmpi",
        mark: "Open",
        own_sessions: false,
    },
];

impl Mpi {
    /// Builds the program into `scratch`.
    ///
    /// # Errors
    /// `None`: it is not installed. Else what the compiler said.
    pub fn install(&'static self, scratch: &Path) -> Result<Installed, Option<String>> {
        let (launcher, version) = self.launcher().ok_or(None)?;
        let program = scratch.join(format!("program{}", self.suffix));
        self.build(&launcher, &["-O3"], SOURCE, &program).map_err(Some)?;
        let preload = match self.own_sessions {
            true => {
                let library = scratch.join(format!("session{}.so", self.suffix));
                self.build(&launcher, &["-shared", "-fPIC"], SAME_SESSION, &library).map_err(Some)?;
                Some(library)
            }
            false => None,
        };
        Ok(Installed { mpi: self, version, launcher: launcher.into(), program, preload })
    }

    fn build(&self, launcher: &str, flags: &[&str], source: &str, output: &Path) -> Result<(), String> {
        let file = output.with_extension("c");
        fs::write(&file, source).map_err(|error| format!("{}: {error}", file.display()))?;
        let compiler = launcher.replace("mpirun", "mpicc");
        let mut command = Command::new(&compiler);
        command.args(flags).args(["-w", "-o"]).arg(output).arg(&file).stdin(Stdio::null());
        match command.output() {
            Ok(built) if built.status.success() => Ok(()),
            Ok(built) => {
                let said = last_lines(&String::from_utf8_lossy(&built.stderr));
                Err(format!("{compiler} cannot build the peer's program ({}){said}", built.status))
            }
            Err(error) => Err(format!("{compiler}: {error} (apt install {})", self.packages)),
        }
    }

    /// Its name, and what it says of its version.
    fn launcher(&self) -> Option<(String, String)> {
        let names = [format!("mpirun{}", self.suffix), "mpirun".to_owned()];
        names.into_iter().find_map(|name| {
            let Output { stdout, .. } =
                Command::new(&name).arg("--version").stdin(Stdio::null()).output().ok()?;
            let said = String::from_utf8_lossy(&stdout);
            said.contains(self.mark).then(|| (name, version(&said)))
        })
    }

    /// What keeps its messages off shared memory, over the loopback device: flags, and settings for UCX, which Debian's
    /// MPICH is built on.
    fn network(&self) -> (&'static [&'static str], &'static [(&'static str, &'static str)]) {
        match self.suffix {
            ".openmpi" => (
                &["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"],
                &[],
            ),
            _ => (&[], &[("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")]),
        }
    }

    /// Open MPI counts processors for itself and yields only if it finds fewer than ranks, so it is told both.
    fn flags(&self, oversubscribed: bool) -> &'static [&'static str] {
        match (self.suffix, oversubscribed) {
            (".openmpi", false) => {
                &["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "0"]
            }
            (".openmpi", true) => {
                &["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
            }
            _ => &[],
        }
    }
}

impl Installed {
    /// Starts `ranks` ranks of the program.
    pub fn command(&self, ranks: usize, processors: usize, course: Course) -> Command {
        let mut command = Command::new(&self.launcher);
        command.args(["-n", &ranks.to_string()]).args(self.mpi.flags(ranks > processors));
        if course != Course::Memory {
            let (flags, settings) = self.mpi.network();
            command.args(flags).envs(settings.iter().copied());
        }
        command.arg(&self.program);
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", library);
        }
        // Without them Open MPI starts nothing for root, who is all there is in many a container.
        if rustix::process::geteuid().is_root() {
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
        command
    }

    /// As one types them, for the report.
    pub fn flags(&self, course: Course) -> String {
        if course != Course::Memory {
            let (flags, settings) = self.mpi.network();
            let settings = settings.iter().map(|(name, value)| format!("{name}={value}"));
            let flags = self.mpi.flags(false).iter().chain(flags).map(|flag| (*flag).to_owned());
            return settings.chain(flags).collect::<Vec<_>>().join(" ");
        }
        let (alone, crowded) = (self.mpi.flags(false).join(" "), self.mpi.flags(true).join(" "));
        let mut text = match (alone.as_str(), crowded.as_str()) {
            ("", "") => "no flags".to_owned(),
            (alone, crowded) => format!("{alone}; with more ranks than processors {crowded}"),
        };
        if self.preload.is_some() {
            text += "; all ranks in one session, so that they yield to each other";
        }
        text
    }
}

/// The first word that begins with a digit and has a dot.
pub fn version(said: &str) -> String {
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    said.split_whitespace().find(is_version).unwrap_or("of an unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::scratch::Scratch;

    #[test]
    fn versions_are_found_in_what_launchers_say() {
        assert_eq!(version("mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to x"), "4.1.4");
        assert_eq!(version("HYDRA build details:\n    Version:      4.0.2\n    Release Date: Thu"), "4.0.2");
        assert_eq!(version("# Version 1.13.1\n"), "1.13.1");
        assert_eq!(version("fi_info: 1.17.0\nlibfabric: 1.17.0\n"), "1.17.0");
        assert_eq!(version("no idea"), "of an unknown version");
    }

    #[test]
    fn a_compiler_that_fails_is_quoted() {
        let scratch = Scratch::new().expect("a folder");
        // `false` stands for a compiler that refuses.
        let why = MPIS[0].build("false", &[], SOURCE, &scratch.path().join("program")).expect_err("refuses");
        assert!(why.starts_with("false cannot build the peer's program (exit status: 1)"), "{why}");
        let why = MPIS[1]
            .build("no-such-mpicc", &[], SOURCE, &scratch.path().join("program"))
            .expect_err("no file");
        assert!(why.ends_with("(apt install openmpi-bin libopenmpi-dev)"), "{why}");
    }

    #[test]
    fn over_a_network_nobody_uses_shared_memory() {
        let installed = |mpi| Installed {
            mpi,
            version: String::new(),
            launcher: "mpirun".into(),
            program: "program".into(),
            preload: None,
        };
        let [mpich, open] = [installed(&MPIS[0]), installed(&MPIS[1])];
        let course = Course::Network("tcp");
        let command = mpich.command(2, 2, course);
        assert!(
            command.get_envs().any(|(name, value)| name == "UCX_TLS" && value == Some("tcp,self".as_ref()))
        );
        assert!(open.command(2, 2, course).get_args().any(|word| word == "tcp,self"));
        assert!(!open.command(2, 2, Course::Memory).get_args().any(|word| word == "tcp,self"));
        assert!(
            mpich.flags(course).contains("MPIR_CVAR_NOLOCAL=1")
                && open.flags(course).contains("btl tcp,self")
        );
    }

    #[test]
    fn ranks_yield_when_there_are_more_of_them_than_processors() {
        for mpi in &MPIS {
            let yields = |crowded| mpi.flags(crowded).ends_with(&["mpi_yield_when_idle", "1"]);
            assert!(!yields(false));
            assert_eq!(yields(true), mpi.name == "Open MPI");
        }
    }
}
