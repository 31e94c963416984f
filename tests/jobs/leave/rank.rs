//! Ranks that post to rank 0 and leave at once: their messages arrive nevertheless, whole and in order. They drop nothing
//! before they leave, so that only [`World::finish`] ensures this. With `late`, rank 0 retrieves late; with `brief`, no
//! message is longer than a mebibyte.
//!
//! ```sh
//! DECK_TRANSPORT=tcp DECK_PROTOCOL=eager deckrun -n 3 target/debug/leave-rank late
//! ```

use std::{env, process, thread, time::Duration};

use udeck::{Error, Mailbox, Postbox, World};

/// Posts of each rank: lengths in bytes, and number of messages of each length. The lengths are short, more than a
/// descriptor holds, more than a packet, and more than a socket's buffers take.
const POSTS: [(usize, usize); 5] = [(8, 10), (4096, 5), (64 << 10, 5), (1 << 20, 3), (24 << 20, 1)];

fn main() -> udeck::Result {
    let is_told = |word: &str| env::args().any(|argument| argument == word);
    let posts = if is_told("brief") { &POSTS[..POSTS.len() - 1] } else { &POSTS };
    let lengths: Vec<usize> =
        posts.iter().flat_map(|(len, count)| std::iter::repeat_n(*len, *count)).collect();
    let world = udeck::init()?;
    if world.rank() == 0 { stay(world, &lengths, is_told("late")) } else { leave(world, &lengths) }
}

fn leave(world: World, lengths: &[usize]) -> udeck::Result {
    let rank = world.rank();
    let postbox: Postbox<u8> = world.postbox("left")?;
    world.barrier()?;
    for (number, len) in lengths.iter().enumerate() {
        let mut message = world.buf_reused(*len)?;
        message.fill(content(rank, number));
        postbox.post(message)?;
    }
    world.finish()?;
    process::exit(0)
}

fn stay(world: World, lengths: &[usize], is_late: bool) -> udeck::Result {
    let mailbox: Mailbox<u8> = world.mailbox("left")?;
    world.barrier()?;
    if is_late {
        thread::sleep(Duration::from_millis(300));
    }
    let mut came = vec![0; world.size()];
    loop {
        let message = match mailbox.retrieve() {
            Ok(message) => message,
            Err(Error::NobodyLeft { .. }) => break,
            Err(error) => return Err(error),
        };
        let (from, number) = (message.source(), came[message.source()]);
        assert_eq!(Some(&message.len()), lengths.get(number), "message {number} of rank {from}");
        let is_its = message.iter().all(|byte| *byte == content(from, number));
        assert!(is_its, "message {number} of rank {from} is another one");
        came[from] += 1;
    }
    assert!(came[1..].iter().all(|came| *came == lengths.len()), "of {}: {came:?}", lengths.len());
    println!("{} messages came of each of {} ranks", lengths.len(), world.size() - 1);
    world.finish()
}

fn content(rank: usize, number: usize) -> u8 {
    (rank * 101 + number * 7) as u8
}
