// No slice of a region outlasts its posting: nobody writes what is being sent.

use udeck_via::{Descriptor, Region, Vi};

fn send(vi: &mut Vi, mut region: Region) {
    let bytes = &mut region[..];
    bytes[0] = 1;
    vi.post_send(Descriptor::new([region])).unwrap();
}

fn main() {}
