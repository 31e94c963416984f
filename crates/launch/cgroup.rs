//! A cgroup for the processes that a job starts on this host: it can be killed as a whole, however fast they
//! fork.
//!
//! The cgroup is made before the ranks start, below the cgroup (v2) of this process, where that works without
//! privileges. Each rank puts itself in before it becomes the program. `cgroup.kill` (Linux 5.14) then reaches
//! every process in it at once, also one that is being forked. Without a cgroup,
//! [`Orphans`](crate::orphans::Orphans) kills processes one by one.
//!
//! Guard and watcher share one cgroup, and the one that survives the other removes it. Each of them holds a
//! lock (flock) on the cgroup's folder, which the kernel releases with the last holder: the next deckrun in the
//! same place removes a cgroup that nobody holds.

use std::{
    cell::Cell,
    fs::{self, File},
    io::{self, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Component, Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    event::PollFlags,
    fs::{Access, FlockOperation, access, flock},
    process::getpid,
};

use crate::wait::ready;

/// Prefix of our cgroups' names.
const PREFIX: &str = "deckrun-";

/// How long to wait for processes to die of `cgroup.kill`, before they are left behind.
const LIMIT: Duration = Duration::from_secs(2);

/// How long to wait for the event that the cgroup is empty, before its state is read again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Maximum number of tries to make a cgroup, each after another deckrun took ours for an abandoned one.
const TRIES: usize = 8;

/// Maximum number of a folder's entries that are read.
const MAX_ENTRIES: usize = 4096;

/// Maximum number of cgroups that one removal visits: ranks may make their own below the job's.
const MAX_REMOVED: usize = 4096;

/// A cgroup for the ranks of a job on this host. Dropping it [removes](Cgroup::remove) it.
pub(crate) struct Cgroup {
    folder: PathBuf,
    /// `cgroup.procs`: a process that writes `0` to it enters the cgroup.
    entry: File,
    kill: File,
    events: File,
    /// Lock on the folder, held as long as guard or watcher lives.
    _held: File,
    /// A process in the cgroup did not die in time. Nobody waits for it a second time.
    is_stuck: Cell<bool>,
}

impl Cgroup {
    /// Makes a cgroup below the one of this process. `Err` says why that is not possible.
    pub(crate) fn make() -> Result<Cgroup, String> {
        let parent = own_folder()?;
        sweep(&parent);
        for _ in 0..TRIES {
            if let Some(made) = Cgroup::make_below(&parent)? {
                return Ok(made);
            }
        }
        Err(format!("another process removes cgroups made in {}", parent.display()))
    }

    /// Returns `None` if another deckrun removed the cgroup before we locked it.
    fn make_below(parent: &Path) -> Result<Option<Cgroup>, String> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| format!("cannot draw a random name: {error}"))?;
        let folder = parent.join(format!("{PREFIX}{:016x}", u64::from_ne_bytes(random)));
        fs::create_dir(&folder).map_err(|error| cannot("a cgroup cannot be made in", parent, &error))?;
        match Cgroup::open(&folder) {
            Ok(Some(made)) => Ok(Some(made)),
            Ok(None) => {
                let _ = fs::remove_dir(&folder);
                Ok(None)
            }
            Err(why) => {
                let is_gone = !folder.exists();
                let _ = fs::remove_dir(&folder);
                if is_gone { Ok(None) } else { Err(why) }
            }
        }
    }

    /// Returns `None` if another process holds the lock.
    fn open(folder: &Path) -> Result<Option<Cgroup>, String> {
        let Ok(held) = hold(folder) else { return Ok(None) };
        let writable = |name: &str| File::options().write(true).open(folder.join(name));
        let kill = writable("cgroup.kill").map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => "cgroups have no cgroup.kill before Linux 5.14".to_owned(),
            _ => cannot("no cgroup can be killed in", folder, &error),
        })?;
        // The type beside threaded cgroups is `domain invalid`.
        let kind = fs::read_to_string(folder.join("cgroup.type")).unwrap_or_default();
        if kind.trim() != "domain" {
            let parent = folder.parent().unwrap_or(folder).display();
            return Err(format!(
                "a cgroup in {parent} is of type {:?}, which takes no processes",
                kind.trim()
            ));
        }
        let entry =
            writable("cgroup.procs").map_err(|error| cannot("nobody can be put in", folder, &error))?;
        let events = File::open(folder.join("cgroup.events"));
        let events = events.map_err(|error| cannot("nobody is told the events of", folder, &error))?;
        let (folder, is_stuck) = (folder.to_owned(), Cell::new(false));
        Ok(Some(Cgroup { folder, entry, kill, events, _held: held, is_stuck }))
    }

    /// Returns the cgroup in which this one was made.
    pub(crate) fn parent(&self) -> &Path {
        self.folder.parent().unwrap_or(&self.folder)
    }

    /// Returns the descriptor by which a child enters the cgroup: it writes `0` to it.
    pub(crate) fn entry(&self) -> io::Result<OwnedFd> {
        self.entry.try_clone().map(OwnedFd::from)
    }

    /// Kills every process in the cgroup, and waits at most `LIMIT` until it is empty.
    pub(crate) fn end(&self) {
        let limit = Instant::now() + LIMIT;
        while !self.is_stuck.get() && is_populated(&self.events) {
            if Instant::now() >= limit {
                self.is_stuck.set(true);
                return;
            }
            // Kill again in each round: a child enters late if its parent was killed while it was putting the
            // child in.
            let _ = (&self.kill).write(b"1");
            let until = limit.min(Instant::now() + LOOK_AGAIN);
            let _ = ready(std::iter::once((self.events.as_fd(), PollFlags::PRI)), Some(until));
        }
    }

    /// Kills every process in the cgroup, and removes it and all cgroups below it. Further calls do nothing.
    pub(crate) fn remove(&self) {
        let limit = Instant::now() + LIMIT;
        loop {
            self.end();
            match remove(&self.folder, &mut { MAX_REMOVED }) {
                // A process may have entered since.
                Err(_) if Instant::now() < limit && !self.is_stuck.get() => {
                    thread::sleep(Duration::from_millis(1))
                }
                _ => return,
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the folder of this process's cgroup, if cgroups may be made below it.
fn own_folder() -> Result<PathBuf, String> {
    let read = |path: &str| match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => Err(format!("{path} cannot be read: {error}")),
    };
    let membership = read("/proc/self/cgroup")?;
    let own = membership.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.ok_or("there is no cgroup v2 on this system")?;
    let mut why = "the cgroup v2 of this process is not mounted".to_owned();
    for folder in folders(own, &read("/proc/self/mountinfo")?) {
        match check(&folder) {
            Ok(()) => return Ok(folder),
            Err(reason) => why = reason,
        }
    }
    Err(why)
}

/// Returns the folder of the cgroup `own`, as `/proc/self/cgroup` names it, in each mounted hierarchy that
/// shows it.
fn folders(own: &str, mounts: &str) -> Vec<PathBuf> {
    let folder = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut fields = place.split(' ').skip(3);
        let (root, mount) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let below = Path::new(own).strip_prefix(root).ok()?;
        // The path of a cgroup outside of the namespace begins with `..`.
        let is_shown = below.components().all(|part| matches!(part, Component::Normal(_)));
        (kind.starts_with("cgroup2 ") && is_shown)
            .then(|| Path::new(&mount).components().chain(below.components()).collect())
    };
    mounts.lines().filter_map(folder).collect()
}

/// Decodes a field of mountinfo, which writes some bytes as `\` and three octal digits.
fn unescaped(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let byte = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match byte {
            Some(byte) if byte.is_ascii() => {
                plain.push(byte.into());
                plain += &part[3..];
            }
            _ => plain.extend(["\\", part]),
        }
    }
    plain
}

