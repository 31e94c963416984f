// No slice of a descriptor's segment outlasts its posting.

use udeck_via::{Descriptor, Vi};

fn receive(vi: &mut Vi, descriptor: Descriptor) -> u8 {
    let bytes = descriptor.segments()[0].bytes();
    vi.post_receive(descriptor).unwrap();
    bytes[0]
}

fn main() {}
