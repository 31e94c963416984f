//! A message of several types: every rank packs a char, a long, ten floats and a string; rank 0 unpacks them.
//!
//! ```sh
//! cargo run --example pack
//! deckrun -n 4 target/debug/examples/pack
//! ```

use udeck::{Packed, World};

fn main() -> udeck::Result {
    let world = udeck::init()?;
    // Rank 0 owns the mailbox and, like every other rank, posts to it.
    let inbox = if world.rank() == 0 { Some(world.mailbox::<Packed>("reports")?) } else { None };
    post_report(&world)?;

    if let Some(inbox) = inbox {
        for report in inbox.iter().take(world.size()) {
            let report = report?;
            let rank = report.source();
            // Items are unpacked in the order of packing. Slices lie in the message itself; a wrong type would
            // be an error.
            let letter = report.unpack_one::<i8>()?;
            let square = report.unpack_one::<i64>()?;
            let floats = report.unpack::<f32>()?;
            let text = report.unpack_str()?;
            println!("rank {rank}: {} {square} {floats:?} {text:?}", letter as u8 as char);

            assert_eq!((letter, square), (letter_of(rank), square_of(rank)));
            assert_eq!(floats, floats_of(rank));
            assert_eq!(text, text_of(rank));
        }
    }
    world.finish()
}

fn post_report(world: &World) -> udeck::Result {
    let rank = world.rank();
    let mut report = world.message(256)?;
    report.pack(&[letter_of(rank)])?;
    report.pack(&[square_of(rank)])?;
    report.pack(&floats_of(rank))?;
    report.pack_str(&text_of(rank))?;

    // The message moves: nothing is left here to overwrite by mistake.
    world.postbox::<Packed>("reports")?.post(report)?;
    Ok(())
}

/// DECK_CHAR is C's char, hence an `i8`.
fn letter_of(rank: usize) -> i8 {
    b'a' as i8 + (rank % 26) as i8
}

fn square_of(rank: usize) -> i64 {
    (rank * rank) as i64
}

fn floats_of(rank: usize) -> [f32; 10] {
    std::array::from_fn(|i| rank as f32 + i as f32 / 10.0)
}

fn text_of(rank: usize) -> String {
    format!("greetings from rank {rank}")
}
