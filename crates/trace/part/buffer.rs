//! Buffers of threads: recorded events that are not yet written.
//!
//! A buffer is bounded. A thread that finds its own buffer full writes it to the process's part, and records
//! that it did, because this time is not the program's own. A thread of the library writes all buffers twice a
//! second: a killed process loses little. If there is no part yet (before `udeck::init`), events beyond the
//! bound are counted and dropped.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use udeck_sys::process::is_forked;

use super::Process;
use crate::now;
use crate::record::{Arguments, Arrow, NO_RANK, Record, Shape};

/// Maximum number of a buffer's events: about 1 MiB with their arguments.
const MAX_RECORDS: usize = 8192;
/// Maximum number of bytes of a buffer's texts.
const MAX_TEXT: usize = 256 << 10;

/// Maximum number of buffers of ended threads, while there is no part to write them to: some 16 MiB.
const MAX_ENDED: usize = 16;

/// Number of events of this process that found no room.
static DROPPED: AtomicU64 = AtomicU64::new(0);
static THREADS: Mutex<Vec<Arc<ThreadBuffer>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: RefCell<Option<Arc<ThreadBuffer>>> = const { RefCell::new(None) };
    static PAUSES: Cell<u32> = const { Cell::new(0) };
}

/// The buffer of one thread.
pub(crate) struct ThreadBuffer {
    pub tid: u32,
    pub name: String,
    events: Mutex<Events>,
}

/// Events in the order of their ends.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub records: Vec<Record>,
    pub arguments: Arguments,
    /// The rank of the last event that had one.
    rank: Option<u32>,
}

impl Events {
    fn is_full(&self) -> bool {
        self.records.len() >= MAX_RECORDS || self.arguments.texts.len() >= MAX_TEXT
    }

    fn clear(&mut self) {
        self.records.clear();
        self.arguments.clear();
    }
}

impl ThreadBuffer {
    fn new() -> Self {
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let name = std::thread::current().name().unwrap_or("unnamed").to_owned();
        ThreadBuffer { tid, name, events: Mutex::default() }
    }
}

/// While it exists, no event of this thread is recorded.
#[derive(Debug)]
pub struct RecordingPaused(());

/// Stops the recording of this thread's events: its work is about the trace itself.
pub fn pause_recording() -> RecordingPaused {
    PAUSES.with(|pauses| pauses.set(pauses.get() + 1));
    RecordingPaused(())
}

impl Drop for RecordingPaused {
    fn drop(&mut self) {
        PAUSES.with(|pauses| pauses.set(pauses.get() - 1));
    }
}

/// Records an event of this thread. `fill` describes it, and puts its arguments into the buffer.
pub(crate) fn note(fill: impl FnOnce(&mut Arguments) -> Record) {
    // In a child of the process the locks below may be held for ever by threads that the child does not have.
    if PAUSES.with(Cell::get) > 0 || !Process::takes_events() || is_forked() {
        return;
    }
    // An event of a destructor may come too late, when the thread ends: it is lost.
    let _ = OWN.try_with(|own| {
        // The event may come in the middle of another one, from a `Debug` that makes an event.
        let Ok(mut own) = own.try_borrow_mut() else { return };
        let buffer = own.get_or_insert_with(|| {
            let buffer = Arc::new(ThreadBuffer::new());
            add(&buffer);
            buffer
        });
        let mut events = buffer.events.lock();
        if events.is_full() {
            drop(events);
            write_own(buffer);
            events = buffer.events.lock();
            if events.is_full() {
                DROPPED.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let Events { records, arguments, rank } = &mut *events;
        let before = arguments.values.len();
        let mut record = fill(arguments);
        record.arguments = (arguments.values.len() - before) as u32;
        match record.rank {
            NO_RANK => record.rank = rank.unwrap_or(NO_RANK),
            said => *rank = Some(said),
        }
        records.push(record);
    });
}

/// Adds a thread at its first event. If nothing is written (a program with our layer that never calls
/// `udeck::init`), the oldest buffers of ended threads are dropped.
#[cold]
fn add(buffer: &Arc<ThreadBuffer>) {
    let is_written = Process::current().is_some();
    let mut threads = THREADS.lock();
    let has_ended = |buffer: &Arc<ThreadBuffer>| Arc::strong_count(buffer) == 1;
    let ended = threads.iter().filter(|buffer| has_ended(buffer)).count();
    let mut excess = if is_written { 0 } else { ended.saturating_sub(MAX_ENDED) };
    threads.retain(|buffer| {
        if excess == 0 || !has_ended(buffer) {
            return true;
        }
        excess -= 1;
        DROPPED.fetch_add(buffer.events.lock().records.len() as u64, Ordering::Relaxed);
        false
    });
    threads.push(buffer.clone());
}

/// Writes this thread's events, and records how long that took.
#[cold]
fn write_own(buffer: &ThreadBuffer) {
    let Some(process) = Process::current() else { return };
    let start = now();
    write(buffer, &process);
    let mut events = buffer.events.lock();
    let rank = events.rank.unwrap_or(NO_RANK);
    let (shape, arrow, end) = (Shape::Slice, Arrow::None, now());
    let (name, category) = ("trace written", crate::MESSAGES);
    events.records.push(Record { shape, arrow, start, end, rank, arguments: 0, name, category });
}

/// Writes a thread's events.
fn write(buffer: &ThreadBuffer, process: &Process) {
    let spare = process.spare();
    let rank = buffer.events.lock().rank;
    let mut events = std::mem::replace(&mut *buffer.events.lock(), Events { rank, ..spare });
    process.write(buffer, &events);
    events.clear();
    process.give_spare(events);
}

/// Writes the events of all threads, and drops the buffers of ended ones.
pub(crate) fn write_all(process: &Process) {
    let threads = THREADS.lock().clone();
    for buffer in &threads {
        write(buffer, process);
    }
    drop(threads);
    THREADS.lock().retain(|buffer| Arc::strong_count(buffer) > 1 || !buffer.events.lock().records.is_empty());
}

/// Returns the number of dropped events since the last call.
pub(crate) fn take_dropped() -> u64 {
    DROPPED.swap(0, Ordering::Relaxed)
}
