//! Sharing of a mailbox: threads of each rank retrieve from one mailbox at the same time, any message, or by tag and source. Each
//! message goes to one of them, and no call exceeds its time limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use udeck::{Error, Mailbox, Match, Result, Turns, WithTag, in_turn, lock_within};

use super::draw;
use crate::{PATIENCE, Rank};

const TAGS: u32 = 4;
/// Number of threads that retrieve.
const TAKERS: usize = 5;

struct Shared {
    inbox: Mutex<Mailbox<u64>>,
    turns: std::sync::Arc<Turns>,
    /// Number of messages that have to arrive.
    left: AtomicUsize,
    /// Number of arrivals of each message, by rank and number.
    came: Mutex<Vec<Vec<u32>>>,
}

pub fn play(rank: &Rank<'_>) -> Result {
    let (world, ranks) = (rank.world, rank.plan.ranks);
    let inbox = rank.watch.call("a shared mailbox", PATIENCE, || world.mailboxes::<u64>("shared"))?;
    let outs = rank.watch.call("postboxes", 2 * PATIENCE, || world.postboxes::<u64>("shared"))?;
    let each = 20 + draw(rank, 3, 0) as usize % 400;
    let shared = Shared {
        turns: inbox.turns(),
        inbox: Mutex::new(inbox),
        left: AtomicUsize::new(ranks * each),
        came: Mutex::new(vec![vec![0; each]; ranks]),
    };
    std::thread::scope(|scope| {
        for taker in 0..TAKERS {
            let shared = &shared;
            scope.spawn(move || take(rank, shared, taker));
        }
        for number in 0..each {
            for (to, out) in outs.iter().enumerate() {
                let drawn = draw(rank, 4, (rank.rank * ranks + to) * each + number);
                let len = [1, 1, 6, 200][drawn as usize % 4];
                let elements = vec![number as u64; len];
                let message = elements.with_tag((drawn >> 8) as u32 % TAGS);
                let posted = rank.watch.call("a post", PATIENCE, || out.post_timeout(message, PATIENCE));
                if let Err(error) = posted {
                    shared.left.store(0, Ordering::Relaxed);
                    rank.wrong(format!("message {number} to rank {to}: {}", Error::from(error)));
                    return;
                }
            }
        }
    });
    let came = shared.came.into_inner().expect("no thread has panicked");
    for (source, came) in came.iter().enumerate() {
        if let Some(number) = came.iter().position(|times| *times != 1) {
            rank.wrong(format!("message {number} of rank {source} came {} times", came[number]));
        }
    }
    Ok(())
}

/// Retrieves in a thread: the first takes any message, so that all arrive; the others choose, each time anew.
fn take(rank: &Rank<'_>, shared: &Shared, taker: usize) {
    let patience = rank.watch.patience(PATIENCE);
    for turn in 0.. {
        if shared.left.load(Ordering::Acquire) == 0 {
            return;
        }
        if patience.is_over() {
            let left = shared.left.swap(0, Ordering::AcqRel);
            return rank.wrong(format!("{left} messages did not come to the threads that share a mailbox"));
        }
        let drawn = draw(rank, 5 + (rank.rank * TAKERS + taker) as u64, turn);
        let matching = choice(rank, taker, drawn);
        let limit = Duration::from_millis([0, 1, 20, 1000][(drawn >> 16) as usize % 4]);
        let lock = |limit| lock(shared, limit);
        let ended = match drawn >> 24 & 7 {
            0 => rank.watch.call("a look", PATIENCE, || {
                let inbox = lock_within::<_, Error>(&[&shared.turns], &"the mailbox", PATIENCE, lock)?;
                inbox.matching(matching).try_retrieve()
            }),
            _ => rank.watch.call("a retrieve beside others", limit, || {
                let attempt = |inbox: &mut MutexGuard<'_, Mailbox<u64>>, limit| {
                    inbox.matching(matching).within(limit).retrieve().map(Some)
                };
                in_turn(&[&shared.turns], matching, limit, lock, attempt)
            }),
        };
        match ended {
            Ok(None) | Err(Error::Deadline { .. }) => {}
            // A rank that has finished has posted all its messages.
            Err(Error::NobodyLeft { .. } | Error::RankFinished { .. }) => {}
            Err(error) => return rank.wrong(format!("retrieving{matching} beside other threads: {error}")),
            Ok(Some(message)) => {
                let mut came = shared.came.lock().expect("no thread has panicked");
                match came[message.source()].get_mut(message[0] as usize) {
                    Some(times) => *times += 1,
                    None => rank.wrong(format!("message {} was not posted", message[0])),
                }
                let _ =
                    shared.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
            }
        }
    }
}

fn choice(rank: &Rank<'_>, taker: usize, drawn: u64) -> Match {
    let source = Match::source((drawn >> 32) as usize % rank.plan.ranks);
    let tag = (drawn >> 40) as u32 % TAGS;
    match drawn % 4 {
        _ if taker == 0 => Match::ANY,
        0 => Match::tag(tag),
        1 => source,
        2 => source.and_tag(tag),
        _ => Match::ANY,
    }
}

fn lock(shared: &Shared, limit: Duration) -> Result<Option<MutexGuard<'_, Mailbox<u64>>>> {
    let until = Instant::now() + limit;
    loop {
        match shared.inbox.try_lock() {
            Ok(inbox) => return Ok(Some(inbox)),
            Err(_) if Instant::now() >= until => return Ok(None),
            Err(_) => std::thread::sleep(Duration::from_micros(50)),
        }
    }
}
