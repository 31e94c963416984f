//! Tests that the conformance suite cannot have: strangers that connect, peers that are killed, stopped, or lie.

mod ends;
mod idle;
mod killed;
mod owner;
mod panics;
mod rogue;
mod send_blocked;
mod strangers;

use udeck_conformance::kit::soon;
use udeck_conformance::lent::{LentEnd, check, listen, pair};
use udeck_via::Nic;

use crate::{Options, Source};

const SECRET: [u8; 32] = [0x5a; 32];

fn nic() -> Nic {
    nic_with(|_| {})
}

fn nic_with(settings: impl FnOnce(&mut Options)) -> Nic {
    let mut options = options();
    settings(&mut options);
    crate::open(options).expect("the NIC opens")
}

fn options() -> Options {
    Options { memory: Source::Fresh(64 << 20), ..Options::new(SECRET) }
}
