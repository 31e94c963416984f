// A posted descriptor is the NIC's; its completion gives it back.

use udeck_via::{Descriptor, Vi};

fn receive(vi: &mut Vi, descriptor: Descriptor) {
    vi.post_receive(descriptor).unwrap();
    drop(descriptor.into_segments());
}

fn main() {}
