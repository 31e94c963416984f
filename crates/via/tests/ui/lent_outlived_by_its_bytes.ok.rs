//! Lent bytes are read until the loan is dropped, which sends the memory home.

use udeck_via::Lent;

fn read(lent: Lent) -> u8 {
    let bytes = lent.as_slice().unwrap().to_vec();
    drop(lent);
    bytes[0]
}

fn main() {}
