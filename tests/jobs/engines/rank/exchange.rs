//! Messages of all sizes by all protocols, each byte of which is checked.

use std::collections::BTreeSet;

use udeck::{Error, Mailbox, Postbox, Protocol, Result, World};

use crate::{LONG, say};

const LONGEST: usize = 1 << 20;
/// Number of different starts of a message's contents: a prime, so that neighbours differ.
const STARTS: usize = 4093;
const PROTOCOLS: [Protocol; 7] = [
    Protocol::Auto,
    Protocol::Eager,
    Protocol::Copy,
    Protocol::RdmaWrite,
    Protocol::RdmaRead,
    Protocol::Handshake,
    Protocol::HandOff,
];

/// Lengths: zero, and those around each power of two.
fn sizes() -> impl Iterator<Item = usize> {
    let around = (1..=LONGEST.ilog2()).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]);
    [0].into_iter().chain(around.filter(|size| *size <= LONGEST))
}

/// Contents of which all messages are parts: made and compared by whole slices, because debug builds are slow on
/// single bytes.
struct Contents(Vec<u8>);

impl Contents {
    fn new() -> Self {
        let byte = |at: usize| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8;
        Contents((0..LONGEST + STARTS).map(byte).collect())
    }

    /// Contents of the message with this length from one rank to another.
    fn of(&self, from: usize, to: usize, len: usize) -> &[u8] {
        let start = (from * 131 + to * 17 + len * 7) % STARTS;
        &self.0[start..start + len]
    }
}

/// Lets every pair of ranks exchange messages.
pub fn all(world: World) -> Result {
    let (me, size) = (world.rank(), world.size());
    let contents = Contents::new();
    // There is one mailbox for each peer, so that the answering rank is known.
    let inboxes = (0..size).map(|peer| world.mailbox(&format!("{me}<{peer}"))).collect::<Result<Vec<_>>>()?;
    let (mut messages, mut transports) = (0, BTreeSet::new());
    // In each round a rank has another peer, whose peer is this rank.
    for peer in (0..size).map(|round| (round + size - me) % size).filter(|peer| *peer != me) {
        let out = world.postbox(&format!("{peer}<{me}"))?;
        transports.insert(out.route().transport.to_string());
        for protocol in PROTOCOLS {
            match out.set_protocol(protocol) {
                Err(Error::Unsupported { .. }) => continue,
                other => other?,
            }
            for len in sizes() {
                let [own, others] = [contents.of(me, peer, len), contents.of(peer, me, len)];
                rally(&world, me < peer, &inboxes[peer], &out, [own, others])?;
                messages += 1;
            }
        }
    }
    world.barrier()?;
    let transports: Vec<_> = transports.into_iter().collect();
    say(&format!("rank {me} has seen {messages} messages by {}", transports.join(",")));
    drop(inboxes);
    world.finish()
}

/// Exchanges messages; `first` says whether this rank posts first.
fn rally(
    world: &World,
    first: bool,
    inbox: &Mailbox<u8>,
    out: &Postbox<u8>,
    [own, others]: [&[u8]; 2],
) -> Result {
    let post = || {
        let mut message = world.buf::<u8>(own.len())?;
        message.copy_from_slice(own);
        out.post(message).map_err(|failed| failed.error)
    };
    if first {
        post()?;
    }
    let message = inbox.retrieve_timeout(LONG)?;
    assert!(message[..] == *others, "{} bytes that should be {} others", message.len(), others.len());
    if !first {
        post()?;
    }
    Ok(())
}
