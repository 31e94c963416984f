//! Cost of making a mailbox and of making a clone, beside a round trip between two threads on this machine.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    thread,
    time::{Duration, Instant},
};

use crate::{
    experiment::rank_pair::RankPair,
    failure::{PerfError, Result},
};

/// Rounds; each makes one batch of everything, and drops it at its end.
const ROUNDS: usize = 10;

const TARGET: &str = "costs.cloned";

/// Times of single calls, in µs.
#[derive(Clone, Debug, Default)]
pub struct Creation {
    /// Times of `World::mailbox`.
    pub mailboxes: Vec<f64>,
    /// Times of `World::postbox`, of a mailbox of the other process.
    pub clones: Vec<f64>,
    /// Times of a byte to a sleeping thread and back, through a Unix socket.
    pub round_trips: Vec<f64>,
}

/// Measures as rank 0.
pub fn measure(pair: &RankPair<'_>, batch: usize) -> Result<Creation> {
    let world = pair.world();
    let echo = Echo::start().map_err(PerfError::system(ECHO))?;
    drop(world.postbox::<u8>(TARGET)?); // the first contact of the two processes is not timed
    let mut found = Creation::default();
    for round in 0..ROUNDS {
        let (mut mailboxes, mut clones) = (Vec::with_capacity(batch), Vec::with_capacity(batch));
        // The three take turns, so that a disturbance affects all of them alike.
        for number in 0..batch {
            let name = format!("costs.{round}.{number}");
            let (mailbox, lasted) = timed(|| world.mailbox::<u8>(&name));
            mailboxes.push(mailbox?);
            found.mailboxes.push(lasted);
            let (clone, lasted) = timed(|| world.postbox::<u8>(TARGET));
            clones.push(clone?);
            found.clones.push(lasted);
            let (there_and_back, lasted) = timed(|| echo.round_trip());
            there_and_back.map_err(PerfError::system(ECHO))?;
            found.round_trips.push(lasted);
        }
    }
    pair.send_words(&[])?;
    Ok(found)
}

/// Serves as rank 1: owns the mailbox, and leaves the answers to the library.
pub fn serve(pair: &RankPair<'_>) -> Result {
    let _cloned = pair.world().mailbox::<u8>(TARGET)?;
    pair.receive_words().map(drop)
}

fn timed<R>(what: impl FnOnce() -> R) -> (R, f64) {
    let started = Instant::now();
    let result = what();
    (result, microseconds(started.elapsed()))
}

fn microseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

const ECHO: &str = "a round trip through a Unix socket";

/// A thread that echoes each byte until its socket closes.
struct Echo(UnixStream);

impl Echo {
    fn start() -> std::io::Result<Self> {
        let (ours, mut theirs) = UnixStream::pair()?;
        thread::Builder::new().name("echo".into()).spawn(move || {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).is_ok() && theirs.write_all(&byte).is_ok() {}
        })?;
        Ok(Echo(ours))
    }

    fn round_trip(&self) -> std::io::Result<()> {
        (&self.0).write_all(&[1])?;
        (&self.0).read_exact(&mut [0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echo_answers() {
        let echo = Echo::start().expect("a socket");
        for _ in 0..10 {
            echo.round_trip().expect("an answer");
        }
    }

    #[test]
    fn what_is_timed_comes_back_in_microseconds() {
        assert_eq!(timed(|| 7).0, 7);
        assert_eq!(microseconds(Duration::from_nanos(1500)), 1.5);
    }
}
