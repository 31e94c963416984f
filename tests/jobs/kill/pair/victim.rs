//! The process that dies: by the fault point that the harness has set, or by itself if the row says so.

use crate::despite_losses;
use rustix::process::{Signal, getpid, kill_process};
use std::error::Error;
use udeck::{Protocol, World};
use udeck_jobs::pairs::{self, Death, MESSAGES, PollSchedule, Row, Side};

pub fn run(row: &Row) -> Result<(), Box<dyn Error>> {
    let world = udeck::init()?;
    match row.dies {
        Side::Sender => send(&world, row)?,
        Side::Receiver => receive(&world, row)?,
    }
    Err(format!("rank {} was not killed", world.rank()).into())
}

fn die() -> ! {
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    unreachable!("the signal is not delivered later than the call returns")
}

/// Ends the row while both ends still exist.
fn over(row: &Row) {
    if matches!(row.at, Death::Over) {
        die();
    }
}

fn send(world: &World, row: &Row) -> udeck::Result {
    let own = world.mailbox_with_queue::<u64>(&format!("victim-{}", world.rank()), 0)?;
    let out = world.postbox::<u64>("survivor")?;
    // The survivor is connected, so it learns when this process dies.
    drop(despite_losses(&own)?);
    if matches!(row.at, Death::Idle) {
        die();
    }
    for number in 0..MESSAGES {
        let mut message = world.buf(row.words)?;
        pairs::fill(&mut message, world.rank(), number);
        // A message that does not wait must not overtake one that is lost with its sender.
        let passes = row.protocol == Protocol::RdmaRead && number == 1;
        out.post_with(if passes { Protocol::Eager } else { row.protocol }, message)?;
    }
    if row.polls == PollSchedule::Once {
        world.postbox::<u64>("told")?.post(&[world.rank() as u64][..])?;
    }
    if matches!(row.at, Death::Posted) {
        die();
    }
    out.flush()?;
    over(row);
    Ok(())
}

/// Keeps a message until it has the next.
fn receive(world: &World, row: &Row) -> udeck::Result {
    let own = world.mailbox_with_queue::<u64>(&format!("victim-{}", world.rank()), 0)?;
    let mut kept = None;
    for number in 0..MESSAGES {
        let message = despite_losses(&own)?;
        assert!(pairs::is_filled(&message, world.rank(), number), "message {number}");
        kept = Some(message);
    }
    drop(kept);
    over(row);
    Ok(())
}
