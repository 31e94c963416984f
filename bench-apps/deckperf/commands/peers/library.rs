//! Finds a library to compare with: in the folder of `--peers`, where each library has a prefix of its own, and among the
//! installed ones.
//!
//! ```text
//! DIR/mpich/bin/mpirun   DIR/openmpi/bin/mpirun   DIR/ucx/bin/ucx_perftest   DIR/libfabric/bin/fi_pingpong
//! ```
//!
//! `cargo xtask peers DIR` makes the first three. An installation in the folder and one of the system may both take part,
//! each as a column of its own, because a distribution's release is often years older. If the releases are the same, only
//! the folder's takes part.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::failure::{PerfError, Result};

/// Description of a library to find.
#[derive(Debug)]
pub struct Library {
    /// Name that its makers use.
    pub name: &'static str,
    /// Prefix below the folder of `--peers`.
    pub folder: &'static str,
    /// Packages that install it, in Debian.
    pub packages: &'static str,
    /// Whether `cargo xtask peers` fetches it.
    pub is_fetched: bool,
    /// Program that is run. Among the installed ones it may have other names, `aliases`, which are tried first.
    pub program: &'static str,
    /// Other names of the program among the installed ones.
    pub aliases: &'static [&'static str],
    /// Program and argument that print the version; an empty program: the program itself.
    pub version: [&'static str; 2],
    /// Text in that output by which this library is recognised.
    pub mark: &'static str,
}

/// Place of an installation.
#[derive(Clone, Debug, PartialEq)]
pub enum Prefix {
    /// The system's: the shell finds its programs.
    System,
    /// A folder with `bin`, `lib` and `include`.
    Folder(PathBuf),
}

/// An installation that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Version of the library, as it reports it.
    pub version: String,
    /// Place of the installation.
    pub prefix: Prefix,
    /// Name of the program in this installation.
    pub name: &'static str,
}

impl Prefix {
    /// Command that runs `program` of this installation, not started yet.
    pub fn command(&self, program: &str) -> Command {
        match self {
            Prefix::System => Command::new(program),
            Prefix::Folder(folder) => {
                let mut command = Command::new(folder.join("bin").join(program));
                // Some installations were built for another prefix, so their programs need this path.
                command.env("LD_LIBRARY_PATH", folder.join("lib"));
                command
            }
        }
    }
}

impl Library {
    /// Installations in the order of the columns, and sentences about unsuccessful searches.
    pub fn find(&self, folder: Option<&Path>) -> (Vec<Found>, Vec<String>) {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let mut add = |looked: Result<Option<Found>, String>| match looked {
            Ok(one) => found.extend(one),
            Err(why) => missing.push(format!("{}: {why}", self.name)),
        };
        if let Some(folder) = folder {
            add(self.look(Prefix::Folder(folder.join(self.folder))));
        }
        add(self.look(Prefix::System));
        found.dedup_by(|system, folder| system.version == folder.version);
        let in_folder = found.iter().any(|one| one.prefix != Prefix::System);
        if !in_folder && missing.is_empty() && (self.is_fetched || found.is_empty()) {
            missing.extend(self.advice(folder, found.is_empty()));
        }
        (found, missing)
    }

    /// Looks for an installation; `None`: there is none. An error: there is one, but it cannot be used.
    fn look(&self, prefix: Prefix) -> Result<Option<Found>, String> {
        let names = self.aliases.iter().filter(|_| prefix == Prefix::System).chain([&self.program]);
        for &name in names {
            let Some(said) = self.ask(&prefix, name)? else { continue };
            if said.contains(self.mark) {
                return Ok(Some(Found { version: version(&said), prefix, name }));
            }
        }
        Ok(None)
    }

    /// Output about the version; `None`: there is no such program. An error: the program does not run.
    fn ask(&self, prefix: &Prefix, name: &str) -> Result<Option<String>, String> {
        let [program, word] = self.version;
        if program.is_empty() {
            return run(prefix, name, "--version");
        }
        if run(prefix, name, "-h")?.is_none() {
            return Ok(None);
        }
        // The program that prints the version may be in another package, which is not installed.
        Ok(Some(run(prefix, program, word)?.unwrap_or_default()))
    }

