//! Idle costs: memory of connections without messages, and processor time of a rank that waits.

use std::time::Duration;

use udeck::Error;

use crate::{
    commands::cpu::usage::Usage,
    experiment::{
        memory,
        rank_pair::{RankPair, report},
    },
    failure::{PerfError, Result},
};

const CROWD: &str = "costs.crowd";

/// Memory of both processes with idle connections, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleMemory {
    /// Number of idle connections.
    pub connections: usize,
    /// Bytes before the connections are made.
    pub before: u64,
    /// Bytes while the connections lie idle.
    pub idle: u64,
    /// Bytes after the connections are gone.
    pub after: u64,
}

impl IdleMemory {
    /// Bytes per connection, in both processes together.
    pub fn each(&self) -> f64 {
        (self.idle as f64 - self.before as f64) / self.connections as f64
    }
}

/// Runs rank 0: makes the connections.
pub fn memory(pair: &RankPair<'_>, connections: usize) -> Result<IdleMemory> {
    let world = pair.world();
    drop(world.postbox::<u8>(CROWD)?); // pays for everything that only the first connection takes
    let both = || -> Result<u64> {
        pair.send_words(&[])?;
        let [theirs] = pair.receive_report()?;
        Ok(theirs + memory::proportional()?)
    };
    let before = both()?;
    let crowd = (0..connections).map(|_| Ok(world.postbox::<u8>(CROWD)?)).collect::<Result<Vec<_>>>()?;
    let idle = both()?;
    drop(crowd);
    let after = both()?;
    Ok(IdleMemory { connections, before, idle, after })
}

/// Runs rank 1: owns the mailbox, and reports its memory three times.
pub fn serve_memory(pair: &RankPair<'_>) -> Result {
    let inbox = pair.world().mailbox::<u8>(CROWD)?;
    for _ in 0..3 {
        pair.receive_words()?;
        // The call also handles new connections and ended ones.
        while inbox.try_retrieve()?.is_some() {}
        pair.send_words(&[memory::proportional()?])?;
    }
    Ok(())
}

/// Processor time of a blocked rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blocked {
    /// Processor time of all threads of the process.
    pub processor: Duration,
    /// Elapsed time.
    pub lasted: Duration,
}

impl Blocked {
    /// Processor time in percent of one core.
    pub fn percent(&self) -> f64 {
        self.processor.as_secs_f64() / self.lasted.as_secs_f64() * 100.0
    }
}

/// Runs rank 0: asks rank 1 for its processor time.
pub fn blocked(pair: &RankPair<'_>, limit: Duration) -> Result<Blocked> {
    pair.send_words(&[])?;
    // This rank blocks too, and longer, so it uses no core meanwhile.
    let words = pair.receive_words_timeout(limit * 2 + Duration::from_secs(60))?;
    let [processor, lasted] = report(&words)?.map(Duration::from_nanos);
    Ok(Blocked { processor, lasted })
}

/// Runs rank 1: is blocked in `retrieve` for `limit`, because nobody posts.
pub fn block(pair: &RankPair<'_>, limit: Duration) -> Result {
    let silent = pair.world().mailbox::<u8>("costs.silent")?;
    pair.receive_words()?;
    let now = || Usage::now().map_err(PerfError::system("reading this process's processor time"));
    let before = now()?;
    match silent.retrieve_timeout(limit) {
        Err(Error::Deadline { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(PerfError::Internal("a message came to a mailbox that nobody posts to".into())),
    }
    let Usage { processor, wall, .. } = now()? - before;
    pair.send_words(&[processor, wall].map(|time| time.as_nanos() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_out_over_the_connections() {
        let memory =
            IdleMemory { connections: 1000, before: 5 << 20, idle: (5 << 20) + 12_288_000, after: 5 << 20 };
        assert_eq!(memory.each(), 12_288.0);
        let shrunk = IdleMemory { idle: (5 << 20) - 1000, ..memory };
        assert_eq!(shrunk.each(), -1.0, "the allocator may give back meanwhile");
    }

    #[test]
    fn a_core_is_a_hundred_percent() {
        let half = Blocked { processor: Duration::from_millis(50), lasted: Duration::from_millis(100) };
        assert_eq!(half.percent(), 50.0);
    }
}
