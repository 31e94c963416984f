//! The processes of a pair in which one dies, row by row of `udeck_jobs::pairs`.
//!
//! `pair survivor SIDE PROTOCOL` is rank 0 and survives all rows in which SIDE dies; `pair friend PROTOCOL` is rank 1,
//! by which the survivor shows that nothing else was harmed; `pair victim ROW` are the other ranks, one after another.

mod survivor;
mod victim;

use std::{error::Error, time::Duration};
use udeck::{Error as DeckError, Mailbox, Protocol, Received};
use udeck_jobs::pairs::{self, Side};

/// Deadline of every call of the library: it only ends a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// Message that tells the friend to leave.
const BYE: u64 = u64::MAX;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["survivor", "sender", protocol] => survivor::run(Side::Sender, protocol.parse()?),
        ["survivor", "receiver", protocol] => survivor::run(Side::Receiver, protocol.parse()?),
        ["friend", protocol] => befriend(protocol.parse()?),
        ["victim", row] => victim::run(&pairs::ROWS[row.parse::<usize>()?]),
        _ => Err("pair survivor sender|receiver PROTOCOL | friend PROTOCOL | victim ROW".into()),
    }
}

/// Sends every message back.
fn befriend(protocol: Protocol) -> Result<(), Box<dyn Error>> {
    let world = udeck::init()?;
    let mailbox = world.mailbox::<u64>("friend")?;
    let back = world.postbox::<u64>("survivor")?;
    back.set_protocol(protocol)?;
    loop {
        let message = despite_losses(&mailbox)?;
        if message.first() == Some(&BYE) {
            break;
        }
        let mut copy = world.buf(message.len())?;
        copy.copy_from_slice(&message);
        drop(message);
        back.post(copy)?;
    }
    Ok(world.finish()?)
}

/// The next message, even if ranks die meanwhile: each mailbox reports each lost rank.
fn despite_losses(mailbox: &Mailbox<u64>) -> udeck::Result<Received<u64>> {
    loop {
        match mailbox.retrieve_timeout(LIMIT) {
            Err(DeckError::PeerLost { rank, .. }) if rank > 1 => {}
            other => return other,
        }
    }
}
