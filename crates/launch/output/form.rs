//! The form of the ranks' output, chosen by the kind of this process's own output.

use std::io::{self, IsTerminal};

use rustix::fs::{FileType, Stat, fstat};

use crate::control::wire::OutputForm;

/// Returns the form, and whether standard output and standard error are terminals.
pub(crate) fn of_this_process(tagged: bool) -> (OutputForm, [bool; 2]) {
    let files = [fstat(io::stdout()).ok(), fstat(io::stderr()).ok()];
    let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let watched = files.each_ref().map(|file| !file.as_ref().is_some_and(is_file));
    let joined = match &files {
        [Some(stdout), Some(stderr)] => (stdout.st_dev, stdout.st_ino) == (stderr.st_dev, stderr.st_ino),
        _ => false,
    };
    (OutputForm { tagged, joined, watched }, [io::stdout().is_terminal(), io::stderr().is_terminal()])
}
