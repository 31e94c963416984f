//! Ranks whose trace is examined (`DECK_TRACE`). `trace-rank WORD`:
//!
//! * `ring`: each rank posts messages of many sizes to the next one, by all protocols and ways to post, and all meet at barriers.
//! * `self`: as `ring`, with messages to itself.
//! * `token`: a message of 1,234 bytes goes around among all ranks, five times, each time in a span.
//! * `killed`: rank 1 has posted, waits until its part of the trace contains the post, and kills itself.
//! * `first-killed`, `interrupted`: all ranks have posted and wait for ever. When the parts contain the posts, rank 0 kills
//!   itself, or interrupts deckrun.
//! * `full`: there is too little room for rank 1's part.
//! * `planned`: rank 1 posts by every protocol, behind a message that waits, and prints how each message was planned. Its
//!   counters must say the same.
//! * `own`: as `ring`, with a subscriber of the program's own that has µDECK's layer; the program has a span and an event.
//! * `plain`: as `own`, without a subscriber of its own.
//! * `spans`, `own-spans`: spans by `World::span` of every kind, without and with a subscriber of the program's own.
//! * `foreign`: as `own`, with a subscriber that lacks the layer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getpid, getppid, getrlimit, kill_process, setrlimit};
use tracing_subscriber::prelude::*;
use udeck::{Error, Postbox, Protocol, Result, WithTag, World};

/// Lengths in bytes over shared memory: inline, handed off, and too long for a ring's cell.
const SIZES: [usize; 5] = [0, 8, 40, 4096, 300_000];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let word = std::env::args().nth(1).unwrap_or_default();
    match word.as_str() {
        "own" | "own-spans" => tracing_subscriber::registry().with(udeck::trace::layer()).init(),
        "foreign" => tracing_subscriber::registry().init(),
        _ => {}
    }
    let world = udeck::init()?;
    match word.as_str() {
        "killed" => killed(&world)?,
        "full" => full(&world)?,
        "first-killed" | "interrupted" => hang(&world, &word)?,
        "ring" => ring(&world)?,
        "self" => with_self(&world)?,
        "token" => token(&world)?,
        "planned" => planned(&world)?,
        "spans" | "own-spans" => spans(&world)?,
        _ => {
            let span = tracing::info_span!("solve", cells = 1000, method = "\"by\"\nhand");
            span.in_scope(|| -> Result {
                tracing::info!(residual = 0.5, "half way");
                ring(&world)
            })?;
        }
    }
    Ok(world.finish()?)
}

fn ring(world: &World) -> Result {
    let inbox = world.mailboxes::<u8>("ring")?;
    let next = world.postbox_of::<u8>("ring", (world.rank() + 1) % world.size())?;
    let from = (world.rank() + world.size() - 1) % world.size();
    for size in SIZES {
        for protocol in [Protocol::Auto, Protocol::Eager, Protocol::Copy, Protocol::RdmaWrite] {
            match next.post_with(protocol, world.buf(size)?) {
                Ok(()) => {}
                Err(failed) if matches!(failed.error, Error::Unsupported { .. }) => {
                    next.post(world.buf(size)?)?;
                }
                Err(failed) => return Err(failed.error),
            }
            assert_eq!(inbox.retrieve()?.len(), size);
        }
    }
    next.post_each(&[1; 20])?;
    next.post([2].with_tag(7))?;
    // The twenty messages before it are set aside, and come later.
    assert_eq!(inbox.retrieve_tagged(7)?[..], [2]);
    let mut drained = 0;
    while drained < 10 {
        drained += inbox.drain(10 - drained, |_| {})?;
    }
    let mut one = [0];
    for _ in 0..5 {
        assert_eq!(inbox.retrieve_into(&mut one)?.source, from);
        inbox.from(from).within(Duration::from_secs(60)).retrieve()?;
    }
    world.barrier()?;
    let mut sum = [world.rank() as u64; 1000];
    world.all()?.all_reduce(&mut sum, udeck::op::Sum)?;
    let under_way = world.all()?.all_reduce_nonblocking(vec![1_u64], udeck::op::Sum)?;
    world.barrier()?;
    assert_eq!(under_way.wait()?, [world.size() as u64]);
    Ok(())
}

fn with_self(world: &World) -> Result {
    ring(world)?;
    let inbox = world.mailboxes::<u8>("self")?;
    let own = world.postbox_of::<u8>("self", world.rank())?;
    for size in SIZES {
        own.post(world.buf(size)?)?;
        inbox.retrieve()?;
    }
    Ok(())
}

fn token(world: &World) -> Result {
    let inbox = world.mailboxes::<u8>("token")?;
    let next = world.postbox_of::<u8>("token", (world.rank() + 1) % world.size())?;
    for _ in 0..5 {
        let _round = world.span("post"); // named as a message is
        if world.rank() == 0 {
            next.post(&[0; 1234])?;
            inbox.retrieve()?;
        } else {
            inbox.retrieve()?;
            next.post(&[0; 1234])?;
        }
    }
    Ok(())
}

