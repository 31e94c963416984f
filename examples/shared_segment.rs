//! Memory that the ranks of a host share beside their messages: a segment with a barrier, a locked one, and a semaphore.
//!
//! ```sh
//! cargo run --example shared_segment
//! deckrun -n 4 target/debug/examples/shared_segment
//! ```

use udeck::{Error, Result, World};

const CELLS: usize = 1000;
const STEPS: usize = 100;

fn main() -> Result {
    let world = udeck::init()?;
    let (here, rank) = (world.host_ranks(), world.rank());
    smooth(&world, &here)?;

    // One rank at a time has the memory, as a slice. If a rank died with the lock, the next one would be told.
    let list = world.shared_mutex_of::<u64>(&here, "list", here.len())?;
    match list.lock() {
        Ok(mut list) => {
            let free = list.iter().position(|entry| *entry == 0).expect("a place for each rank");
            list[free] = 1 + rank as u64;
        }
        Err(Error::Abandoned { rank, .. }) => println!("rank {rank} died while it wrote"),
        Err(error) => return Err(error),
    }
    list.barrier()?;
    let mut entries = list.lock()?.to_vec();
    entries.sort_unstable();
    assert_eq!(entries, here.iter().map(|rank| 1 + *rank as u64).collect::<Vec<_>>());

    // Two ranks at a time have a permit.
    let slots = world.semaphore_of(&here, "slots", 2)?;
    let permit = slots.acquire()?;
    assert!(slots.available() < 2);
    drop(permit);
    if rank == here[0] {
        println!("shared by {} of this host: a segment, a list and a semaphore", here.len());
    }
    world.finish()
}

/// Smooths a bump: each rank computes its part of the next grid from the whole last one. No message, and no
/// copy of the grids.
fn smooth(world: &World, here: &[usize]) -> Result {
    let grid = |name| world.shared_segment_of::<f64>(here, name, CELLS);
    let grids = [grid("even")?, grid("odd")?];
    let place = here.iter().position(|rank| *rank == world.rank()).expect("a rank is one of its host's");
    if place == 0 {
        grids[0].set(CELLS / 2, 1.0);
    }
    for step in 0..STEPS {
        grids[0].barrier()?; // all have written the last grid
        let (last, next) = (&grids[step % 2], &grids[(step + 1) % 2]);
        for cell in place * CELLS / here.len()..(place + 1) * CELLS / here.len() {
            let around = [(cell + CELLS - 1) % CELLS, cell, (cell + 1) % CELLS].map(|cell| last.get(cell));
            next.set(cell, around.iter().sum::<f64>() / 3.0);
        }
    }
    grids[0].barrier()?;
    let mut all = [0.0; CELLS];
    grids[STEPS % 2].copy_to(0, &mut all);
    assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-12 && all[CELLS / 2] < 0.1);
    grids[0].barrier()
}
