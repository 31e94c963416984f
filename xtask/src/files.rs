//! Files of the checkout and of the caches.

use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// All files below a folder whose names end with `end`, sorted, except hidden ones and build outputs.
pub fn below(folder: &Path, end: &str) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let entries =
        fs::read_dir(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()))?;
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        match entry.file_type() {
            _ if name.starts_with('.') || name == "target" => {}
            Ok(kind) if kind.is_dir() => found.extend(below(&path, end)?),
            Ok(kind) if kind.is_file() && name.ends_with(end) => found.push(path),
            _ => {}
        }
    }
    found.sort();
    Ok(found)
}

pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Writes a file, and makes the folders above it.
pub fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    let folder = path.parent().expect("a file lies in a folder");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Removes a folder with its contents, if it exists.
pub fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes a file and locks it: one run at a time has it. Calls `waits` if another run has it, and waits for at most
/// `limit`. A program that another thread is starting holds this process's descriptors for a moment.
///
/// # Errors
/// `WouldBlock`: the time is over. Other errors are the system's.
pub fn lock(path: &Path, limit: Duration, waits: impl FnOnce()) -> io::Result<File> {
    let file = File::create(path)?;
    let deadline = Instant::now() + limit;
    let mut waits = Some(waits);
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::AGAIN) if Instant::now() < deadline => {
                waits.take().into_iter().for_each(|waits| waits());
                thread::sleep(Duration::from_millis(50));
            }
            result => return result.map(|()| file).map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_at_a_time_has_the_lock() {
        let file = std::env::temp_dir().join(format!("xtask-lock-{}", std::process::id()));
        let limit = Duration::from_secs(60);
        let first = lock(&file, limit, || ()).unwrap();
        let (place, (sender, receiver)) = (file.clone(), std::sync::mpsc::channel());
        let second = thread::spawn(move || sender.send(lock(&place, limit, || ()).is_ok()).unwrap());
        assert!(receiver.recv_timeout(Duration::from_millis(300)).is_err(), "two have it");
        drop(first);
        assert!(receiver.recv().unwrap());
        second.join().unwrap();
        fs::remove_file(&file).unwrap();
    }
}
