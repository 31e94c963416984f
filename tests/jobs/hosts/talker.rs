//! Ranks of the tests over several hosts that send each other messages.

use std::{env, io::Write, process::ExitCode, time::Duration};

use udeck::{Config, Error, Mailbox, NicOptions, Postbox, Protocol, Result, World, open_nic};
use udeck_boot::Client;

/// Deadline of every call: it only ends a hang.
const LONG: Duration = Duration::from_secs(100);
/// Lengths in bytes: inside the descriptor, in one piece, in several.
const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, (1 << 20) + 3];
/// Protocols that a program may choose over any transport.
const PROTOCOLS: [Protocol; 6] = [
    Protocol::Auto,
    Protocol::Eager,
    Protocol::Copy,
    Protocol::RdmaWrite,
    Protocol::RdmaRead,
    Protocol::Handshake,
];

fn main() -> ExitCode {
    let part = env::args().nth(1).unwrap_or_default();
    let done = match part.as_str() {
        "exchange" => udeck::init().and_then(exchange),
        "ring" => udeck::init().and_then(|world| ring(world, 60)),
        "flood" => udeck::init().and_then(flood),
        "endure" => udeck::init().and_then(endure),
        "encrypt" => encrypt(&env::args().nth(2).unwrap_or_default()),
        other => panic!("no part is named {other:?}"),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a line in one write, so that ranks' lines stay whole.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("somebody reads");
}

fn pattern(seed: usize, len: usize) -> impl Iterator<Item = u8> {
    (0..len).map(move |at| (at.wrapping_mul(31) ^ (at >> 9) ^ seed.wrapping_mul(101)) as u8)
}

/// Every pair exchanges messages of all sizes, by every protocol, and checks every byte.
fn exchange(world: World) -> Result {
    let (me, size) = (world.rank(), world.size());
    // There is one mailbox for each peer, so that the answering rank is known.
    let inboxes = (0..size).map(|peer| world.mailbox(&format!("{me}<{peer}"))).collect::<Result<Vec<_>>>()?;
    let mut messages = 0;
    for (peer, inbox) in inboxes.iter().enumerate().filter(|(peer, _)| *peer != me) {
        let out = world.postbox(&format!("{peer}<{me}"))?;
        for protocol in PROTOCOLS {
            out.set_protocol(protocol)?;
            for len in SIZES {
                rally(&world, (me < peer, me * size + peer, peer * size + me), inbox, &out, len)?;
                messages += 1;
            }
        }
        let route = out.route().transport.to_string();
        say(&format!("rank {me} -> rank {peer}: {route}"));
    }
    world.barrier()?;
    say(&format!("rank {me} has seen {messages} messages"));
    drop(inboxes);
    world.finish()
}

/// Exchanges messages; `first` says whether this rank posts first.
fn rally(
    world: &World,
    (first, own, others): (bool, usize, usize),
    inbox: &Mailbox<u8>,
    out: &Postbox<u8>,
    len: usize,
) -> Result {
    let post = || {
        let mut message = world.buf::<u8>(len)?;
        message.iter_mut().zip(pattern(own, len)).for_each(|(byte, wanted)| *byte = wanted);
        out.post(message).map_err(|failed| failed.error)
    };
    if first {
        post()?;
    }
    let message = inbox.retrieve_timeout(LONG)?;
    assert!(message.iter().copied().eq(pattern(others, len)), "{len} bytes from another rank");
    if !first {
        post()?;
    }
    Ok(())
}

/// Passes a token round over all hosts for some seconds.
fn ring(world: World, laps: u64) -> Result {
    let (me, size) = (world.rank(), world.size());
    let inbox = world.mailbox::<u64>(&format!("ring{me}"))?;
    let next = world.postbox::<u64>(&format!("ring{}", (me + 1) % size))?;
    world.barrier()?;
    say(&format!("rank {me} pid {} ready", std::process::id()));
    for lap in 0..laps {
        if me == 0 {
            std::thread::sleep(Duration::from_millis(50));
            next.post(&[lap][..]).map_err(|failed| failed.error)?;
        }
        let token = inbox.retrieve_timeout(LONG)?;
        assert_eq!(token[0], lap);
        if me != 0 {
            next.post(&[lap][..]).map_err(|failed| failed.error)?;
        }
    }
    world.barrier()?;
    say(&format!("rank {me} is through"));
    drop((inbox, next));
    world.finish()
}

/// Rank 0 posts faster than any interface sends, over so many connections that together they fill a socket's
/// buffer.
fn flood(world: World) -> Result {
    const WAYS: usize = 24;
    const ROUNDS: usize = 6;
    const LEN: usize = 1 << 20;
    let names = || (0..WAYS).map(|way| format!("flood{way}"));
    if world.rank() == 1 {
        let inboxes = names().map(|name| world.mailbox::<u8>(&name)).collect::<Result<Vec<_>>>()?;
        for round in 0..ROUNDS {
            for (way, inbox) in inboxes.iter().enumerate() {
                let message = inbox.retrieve_timeout(LONG)?;
                assert!(message.iter().copied().eq(pattern(way + round, LEN)), "round {round} of {way}");
            }
        }
        say(&format!("{} messages came", WAYS * ROUNDS));
    } else {
        let outs = names().map(|name| world.postbox::<u8>(&name)).collect::<Result<Vec<_>>>()?;
        for round in 0..ROUNDS {
            for (way, out) in outs.iter().enumerate() {
                out.set_protocol(Protocol::Eager)?;
                let mut message = world.buf::<u8>(LEN)?;
                message.iter_mut().zip(pattern(way + round, LEN)).for_each(|(byte, wanted)| *byte = wanted);
                out.post(message).map_err(|failed| failed.error)?;
            }
        }
        outs.iter().try_for_each(|out| out.flush())?;
    }
    world.finish()
}

/// Rank 0 requires encryption, the others do not, and each has NICs of its own that listen on its host's address.
fn encrypt(transports: &str) -> Result {
    let client = Client::from_env()?.expect("deckrun has started it");
    let (rank, address) = (client.welcome().rank, client.welcome().address);
    let mut options = NicOptions::new(client.keys());
    options.bind = address;
    let mut nics = Vec::new();
    for transport in transports.split(',') {
        let nic = open_nic(&format!("{transport}0"), &options).expect("a NIC");
        options.memory.get_or_insert_with(|| nic.clone());
        nics.push(nic);
    }
    let mut config = Config::from_env()?;
    config.encrypt = rank == 0;
    let world = World::new(client, nics, config, true)?;
    let (me, size) = (world.rank(), world.size());
    let inbox = world.mailbox::<u8>(&format!("in{me}"))?;
    for peer in (0..size).filter(|peer| *peer != me) {
        let sent = world.postbox::<u8>(&format!("in{peer}")).and_then(|out| {
            out.post(&[7][..]).map_err(|failed| failed.error)?;
            Ok(out.route().to_string())
        });
        let how = sent.unwrap_or_else(|error| format!("not sent: {error}"));
        say(&format!("rank {me} -> rank {peer}: {how}"));
    }
    // There is no barrier, because rank 0 is not reached by all.
    say(&format!("rank {me} is done"));
    while inbox.retrieve_timeout(Duration::from_secs(2)).is_ok() {}
    world.finish()
}

/// Each rank waits for messages that never come, from all others, prints the errors instead, and stays until the job is
/// ended, so that the only end is that of the tested rank.
fn endure(world: World) -> Result {
    let (me, size) = (world.rank(), world.size());
    let inbox = world.mailbox::<u64>(&format!("endure{me}"))?;
    let others = (0..size).filter(|peer| *peer != me);
    let outs =
        others.map(|peer| world.postbox::<u64>(&format!("endure{peer}"))).collect::<Result<Vec<_>>>()?;
    // One message goes each way over every connection.
    for out in &outs {
        out.post(&[me as u64][..]).map_err(|failed| failed.error)?;
    }
    for _ in &outs {
        inbox.retrieve_timeout(LONG)?;
    }
    world.barrier()?;
    say(&format!("rank {me} pid {} ready", std::process::id()));
    loop {
        match inbox.retrieve_timeout(LONG) {
            Err(Error::PeerLost { rank, how }) => say(&format!("rank {me} learns: rank {rank} {how}")),
            other => panic!("rank {me}: {other:?}"),
        }
    }
}
