//! A message of several types: every node packs a char, a long, ten floats and a string; node 0 unpacks them.
//!
//! ```sh
//! cargo run --example pack
//! deckrun -n 4 target/debug/examples/pack
//! ```

use udeck::{Packed, World};

fn main() -> udeck::Result {
    let world = udeck::init()?;
    // Node 0 owns the mailbox and, like every other node, posts to it.
    let inbox = if world.rank() == 0 { Some(world.mailbox::<Packed>("reports")?) } else { None };
    post_report(&world)?;

    if let Some(inbox) = inbox {
        for report in inbox.iter().take(world.size()) {
            let mut report = report?;
            let node = report.from();
            // In the order of packing. Slices lie in the message itself; a wrong type would be an error.
            let letter = report.unpack_one::<i8>()?;
            let square = report.unpack_one::<i64>()?;
            let floats = report.unpack::<f32>()?.to_vec();
            let text = report.unpack_str()?;
            println!("node {node}: {} {square} {floats:?} {text:?}", letter as u8 as char);

            assert_eq!((letter, square), (letter_of(node), square_of(node)));
            assert_eq!(floats, floats_of(node));
            assert_eq!(text, text_of(node));
        }
    }
    world.finish()
}

fn post_report(world: &World) -> udeck::Result {
    let node = world.rank();
    let mut report = world.message(256)?;
    report.pack(&[letter_of(node)])?;
    report.pack(&[square_of(node)])?;
    report.pack(&floats_of(node))?;
    report.pack_str(&text_of(node))?;

    // The message moves: there is nothing left here to overwrite by mistake.
    world.postbox::<Packed>("reports")?.post(report)?;
    Ok(())
}

/// DECK_CHAR is C's char, hence an `i8`.
fn letter_of(node: usize) -> i8 {
    b'a' as i8 + (node % 26) as i8
}

fn square_of(node: usize) -> i64 {
    (node * node) as i64
}

fn floats_of(node: usize) -> [f32; 10] {
    std::array::from_fn(|i| node as f32 + i as f32 / 10.0)
}

fn text_of(node: usize) -> String {
    format!("greetings from node {node}")
}
