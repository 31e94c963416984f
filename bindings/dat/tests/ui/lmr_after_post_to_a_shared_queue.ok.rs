// Posting to a shared receive queue takes the memory, too.

use udeck_dat::{Lmr, Srq};

fn post(srq: &Srq, lmr: Lmr) -> usize {
    let _ = srq.posted();
    lmr.len()
}

fn main() {
    let _ = post;
}
