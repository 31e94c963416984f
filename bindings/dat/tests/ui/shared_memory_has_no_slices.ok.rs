// Memory that peers reach has no slices: a peer may write it at any moment.

use udeck_dat::{Result, SharedLmr};

fn copy(shared: &SharedLmr, bytes: &mut [u8]) -> Result {
    shared.read(0, bytes)?;
    Ok(())
}

fn main() {
    let _ = copy;
}
