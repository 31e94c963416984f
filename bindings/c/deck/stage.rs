//! The job of this process, and its stage: not begun, running, or ended.

use std::ffi::c_ulong;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use udeck::World;

use super::error::{CallError, Result, STATE, failure};
use super::table;

/// Stage of this process's job.
enum Stage {
    Before,
    Running(Arc<World>),
    Done,
}

static STAGE: RwLock<Stage> = RwLock::new(Stage::Before);

/// Whether `deck_done` was called: waits that do not learn of it otherwise ask for it.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

pub(super) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Relaxed)
}

/// Interval at which `deck_done` checks whether another thread's call still uses the world, and number of
/// checks.
const POLL: Duration = Duration::from_millis(1);
const POLLS: u32 = 5000;

/// The world of this process.
pub(super) fn world() -> Result<Arc<World>> {
    table::check()?;
    match &*STAGE.read() {
        Stage::Running(world) => Ok(world.clone()),
        Stage::Before => Err(failure(STATE, "deck_init has not been called")),
        Stage::Done => Err(failure(STATE, "deck_done was called: the job is over for this process")),
    }
}

/// Converts a time in microseconds, as C passes it.
pub(super) fn limit(microseconds: c_ulong) -> Duration {
    Duration::from_micros(microseconds)
}

fn begun_already(stage: &Stage) -> Option<CallError> {
    match stage {
        Stage::Before => None,
        Stage::Running(_) => Some(failure(STATE, "deck_init was called already: a process is one rank")),
        Stage::Done => Some(failure(STATE, "deck_done was called: a process can join a job only once")),
    }
}

/// Joins the job; possible once.
pub(super) fn begin() -> Result {
    table::check()?;
    let mut stage = STAGE.write();
    if let Some(failure) = begun_already(&stage) {
        return Err(failure);
    }
    *stage = Stage::Running(Arc::new(udeck::init()?));
    Ok(())
}

/// Applies `of` to the world; `None` where there is none.
pub(super) fn ask(of: fn(&World) -> usize) -> Option<usize> {
    table::check().ok()?;
    match &*STAGE.read() {
        Stage::Running(world) => Some(of(world)),
        _ => None,
    }
}

/// Takes the world out, and ends calls of other threads that wait in it. `is_in_use` tells whether other threads use the world
/// through one of its objects.
pub(super) fn take(is_in_use: impl Fn() -> bool) -> Result<World> {
    world()?.shutdown();
    IS_ENDING.store(true, Ordering::Relaxed);
    for _ in 0..POLLS {
        if is_in_use() {
            std::thread::sleep(POLL);
            continue;
        }
        let mut stage = STAGE.write();
        let Stage::Running(world) = std::mem::replace(&mut *stage, Stage::Done) else {
            return Err(failure(STATE, "another thread has called deck_done"));
        };
        match Arc::try_unwrap(world) {
            Ok(world) => return Ok(world),
            Err(shared) => *stage = Stage::Running(shared),
        }
        drop(stage);
        std::thread::sleep(POLL);
    }
    let text = "a call of DECK in another thread does not end: join that thread, then call deck_done again";
    Err(failure(STATE, text))
}