fn spans(world: &World) -> Result {
    {
        let _outer = world.span("outer");
        world.barrier()?;
        for _ in 0..3 {
            let _inner = world.span("inner \"of\"\n");
            world.barrier()?;
        }
        drop(world.span(""));
    }
    std::thread::scope(|scope| {
        let on_its_own = || _ = world.span("on a thread");
        std::thread::Builder::new().name("solver".into()).spawn_scoped(scope, on_its_own).expect("a thread");
    });
    // Two spans that cross, and one that ends on another thread.
    let (first, second) = (world.span("crosses first"), world.span("crosses second"));
    drop(first);
    drop(second);
    let moved = world.span("moves");
    std::thread::spawn(move || drop(moved)).join().expect("it does nothing");
    // A panic ends a span; a guard that is leaked never does.
    let panics = || {
        let _span = world.span("panics");
        std::panic::resume_unwind(Box::new("a panic without words"));
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).expect_err("it panics");
    for _ in 0..100 {
        std::mem::forget(world.span("never ends"));
    }
    drop(world.span("after leaks"));
    // More names than are kept.
    drop(world.span(&"long".repeat(1000)));
    for number in 0..1100 {
        drop(world.span(&format!("number {number}")));
    }
    drop(world.span("outer"));
    Ok(())
}

fn planned(world: &World) -> Result {
    use Protocol::{Auto, Copy, Eager, HandOff, Handshake, RdmaRead, RdmaWrite};
    const LAST: u32 = 9;
    if world.rank() == 0 {
        let (inbox, start) = (world.mailbox::<u8>("planned")?, world.mailbox::<u8>("start")?);
        start.retrieve()?;
        while inbox.retrieve()?.tag() != LAST {}
        return Ok(());
    }
    let (out, start) = (world.postbox::<u8>("planned")?, world.postbox::<u8>("start")?);
    let counted = |protocol: Protocol| -> u64 {
        let by_protocol = world.peer_stats().into_iter().flat_map(|peer| peer.by_protocol);
        by_protocol.filter(|(other, _)| *other == protocol).map(|(_, count)| count).sum()
    };
    let protocols = [Copy, Auto, Eager, RdmaWrite, RdmaRead, HandOff, Handshake];
    let before = protocols.map(counted);
    let mut expected = Vec::new();
    let explain = |to: &Postbox<u8>, len: usize| {
        let protocol = to.explain(len).protocol;
        println!("planned {len} {protocol}");
        protocol
    };
    for (nth, protocol) in protocols.into_iter().enumerate() {
        if protocol == Handshake {
            // Waits until the message was received, so the others cannot wait any more.
            expected.push(start.explain(1).protocol);
            start.post(&[1])?;
        }
        if out.set_protocol(protocol).is_err() {
            continue;
        }
        for len in [0, 30, 41, 4096, 100_000].map(|len| len + nth) {
            expected.push(explain(&out, len));
            out.post(world.buf(len)?)?;
        }
    }
    expected.push(explain(&out, 7));
    out.post([0; 7].with_tag(LAST))?;
    for (protocol, before) in protocols.into_iter().zip(before) {
        let count = expected.iter().filter(|other| **other == protocol).count() as u64;
        assert_eq!(counted(protocol) - before, count, "messages counted by {protocol}");
    }
    Ok(())
}

fn killed(world: &World) -> Result {
    const COUNT: usize = 100;
    if world.rank() == 0 {
        let inbox = world.mailbox::<u64>("in")?;
        inbox.expect([1]);
        for _ in 0..COUNT * (world.size() - 1) {
            inbox.retrieve()?;
        }
        while !matches!(inbox.retrieve(), Err(Error::PeerLost { rank: 1, .. })) {}
        println!("rank 1 is lost");
        return Ok(());
    }
    let out = world.postbox::<u64>("in")?;
    (0..COUNT).try_for_each(|number| out.post(&[number as u64]).map_err(|failed| failed.error))?;
    if world.rank() == 1 {
        until_written(&[1]);
        kill_process(getpid(), Signal::KILL).expect("this process");
    }
    Ok(())
}

fn hang(world: &World, word: &str) -> Result {
    let inbox = world.mailboxes::<u8>("in")?;
    world.postbox_of::<u8>("in", (world.rank() + 1) % world.size())?.post(&[1])?;
    inbox.retrieve()?;
    if world.rank() == 0 {
        until_written(&(0..world.size()).collect::<Vec<_>>());
        match word {
            "interrupted" => {
                kill_process(getppid().expect("deckrun"), Signal::INT).expect("a child of deckrun")
            }
            _ => kill_process(getpid(), Signal::KILL).expect("this process"),
        }
    }
    inbox.retrieve().map(drop)
}

/// The library's memory, which consists of files, too, has been made before, or is smaller.
fn full(world: &World) -> Result {
    const ROOM: u64 = 32 << 20;
    ring(world)?;
    if world.rank() == 1 {
        let limit = Rlimit { current: Some(ROOM), maximum: getrlimit(Resource::Fsize).maximum };
        setrlimit(Resource::Fsize, limit).expect("less is allowed");
        for number in 0..ROOM / 100 {
            tracing::info!(number, "many words for an event");
        }
    }
    Ok(())
}

/// Waits until the parts of these ranks contain posts.
fn until_written(ranks: &[usize]) {
    let trace = std::env::var("DECK_TRACE").expect("this is about a trace");
    let folder = Path::new(&trace).parent().expect("a folder");
    let parts = || std::fs::read_dir(folder).expect("the trace's").flatten().map(|entry| entry.path());
    let posted = |path: PathBuf| std::fs::read_to_string(path).is_ok_and(|text| text.contains("\"post\""));
    let has_posted = |rank: &usize| {
        let is_its = |path: &PathBuf| path.to_string_lossy().ends_with(&format!(".rank-{rank}.part"));
        parts().filter(is_its).any(posted)
    };
    let end = Instant::now() + Duration::from_secs(120);
    while !ranks.iter().all(has_posted) {
        assert!(Instant::now() < end, "nothing is in the parts");
        std::thread::sleep(Duration::from_millis(20));
    }
}
