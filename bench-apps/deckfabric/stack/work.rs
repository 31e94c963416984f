//! Work of the ranks: once to make their connections, then in virtual time.

use std::time::{Duration, Instant};

use udeck::{
    Error, Group, Mailbox, Postbox,
    exchange::{Action, Step},
    via::job_time,
};

use super::{Task, job::Rank};
use crate::{
    grid::{self, steps},
    input::Operation,
};

/// Results of a rank.
#[derive(Debug, PartialEq, Eq)]
pub struct RankResult {
    /// Time that all repetitions took the rank.
    pub took: Duration,
    /// Time from post to retrieve of each message that the rank received.
    pub waits: Vec<Duration>,
}

/// Bytes of the time stamp in a message of an incast, and so the shortest message.
pub const LEAST_OF_INCAST: usize = size_of::<u64>();

/// Runs a rank's part of the task.
pub fn perform(rank: &Rank<'_>, task: &Task, times: u16) -> Result<RankResult, Error> {
    if task.operation == Operation::Incast {
        return incast(rank, task.bytes, times);
    }
    Ok(RankResult { took: exchange(rank, task, times)?, waits: Vec::new() })
}

/// Runs an incast. Senders flush, so that all posts are delivered before a rank is done: a rank that waits for
/// others moves its messages along.
fn incast(rank: &Rank<'_>, bytes: usize, times: u16) -> Result<RankResult, Error> {
    let world = rank.world;
    let since = |begun: Instant| job_time().saturating_duration_since(begun);
    let mut waits = Vec::new();
    // Reference time of all ranks, which are threads of one process.
    let begun = rank.begun;
    let took = if world.rank() == 0 {
        let inbox = world.mailbox_with_queue::<u8>("in", 0)?;
        world.barrier()?;
        rank.timed(|| {
            for _ in 0..(world.size() - 1) * usize::from(times) {
                let message = inbox.retrieve()?;
                let stamp = message.first_chunk().map_or(0, |stamp| u64::from_le_bytes(*stamp));
                waits.push(since(begun).saturating_sub(Duration::from_nanos(stamp)));
            }
            Ok(())
        })?
    } else {
        let outbox = world.postbox::<u8>("in")?;
        world.barrier()?;
        rank.timed(|| {
            for _ in 0..times {
                let mut buf = world.buf::<u8>(bytes)?;
                buf[..LEAST_OF_INCAST].copy_from_slice(&(since(begun).as_nanos() as u64).to_le_bytes());
                outbox.post(buf)?;
            }
            outbox.flush()
        })?
    };
    Ok(RankResult { took, waits })
}

fn exchange(rank: &Rank<'_>, task: &Task, times: u16) -> Result<Duration, Error> {
    match task.operation {
        Operation::Incast => unreachable!("it is no exchange"),
        Operation::Barrier => timed(rank, times, || rank.world.barrier()),
        Operation::AllToAll => {
            let mut exchange = Exchange::new(rank.world.all()?, task.bytes);
            timed(rank, times, || exchange.once())
        }
        Operation::Transpose => {
            let mut blocks = Blocks::new(rank, task)?;
            timed(rank, times, || blocks.once())
        }
        Operation::Transpose2d => {
            let world = rank.world;
            let lines = grid::lines(world.rank(), world.size());
            let [row, column] = lines.each_ref().map(|line| line[0]);
            let groups = [
                world.group(&format!("the row of {row}"), &lines[0])?,
                world.group(&format!("the column of {column}"), &lines[1])?,
            ];
            let mut both = groups.each_ref().map(|group| Exchange::new(group, task.bytes));
            timed(rank, times, || both.iter_mut().try_for_each(Exchange::once))
        }
    }
}

fn timed(
    rank: &Rank<'_>,
    times: u16,
    mut once: impl FnMut() -> Result<(), Error>,
) -> Result<Duration, Error> {
    once()?;
    rank.timed(|| (0..times).try_for_each(|_| once()))
}

