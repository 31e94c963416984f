//! What every rank made before a barrier, every rank finds after it.
//!
//! ```sh
//! cargo run --example barrier
//! deckrun -n 500 target/debug/examples/barrier
//! ```

fn main() -> udeck::Result {
    let world = udeck::init()?;
    let (rank, size) = (world.rank(), world.size());

    let inbox = world.mailboxes::<u32>("place")?;
    world.barrier()?;

    // All mailboxes exist now: none of them is waited for. Alone, a rank is its own neighbour.
    let neighbour = world.try_postbox_of::<u32>("place", (rank + 1) % size)?;
    neighbour.post(world.buf::<u32>(1)?)?;
    inbox.retrieve()?;

    // Nobody leaves before the last has come here.
    world.barrier()?;
    if rank == 0 {
        println!("{size} ranks passed two barriers");
    }
    world.finish()
}
