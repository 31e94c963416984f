// A bind takes the region, and its event gives it back: nobody asks for what it is bound to meanwhile.

use udeck_dat::{Ep, Flags, Rmr};

fn unbind(ep: &Ep, rmr: Rmr) -> bool {
    let _ = (ep.state(), Flags::NONE);
    rmr.remote().is_some()
}

fn main() {
    let _ = unbind;
}
