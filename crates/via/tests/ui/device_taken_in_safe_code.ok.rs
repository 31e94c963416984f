//! Who puts a device of his own in front of another one promises what the VI layer keeps: safe code cannot.

use udeck_via::{Nic, NicAttributes};

fn attributes(nic: &Nic) -> NicAttributes {
    nic.attributes().clone()
}

fn main() {}
