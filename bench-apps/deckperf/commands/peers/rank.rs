//! One of µDECK's ranks under a conductor: the same tests as in `peer.c`, loop for loop, over mailboxes; `member.rs` has
//! the tests over a group.
//!
//! Between batches a rank blocks in `read`, outside the library, and leaves its core to the others. It goes there only when
//! all ranks are done, as with `MPI_Send` and related calls: an announced message moves while its poster is in the library,
//! and otherwise only when the progress thread notices that the poster is not.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use udeck::{Protocol, World};

use super::{
    member::Member,
    request::{CONDUCTOR, Method, PeerTest, Request, WINDOW},
    targets::Setting,
};
use crate::{
    experiment::{
        messages,
        plan::{Batch, PROTOCOLS},
        rank_pair::RankPair,
    },
    failure::{PerfError, Result},
    named::Named,
};

/// Follows the conductor until it hangs up.
pub fn serve(world: &World, setting: Setting) -> Result {
    if setting == Setting::Groups {
        let mut member = Member::join(world)?;
        return follow(world.rank(), world.size(), |line| timed(line, |request| member.time(request)));
    }
    let mut protocols: Vec<Protocol> = setting.rows().iter().filter_map(|row| row.ours.protocol()).collect();
    protocols.sort_unstable_by_key(|protocol| PROTOCOLS.iter().position(|known| known == protocol));
    protocols.dedup();
    let pair = RankPair::in_pairs(world, &protocols)?;
    follow(world.rank(), world.size(), |line| timed(line, |request| time(&pair, request)))
}

fn timed(line: &str, time: impl FnOnce(&Request) -> Result<Duration>) -> Result<String> {
    let request = line.parse().map_err(PerfError::BadOrder)?;
    Ok(time(&request)?.as_nanos().to_string())
}

/// Says that this process is rank `rank` of `ranks`, and follows the conductor until it hangs up; `perform` returns the
/// answer to a line.
///
/// # Errors
/// There is no conductor, or an order failed; in that case the conductor has been told.
pub fn follow(rank: usize, ranks: usize, mut perform: impl FnMut(&str) -> Result<String>) -> Result {
    let address = env::var_os(CONDUCTOR).ok_or_else(|| {
        PerfError::Internal(format!("{CONDUCTOR} is not set: `deckperf peers` starts its own ranks"))
    })?;
    let io = PerfError::system;
    let mut answers = UnixStream::connect(address).map_err(io("connecting to the conductor"))?;
    let orders = BufReader::new(answers.try_clone().map_err(io("connecting to the conductor"))?);
    let mut say = move |text: String| writeln!(answers, "{text}").map_err(io("answering the conductor"));
    say(format!("rank {rank} of {ranks}"))?;
    for line in orders.lines() {
        let line = match line {
            Ok(line) => line,
            // The conductor was killed in the middle of a batch.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(io("hearing the conductor")(error)),
        };
        match perform(&line) {
            Ok(answer) => say(answer)?,
            Err(failure) => {
                say(format!("error {failure}"))?;
                return Err(failure);
            }
        }
    }
    Ok(())
}

/// Times a batch. Several pairs are timed together, because otherwise one could finish before the next one begins. A
/// barrier waits for all ranks by itself.
fn time(pair: &RankPair<'_>, request: &Request) -> Result<Duration> {
    let world = pair.world();
    world.barrier()?; // all ranks are awake
    if world.size() == 2 || request.test == PeerTest::Barrier {
        let elapsed = run(pair, request, request.warm_up, request.iterations)?;
        world.barrier()?; // nobody leaves the library while a message is under way
        return Ok(elapsed);
    }
    run(pair, request, 0, request.warm_up)?;
    world.barrier()?;
    let started = Instant::now();
    run(pair, request, 0, request.iterations)?;
    world.barrier()?;
    Ok(started.elapsed())
}

fn run(pair: &RankPair<'_>, request: &Request, warm_up: u64, iterations: u64) -> Result<Duration> {
    let &Request { test, payload, bytes: size, way, .. } = request;
    let Some(protocol) = way.protocol() else {
        return Err(PerfError::BadOrder(format!("{way} is not a way of mailboxes")));
    };
    let batch = Batch { protocol, payload, size, warm_up, iterations };
    match test {
        PeerTest::Latency => messages::ping_pong(pair, &batch),
        PeerTest::Stream if way == Method::Batches => {
            messages::stream_of_words(pair, &batch, WINDOW as usize)
        }
        PeerTest::Stream => messages::stream(pair, &batch, WINDOW),
        PeerTest::Barrier => messages::turns(warm_up, iterations, |_| Ok(pair.world().barrier()?)),
        PeerTest::AllReduce | PeerTest::Broadcast | PeerTest::AllToAll => {
            Err(PerfError::BadOrder(format!("{} is not for pairs of ranks", test.name())))
        }
    }
}