    fn advice(&self, folder: Option<&Path>, is_alone: bool) -> Option<String> {
        let Library { name, packages, .. } = self;
        match folder {
            Some(folder) => {
                let way = if self.is_fetched {
                    format!("`cargo xtask peers {}` gets it", folder.display())
                } else {
                    format!("apt install {packages}")
                };
                Some(format!("{name}: there is no {} ({way})", self.place(folder)))
            }
            None if is_alone => Some(format!("{name}: not installed (apt install {packages})")),
            None => None,
        }
    }

    /// Path of the library's program in the folder of `--peers`.
    fn place(&self, folder: &Path) -> String {
        folder.join(self.folder).join("bin").join(self.program).display().to_string()
    }
}

/// Advice on where to get today's releases, if no folder was given.
pub const ADVICE: &str = "releases of today: `cargo xtask peers DIR` gets MPICH, Open MPI and UCX, `--peers DIR` measures \
                          beside them";

/// Checks that the folder has something to compare with: a mistyped folder is no reason to compare with less.
///
/// # Errors
/// A sentence on what was looked for, where, and how to get it.
pub fn check_folder<'l>(folder: &Path, libraries: impl Iterator<Item = &'l Library>) -> Result {
    let places: Vec<String> = libraries.map(|library| library.place(folder)).collect();
    if places.iter().any(|place| Path::new(place).exists()) {
        return Ok(());
    }
    Err(PerfError::NoPeers { folder: folder.to_owned(), places: places.join(", ") })
}

/// Output of a program; `None`: there is no such program. The exit status does not count, because some programs fail after
/// they have printed their usage, or crash over it (UCX 1.18); but 127 means that a program cannot be loaded.
fn run(prefix: &Prefix, program: &str, word: &str) -> Result<Option<String>, String> {
    let mut command = prefix.command(program);
    let output = command.arg(word).stdin(Stdio::null()).output();
    let name = command.get_program().display();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{name}: {error}")),
    };
    if output.status.code() == Some(127) {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} ends with {}: {}", output.status, why.trim()));
    }
    Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// The first word that begins with a digit and has a dot.
