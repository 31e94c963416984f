//! A temporary folder for the programs, sockets and logs of a run.

use std::{
    env, fs, io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
};

/// A temporary folder, which is removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a folder in the system's place for temporary files; other users cannot read it.
    ///
    /// # Errors
    /// Errors of the system, such as no space or no permission there.
    pub fn new() -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("deckperf-{}-{number}", process::id()));
        // The folder must be new: one that exists already is somebody else's.
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_everything_in_it() {
        let (one, other) = (Scratch::new().expect("a folder"), Scratch::new().expect("another folder"));
        fs::write(one.path().join("program"), "x").expect("writes");
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().is_dir());
    }
}
