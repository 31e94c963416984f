// Lent bytes can be read until the loan is dropped, which gives the memory back.

use udeck_via::Lent;

fn read(lent: Lent) -> u8 {
    let bytes = lent.as_slice().unwrap().to_vec();
    drop(lent);
    bytes[0]
}

fn main() {}
