// No slice of a region outlasts its posting.

use udeck_via::{Descriptor, Region, Vi};

fn receive(vi: &mut Vi, region: Region) -> u8 {
    let bytes = region.to_vec();
    vi.post_receive(Descriptor::new([region])).unwrap();
    bytes[0]
}

fn main() {}
