// A slice of the memory must have gone before it is posted.

use udeck_dat::{Ep, Lmr};

fn receive(ep: &Ep, lmr: Lmr) -> u8 {
    let bytes: &[u8] = &lmr;
    let _ = ep.receives_posted();
    bytes[0]
}

fn main() {
    let _ = receive;
}
