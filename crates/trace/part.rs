//! A process's part of the trace: a file of its own, beside the job's.
//!
//! The file is an array of events that is not closed, which viewers read as it is: whatever happens to the
//! process, its written events can be viewed. The number of its events is bounded; further ones are counted.

pub(crate) mod buffer;

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use thiserror::Error;
use udeck_sys::process::is_forked;
use udeck_sys::{say, thread};

use self::buffer::{Events, ThreadBuffer};
use crate::file::{NewFile, create_private};
use crate::json;
use crate::record::NO_RANK;

/// Maximum number of events that a process writes, arrows included: some 200 MB.
pub const MAX_EVENTS: u64 = 1_000_000;
/// Upper bound of the length of a part, in bytes. A part that another host sends is cut there.
pub const MAX_BYTES: u64 = 512 << 20;
/// Bytes at the end of a part that events leave to the names of ranks and threads and to the count of dropped events.
const ROOM_FOR_NAMES: u64 = 16 << 20;
/// Interval at which all buffers are written.
const TICK: Duration = Duration::from_millis(500);

/// State of the part, which decides what happens to events.
static STATE: AtomicU8 = AtomicU8::new(EARLY);
/// There was no part yet: events wait in their buffers.
const EARLY: u8 = 0;
const OPEN: u8 = 1;
/// The last part was closed: events are dropped.
const CLOSED: u8 = 2;

/// The part of this process, while one of its ranks has a hold on it.
static CURRENT: Mutex<Option<Arc<Process>>> = Mutex::new(None);

/// Reason why there can be no trace.
#[derive(Debug, Error)]
#[error("writing the trace {}: {source}", path.display())]
pub struct PartError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// Names of a part: its file, rank, job and host.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The job's file ([`crate::VARIABLE`]).
    pub path: PathBuf,
    /// The rank.
    pub rank: u32,
    /// The number that names the job.
    pub job: u64,
    /// The rank's host.
    pub host: String,
}

/// A rank's hold on its process's part. Dropping the last one of a process closes the file.
#[derive(Debug)]
pub struct Part {
    process: Arc<Process>,
}

/// Returns the path of the part of the process with this rank: beside the job's file, or, if that folder is not
/// on this host, in the folder for temporary files. The job is in the name: two jobs with one `DECK_TRACE` do
/// not write into each other's parts.
pub fn part_path(path: &Path, job: u64, rank: u32) -> PathBuf {
    beside(path, job, rank, "part")
}

/// Returns the path of a part that another host has sent, until the merge. Hosts may share their files: the
/// path differs from the sender's own, which the sender still reads and removes.
pub fn received_path(path: &Path, job: u64, rank: u32) -> PathBuf {
    beside(path, job, rank, "received")
}

fn beside(path: &Path, job: u64, rank: u32, what: &str) -> PathBuf {
    let name = path.file_name().unwrap_or("trace".as_ref()).to_string_lossy();
    let part = format!("{name}.{job:x}.rank-{rank}.{what}");
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => Path::new("."),
    };
    if folder.is_dir() { folder.join(part) } else { std::env::temp_dir().join(part) }
}

impl Part {
    /// Opens the part of this process, or joins the part that another rank of it has opened.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open(opening: &Opening) -> Result<Part, PartError> {
        let mut current = CURRENT.lock();
        if let Some(process) = &*current {
            process.add_rank(opening);
            return Ok(Part { process: process.clone() });
        }
        let process = Process::create(opening)?;
        process.add_rank(opening);
        *current = Some(process.clone());
        STATE.store(OPEN, Ordering::Release);
        start_ticks(&process);
        Ok(Part { process })
    }

    /// Returns the part's file.
    pub fn path(&self) -> &Path {
        &self.process.path
    }

    /// Returns the rank that opened the part, after which the file is named.
    pub fn rank(&self) -> u32 {
        self.process.rank
    }

    /// Writes the events that the process's threads have recorded so far. Returns the number of events that
    /// were dropped.
    ///
    /// # Errors
    /// The error of the first failed write, at this and all later calls: the part ends there.
    pub fn write(&self) -> Result<u64, PartError> {
        buffer::write_all(&self.process);
        let mut file = self.process.file.lock();
        file.dropped += buffer::take_dropped();
        let (pid, dropped) = (self.process.rank, file.dropped);
        if dropped > 0 {
            let mut line = String::new();
            json::metadata(&mut line, (pid, 0), "udeck_dropped", ("events", &dropped.to_string()));
            file.append(&line);
        }
        let path = self.process.path.clone();
        match &file.failed {
            None => Ok(dropped),
            Some(error) => Err(PartError { path, source: io::Error::new(error.kind(), error.to_string()) }),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if is_forked() {
            return;
        }
        buffer::write_all(&self.process);
        let mut current = CURRENT.lock();
        if self.process.leave() {
            *current = None;
            STATE.store(CLOSED, Ordering::Release);
            *self.process.ended.0.lock() = true;
            self.process.ended.1.notify_all();
        }
    }
}

