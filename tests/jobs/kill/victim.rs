//! The process that is killed: exchanges messages with the survivor until the point in `DECK_FAULT` ends it.
//!
//! `victim posts|retrieves PROTOCOL`. The process ends by itself, with a failure, only if it received a wrong
//! message or was not killed after far too many messages.

use std::{collections::VecDeque, error::Error, thread, time::Duration};
use udeck::{Protocol, World};
use udeck_jobs::traffic::{Incoming, Outgoing, Role, TOO_MANY};

/// Number of received messages that are kept for a while, so that buffers are returned late, while others are
/// in use.
const KEPT: usize = 4;

/// Pauses at every eighth message, so that the survivor falls asleep and has to be woken: some points are passed only
/// then. The time until the survivor sleeps depends on the load of the machine, so the pauses grow until the point is
/// reached.
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
            // The loss is an earlier victim's: each mailbox reports each loss.
            Err(udeck::Error::PeerLost { rank, .. }) if rank != 0 => continue,
            other => other?,
        };
        incoming.check(&message)?;
        kept.push_back(message);
        if kept.len() > KEPT {
            // Messages are dropped in another order than that of their arrival.
            kept.swap_remove_back(incoming.total() as usize % KEPT);
        }
        pause(incoming.total());
    }
    Ok(())
}
