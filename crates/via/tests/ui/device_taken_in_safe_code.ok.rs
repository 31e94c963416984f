// A device in front of another one makes the VI layer's promises itself: safe code cannot.

use udeck_via::{Nic, NicAttributes};

fn attributes(nic: &Nic) -> NicAttributes {
    nic.attributes().clone()
}

fn main() {}
