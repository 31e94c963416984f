// A post takes the memory; if it is refused, the error has it.

use udeck_dat::{Ep, Lmr};

fn send(ep: &Ep, lmr: Lmr) -> bool {
    let error = ep.post_send(lmr, 1).err().map(|(error, iov)| (error, iov.len()));
    error.is_none()
}

fn main() {
    let _ = send;
}
