//! A job of three ranks, one of which is killed. `trio round`: each rank posts to the next and retrieves from the
//! previous one. `trio blocked`: rank 1 sends messages to itself, rank 0 waits in a barrier, rank 2 for a message that
//! nobody posts.
//!
//! Only rank 1 has `DECK_FAULT`. The others print `rank N: PeerLost of M` and end well.

use std::error::Error;
use udeck::{Error as DeckError, Protocol, World};
use udeck_jobs::traffic::{Incoming, Outgoing, TOO_MANY};

fn main() -> Result<(), Box<dyn Error>> {
    let pattern = std::env::args().nth(1).unwrap_or_default();
    let world = udeck::init()?;
    let outcome = match (&pattern[..], world.rank()) {
        ("round", _) => round(&world),
        ("blocked", rank) => blocked(&world, rank),
        _ => Err("trio round|blocked".into()),
    };
    let error = outcome.err().ok_or("nobody was killed")?.downcast::<DeckError>()?;
    let DeckError::PeerLost { rank, .. } = *error else { return Err(error) };
    println!("rank {}: PeerLost of {rank}", world.rank());
    // This rank finishes properly, so that the third rank does not take it for lost.
    match world.finish() {
        Err(DeckError::Undelivered { rank: owner, .. }) if owner == rank => Ok(()),
        other => Ok(other?),
    }
}

fn round(world: &World) -> Result<(), Box<dyn Error>> {
    let name = |rank: usize| format!("of {}", rank % world.size());
    let mailbox = world.mailbox::<u64>(&name(world.rank()))?;
    mailbox.expect([(world.rank() + world.size() - 1) % world.size()]);
    let mut outgoing = Outgoing::new(world, &name(world.rank() + 1), Protocol::RdmaWrite)?;
    let mut incoming = Incoming::default();
    let mut next_is_there = true;
    for _ in 0..TOO_MANY {
        if next_is_there {
            match outgoing.post(world) {
                // The next rank has learned of the loss before, and left; or it is the lost rank, and messages that were only
                // announced to it are reported first. In both cases the news of the loss is still to come here.
                Err(DeckError::MailboxGone { .. } | DeckError::Undelivered { .. }) => next_is_there = false,
                posted => posted?,
            }
        }
        incoming.check(&mailbox.retrieve()?)?;
    }
    Ok(())
}

fn blocked(world: &World, rank: usize) -> Result<(), Box<dyn Error>> {
    // All ranks have joined, and the barrier's own connections exist.
    world.barrier()?;
    match rank {
        0 => world.barrier()?,
        2 => {
            let mailbox = world.mailbox::<u64>("of nobody")?;
            mailbox.expect([1]);
            mailbox.retrieve().map(drop)?;
        }
        _ => talk_to_itself(world)?,
    }
    Ok(())
}

fn talk_to_itself(world: &World) -> Result<(), Box<dyn Error>> {
    let mailbox = world.mailbox::<u64>("own")?;
    let mut outgoing = Outgoing::new(world, "own", Protocol::HandOff)?;
    let mut incoming = Incoming::default();
    for _ in 0..TOO_MANY {
        outgoing.post(world)?;
        incoming.check(&mailbox.retrieve()?)?;
    }
    Ok(())
}
