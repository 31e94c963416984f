//! An idle rank: it has a connection with every other rank, has used each, and then waits for a message that nobody posts.
//! It prints the processor time that this takes. With `unread`, a message of its own waits meanwhile for the next rank to
//! retrieve it.
//!
//! ```sh
//! DECK_TRANSPORT=tcp deckrun -n 64 target/release/idle-rank 10      # for 10 seconds
//! ```

use std::{
    env,
    io::Write,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};
use udeck::{Error, Mailbox, Postbox, Protocol, World};

fn main() -> udeck::Result {
    let seconds =
        env::args().nth(1).and_then(|seconds| seconds.parse().ok()).expect("seconds to be idle for");
    let world = udeck::init()?;
    let (me, size) = (world.rank(), world.size());
    let inbox: Mailbox<u8> = world.mailbox(&format!("idle.{me}"))?;
    let others = (1..size).map(|step| (me + step) % size);
    let postboxes = others.map(|other| world.postbox(&format!("idle.{other}")));
    let postboxes = postboxes.collect::<udeck::Result<Vec<Postbox<u8>>>>()?;
    for postbox in &postboxes {
        postbox.post(world.buf(8)?)?;
    }
    for _ in &postboxes {
        inbox.retrieve()?;
    }
    world.barrier()?;

    let waiting = env::args().nth(2).as_deref() == Some("unread");
    let unread = waiting.then(|| leave_unread(&world)).transpose()?;
    let (started, before) = (Instant::now(), processor_time());
    match inbox.retrieve_timeout(Duration::from_secs(seconds)) {
        Err(Error::Deadline { .. }) => {}
        other => panic!("nobody posts, and this came: {other:?}"),
    }
    let (lasted, taken) = (started.elapsed(), processor_time() - before);
    // The line is written in one call, so that ranks' lines stay whole.
    let line = format!(
        "rank {me} took {} us of {} us with {} peers\n",
        taken.as_micros(),
        lasted.as_micros(),
        size - 1
    );
    std::io::stdout().write_all(line.as_bytes()).expect("somebody reads");
    if let Some((mailbox, _)) = &unread {
        assert_eq!(mailbox.retrieve()?.len(), LONG);
    }
    drop(unread);
    world.finish()
}

/// Length in bytes of a message that is announced.
const LONG: usize = 1 << 20;

/// Leaves a message unread. Returns the mailbox with the previous rank's message, and the postbox to the next
/// rank.
fn leave_unread(world: &World) -> udeck::Result<(Mailbox<u8>, Postbox<u8>)> {
    let mailbox = world.mailbox(&format!("unread.{}", world.rank()))?;
    let postbox = world.postbox(&format!("unread.{}", (world.rank() + 1) % world.size()))?;
    postbox.set_protocol(Protocol::RdmaWrite)?;
    postbox.post(world.buf(LONG)?)?;
    world.barrier()?;
    Ok((mailbox, postbox))
}

/// Processor time of this process: all threads, user and system mode.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
