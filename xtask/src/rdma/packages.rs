//! The Debian packages of which guests are made: QEMU, a kernel, stock RDMA libraries. They are unpacked into a folder of
//! the user's cache, by apt and dpkg, but not installed: apt keeps its books in that folder as well, as if nothing were
//! installed on this machine, so that it gets every library, changes nothing outside, and needs not be root.

use super::{Stop, modules, root::Root};
use crate::console::say;
use crate::{child, files};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Packages of a guest. The kernel is the plain one: the one for clouds has no `rdma_rxe`.
const PACKAGES: &[&str] = &[
    "qemu-system-x86",
    "linux-image-amd64",
    "kmod",
    "busybox-static",
    "iproute2",
    "ibverbs-providers",
    "ibverbs-utils",
    "librdmacm1",
    "libgcc-s1",
    "libdapl2",
    "libdapl-dev",
    "dapl2-utils",
    "coreutils",
];
/// Prefixes of apt's lines that show progress or trouble.
const APT_SAYS: &[&str] = &["Get:", "Ign:", "Err:", "Fetched ", "W:", "E:"];
/// Version of the recipe by which packages are unpacked; raise it when the recipe changes.
const RECIPE: u32 = 2;
/// Time limit for the download of 120 MB over a slow line, or for that of another run.
const LIMIT: Duration = Duration::from_secs(900);

/// Folder of the unpacked packages, and the lock on it: one run at a time.
#[derive(Debug)]
pub struct Cache {
    pub folder: PathBuf,
    /// The unpacked files, without the kernel's modules.
    pub root: Root,
    _lock: File,
}

impl Cache {
    /// Makes the folder if it is not ready. Blocks for the download, or while another run has the folder.
    pub fn ready(folder: PathBuf) -> Result<Cache, Stop> {
        let problem = |error| Stop::Fail(format!("cannot use the cache {}: {error}", folder.display()));
        fs::create_dir_all(&folder).map_err(problem)?;
        let waits = || say!("waiting for another run that uses {}", folder.display());
        let lock = files::lock(&folder.join("lock"), LIMIT, waits).map_err(problem)?;
        let root = Root(folder.join("root"));
        let stamp = format!("{RECIPE} {} {}\n", os_release("VERSION_ID"), PACKAGES.join(" "));
        if fs::read_to_string(folder.join("stamp")).is_ok_and(|text| text == stamp) {
            say!("the packages are in {}", folder.display());
        } else {
            let begun = Instant::now();
            download(&folder.join("apt"))?;
            unpack(&folder).map_err(Stop::Fail)?;
            fs::write(folder.join("stamp"), stamp).map_err(problem)?;
            // 160 MB that nobody needs again; what cannot be removed does no harm.
            let _ = fs::remove_dir_all(folder.join("apt"));
            say!("downloaded and unpacked in {:.1} s: {}", begun.elapsed().as_secs_f64(), folder.display());
        }
        Ok(Cache { folder, root, _lock: lock })
    }

    pub fn kernel(&self) -> PathBuf {
        self.folder.join("kernel")
    }

    /// The modules to load, in this order.
    pub fn modules(&self) -> Result<Vec<PathBuf>, String> {
        let problem = |error| format!("the cache {}: {error}", self.folder.display());
        let entries = fs::read_dir(self.folder.join("modules")).map_err(problem)?;
        let mut found: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        found.sort();
        Ok(found)
    }
}

/// A field of this system's `os-release`; empty if there is none.
pub fn os_release(field: &str) -> String {
    value_of(&fs::read_to_string("/etc/os-release").unwrap_or_default(), field)
}

/// Finds a field in lines `NAME=value` or `NAME="value"`.
fn value_of(text: &str, field: &str) -> String {
    let mut values = text.lines().filter_map(|line| line.split_once('='));
    let value = values.find(|(name, _)| *name == field).map(|(_, value)| value.trim_matches('"'));
    value.unwrap_or_default().to_owned()
}

