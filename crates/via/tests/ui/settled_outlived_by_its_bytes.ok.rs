// Bytes that peers have written can be read as long as their owner exists.

use udeck_via::Settled;

fn read(settled: Settled) -> u8 {
    let bytes = settled.to_vec();
    drop(settled);
    bytes[0]
}

fn main() {}
