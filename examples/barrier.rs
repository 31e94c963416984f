//! A barrier: a mailbox that a rank made before the barrier exists for every rank after it.
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

    // All mailboxes exist now, and so none of them is waited for. Alone, a rank is its own neighbour.
    let neighbour = world.try_postbox_of::<u32>("place", (rank + 1) % size)?;
    neighbour.post(world.buf::<u32>(1)?)?;
    inbox.retrieve()?;

    // No rank leaves before the last one has come here.
    world.barrier()?;
    if rank == 0 {
        println!("{size} ranks passed two barriers");
    }
    world.finish()
}
