//! The transforms' exchange over mailboxes, and the small messages around it.
//!
//! An exchange order determines from which rank the next block comes, but a mailbox returns the message that
//! arrived first. Therefore every ordered pair of ranks has a mailbox, named after it, which belongs to the
//! receiving rank. The messages of one postbox keep their order, so the pieces of a transpose need no numbers.
//!
//! A block is written into message memory, posted (it moves: nothing is copied), and read in place on arrival.

use crate::exchange::Exchange;
use crate::layout::Group;
use num_complex::Complex64;
use std::collections::BTreeMap;
use std::mem;
use std::ops::Deref;
use udeck::exchange::{Action, Step};
use udeck::{Buf, Mailbox, PostError, Postbox, Protocol, Received, World};

/// Length in bytes below which cutting pieces smaller gains nothing.
const LEAST_PIECE: usize = 512 << 10;
/// Largest number of pieces of a transpose. A postbox's queue is bounded while the mailbox's owner is busy: two
/// transposes of this many pieces fit.
const MOST_PIECES: usize = 6;

/// Exchange of one rank with the members of a group.
pub struct Peers<'w> {
    world: &'w World,
    me: usize,
    members: usize,
    /// Mailboxes by member.
    links: BTreeMap<usize, PeerMailboxes>,
    steps: Vec<Step>,
    sending: Sending,
    /// Blocks of this rank for itself.
    kept: Vec<Buf<Complex64>>,
}

/// Mailboxes for both directions between this rank and a peer.
struct PeerMailboxes {
    inbox: Mailbox<Complex64>,
    outbox: Postbox<Complex64>,
}

/// Way of sending a block.
enum Sending {
    /// Posts do not wait, and blocks travel during the program's computation.
    AtOnce { pieces: usize },
    /// A post waits until its message was retrieved, so the order of the exchanges must be kept: blocks leave in
    /// `receive`.
    InOrder { blocks: BTreeMap<usize, Buf<Complex64>> },
    /// A collective call exchanges the blocks of each round. `arrived`: blocks by round; `given`: bytes sent to
    /// others.
    ByGroup { group: udeck::Group, arrived: Vec<Vec<Received<Complex64>>>, given: u64 },
}

/// A block of this rank's own, or of another rank.
pub enum Arrived {
    Kept(Buf<Complex64>),
    Received(Received<Complex64>),
}

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error(transparent)]
    Messaging(#[from] udeck::Error),
    #[error("rank {from} sent {found} points where {expected} were due: do all ranks run the same class?")]
    Length { from: usize, expected: usize, found: usize },
}

impl Deref for Arrived {
    type Target = [Complex64];

    fn deref(&self) -> &[Complex64] {
        match self {
            Self::Kept(block) => block,
            Self::Received(block) => block,
        }
    }
}

/// Facts that are needed before mailboxes are made.
pub struct Plan<'a> {
    /// Part of the mailboxes' names.
    pub name: &'a str,
    pub group: &'a Group,
    /// Steps of the exchange, which all members derive by the same rule; peers are members of the group.
    pub steps: Vec<Step>,
    /// Whether a group's all-to-all is used, instead of single steps.
    pub collective: bool,
    pub protocol: Protocol,
    /// Smallest number of bytes from one member to another in a transpose, and smallest number of indices into which
    /// these can be cut.
    pub block_bytes: usize,
    pub cuts: usize,
}

impl<'w> Peers<'w> {
    /// Makes the mailboxes and waits for those of the other members.
    pub fn connect(world: &'w World, plan: Plan<'_>) -> udeck::Result<Self> {
        let Plan { name, group, steps, collective, protocol, block_bytes, cuts } = plan;
        let (me, members) = (group.me, group.ranks.len());
        if collective {
            let group = world.anonymous_group(&group.ranks)?;
            let sending = Sending::ByGroup { group, arrived: Vec::new(), given: 0 };
            return Ok(Self { world, me, members, links: BTreeMap::new(), steps, sending, kept: Vec::new() });
        }
        let others = || (0..members).filter(|peer| *peer != me);
        let pair = |from: usize, to: usize| format!("ft.{name}.{}.to.{}", group.ranks[from], group.ranks[to]);
        // All mailboxes are made first: the wait for the others' mailboxes comes only in the second half.
        let inboxes = others()
            .map(|peer| world.mailbox(&pair(peer, me)))
            .collect::<udeck::Result<Vec<Mailbox<Complex64>>>>()?;
        let mut links = BTreeMap::new();
        for (peer, inbox) in others().zip(inboxes) {
            let outbox = world.postbox(&pair(me, peer))?;
            outbox.set_protocol(protocol)?;
            links.insert(peer, PeerMailboxes { inbox, outbox });
        }
        let sending = match protocol {
            Protocol::Handshake => Sending::InOrder { blocks: BTreeMap::new() },
            _ => Sending::AtOnce { pieces: (block_bytes / LEAST_PIECE).clamp(1, MOST_PIECES.min(cuts)) },
        };
        Ok(Self { world, me, members, links, steps, sending, kept: Vec::new() })
    }

    /// Bytes sent to other members by collective calls.
    pub fn given(&self) -> u64 {
        if let Sending::ByGroup { given, .. } = &self.sending { *given } else { 0 }
    }

    fn post(&self, peer: usize, block: Buf<Complex64>) -> Result<(), ExchangeError> {
        Ok(self.links[&peer].outbox.post(block).map_err(udeck::Error::from)?)
    }

    /// Posts a block. Waits only if the postbox's queue is full, which two transposes cannot fill.
    fn post_nonblocking(&self, peer: usize, block: Buf<Complex64>) -> Result<(), ExchangeError> {
        match self.links[&peer].outbox.post_nonblocking(block) {
            // The next post reports an error that happens later.
            Ok(request) => drop(request),
            Err(PostError { error: udeck::Error::WouldBlock { .. }, message: Some(block) }) => {
                self.post(peer, block)?
            }
            Err(failed) => return Err(udeck::Error::from(failed).into()),
        }
        Ok(())
    }

