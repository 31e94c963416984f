//! The job that this process is in: before it, in it, or behind it.

use std::ffi::c_ulong;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use udeck::World;

use super::error::{Failure, Result, STATE, failure};
use super::table;

/// What this process is in.
enum Stage {
    Before,
    Running(Arc<World>),
    Done,
}

static STAGE: RwLock<Stage> = RwLock::new(Stage::Before);

/// Whether `deck_done` was called: waits that do not hear of it otherwise ask for it.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

pub(super) fn is_ending() -> bool {
    IS_ENDING.load(Ordering::Relaxed)
}

/// A call of another thread still uses the world: how often `deck_done` looks, and how long in all.
const LOOK: Duration = Duration::from_millis(1);
const LOOKS: u32 = 5000;

/// The world of this process.
pub(super) fn world() -> Result<Arc<World>> {
    table::check()?;
    match &*STAGE.read() {
        Stage::Running(world) => Ok(world.clone()),
        Stage::Before => Err(failure(STATE, "deck_init has not been called")),
        Stage::Done => Err(failure(STATE, "deck_done was called: the job is over for this process")),
    }
}

/// A time in microseconds, as C passes it.
pub(super) fn limit(microseconds: c_ulong) -> Duration {
    Duration::from_micros(microseconds)
}

fn begun_already(stage: &Stage) -> Option<Failure> {
    match stage {
        Stage::Before => None,
        Stage::Running(_) => Some(failure(STATE, "it was called already: a process is one rank")),
        Stage::Done => Some(failure(STATE, "deck_done was called: a process is a rank once")),
    }
}

/// Begins, once.
pub(super) fn begin() -> Result {
    table::check()?;
    let mut stage = STAGE.write();
    if let Some(failure) = begun_already(&stage) {
        return Err(failure);
    }
    *stage = Stage::Running(Arc::new(udeck::init()?));
    Ok(())
}

/// What `of` says of the world; `None` where there is none.
pub(super) fn ask(of: fn(&World) -> usize) -> Option<usize> {
    table::check().ok()?;
    match &*STAGE.read() {
        Stage::Running(world) => Some(of(world)),
        _ => None,
    }
}

/// The world, which is nobody's any more. Calls of other threads that wait in it end. `is_in_use` tells of those that use it through an
/// object of the world's.
pub(super) fn take(is_in_use: impl Fn() -> bool) -> Result<World> {
    world()?.shutdown();
    IS_ENDING.store(true, Ordering::Relaxed);
    for _ in 0..LOOKS {
        if is_in_use() {
            std::thread::sleep(LOOK);
            continue;
        }
        let mut stage = STAGE.write();
        let Stage::Running(world) = std::mem::replace(&mut *stage, Stage::Done) else {
            return Err(failure(STATE, "another thread has called it"));
        };
        match Arc::try_unwrap(world) {
            Ok(world) => return Ok(world),
            Err(shared) => *stage = Stage::Running(shared),
        }
        drop(stage);
        std::thread::sleep(LOOK);
    }
    Err(failure(STATE, "another thread is in a call of DECK's that does not end: join it, and call it again"))
}