/// The part of a process.
#[derive(Debug)]
pub(crate) struct Process {
    path: PathBuf,
    /// The rank that opened the part: events of threads without a rank are its.
    rank: u32,
    file: Mutex<PartFile>,
    spares: Mutex<Vec<Events>>,
    ranks: Mutex<u32>,
    ended: (Mutex<bool>, Condvar),
}

#[derive(Debug)]
struct PartFile {
    file: NewFile,
    events: u64,
    /// Number of bytes that were written.
    bytes: u64,
    dropped: u64,
    /// Threads whose names were written, by rank.
    known: BTreeSet<(u32, u32)>,
    /// The first error: nothing is written behind a line that is cut off.
    failed: Option<io::Error>,
}

impl PartFile {
    fn append(&mut self, text: &str) {
        let bytes = self.bytes + text.len() as u64;
        if self.failed.is_some() || bytes > MAX_BYTES {
            return;
        }
        match self.file.write_all(text.as_bytes()) {
            Ok(()) => self.bytes = bytes,
            Err(error) => self.failed = Some(error),
        }
    }
}

impl Process {
    /// Tells whether events are recorded at all.
    #[inline]
    pub fn takes_events() -> bool {
        STATE.load(Ordering::Relaxed) != CLOSED
    }

    pub fn current() -> Option<Arc<Process>> {
        CURRENT.lock().clone()
    }

    fn create(opening: &Opening) -> Result<Arc<Process>, PartError> {
        let path = part_path(&opening.path, opening.job, opening.rank);
        let failed = |source| PartError { path: path.clone(), source };
        let mut file = create_private(&path).map_err(failed)?;
        file.write_all(b"[\n").map_err(failed)?;
        let file = PartFile { file, events: 0, bytes: 2, dropped: 0, known: BTreeSet::new(), failed: None };
        let (file, spares, ranks) = (Mutex::new(file), Mutex::default(), Mutex::default());
        let ended = Default::default();
        Ok(Arc::new(Process { path, rank: opening.rank, file, spares, ranks, ended }))
    }

    /// Writes the names of a rank.
    fn add_rank(&self, opening: &Opening) {
        *self.ranks.lock() += 1;
        let (mut lines, pid) = (String::new(), opening.rank);
        let mut name = String::new();
        json::quoted(&mut name, &format!("rank {pid} on host {}", opening.host));
        json::metadata(&mut lines, (pid, 0), "process_name", ("name", &name));
        json::metadata(&mut lines, (pid, 0), "process_sort_index", ("sort_index", &pid.to_string()));
        json::metadata(&mut lines, (pid, 0), "udeck_job", ("job", &format!("\"{:x}\"", opening.job)));
        self.file.lock().append(&lines);
    }

    /// Notes that a rank leaves. Returns whether it was the last.
    fn leave(&self) -> bool {
        let mut ranks = self.ranks.lock();
        *ranks = ranks.saturating_sub(1);
        *ranks == 0
    }

    pub fn spare(&self) -> Events {
        self.spares.lock().pop().unwrap_or_default()
    }

    pub fn give_spare(&self, events: Events) {
        self.spares.lock().push(events);
    }

    /// Writes the events of a thread. A child of the process writes nothing: the file is its parent's.
    pub fn write(&self, buffer: &ThreadBuffer, events: &Events) {
        if events.records.is_empty() || is_forked() {
            return;
        }
        let mut text = String::with_capacity(events.records.len() * 256);
        let count = json::events(&mut text, buffer.tid, (&events.records, &events.arguments), self.rank);
        let mut file = self.file.lock();
        let bytes = file.bytes + text.len() as u64;
        if file.events + count > MAX_EVENTS || bytes > MAX_BYTES - ROOM_FOR_NAMES {
            file.dropped += count;
            return;
        }
        file.events += count;
        let mut lines = String::new();
        for record in &events.records {
            let rank = if record.rank == NO_RANK { self.rank } else { record.rank };
            if file.known.insert((rank, buffer.tid)) {
                let mut name = String::new();
                json::quoted(&mut name, &buffer.name);
                json::metadata(&mut lines, (rank, buffer.tid), "thread_name", ("name", &name));
            }
        }
        file.append(&lines);
        file.append(&text);
    }
}

/// Starts the thread that writes all buffers now and then. Without it a killed process would lose its last
/// events.
fn start_ticks(process: &Arc<Process>) {
    let weak = Arc::downgrade(process);
    let ticks = move || {
        let _paused = buffer::pause_recording();
        while let Some(process) = weak.upgrade() {
            let mut ended = process.ended.0.lock();
            if !*ended {
                process.ended.1.wait_for(&mut ended, TICK);
            }
            if *ended {
                return;
            }
            drop(ended);
            buffer::write_all(&process);
        }
    };
    if let Err(error) = thread::spawn("trace", ticks, |_| {}) {
        say!("the trace is written less often: starting a thread for it: {error}");
    }
}
