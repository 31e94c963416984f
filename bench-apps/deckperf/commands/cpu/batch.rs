//! The loop of a batch, the same for every contender of this program: windows of messages from rank 0 to rank 1, each
//! acknowledged, with a clock around all but the first ones.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    order::{CpuAnswer, CpuOrder},
    usage::Usage,
};
use crate::failure::{PerfError, Result};

/// Longest wait for anything that should arrive: longer than any batch. The loss of a peer is noticed at once, so only an error
/// can last that long.
pub const LIMIT: Duration = Duration::from_secs(20);

/// One end of a contender's connection, for one batch. Each method fails if the peer is lost.
pub trait End {
    /// Waits until the other side calls this, too: outside the clock.
    fn meet(&mut self) -> Result;

    /// Sends message `number`; this end is rank 0's.
    fn post(&mut self, number: u64) -> Result;

    /// Waits until window `turn` is acknowledged. Returns how many of its messages did not arrive.
    fn await_acknowledgement(&mut self, turn: u64) -> Result<u64>;

    /// Receives the messages of window `turn`, checks them, and acknowledges the window; this end is rank 1's. Returns how many
    /// of its messages did not arrive.
    fn take_window(&mut self, turn: u64) -> Result<u64>;
}

/// Runs one side of a batch, and returns its costs.
///
/// # Errors
/// Errors of the end, or the system does not tell the processor time.
pub fn perform(end: &mut impl End, order: &CpuOrder, leads: bool) -> Result<CpuAnswer> {
    let failed = || PerfError::system("reading this process's processor time");
    end.meet()?; // both sides are awake
    for turn in 0..order.warm_up {
        window(end, order, leads, turn, None)?;
    }
    let (before, started, mut lost) = (Usage::now().map_err(failed())?, Instant::now(), 0);
    for turn in order.warm_up..order.warm_up + order.iterations {
        lost += window(end, order, leads, turn, Some(started).filter(|_| order.rate > 0))?;
    }
    let usage = before.since().map_err(failed())?;
    end.meet()?; // neither side stops serving its end while a message is under way
    let messages = order.messages() - if leads { 0 } else { lost };
    Ok(CpuAnswer { usage, messages, lost: if leads { lost } else { 0 } })
}

/// Runs one window. Its messages are posted one behind the other or, with `paced`, each when it is due after that time. Returns
/// how many of its messages did not arrive.
fn window(
    end: &mut impl End,
    order: &CpuOrder,
    leads: bool,
    turn: u64,
    paced: Option<Instant>,
) -> Result<u64> {
    if !leads {
        return end.take_window(turn);
    }
    for slot in 0..order.depth {
        if let Some(started) = paced {
            let due = order.due((turn - order.warm_up) * order.depth + slot);
            thread::sleep(due.saturating_sub(started.elapsed()));
        }
        end.post(turn * order.depth + slot)?;
    }
    end.await_acknowledgement(turn)
}
