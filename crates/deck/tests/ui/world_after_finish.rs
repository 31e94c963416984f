// A rank that has finished its world cannot use it any more.

use udeck_deck::{Result, World};

fn leave(world: World) -> Result {
    world.finish()?;
    world.barrier()
}

fn main() {}
