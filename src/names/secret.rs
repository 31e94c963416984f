//! The secret that processes started by hand share.
//!
//! `DECK_DIRECTORY_SECRET` contains it as text, `DECK_DIRECTORY_SECRET_FILE` names a file of it that only its
//! owner may read. Without either, each user of a host has one, in a file that the first process makes: then
//! processes of this user on this host connect, and no others.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use udeck_sys::above_stdio;
use udeck_via::auth::mac;

pub(crate) const ENV_SECRET: &str = "DECK_DIRECTORY_SECRET";
pub(crate) const ENV_FILE: &str = "DECK_DIRECTORY_SECRET_FILE";

pub(crate) struct Secret {
    pub key: [u8; 32],
    /// Whether no secret was given: this one is for this host only.
    pub of_host: bool,
}

/// # Errors
/// In words.
pub(crate) fn find() -> Result<Secret, String> {
    let given = match (std::env::var_os(ENV_SECRET), std::env::var_os(ENV_FILE)) {
        (Some(words), _) => Some(words.into_vec()),
        (None, Some(path)) => {
            let path = PathBuf::from(path);
            Some(read_private(&path).map_err(|why| format!("{ENV_FILE}={}: {why}", path.display()))?)
        }
        (None, None) => None,
    };
    match given {
        Some(bytes) => Ok(Secret { key: key_of(&bytes)?, of_host: false }),
        None => Ok(Secret { key: of_user()?, of_host: true }),
    }
}

/// Derives the key. White space around text does not count; other bytes count as they are.
fn key_of(given: &[u8]) -> Result<[u8; 32], String> {
    let secret = std::str::from_utf8(given).map_or(given, |text| text.trim().as_bytes());
    if secret.len() < 16 {
        return Err(format!(
            "the secret of {ENV_SECRET} or {ENV_FILE} is shorter than 16 bytes: whoever guesses it connects"
        ));
    }
    Ok(mac(&[0; 32], "udeck directory secret", &[secret]))
}

fn read_private(path: &Path) -> Result<Vec<u8>, String> {
    // Opens without waiting: another user may have put a named pipe there.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let open = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let mut file = open.map_err(|error| error.to_string())?;
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() || about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o077 != 0 {
        return Err("it is not a file of this user's that nobody else may read (chmod 600)".into());
    }
    let mut bytes = Vec::new();
    io::Read::by_ref(&mut file).take(4096).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn of_user() -> Result<[u8; 32], String> {
    let uid = rustix::process::geteuid().as_raw();
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    let path = folder.unwrap_or_else(std::env::temp_dir).join(format!("udeck-directory-{uid}.secret"));
    let why = |error: &dyn std::fmt::Display| {
        format!("this user's secret {}: {error}; set {ENV_SECRET}, or remove that file", path.display())
    };
    if !path.exists() {
        make(&path).map_err(|error| why(&error))?;
    }
    let bytes = read_private(&path).map_err(|error| why(&error))?;
    bytes.try_into().map_err(|_| why(&"it does not have 32 bytes"))
}

/// Makes the file. Several processes may do this at a time: one file wins, and is whole.
fn make(path: &Path) -> io::Result<()> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    // A unique name: neither a process with this id in another container has it, nor one that ended just here.
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(io::Error::other)?;
    let own = path.with_extension(super::address::hex(&name));
    let mut file = above_stdio(OpenOptions::new().write(true).create_new(true).mode(0o600).open(&own))?;
    let made = file.write_all(&bytes).and_then(|()| match fs::hard_link(&own, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    fs::remove_file(&own)?;
    made
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("udeck-directory-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn every_byte_of_a_secret_counts() {
        let binary = |last| key_of(&[[0xf0; 31].as_slice(), &[last]].concat()).unwrap();
        assert_ne!(binary(0xf1), binary(0xf2));
        assert_ne!(key_of(&[0x80; 16]).unwrap(), key_of(&[0x81; 16]).unwrap());
        // An editor's line feed does not count.
        assert_eq!(key_of("sixteen letters, é\n".as_bytes()), key_of("sixteen letters, é".as_bytes()));
        assert!(key_of(b"fifteen letters\n\n").is_err() && key_of(&[0xff; 15]).is_err());
    }

    #[test]
    fn one_file_wins_and_is_whole() {
        let folder = folder("makes");
        let path = folder.join("udeck-directory.secret");
        make(&path).unwrap();
        let first = read_private(&path).unwrap();
        assert_eq!(first.len(), 32);
        make(&path).unwrap();
        assert_eq!(read_private(&path).unwrap(), first);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_another_user_may_have_put_there_is_refused_at_once() {
        let folder = folder("refuses");
        let (pipe, link, open) = (folder.join("pipe"), folder.join("link"), folder.join("open"));
        assert!(
            std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().unwrap().success()
        );
        fs::write(&open, [7; 32]).unwrap();
        std::os::unix::fs::symlink(&open, &link).unwrap();
        for path in [pipe, link, open, folder.clone()] {
            let (done, read) = mpsc::channel();
            let (of, why) = (path.clone(), path.display().to_string());
            let _ = std::thread::spawn(move || done.send(read_private(&of)));
            read.recv_timeout(Duration::from_secs(20)).expect(&why).expect_err(&why);
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
