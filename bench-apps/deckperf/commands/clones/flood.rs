//! Flood of a mailbox: clones post as fast as they can. Counts the messages taken of each clone, and measures the memory.

use udeck::{Error, Postbox};

use crate::{
    experiment::{memory, rank_pair::RankPair},
    failure::{PerfError, Result},
};

/// Result of one flood, as the mailbox's owner saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Flood {
    /// Bytes per message.
    pub size: usize,
    /// Messages retrieved, by clone.
    pub delivered: Vec<u64>,
    /// Bytes of memory of both processes: without clones, with idle ones, with all queues full, and after the clones are gone.
    pub memory: [u64; 4],
    /// Most message blocks that the posting rank had in use.
    pub blocks: u64,
    /// Bound of these blocks: for each clone the blocks that its connection holds and one that waits, and the block being posted.
    pub bound: u64,
}

impl Flood {
    /// Most and least messages of a clone; `None` without clones.
    pub fn extremes(&self) -> Option<(u64, u64)> {
        Some((*self.delivered.iter().max()?, *self.delivered.iter().min()?))
    }

    /// Most messages of a clone divided by the least. 1 is fair; infinite if a clone starved.
    pub fn unfairness(&self) -> Option<f64> {
        self.extremes().map(|(most, least)| most as f64 / least as f64)
    }
}

fn name(size: usize) -> String {
    format!("flood.{size}")
}

/// Runs rank 0: it owns the mailbox, and takes `each` messages per clone on average, from whichever clones they come.
pub fn take(pair: &RankPair<'_>, clones: usize, each: usize, size: usize) -> Result<Flood> {
    // The queue is empty, so that the receiver holds the flood up; otherwise the figure would show how much can wait.
    let inbox = pair.world().mailbox_with_queue::<u8>(&name(size), 0)?;
    let before = memory::proportional()?;
    pair.send_words(&[])?;
    let [before_there, idle_there] = pair.receive_report()?;
    let idle = memory::proportional()?;
    pair.send_words(&[])?; // rank 1 floods now
    pair.receive_words()?; // every clone has posted

    let mut delivered = vec![0; clones];
    for _ in 0..clones * each {
        let tag = inbox.retrieve()?.tag() as usize;
        *delivered
            .get_mut(tag)
            .ok_or_else(|| PerfError::Internal(format!("a message came from clone {tag} of {clones}")))? += 1;
    }
    let during = memory::proportional()?;
    pair.send_words(&[])?; // stop
    let [during_there, blocks] = pair.receive_report()?;
    drop(inbox);
    pair.send_words(&[])?;
    let [after_there] = pair.receive_report()?;
    let after = memory::proportional()?;
    let queue = pair.world().nic().attributes().max_descriptors_per_queue;
    Ok(Flood {
        size,
        delivered,
        memory: [before + before_there, idle + idle_there, during + during_there, after + after_there],
        blocks,
        bound: (clones * (queue + 1) + 1) as u64,
    })
}

/// Runs rank 1: keeps the queues of all clones full until it is told to stop.
pub fn keep_full(pair: &RankPair<'_>, clones: usize, size: usize) -> Result {
    let world = pair.world();
    pair.receive_words()?;
    let before = memory::proportional()?;
    let postboxes = super::connect(world, &name(size), clones)?;
    pair.send_words(&[before, memory::proportional()?])?;
    pair.receive_words()?;
    let visit = || -> Result {
        for (number, postbox) in postboxes.iter().enumerate() {
            fill(pair, postbox, number, size)?;
        }
        Ok(())
    };
    visit()?;
    pair.send_words(&[])?;
    let (nic, mut blocks) = (world.nic(), 0);
    while pair.try_receive_words()?.is_none() {
        visit()?;
        blocks = blocks.max(nic.outbox().usage().blocks as u64);
    }
    pair.send_words(&[memory::proportional()?, blocks])?;
    pair.receive_words()?; // the mailbox is gone
    postboxes.iter().try_for_each(give_up)?;
    drop(postboxes);
    nic.reclaim();
    pair.send_words(&[memory::proportional()?])
}

/// Messages of one clone before the next one's turn: a mailbox that takes them as fast as they come would otherwise keep
/// the posting rank at one clone for ever.
const VISIT: usize = 16;

/// Posts until the queue, or the memory for messages, is full: both are back-pressure.
fn fill(pair: &RankPair<'_>, postbox: &Postbox<u8>, number: usize, size: usize) -> Result {
    for _ in 0..VISIT {
        let message = match pair.world().try_buf_reused(size) {
            Ok(message) => message,
            Err(Error::WouldBlock { .. } | Error::NoMemory { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match postbox.try_post(message.with_tag(number as u32)) {
            Ok(()) => {}
            Err(refused) if matches!(refused.error, Error::WouldBlock { .. }) => return Ok(()),
            Err(refused) => return Err(refused.into()),
        }
    }
    Ok(())
}

/// Flushes a clone whose last message nobody will take: one undelivered message is expected, more are an error.
fn give_up(postbox: &Postbox<u8>) -> Result {
    match postbox.flush() {
        Ok(()) | Err(Error::Undelivered { count: 1, .. } | Error::MailboxGone { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_served_decides() {
        let of = |delivered: &[u64]| Flood {
            size: 8,
            delivered: delivered.to_vec(),
            memory: [0; 4],
            blocks: 0,
            bound: 0,
        };
        assert_eq!(of(&[100, 120, 110]).unfairness(), Some(1.2));
        assert_eq!(of(&[5, 0]).unfairness(), Some(f64::INFINITY));
        assert_eq!(of(&[]).unfairness(), None);
    }
}
