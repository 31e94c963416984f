//! A token goes round a ring; every rank adds its number to it, and rank 0 checks the sum.
//!
//! ```sh
//! cargo run --example ring
//! deckrun -n 4 target/debug/examples/ring
//! ```

const LAPS: u64 = 3;

fn main() -> udeck::Result {
    let world = udeck::init()?;
    let (rank, size) = (world.rank(), world.size());
    let next = (rank + 1) % size;

    // Every rank owns one mailbox of the family. Alone, a rank is its own neighbour.
    let inbox = world.mailboxes::<u64>("ring")?;
    let outbox = world.postbox_of::<u64>("ring", next)?;

    for lap in 1..=LAPS {
        if rank == 0 {
            let token = world.buf::<u64>(1)?; // zeroed
            outbox.post(token)?;
        }
        let arrived = inbox.retrieve()?;
        let sum = arrived[0] + rank as u64;
        if rank == 0 {
            println!("lap {lap}: the ranks add up to {sum}");
            assert_eq!(sum, (0..size as u64).sum::<u64>());
        } else {
            let mut token = world.buf::<u64>(1)?;
            token[0] = sum;
            outbox.post(token)?;
        }
    }
    world.finish()
}