/// Downloads the packages. Files of an earlier attempt, complete or begun, are not fetched again; apt checks everything.
fn download(apt: &Path) -> Result<(), Stop> {
    let problem = |error| Stop::Fail(format!("cannot make {}: {error}", apt.display()));
    for folder in ["state/lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(folder)).map_err(problem)?;
    }
    // An empty list of installed packages.
    fs::write(apt.join("state/status"), "").map_err(problem)?;
    let apt_get = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        let option = |name: &str, path: &str| format!("{name}={}", apt.join(path).display());
        command.args([
            "-o",
            &option("Dir::State", "state"),
            "-o",
            &option("Dir::State::status", "state/status"),
        ]);
        command.args(["-o", &option("Dir::Cache", "cache"), "-o", "Acquire::Retries=3"]);
        // A missing index is reported as that, and not as packages that do not exist.
        command.args(["-o", "APT::Update::Error-Mode=any"]);
        // Fetches as root: apt's usual user has no access to this folder.
        command.args(["-o", "APT::Sandbox::User=root", "-q", "-y"]).args(words);
        // Without the network the step is skipped, which is no failure.
        child::run_quoted(command, LIMIT, |line| APT_SAYS.iter().any(|word| line.starts_with(word)))
            .map_err(|why| Stop::Skip(format!("the packages cannot be downloaded: {why}")))
    };
    apt_get(&["update"])?;
    apt_get(&[&["install", "--download-only", "--no-install-recommends"], PACKAGES].concat())
}

/// Unpacks from `apt` to `root`, `kernel` and `modules`.
fn unpack(folder: &Path) -> Result<(), String> {
    let problem = |error| format!("cannot unpack to {}: {error}", folder.display());
    let root = Root(folder.join("root"));
    for left in ["root", "modules"] {
        files::remove(&folder.join(left)).map_err(problem)?;
        fs::create_dir(folder.join(left)).map_err(problem)?;
    }
    say!("unpacking");
    for entry in fs::read_dir(folder.join("apt/cache/archives")).map_err(problem)? {
        let package = entry.map_err(problem)?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            let mut command = Command::new("dpkg-deb");
            command.arg("--extract").args([&package, &root.0]);
            child::run_quoted(command, LIMIT, |_| true)?;
        }
    }
    fs::copy(root.find_beginning("boot", "vmlinuz-")?, folder.join("kernel")).map_err(problem)?;
    pick_modules(&root, &folder.join("modules"))
}

/// Copies the modules that a guest loads to `00-name.ko`, `01-other.ko`, and removes the other 390 MB.
fn pick_modules(root: &Root, to: &Path) -> Result<(), String> {
    let kernel = root.find_beginning("lib/modules", "")?;
    let all = kernel.parent().unwrap_or(&kernel);
    let problem = |error| format!("cannot pick modules of {}: {error}", kernel.display());
    let base = all.ancestors().nth(2).unwrap_or(all);
    let version = kernel.file_name().unwrap_or_default();
    // kmod behaves as depmod when it is called by this name.
    let mut depmod = root.command_named("depmod", "bin/kmod")?;
    depmod.arg("-b").arg(base).arg(version);
    child::run_quoted(depmod, LIMIT, |_| true)?;
    let modules_dep = fs::read_to_string(kernel.join("modules.dep")).map_err(problem)?;
    for (index, file) in modules::order(&modules_dep, modules::WANTED).into_iter().enumerate() {
        let name = file.rsplit('/').next().unwrap_or(file);
        fs::copy(kernel.join(file), to.join(format!("{index:02}-{name}"))).map_err(problem)?;
    }
    fs::remove_dir_all(all).map_err(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_known_by_what_it_says_of_itself() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!((value_of(text, "ID"), value_of(text, "VERSION_ID")), ("debian".into(), "12".into()));
        assert_eq!(value_of(text, "ID_LIKE"), "");
    }
}