/// Checks that this folder is the cgroup of this process, and that ranks may be put into a cgroup below it.
fn check(folder: &Path) -> Result<(), String> {
    let read = |name: &str| {
        let text = fs::read_to_string(folder.join(name));
        text.map_err(|error| cannot(&format!("{name} cannot be read in"), folder, &error))
    };
    let me = getpid().as_raw_nonzero().to_string();
    if !read("cgroup.procs")?.lines().any(|pid| pid == me) {
        return Err(format!("{} is not the cgroup of this process", folder.display()));
    }
    // A cgroup with controllers for its children shares resources out among them: ranks would no longer be
    // treated as deckrun is.
    let controllers = read("cgroup.subtree_control")?;
    if !controllers.trim().is_empty() {
        let folder = folder.display();
        return Err(format!("{folder} shares {} out among the cgroups below it", controllers.trim()));
    }
    // To move a process from one cgroup to another takes write permission in the target and in their common
    // ancestor.
    let may_move = access(folder.join("cgroup.procs"), Access::WRITE_OK);
    may_move.map_err(|error| cannot("no process can be moved in", folder, &error.into()))
}

fn cannot(what: &str, folder: &Path, error: &io::Error) -> String {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; `systemd-run --user --scope deckrun ...` has one of the user's own"
        }
        _ => "",
    };
    format!("{what} {} ({error}{hint})", folder.display())
}

