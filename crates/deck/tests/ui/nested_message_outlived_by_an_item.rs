// Unpacked items of a nested message lie in the outer message, so they cannot outlive it.

use udeck_deck::{Packed, Received, Result};

fn unpack(received: Received<Packed>) -> Result<Vec<u8>> {
    let items = received.unpack_message(|nested| nested.unpack::<u8>())?;
    drop(received);
    Ok(items.to_vec())
}

fn main() {}
