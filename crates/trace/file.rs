//! Opening of a trace's files. Their names can be predicted, and other users may write to their folder, for
//! example `/tmp`. A link, a FIFO or a file of another user that lies there must therefore not be taken for
//! ours.

use std::fs::{self, File};
use std::io::{self, Error, ErrorKind, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use udeck_sys::above_stdio;

/// Maximum number of symbolic links that are followed to the place of a trace.
const MAX_LINKS: usize = 40;

/// A file that was just created. A write that would make it longer than the process may (`RLIMIT_FSIZE`) is an
/// error: the kernel would end the process.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    bytes: u64,
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        udeck_sys::check_file_size(self.bytes + bytes.len() as u64)?;
        let written = self.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Creates a file that does not exist yet, which only this user may read.
///
/// # Errors
/// A file of this name exists already, or the system cannot create it.
pub fn create_private(path: &Path) -> io::Result<NewFile> {
    create(path, Mode::RUSR | Mode::WUSR)
}

/// Creates a file that does not exist yet, with the rights that the process gives to new files.
pub(crate) fn create_shared(path: &Path) -> io::Result<NewFile> {
    create(path, Mode::from_raw_mode(0o666))
}

fn create(path: &Path, mode: Mode) -> io::Result<NewFile> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    match above_stdio(rustix::fs::open(path, flags, mode)) {
        Ok(file) => Ok(NewFile { file: file.into(), bytes: 0 }),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Error::new(
            ErrorKind::AlreadyExists,
            "something of this name is there already; remove it, or let DECK_TRACE name a folder that only you can write",
        )),
        Err(error) => Err(error),
    }
}

/// Opens a part for reading, if it is a file of this user. It never waits, as a FIFO would make it.
///
/// # Errors
/// The file is a link, no regular file, or another user's (root may read all), or the system cannot open it.
pub fn open_own(path: &Path) -> io::Result<File> {
    let file = open_regular(path, OFlags::NOFOLLOW)?;
    let user = rustix::process::geteuid();
    if !user.is_root() && file.metadata()?.uid() != user.as_raw() {
        return Err(Error::new(ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    Ok(file)
}

/// Opens a regular file for reading, without waiting.
pub(crate) fn open_regular(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(above_stdio(rustix::fs::open(path, flags, Mode::empty()))?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::new(ErrorKind::InvalidInput, "it is no regular file")),
    }
}

/// Follows the links of this user and of root at `path` to the place that they name, which need not exist yet.
///
/// # Errors
/// Another user made one of the links, or there are too many.
pub(crate) fn follow_own_links(path: &Path) -> io::Result<PathBuf> {
    let mut place = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Some(link) = fs::symlink_metadata(&place).ok().filter(fs::Metadata::is_symlink) else {
            return Ok(place);
        };
        if ![0, rustix::process::geteuid().as_raw()].contains(&link.uid()) {
            let what = format!("{} is a link that another user made (user {})", place.display(), link.uid());
            return Err(Error::new(ErrorKind::PermissionDenied, what));
        }
        let to = fs::read_link(&place)?;
        place = place.parent().map_or_else(|| to.clone(), |folder| folder.join(&to));
    }
    Err(rustix::io::Errno::LOOP.into())
}