/// Takes the lock by which users of this cgroup are known.
fn hold(folder: &Path) -> io::Result<File> {
    let held = File::open(folder)?;
    flock(&held, FlockOperation::NonBlockingLockExclusive)?;
    Ok(held)
}

/// Tells whether a process is in the cgroup, or below it. A removed cgroup has none.
fn is_populated(events: &File) -> bool {
    let mut text = [0; 256];
    let length = events.read_at(&mut text, 0).unwrap_or(0);
    text[..length].split(|byte| *byte == b'\n').any(|line| line == b"populated 1")
}

/// Removes cgroups whose deckruns were all killed, once they are empty.
fn sweep(parent: &Path) {
    for folder in subfolders(parent) {
        let name = folder.file_name().unwrap_or_default();
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
            && let Ok(_held) = hold(&folder)
            && let Ok(events) = File::open(folder.join("cgroup.events"))
            && !is_populated(&events)
        {
            let _ = remove(&folder, &mut { MAX_REMOVED });
        }
    }
}

/// Removes a cgroup, and first those below it.
fn remove(folder: &Path, left: &mut usize) -> io::Result<()> {
    *left = left.checked_sub(1).ok_or(io::ErrorKind::QuotaExceeded)?;
    for below in subfolders(folder) {
        remove(&below, left)?;
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().take(MAX_ENTRIES).flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(own: &str, mounts: &str) -> Vec<String> {
        folders(own, mounts).into_iter().map(|folder| folder.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn the_own_cgroup_is_found_where_it_is_mounted() {
        let unified = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(found("/", unified), ["/sys/fs/cgroup"]);
        assert_eq!(found("/user.slice/x.scope", unified), ["/sys/fs/cgroup/user.slice/x.scope"]);
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        assert_eq!(found("/a", hybrid), ["/sys/fs/cgroup/unified/a"]);
        let twice = format!("{hybrid}\n{}", unified.replace("/sys/fs/cgroup", "/mnt/c\\040g"));
        assert_eq!(found("/", &twice), ["/sys/fs/cgroup/unified", "/mnt/c g"]);
    }

    #[test]
    fn what_is_mounted_of_another_cgroup_is_not_ours() {
        let part = "35 24 0:30 /docker/b /sys/fs/cgroup ro - cgroup2 cgroup ro";
        assert_eq!(found("/docker/b/c", part), ["/sys/fs/cgroup/c"]);
        assert_eq!(found("/docker/bc", part), [""; 0]);
        assert_eq!(found("/", part), [""; 0]);
        // Hierarchies seen from inside a cgroup namespace, with a cgroup outside of it.
        assert_eq!(found("/", "35 24 0:30 /.. /sys/fs/cgroup rw - cgroup2 cgroup rw"), [""; 0]);
        assert_eq!(found("/../d", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup rw"), [""; 0]);
        for cut in ["", " - ", "1 2 3", "1 2 3 / - cgroup2 x", "1 2 3 / /x - cgroup x rw"] {
            assert_eq!(found("/", cut), [""; 0], "{cut:?}");
        }
    }

    #[test]
    fn fields_of_mountinfo_come_back() {
        for (field, plain) in [("/a", "/a"), ("/a\\040b\\134c", "/a b\\c"), ("\\", "\\"), ("\\9x", "\\9x")] {
            assert_eq!(unescaped(field), plain);
        }
    }
}
