//! Files of a run: a log for each rank, and facts that ranks must share without the library's help.
//!
//! | file | meaning |
//! |---|---|
//! | `rank-N.log` | the facts of rank N |
//! | `dead-N` | rank N was killed, or its host was cut off |
//! | `doubt-R-S-N` | the poster of stream S was not told what became of message N of round R |
//! | `ended-R-S` | stream S of round R ended early; it contains the number of messages that its poster tried to
//! post |
//! | `sanitizer.PID` | AddressSanitizer's findings in this process |
//!
//! Ranks leave facts for each other in links that lead nowhere: making or reading a link takes no descriptor, and a rank may have
//! none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::soak::facts::Fact;
use crate::soak::plan::Round;

/// Variable that gives the folder to the ranks.
pub const VARIABLE: &str = "SOAK_FOLDER";
/// Prefix of the names of sanitizers' reports; a dot and a process's number follow.
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

    /// Opens a rank's log for writing.
    ///
    /// # Errors
    /// The log cannot be opened.
    pub fn log(&self, rank: usize) -> io::Result<Log> {
        let file = OpenOptions::new().create(true).append(true).open(self.log_path(rank))?;
        Ok(Log(file))
    }

    fn log_path(&self, rank: usize) -> PathBuf {
        self.0.join(format!("rank-{rank}.log"))
    }

    /// Facts that a rank has written up to now. A line that is no fact counts as a fault.
    #[must_use]
    pub fn facts(&self, rank: usize) -> Vec<Fact> {
        let text = fs::read_to_string(self.log_path(rank)).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap_or_else(Fact::Wrong)).collect()
    }

    /// Records that a rank is dead.
    pub fn bury(&self, rank: usize) {
        // If the link cannot be made, a reader waits longer.
        let _ = symlink("dead", self.dead_path(rank));
    }

    #[must_use]
    pub fn is_dead(&self, rank: usize) -> bool {
        self.dead_path(rank).is_symlink()
    }

    /// Records that a stream ended early.
    pub fn end_stream(&self, round: Round, stream: usize, tried: u32) {
        let _ = symlink(tried.to_string(), self.ended_path(round, stream));
    }

    /// Number of messages that the poster of a stream tried to post, if the stream ended early.
    #[must_use]
    pub fn ended(&self, round: Round, stream: usize) -> Option<u32> {
        fs::read_link(self.ended_path(round, stream)).ok()?.to_str()?.parse().ok()
    }

    /// Records that a message may have arrived or not.
    pub fn doubt(&self, round: Round, stream: usize, number: u32) {
        let _ = symlink("in doubt", self.doubt_path(round, stream, number));
    }

    #[must_use]
    pub fn is_in_doubt(&self, round: Round, stream: usize, number: u32) -> bool {
        self.doubt_path(round, stream, number).is_symlink()
    }

    /// First words of the sanitizers' findings, of each process, with the file's name.
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
        // Without its log a run fails for lack of facts.
        let _ = (&self.0).write_all(format!("{fact}\n").as_bytes());
    }
}
