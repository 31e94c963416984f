//! Selection: rank 0 waits at two mailboxes of different types at once, for parts of a sum and for reports of
//! the ranks.
//!
//! ```sh
//! cargo run --example select
//! deckrun -n 4 target/debug/examples/select
//! ```

use udeck::{Packed, Selectable, World};

const PARTS: u64 = 3;

fn main() -> udeck::Result {
    let world = udeck::init()?;
    if world.rank() > 0 {
        work(&world)?;
        return world.finish();
    }
    let parts = world.mailbox::<u64>("parts")?;
    let reports = world.mailbox::<Packed>("reports")?;
    work(&world)?; // nothing is retrieved meanwhile: posted messages wait

    let (mut total, mut reported) = (0, 0);
    let both: [&dyn Selectable; 2] = [&parts, &reports];
    while reported < world.size() {
        // The mailbox that was selected least recently comes first, and so neither starves.
        if udeck::select(&both)? == 0 {
            total += parts.retrieve()?.iter().sum::<u64>();
        } else {
            let report = reports.retrieve()?;
            println!("rank {} has sent {} parts", report.source(), report.unpack_one::<i32>()?);
            reported += 1;
        }
    }
    // A report may overtake parts: order is kept per postbox only.
    while let Some(part) = parts.try_retrieve()? {
        total += part.iter().sum::<u64>();
    }
    println!("the parts add up to {total}");
    assert_eq!(total, world.size() as u64 * PARTS);
    world.finish()
}

/// Posts `PARTS` parts, and then a report.
fn work(world: &World) -> udeck::Result {
    let (parts, reports) = (world.postbox::<u64>("parts")?, world.postbox::<Packed>("reports")?);
    for _ in 0..PARTS {
        let mut part = world.buf::<u64>(1)?;
        part[0] = 1;
        parts.post(part)?;
    }
    let mut report = world.message(64)?;
    report.pack(&[PARTS as i32])?;
    reports.post(report)?;
    Ok(())
}
