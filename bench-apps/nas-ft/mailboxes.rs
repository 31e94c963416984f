//! The transforms' exchange over mailboxes, and the small messages around it.
//!
//! An exchange order says from whom the next block comes, a mailbox gives what came first: so there is one
//! mailbox for every ordered pair of ranks, named by it, and a rank owns those that end at it. The messages
//! of one postbox keep their order, so the pieces of a transpose need no numbers.
//!
//! A block is written into message memory, posted (it moves: nothing is copied), and read where it arrived.

use crate::exchange::Exchange;
use crate::layout::Group;
use num_complex::Complex64;
use std::collections::BTreeMap;
use std::mem;
use std::ops::Deref;
use udeck::exchange::{Action, Step};
use udeck::{Buf, Mailbox, PostError, Postbox, Protocol, Received, World};

/// Bytes of a piece below which cutting a transpose finer gains nothing.
const LEAST_PIECE: usize = 512 << 10;
/// What a postbox queues while its mailbox's owner is busy is limited: two transposes of so many pieces fit.
const MOST_PIECES: usize = 6;

/// One rank's exchange with the members of a group.
pub struct Peers<'w> {
    world: &'w World,
    me: usize,
    members: usize,
    /// By member.
    links: BTreeMap<usize, PeerMailboxes>,
    steps: Vec<Step>,
    sending: Sending,
    /// This rank's blocks for itself.
    kept: Vec<Buf<Complex64>>,
}

/// Both directions between this rank and a peer.
struct PeerMailboxes {
    inbox: Mailbox<Complex64>,
    outbox: Postbox<Complex64>,
}

/// How a block gets on its way.
enum Sending {
    /// Posts do not wait, and blocks travel while the program computes.
    AtOnce { pieces: usize },
    /// A post waits until it was retrieved, so that the order of exchanges has to be kept to: blocks leave in `receive`.
    InOrder { blocks: BTreeMap<usize, Buf<Complex64>> },
    /// By a collective call, with what has come so far, a round after the other, and the bytes that others got.
    ByGroup { group: udeck::Group, arrived: Vec<Vec<Received<Complex64>>>, given: u64 },
}

/// A block of this rank's own, or another's.
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

/// What is to be known before mailboxes are made.
pub struct Plan<'a> {
    /// For the mailboxes' names.
    pub name: &'a str,
    pub group: &'a Group,
    /// Which all members have from the same rule; peers are members of the group.
    pub steps: Vec<Step>,
    /// By a group's all-to-all, not step by step.
    pub collective: bool,
    pub protocol: Protocol,
    /// The least bytes that one member sends another in a transpose, and the least indices into which that can be cut.
    pub block_bytes: usize,
    pub cuts: usize,
}

impl<'w> Peers<'w> {
    /// Makes the mailboxes and waits for those of the others.
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
        // All mailboxes first: everybody waits for the others' in the second half only.
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

    /// Bytes that went to other members by collective calls.
    pub fn given(&self) -> u64 {
        if let Sending::ByGroup { given, .. } = &self.sending { *given } else { 0 }
    }

    fn post(&self, peer: usize, block: Buf<Complex64>) -> Result<(), ExchangeError> {
        Ok(self.links[&peer].outbox.post(block).map_err(udeck::Error::from)?)
    }

    /// Does not wait unless the postbox's queue is full, which two transposes cannot fill.
    fn post_nonblocking(&self, peer: usize, block: Buf<Complex64>) -> Result<(), ExchangeError> {
        match self.links[&peer].outbox.post_nonblocking(block) {
            // What goes wrong later, the next post tells.
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

/// What has come in rounds, each with a block of every member, by member.
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

/// A few numbers of every rank for rank 0, as often as wanted.
pub struct Gather<'w, T: bytemuck::Pod> {
    world: &'w World,
    /// At rank 0: from each other rank.
    inboxes: Vec<Mailbox<T>>,
    /// At the others.
    outbox: Option<Postbox<T>>,
}

impl<'w, T: bytemuck::Pod> Gather<'w, T> {
    /// To be called by all ranks.
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
