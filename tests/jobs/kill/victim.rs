//! The process that is killed: exchanges messages with the survivor until the point in `DECK_FAULT` ends it.
//!
//! `victim posts|retrieves PROTOCOL`. It ends by itself, with a failure, only when it met a wrong message or was not
//! killed after far too many.

use std::{collections::VecDeque, error::Error, thread, time::Duration};
use udeck::{Protocol, World};
use udeck_jobs::traffic::{Incoming, Outgoing, Role, TOO_MANY};

/// Received messages that are kept for a while, so that buffers go home late and while others are in use.
const KEPT: usize = 4;

/// Every eighth message it pauses, so that the survivor falls asleep and has to be woken: some points are passed only
/// then. How soon the survivor sleeps depends on what else runs here, so the pauses grow until the point is reached.
fn pause(exchanged: u64) {
    const LONGEST: Duration = Duration::from_secs(1);
    if exchanged.is_multiple_of(8) {
        thread::sleep(Duration::from_millis(2 << (exchanged / 64).min(10)).min(LONGEST));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [role, protocol] = &words[..] else { return Err("victim posts|retrieves PROTOCOL".into()) };
    let world = udeck::init()?;
    match role.parse()? {
        Role::Posts => post(&world, protocol.parse()?)?,
        Role::Retrieves => retrieve(&world)?,
    }
    Err(format!("rank {} was not killed", world.rank()).into())
}

fn post(world: &World, protocol: Protocol) -> udeck::Result {
    let mut outgoing = Outgoing::new(world, "survivor", protocol)?;
    while outgoing.posted() < TOO_MANY {
        outgoing.post(world)?;
        pause(outgoing.posted());
    }
    Ok(())
}

fn retrieve(world: &World) -> Result<(), Box<dyn Error>> {
    let mailbox = world.mailbox::<u64>(&format!("victim-{}", world.rank()))?;
    let (mut incoming, mut kept) = (Incoming::default(), VecDeque::new());
    while incoming.total() < TOO_MANY {
        let message = match mailbox.retrieve() {
            // An earlier victim: each mailbox tells of each.
            Err(udeck::Error::PeerLost { rank, .. }) if rank != 0 => continue,
            other => other?,
        };
        incoming.check(&message)?;
        kept.push_back(message);
        if kept.len() > KEPT {
            // Not in the order of arrival.
            kept.swap_remove_back(incoming.total() as usize % KEPT);
        }
        pause(incoming.total());
    }
    Ok(())
}