fn version(said: &str) -> String {
    let is_version = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    said.split_whitespace().find(is_version).unwrap_or("of an unknown version").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::{mpi::MPIS, scratch::Scratch, whole::PROGRAMS};

    /// A library that does not exist, so that no test depends on what is installed.
    const LIBRARY: Library = Library {
        name: "Some",
        folder: "some",
        packages: "some-dev",
        is_fetched: true,
        program: "deckperf-no-such-program",
        aliases: &[],
        version: ["", ""],
        mark: "Some",
    };

    /// A folder with `script` as the library's program. A shell writes the file, and not this process, because other tests'
    /// children might still have it open for writing when it is started.
    fn folder_with(library: &Library, script: &str) -> Scratch {
        let folder = Scratch::new().expect("a folder");
        let place = library.place(folder.path());
        let text = format!(
            "mkdir -p $(dirname {place}); printf '#!/bin/sh\\n{script}\\n' > {place}; chmod 755 {place}"
        );
        assert!(Command::new("sh").args(["-c", &text]).status().expect("a shell").success());
        folder
    }

    #[test]
    fn versions_are_found_in_what_programs_say() {
        assert_eq!(version("mpirun.openmpi (OpenRTE) 4.1.4\n\nReport bugs to x"), "4.1.4");
        assert_eq!(version("mpirun (Open MPI) 5.0.11\n\nReport bugs to x"), "5.0.11");
        assert_eq!(version("HYDRA build details:\n    Version:      4.0.2\n    Release Date: Thu"), "4.0.2");
        assert_eq!(version("# Version 1.13.1\n"), "1.13.1");
        assert_eq!(version("# Library version: 1.22.0\n# Library path: x/libucs.so.0\n"), "1.22.0");
        assert_eq!(version("fi_info: 1.17.0\nlibfabric: 1.17.0\n"), "1.17.0");
        assert_eq!(version("no idea"), "of an unknown version");
    }

    #[test]
    fn a_library_is_found_in_its_folder_with_its_own_libraries() {
        let folder = folder_with(&LIBRARY, "echo Some 7.1, $LD_LIBRARY_PATH");
        let (found, missing) = LIBRARY.find(Some(folder.path()));
        let prefix = Prefix::Folder(folder.path().join("some"));
        let wanted = Found { version: "7.1,".to_owned(), prefix: prefix.clone(), name: LIBRARY.program };
        assert_eq!((found, missing), (vec![wanted], Vec::new()));
        let said = run(&prefix, LIBRARY.program, "-h").expect("runs").expect("is there");
        assert!(said.trim().ends_with("/some/lib"), "{said}");
    }

    #[test]
    fn another_librarys_program_of_that_name_is_not_taken() {
        let folder = folder_with(&LIBRARY, "echo Other 7.1");
        let (found, missing) = LIBRARY.find(Some(folder.path()));
        assert!(found.is_empty() && missing.len() == 1, "{missing:?}");
    }

    #[test]
    fn what_is_there_and_does_not_run_is_quoted() {
        let folder = folder_with(&LIBRARY, "echo no libsome.so >&2; exit 127");
        let (found, missing) = LIBRARY.find(Some(folder.path()));
        assert!(found.is_empty());
        let why = "deckperf-no-such-program ends with exit status: 127: no libsome.so";
        assert!(
            missing.len() == 1 && missing[0].starts_with("Some: ") && missing[0].ends_with(why),
            "{missing:?}"
        );
    }

    #[test]
    fn what_is_installed_and_does_not_run_is_quoted_too() {
        // `env` ends as a program does whose libraries are missing.
        let library = Library { program: "env", version: ["env", LIBRARY.program], ..LIBRARY };
        let (found, missing) = library.find(None);
        assert!(found.is_empty());
        let why = "Some: env ends with exit status: 127: ";
        assert!(missing.len() == 1 && missing[0].starts_with(why), "{missing:?}");
    }

    #[test]
    fn the_systems_stands_beside_the_folders_unless_it_is_the_same_release() {
        // Every system has `sh` and `echo`, and both installations report this version.
        let library = |mark| Library { program: "sh", version: ["echo", "Some-1.0 1.0"], mark, ..LIBRARY };
        let folder = folder_with(&library("Some"), "");
        let copied = Command::new("cp").arg("/bin/echo").arg(folder.path().join("some/bin")).status();
        assert!(copied.expect("runs").success());
        let (found, missing) = library("Some").find(Some(folder.path()));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(missing.is_empty() && found[0].prefix != Prefix::System);
        let (found, _) = library("Some").find(None);
        assert!(found.len() == 1 && found[0].prefix == Prefix::System, "{found:?}");
    }

    #[test]
    fn what_is_absent_is_named_with_what_brings_it() {
        let absent = |library: &Library, folder: Option<&str>| {
            library.advice(folder.map(Path::new), true).expect("an advice")
        };
        let [mpich, open] = [&MPIS[0].library, &MPIS[1].library];
        let [ucx, fabric] = [&PROGRAMS[0].library, &PROGRAMS[1].library];
        assert_eq!(absent(mpich, None), "MPICH: not installed (apt install mpich libmpich-dev)");
        assert_eq!(absent(open, None), "Open MPI: not installed (apt install openmpi-bin libopenmpi-dev)");
        assert_eq!(
            absent(ucx, Some("/p")),
            "UCX: there is no /p/ucx/bin/ucx_perftest (`cargo xtask peers /p` gets it)"
        );
        assert_eq!(
            absent(fabric, Some("/p")),
            "libfabric: there is no /p/libfabric/bin/fi_pingpong (apt install libfabric-bin)"
        );
    }

    #[test]
    fn a_folder_without_any_of_them_is_an_error_that_says_what_was_looked_for() {
        let folder = folder_with(&LIBRARY, "");
        assert!(check_folder(folder.path(), [&LIBRARY].into_iter()).is_ok());
        let error = check_folder(Path::new("/no/such"), [&LIBRARY, &PROGRAMS[0].library].into_iter());
        assert_eq!(
            error.expect_err("is empty").to_string(),
            "peers: there is nothing to compare with in /no/such: looked for /no/such/some/bin/deckperf-no-such-program, \
             /no/such/ucx/bin/ucx_perftest; `cargo xtask peers /no/such` gets today's releases"
        );
    }
}
