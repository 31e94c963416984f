// A posted descriptor is the NIC's; its completion gives it back.

use udeck_via::{Descriptor, Vi};

fn send(vi: &mut Vi, descriptor: Descriptor) {
    vi.post_send(descriptor).unwrap();
    drop(descriptor.into_segments());
}

fn main() {}