/// Exchange of blocks between a group's members by its all-to-all.
struct Exchange<'a> {
    group: &'a Group,
    from: Vec<u8>,
    to: Vec<u8>,
    bytes: usize,
}

impl<'a> Exchange<'a> {
    fn new(group: &'a Group, bytes: usize) -> Self {
        let me = group.rank();
        let from = (0..group.size()).flat_map(|to| block(me, to, bytes)).collect();
        Self { group, from, to: vec![0; bytes * group.size()], bytes }
    }

    fn once(&mut self) -> Result<(), Error> {
        self.to.fill(0);
        self.group.all_to_all(&self.from, &mut self.to)?;
        for (from, found) in self.to.chunks(self.bytes).enumerate() {
            check(from, self.group.rank(), found, self.bytes);
        }
        Ok(())
    }
}

/// Exchange of blocks as in `nas-ft`: by a mailbox for each pair of ranks, in an order that has no deadlock even if
/// posts wait.
struct Blocks<'a> {
    rank: &'a Rank<'a>,
    steps: Vec<Step>,
    bytes: usize,
    /// Mailboxes by peer; none for this rank itself.
    inboxes: Vec<Option<Mailbox<u8>>>,
    outboxes: Vec<Option<Postbox<u8>>>,
}

impl<'a> Blocks<'a> {
    fn new(rank: &'a Rank<'a>, task: &Task) -> Result<Self, Error> {
        let (me, ranks) = (rank.world.rank(), rank.world.size());
        let name = |from: usize, to: usize| format!("{from} to {to}");
        let other = |peer: usize| (peer != me).then_some(peer);
        // All mailboxes are made first: making a postbox waits for the peer's mailbox.
        let inbox = |peer: usize| other(peer).map(|peer| rank.world.mailbox(&name(peer, me))).transpose();
        let inboxes = (0..ranks).map(inbox).collect::<Result<_, _>>()?;
        let outbox = |peer: usize| other(peer).map(|peer| rank.world.postbox(&name(me, peer))).transpose();
        let outboxes = (0..ranks).map(outbox).collect::<Result<_, _>>()?;
        Ok(Self { rank, steps: steps(task.order, me, ranks), bytes: task.bytes, inboxes, outboxes })
    }

    fn once(&mut self) -> Result<(), Error> {
        for Step { peer, action } in self.steps.clone() {
            match action {
                Action::Post => self.post(peer)?,
                Action::Retrieve => self.retrieve(peer)?,
                Action::PostThenRetrieve => {
                    self.post(peer)?;
                    self.retrieve(peer)?;
                }
                Action::RetrieveThenPost => {
                    self.retrieve(peer)?;
                    self.post(peer)?;
                }
            }
        }
        Ok(())
    }

    fn post(&mut self, peer: usize) -> Result<(), Error> {
        let (world, Some(outbox)) = (self.rank.world, &self.outboxes[peer]) else { return Ok(()) };
        let mut buf = world.buf::<u8>(self.bytes)?;
        buf.iter_mut().zip(block(world.rank(), peer, self.bytes)).for_each(|(to, from)| *to = from);
        outbox.post(buf)?;
        Ok(())
    }

    fn retrieve(&mut self, peer: usize) -> Result<(), Error> {
        let Some(inbox) = &mut self.inboxes[peer] else { return Ok(()) };
        let found = inbox.retrieve()?;
        check(peer, self.rank.world.rank(), &found, self.bytes);
        Ok(())
    }
}

/// Content of a block, which depends on its sender and receiver.
fn block(from: usize, to: usize, bytes: usize) -> impl Iterator<Item = u8> {
    (0..bytes).map(move |at| (from * 31 + to * 17 + at) as u8)
}

/// # Panics
/// The block is not the expected one.
fn check(from: usize, to: usize, found: &[u8], bytes: usize) {
    assert!(
        block(from, to, bytes).eq(found.iter().copied()),
        "wrong content in the block from {from} to {to}"
    );
}
