//! A greeting: every rank says hello to rank 0, which prints the messages.
//!
//! ```sh
//! cargo run --example hello                               # alone: a world of one
//! deckrun -n 4 target/debug/examples/hello
//! ```

fn main() -> udeck::Result {
    let world = udeck::init()?;
    if world.rank() == 0 {
        // The owner of a mailbox retrieves from it...
        let inbox = world.mailbox::<u8>("hello")?;
        println!("hello from rank 0 of {}", world.size());
        for greeting in inbox.iter().take(world.size() - 1) {
            let greeting = greeting?;
            let text = String::from_utf8_lossy(&greeting);
            println!("{text}");
            assert_eq!(text, hello(greeting.source(), world.size()));
        }
    } else {
        // ... and any number of others post to it. Making a postbox waits until the mailbox exists.
        let postbox = world.postbox::<u8>("hello")?;
        let text = hello(world.rank(), world.size());
        let mut greeting = world.buf::<u8>(text.len())?;
        greeting.copy_from_slice(text.as_bytes());
        postbox.post(greeting)?;
    }
    world.finish()
}

fn hello(rank: usize, size: usize) -> String {
    format!("hello from rank {rank} of {size}")
}
