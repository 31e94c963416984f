// `bool` is no plain data, because a peer could send another byte than 0 and 1. The compiler says what to take.

use udeck_deck::World;

fn open(world: &World) {
    let _ = world.mailbox::<bool>("flags");
}

fn main() {}
