//! Our programs that the guests run, as they are built here for anybody.

use super::{
    root::Root,
    suite::{self, Suite},
};
use crate::{builds::RELEASE, child::Cargo, console::say, workspace::Workspace};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// Libraries that must be loaded only when they are first used: programs also run where there is none.
const LATE: [&str; 2] = ["libibverbs.so", "librdmacm.so"];

/// The set of programs to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    /// Programs of guests that do uDAPL only.
    Dat,
}

/// Paths of the built programs.
#[derive(Debug)]
pub struct Programs {
    /// Programs of jobs, by name.
    jobs: BTreeMap<&'static str, PathBuf>,
    pub suite: Option<Suite>,
    /// uDAPL's provider, and the program that runs other people's programs over it.
    pub dat: PathBuf,
    dat_tests: PathBuf,
}

impl Programs {
    /// Builds the programs. Blocks for the builds, each at most `limit`.
    pub fn build(workspace: &Workspace, wanted: Wanted, limit: Duration) -> Result<Programs, String> {
        let release = workspace.target.join("release");
        let (mut jobs, mut suites) = (BTreeMap::new(), "");
        if wanted == Wanted::All {
            run(&Cargo::new(RELEASE), workspace, limit, |_| {})?;
            let names =
                ["deckrun", "nas-ft", "hadb", "deckperf", "hosts-talker", "hosts-lossy", "leave-rank"];
            jobs.extend(names.map(|name| (name, release.join(name))));
            suites = "--test verbs --test tcp";
        } else {
            run(&Cargo::new("build --release --workspace --lib"), workspace, limit, |_| {})?;
        }
        let tests = Cargo::new("test --release --no-run --workspace --test dat").args(suites);
        let mut built = BTreeMap::new();
        run(&tests, workspace, limit, |line| built.extend(executable(line)))?;
        let test = |name: &str| {
            let path = built.get(name).map(|path| workspace.root.join(path));
            path.ok_or_else(|| format!("`{tests}` did not say where {name} lies"))
        };
        let suite = match wanted {
            Wanted::All => Some(Suite { path: test(suite::PROGRAM)?, counted: test(suite::COUNTED)? }),
            Wanted::Dat => None,
        };
        Ok(Programs { jobs, suite, dat: release.join("libudeck_dat.so"), dat_tests: test("dat")? })
    }

    /// The programs, with their names in the guests.
    pub fn packed(&self) -> impl Iterator<Item = (&str, &Path)> {
        let jobs = self.jobs.iter().map(|(name, path)| (*name, path.as_path()));
        let suite = self.suite.iter().map(|suite| ("conformance", suite.path.as_path()));
        jobs.chain(suite).chain([("dat", self.dat_tests.as_path())])
    }

    /// Programs that contain the transport.
    pub fn with_verbs(&self) -> impl Iterator<Item = &Path> {
        let programs = self.packed().filter(|(name, _)| !["deckrun", "dat"].contains(name));
        programs.map(|(_, path)| path).chain([self.dat.as_path()])
    }
}

fn run(
    cargo: &Cargo,
    workspace: &Workspace,
    limit: Duration,
    each_line: impl FnMut(&str),
) -> Result<(), String> {
    say!("    $ {cargo}");
    match cargo.run(&workspace.root, limit, each_line) {
        Ok(None) => Ok(()),
        Ok(Some(how)) => Err(format!("`{cargo}`: {how}")),
        Err(error) => Err(format!("cannot run `{cargo}`: {error}")),
    }
}

/// Reads `  Executable tests/tcp.rs (target/release/deps/tcp-0123)`: the name and the path.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let (source, path) =
        line.trim_start().strip_prefix("Executable ")?.strip_suffix(')')?.split_once(" (")?;
    let name = Path::new(source).file_stem()?.to_str()?;
    Some((name.to_owned(), path.into()))
}

/// Checks that a program contains the transport, and is not linked with the libraries of the transport.
pub fn loads_verbs_late(root: &Root, program: &Path) -> Result<(), String> {
    let libraries = root.libraries(program)?;
    let bytes = fs::read(program).map_err(|error| format!("{}: {error}", program.display()))?;
    let names: Vec<_> =
        libraries.iter().filter_map(|path| path.file_name()).map(|name| name.to_string_lossy()).collect();
    judge(&names, &bytes).map_err(|problem| format!("{} {problem}", program.display()))
}

fn judge(libraries: &[impl AsRef<str>], program: &[u8]) -> Result<(), String> {
    for late in LATE {
        if libraries.iter().any(|library| library.as_ref().starts_with(late)) {
            return Err(format!("is linked with {late}: it would not start where there is none"));
        }
    }
    let name = b"ibv_open_device";
    let found = program.windows(name.len()).any(|window| window == name);
    if found { Ok(()) } else { Err(format!("has no {} in it", super::TRANSPORT)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_test_program_is_read_from_what_cargo_prints() {
        let line = "  Executable tests/tcp.rs (/w/target/release/deps/tcp-28f13fc4fa7ab2a6)";
        assert_eq!(
            executable(line),
            Some(("tcp".into(), "/w/target/release/deps/tcp-28f13fc4fa7ab2a6".into()))
        );
        assert_eq!(executable("   Compiling udeck-tcp v0.1.0 (/w/transports/tcp)"), None);
    }

    #[test]
    fn a_program_that_is_linked_with_libibverbs_is_refused_and_so_is_one_without_verbs() {
        let program = b"...ibv_open_device...";
        assert_eq!(judge(&["libc.so.6"], program), Ok(()));
        assert!(judge(&["libc.so.6", "libibverbs.so.1"], program).unwrap_err().contains("linked with"));
        assert!(judge(&["libc.so.6"], b"......").unwrap_err().contains("has no verbs"));
    }
}
