// A message is a slice of elements: a mailbox names their type. The compiler says which.

use udeck_deck::World;

fn open(world: &World) {
    let _ = world.mailbox::<Vec<f64>>("rows");
}

fn main() {}
