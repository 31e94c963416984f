//! What peers have written is read as long as its owner is there.

use udeck_via::Settled;

fn read(settled: Settled) -> u8 {
    let bytes = &settled[..];
    drop(settled);
    bytes[0]
}

fn main() {}
