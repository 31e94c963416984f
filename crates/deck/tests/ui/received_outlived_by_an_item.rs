// Unpacked items lie in the message, so they cannot outlive it.

use udeck_deck::{Packed, Received};

fn unpack(received: Received<Packed>) -> f64 {
    let items = received.unpack::<f64>().unwrap();
    drop(received);
    items[0]
}

fn main() {}
