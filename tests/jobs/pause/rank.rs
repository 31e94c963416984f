//! Ranks that wait for each other in all ways until a file exists, which they remove: `pause-rank FILE`, as
//! five ranks.
//!
//! Each prints that it waits, and at the end that it is done. Rank 3 ends the waits once the file exists: rank 0 waits for a
//! message, rank 1 for a mailbox to exist, ranks 2 and 3 for each other's answers, over and over, rank 4 at the barrier.

use std::{env, fs, path::Path, thread::sleep, time::Duration};

use udeck::{Mailbox, Postbox, World};

fn main() -> udeck::Result {
    let file = env::args().nth(1).expect("a file's name");
    let world = udeck::init()?;
    let rank = world.rank();
    let inbox: Mailbox<u8> = world.mailbox(&format!("inbox.{rank}"))?;
    let to = |rank: usize| -> udeck::Result<Postbox<u8>> { world.postbox(&format!("inbox.{rank}")) };
    let waits = || println!("rank {rank} waits");
    match rank {
        0 => {
            waits();
            inbox.retrieve()?;
        }
        1 => {
            waits();
            post(&world, &world.postbox("late")?, 1)?;
        }
        2 => {
            let other = to(3)?;
            waits();
            while inbox.retrieve()?.len() == 1 {
                post(&world, &other, 1)?;
            }
        }
        3 => talk(&world, &inbox, [&to(0)?, &to(2)?], Path::new(&file))?,
        _ => waits(),
    }
    world.barrier()?;
    println!("rank {rank} is done");
    world.finish()
}

fn talk(world: &World, inbox: &Mailbox<u8>, to: [&Postbox<u8>; 2], file: &Path) -> udeck::Result {
    println!("rank {} waits", world.rank());
    while !file.exists() {
        post(world, to[1], 1)?;
        inbox.retrieve()?;
        sleep(Duration::from_millis(1));
    }
    fs::remove_file(file).expect("it is there");
    post(world, to[1], 2)?;
    post(world, to[0], 1)?;
    let late: Mailbox<u8> = world.mailbox("late")?;
    late.retrieve()?;
    Ok(())
}

fn post(world: &World, to: &Postbox<u8>, len: usize) -> udeck::Result {
    to.post(world.buf(len)?)?;
    Ok(())
}
