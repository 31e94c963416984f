//! The files of one run: a log for each rank, and what ranks must know of each other without the library's help.
//!
//! | file | meaning |
//! |---|---|
//! | `rank-N.log` | the facts of rank N |
//! | `dead-N` | rank N was killed, or its host was cut off |
//! | `doubt-R-S-N` | nobody told the poster of stream S what became of message N of round R |
//! | `ended-R-S` | stream S of round R ended early; in it, how many messages its poster tried to post |
//! | `sanitizer.PID` | what AddressSanitizer found in that process |
//!
//! What ranks tell each other is in links that lead nowhere: to make or read a link takes no descriptor, and a rank may have none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::soak::facts::Fact;
use crate::soak::plan::Round;

/// Names the folder to the ranks.
pub const VARIABLE: &str = "SOAK_FOLDER";
/// Leads the names of sanitizers' reports; a dot and a process's number follow.
pub const REPORT: &str = "sanitizer";

/// The folder of a run.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Folder {
        Folder(path.into())
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A rank's log, to be written to.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn log(&self, rank: usize) -> io::Result<Log> {
        let file = OpenOptions::new().create(true).append(true).open(self.log_path(rank))?;
        Ok(Log(file))
    }

    fn log_path(&self, rank: usize) -> PathBuf {
        self.0.join(format!("rank-{rank}.log"))
    }

    /// What a rank has written so far. A line that is no fact is something wrong.
    #[must_use]
    pub fn facts(&self, rank: usize) -> Vec<Fact> {
        let text = fs::read_to_string(self.log_path(rank)).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap_or_else(Fact::Wrong)).collect()
    }

    /// Says that a rank is dead.
    pub fn bury(&self, rank: usize) {
        // One that cannot be written makes a reader wait longer.
        let _ = symlink("dead", self.dead_path(rank));
    }

    #[must_use]
    pub fn is_dead(&self, rank: usize) -> bool {
        self.dead_path(rank).is_symlink()
    }

    /// Says that a stream ended early.
    pub fn end_stream(&self, round: Round, stream: usize, tried: u32) {
        let _ = symlink(tried.to_string(), self.ended_path(round, stream));
    }

    /// How many messages the poster of a stream that ended early tried to post.
    #[must_use]
    pub fn ended(&self, round: Round, stream: usize) -> Option<u32> {
        fs::read_link(self.ended_path(round, stream)).ok()?.to_str()?.parse().ok()
    }

    /// Says that a message may have come, or may not.
    pub fn doubt(&self, round: Round, stream: usize, number: u32) {
        let _ = symlink("in doubt", self.doubt_path(round, stream, number));
    }

    #[must_use]
    pub fn is_in_doubt(&self, round: Round, stream: usize, number: u32) -> bool {
        self.doubt_path(round, stream, number).is_symlink()
    }

    /// The first words of what a sanitizer has found, of each process, with the file's name.
    #[must_use]
    pub fn reports(&self) -> Vec<String> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let reports = files.filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            name.strip_prefix(REPORT)?.strip_prefix('.')?;
            let text = fs::read(file.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            let words =
                text.lines().find(|line| line.contains("Sanitizer")).unwrap_or("a sanitizer's report");
            Some(format!("{name}: {words}"))
        });
        reports.collect()
    }

    fn dead_path(&self, rank: usize) -> PathBuf {
        self.0.join(format!("dead-{rank}"))
    }

    fn doubt_path(&self, round: Round, stream: usize, number: u32) -> PathBuf {
        self.0.join(format!("doubt-{}-{stream}-{number}", round as usize))
    }

    fn ended_path(&self, round: Round, stream: usize) -> PathBuf {
        self.0.join(format!("ended-{}-{stream}", round as usize))
    }
}

/// A rank's log.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    pub fn tell(&self, fact: &Fact) {
        // Without its log a run fails for want of facts.
        let _ = (&self.0).write_all(format!("{fact}\n").as_bytes());
    }
}
