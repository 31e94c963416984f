//! The installation, and the compilers and tools of this machine.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::OnceLock,
    time::Duration,
};

use udeck_jobs::{Ended, Job, netns::Network};

/// Time limit of a program: it only ends a hang.
const LIMIT: Duration = Duration::from_secs(120);
const INSTALLED: &str = "UDECK_INSTALLED";

/// A program that a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    Cc,
    Clang,
    Gxx,
    Clangxx,
    Gfortran,
    Valgrind,
    Nm,
    PkgConfig,
    Man,
    Mandoc,
    Bash,
    Zsh,
    Fish,
    /// Network namespaces, as hosts.
    Hosts,
}

impl Tool {
    /// Command name of the tool.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Cc => "cc",
            Tool::Clang => "clang",
            Tool::Gxx => "g++",
            Tool::Clangxx => "clang++",
            Tool::Gfortran => "gfortran",
            Tool::Valgrind => "valgrind",
            Tool::Nm => "nm",
            Tool::PkgConfig => "pkg-config",
            Tool::Man => "man",
            Tool::Mandoc => "mandoc",
            Tool::Bash => "bash",
            Tool::Zsh => "zsh",
            Tool::Fish => "fish",
            Tool::Hosts => "hosts",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Tool::Cc => "gcc",
            Tool::Clangxx => "clang",
            Tool::Nm => "binutils",
            Tool::PkgConfig => "pkgconf",
            Tool::Man => "man-db",
            tool => tool.name(),
        }
    }

    /// Why the tool cannot be used here; `None`: it can.
    pub fn missing(self) -> Option<String> {
        if self == Tool::Hosts {
            return Network::is_possible().err();
        }
        let found = Command::new(self.name()).arg("--version").output();
        found.is_err().then(|| format!("no {} (Debian: {})", self.name(), self.package()))
    }
}

/// Path of a file in the installation.
pub fn installed(path: &str) -> PathBuf {
    let prefix = env::var_os(INSTALLED)
        .unwrap_or_else(|| panic!("{INSTALLED} is not set: run these tests by `cargo xtask test --only c`"));
    Path::new(&prefix).join(path)
}

/// Path of a file in the repository.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Path for a compiled program; the folder is made anew for each run of the tests.
pub fn output(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        folder
    });
    folder.join(name)
}

/// The command deckcc with this compiler.
pub fn deckcc(compiler: Tool) -> Job {
    let variable = match compiler {
        Tool::Gxx | Tool::Clangxx => "CXX",
        Tool::Gfortran => "FC",
        _ => "CC",
    };
    Job::new(&installed("bin/deckcc")).limit(LIMIT).env(variable, compiler.name())
}

/// Compiles a file of the repository, and returns the program's path.
pub fn compiled(compiler: Tool, file: &str, flags: &[&str], name: &str) -> PathBuf {
    let strict: &[&str] = match compiler {
        Tool::Cc | Tool::Clang => &["-std=c99", "-pedantic", "-D_POSIX_C_SOURCE=200809L"],
        Tool::Gxx | Tool::Clangxx => &["-std=c++17", "-pedantic"],
        _ => &["-std=f2008"],
    };
    let program = output(name);
    let mut job = deckcc(compiler).args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"]).args(strict);
    if compiler == Tool::Gfortran {
        // The option sets the folder for the file of the module.
        job = job.arg("-J").arg(program.parent().expect("a folder"));
    }
    let _ = job.arg(source(file)).arg("-o").arg(&program).args(flags).run().ok();
    program
}

/// A job of this program alone.
pub fn alone(program: &Path) -> Job {
    Job::new(program).limit(LIMIT)
}

/// A job of this program as `ranks` ranks, over this transport.
pub fn ranks(program: &Path, ranks: usize, transport: &str) -> Job {
    launched(&["-n", &ranks.to_string(), "--"], program, transport)
}

/// A job of this program under deckrun with these words, over this transport.
pub fn launched(words: &[&str], program: &Path, transport: &str) -> Job {
    let deckrun = Job::new(&installed("bin/deckrun")).limit(LIMIT).args(words);
    deckrun.arg(program).env("DECK_TRANSPORT", transport)
}

/// Output of a program.
pub fn says(mut command: Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks that a job has ended well and printed these words.
pub fn has_said(ended: Ended, words: &str) {
    let _ = ended.ok().line_with(words);
}

/// Makes a name that no other run of the tests uses.
pub fn own(name: &str) -> String {
    format!("{name}-{}", process::id())
}
