// A mailbox carries plain data. The compiler says what to derive.

use udeck_deck::World;
#[allow(unused_imports, reason = "the misuse derives neither")]
use udeck_deck::bytemuck::{Pod, Zeroable};

#[rustfmt::skip]
#[derive(Clone, Copy, Pod, Zeroable)] #[repr(C)] #[bytemuck(crate = "udeck_deck::bytemuck")]
struct Particle {
    place: [f64; 3],
    charge: i64,
}

fn open(world: &World) {
    let _ = world.mailbox::<Particle>("particles");
}

fn main() {}