    fn retrieve(&self, peer: usize, expected: usize) -> Result<Arrived, ExchangeError> {
        let block = self.links[&peer].inbox.retrieve()?;
        match block.len() {
            found if found == expected => Ok(Arrived::Received(block)),
            found => Err(ExchangeError::Length { from: block.source(), expected, found }),
        }
    }
}

impl Exchange for Peers<'_> {
    type Error = ExchangeError;
    type Outgoing = Buf<Complex64>;
    type Arrived = Arrived;

    fn members(&self) -> usize {
        self.members
    }

    fn pieces(&self) -> usize {
        match self.sending {
            Sending::AtOnce { pieces } => pieces,
            Sending::InOrder { .. } | Sending::ByGroup { .. } => 1,
        }
    }

    fn outgoing(&mut self, points: usize) -> Result<Buf<Complex64>, ExchangeError> {
        Ok(self.world.buf_reused(points)?)
    }

    fn send(&mut self, blocks: Vec<Buf<Complex64>>) -> Result<(), ExchangeError> {
        if let Sending::ByGroup { group, arrived, given } = &mut self.sending {
            let to_others = blocks.iter().enumerate().filter(|(member, _)| *member != self.me);
            *given += to_others.map(|(_, block)| size_of_val(&block[..]) as u64).sum::<u64>();
            arrived.push(group.all_to_all_buf::<Complex64>(blocks)?);
            return Ok(());
        }
        let mut blocks: BTreeMap<_, _> = blocks.into_iter().enumerate().collect();
        self.kept.extend(blocks.remove(&self.me));
        if let Sending::InOrder { blocks: waiting } = &mut self.sending {
            *waiting = blocks;
            return Ok(());
        }
        for step in &self.steps {
            if step.action == Action::Retrieve {
                continue;
            }
            let Some(block) = blocks.remove(&step.peer) else { continue };
            self.post_nonblocking(step.peer, block)?;
        }
        Ok(())
    }

    fn receive(&mut self, points: &[Vec<usize>]) -> Result<Vec<Vec<Arrived>>, ExchangeError> {
        if let Sending::ByGroup { arrived, .. } = &mut self.sending {
            return by_member(mem::take(arrived), points);
        }
        let mut arrived: Vec<Vec<Arrived>> = points.iter().map(|_| Vec::new()).collect();
        arrived[self.me] = self.kept.drain(..).map(Arrived::Kept).collect();
        let mut blocks = match &mut self.sending {
            Sending::InOrder { blocks } => mem::take(blocks),
            _ => BTreeMap::new(),
        };
        for &Step { peer, action } in &self.steps {
            if matches!(action, Action::Post | Action::PostThenRetrieve) {
                blocks.remove(&peer).map_or(Ok(()), |block| self.post(peer, block))?;
            }
            if action != Action::Post {
                let pieces = points[peer].iter().map(|points| self.retrieve(peer, *points));
                arrived[peer] = pieces.collect::<Result<_, _>>()?;
            }
            if action == Action::RetrieveThenPost {
                blocks.remove(&peer).map_or(Ok(()), |block| self.post(peer, block))?;
            }
        }
        Ok(arrived)
    }
}

/// Turns blocks by round, with one of each member, into blocks by member.
fn by_member(
    rounds: Vec<Vec<Received<Complex64>>>,
    points: &[Vec<usize>],
) -> Result<Vec<Vec<Arrived>>, ExchangeError> {
    let mut arrived: Vec<Vec<Arrived>> = points.iter().map(|_| Vec::new()).collect();
    for (round, blocks) in rounds.into_iter().enumerate() {
        for (member, block) in blocks.into_iter().enumerate() {
            let (expected, found) = (points[member].get(round).copied().unwrap_or(0), block.len());
            if found != expected {
                return Err(ExchangeError::Length { from: block.source(), expected, found });
            }
            arrived[member].push(Arrived::Received(block));
        }
    }
    Ok(arrived)
}

/// Collects a few numbers of every rank at rank 0, any number of times.
pub struct Gather<'w, T: bytemuck::Pod> {
    world: &'w World,
    /// At rank 0: a mailbox for each other rank.
    inboxes: Vec<Mailbox<T>>,
    /// At the other ranks: the postbox to rank 0.
    outbox: Option<Postbox<T>>,
}

impl<'w, T: bytemuck::Pod> Gather<'w, T> {
    /// Makes the connections. All ranks must call it.
    pub fn connect(world: &'w World, name: &str) -> udeck::Result<Self> {
        let mailbox = |rank: usize| format!("ft.{name}.of.{rank}");
        let (inboxes, outbox) = match world.rank() {
            0 => (
                (1..world.size()).map(|rank| world.mailbox(&mailbox(rank))).collect::<udeck::Result<_>>()?,
                None,
            ),
            rank => (Vec::new(), Some(world.postbox(&mailbox(rank))?)),
        };
        Ok(Self { world, inboxes, outbox })
    }

    /// The numbers of all ranks, in their order, at rank 0; `None` at the others.
    pub fn all(&self, own: &[T]) -> udeck::Result<Option<Vec<Vec<T>>>> {
        let Some(outbox) = &self.outbox else {
            let mut all = vec![own.to_vec()];
            for inbox in &self.inboxes {
                all.push(inbox.retrieve()?.to_vec());
            }
            return Ok(Some(all));
        };
        let mut message = self.world.buf(own.len())?;
        message.copy_from_slice(own);
        outbox.post(message)?;
        Ok(None)
    }
}
