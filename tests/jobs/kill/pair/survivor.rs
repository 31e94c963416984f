//! The surviving process. For each victim it prints `lost N` as soon as it knows, and `clean N` when all resources
//! held for that rank are released, its mailbox and the friend work, and the row's count is right.

use crate::{BYE, LIMIT, despite_losses};
use std::{error::Error, thread, time::Instant};
use udeck::{Error as DeckError, Mailbox, Postbox, Protocol, Received, World};
use udeck_jobs::holdings::Holdings;
use udeck_jobs::pairs::{self, Death, MESSAGES, PollSchedule, Row, Side};

/// Number of posts to a process that is being killed: far more than a ring has room for.
const TOO_MANY: usize = 1000;

/// Number of words in a message to the friend.
const WORDS: usize = 2000;

/// Rank of the first victim; lower ranks are survivor and friend.
const FIRST: usize = 2;

type Outcome<T = ()> = Result<T, String>;

struct PairSurvivor {
    world: World,
    protocol: Protocol,
    /// Mailbox to which victims and the friend post.
    mailbox: Mailbox<u64>,
    /// Mailbox in which victims report that they have announced all their messages.
    told: Mailbox<u64>,
    friend: Postbox<u64>,
    /// Holdings of this process before it met any victim.
    baseline: Option<Holdings>,
}

pub fn run(dies: Side, protocol: Protocol) -> Result<(), Box<dyn Error>> {
    let world = udeck::init()?;
    let [mailbox, told]: [Mailbox<u64>; 2] = [world.mailbox("survivor")?, world.mailbox("told")?];
    // The expectation includes victims that die before they have a postbox, or never have one.
    [&mailbox, &told].into_iter().for_each(|mailbox| mailbox.expect(0..world.size()));
    let friend = world.postbox("friend")?;
    friend.set_protocol(protocol)?;
    let mut survivor = PairSurvivor { protocol, mailbox, told, friend, baseline: None, world };
    survivor.greet(0, &mut None)?;
    survivor.baseline = Some(Holdings::of(&survivor.world));
    println!("ready");
    for (victim, (_, row)) in (FIRST..).zip(pairs::of(protocol, dies)) {
        let outcome = match dies {
            Side::Sender => survivor.outlive_sender(victim, row).map(Some),
            Side::Receiver => survivor.outlive_receiver(victim, row).map(|()| None),
        };
        outcome
            .and_then(|mut arrived| survivor.greet(victim, &mut arrived))
            .map_err(|why| format!("rank {victim}: {why}"))?;
        println!("clean {victim}");
    }
    survivor.friend.post(&[BYE][..]).map_err(|failed| failed.error)?;
    drop((survivor.mailbox, survivor.told, survivor.friend));
    match survivor.world.finish() {
        // Messages that were announced to dead ranks and not requested are reported by each postbox, or by
        // `finish`.
        Err(error) if dies == Side::Receiver && is_about_victims(&error) => Ok(()),
        other => Ok(other?),
    }
}

fn is_about_victims(error: &DeckError) -> bool {
    match error {
        DeckError::Undelivered { rank, .. } => *rank >= FIRST,
        DeckError::Multiple(errors) => errors.iter().all(is_about_victims),
        _ => false,
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl PairSurvivor {
    /// Sends messages to the friend and back, by the protocol, and then waits until nothing of the victim is left. The
    /// launcher's news of its end may have come before the connection's, so a message that arrives now may have been posted
    /// before.
    fn greet(&self, number: usize, late: &mut Option<Arrived>) -> Outcome {
        let mut message = self.world.buf(WORDS).map_err(text)?;
        pairs::fill(&mut message, 0, number);
        self.friend.post(message).map_err(|failed| format!("to the friend: {}", failed.error))?;
        loop {
            let answer =
                self.mailbox.retrieve_timeout(LIMIT).map_err(|error| format!("from the friend: {error}"))?;
            if answer.source() == 1 && answer.len() == WORDS && pairs::is_filled(&answer, 0, number) {
                break;
            }
            check_late(&answer, late)?;
        }
        self.friend.flush().map_err(text)?;
        self.settle(late)
    }

    /// Waits until all holdings are those from before the first victim.
    fn settle(&self, late: &mut Option<Arrived>) -> Outcome {
        let Some(baseline) = &self.baseline else { return Ok(()) };
        let start = Instant::now();
        loop {
            if let Some(message) = self.mailbox.try_retrieve().map_err(text)? {
                check_late(&message, late)?;
            }
            // The mailbox learns of every death, too, and has to release its connection.
            match self.told.try_retrieve() {
                Ok(None) | Err(DeckError::PeerLost { .. }) => {}
                Ok(Some(_)) => return Err("it told twice".into()),
                Err(error) => return Err(text(error)),
            }
            let now = Holdings::of(&self.world);
            if now == *baseline {
                return Ok(());
            }
            if start.elapsed() > LIMIT {
                return Err(format!("left behind: {}", now.changes_since(baseline)));
            }
            thread::yield_now();
        }
    }

    fn outlive_sender(&self, victim: usize, row: &Row) -> Outcome<Arrived> {
        let to_victim = self.world.postbox::<u64>(&format!("victim-{victim}")).map_err(text)?;
        to_victim.post(&[0][..]).map_err(|failed| text(failed.error))?;
        let mut received = Vec::new();
        if row.polls == PollSchedule::Once {
            drop(despite_losses(&self.told).map_err(text)?);
            self.answer_all(&mut received)?;
        }
        if row.polls != PollSchedule::Always {
            self.post_until_lost(&to_victim, victim)?;
        }
        loop {
            match self.mailbox.retrieve_timeout(LIMIT) {
                Ok(message) => received.push(message),
                Err(error) => break is_loss_of(victim, &error)?,
            }
        }
        println!("lost {victim}");
        // The launcher's news may have come first; messages that were posted before arrive nevertheless.
        let start = Instant::now();
        while received.len() < row.count.0 && start.elapsed() < LIMIT {
            received.extend(self.mailbox.try_retrieve().map_err(text)?);
            thread::yield_now();
        }
        self.post_until_lost(&to_victim, victim)?;
        let mut arrived = Arrived { victim, words: row.words, count: 0, most: row.count.1 };
        // Messages of a hand-off lie in memory of the dead process.
        received.iter().try_for_each(|message| arrived.check(message))?;
        if arrived.count < row.count.0 {
            return Err(format!("{} messages instead of {} or more", arrived.count, row.count.0));
        }
        Ok(arrived)
    }

    /// Polls until there is memory for all announced messages, and so all have been answered.
    fn answer_all(&self, received: &mut Vec<Received<u64>>) -> Outcome {
        let blocks = || self.world.nic().landing().usage().blocks + self.world.nic().outbox().usage().blocks;
        let (start, before) = (Instant::now(), blocks());
        while blocks() < before + MESSAGES {
            received.extend(self.mailbox.try_retrieve().map_err(text)?);
            if start.elapsed() > LIMIT {
                return Err(format!("memory for {} messages of {MESSAGES}", blocks() - before));
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Posts until a post fails for good, and returns the message.
    fn post_until_lost(&self, to: &Postbox<u64>, victim: usize) -> Outcome {
        for number in 0..TOO_MANY {
            let mut message = self.world.buf(2).map_err(text)?;
            pairs::fill(&mut message, victim, number);
            let Err(failed) = to.post_with(Protocol::Eager, message) else { continue };
            let whole = failed.message.is_some_and(|message| pairs::is_filled(&message, victim, number));
            match failed.error {
                _ if !whole => return Err(format!("{} without the message", failed.error)),
                // The undelivered messages were announced earlier: they are reported once, before the loss
                // itself.
                DeckError::Undelivered { rank, count, .. } if rank == victim && count <= MESSAGES => {}
                error => return is_loss_of(victim, &error),
            }
        }
        Err(format!("it took {TOO_MANY} messages"))
    }

    fn outlive_receiver(&self, victim: usize, row: &Row) -> Outcome {
        let unknown = match self.world.postbox::<u64>(&format!("victim-{victim}")) {
            Ok(to) => self.post_all(&to, victim, row)?,
            // The victim died while it accepted the connection.
            Err(error) => is_loss_of(victim, &error).map(|()| 0)?,
        };
        println!("lost {victim}");
        // Each mailbox reports the loss once: by the launcher's news, because the rank is expected, and not
        // connected here.
        is_loss_of(victim, &self.mailbox.retrieve_timeout(LIMIT).err().ok_or("a message of nobody")?)?;
        let (least, most) = row.count;
        if !(least..=most).contains(&unknown) {
            return Err(format!(
                "{unknown} messages neither posted nor returned, instead of {least} to {most}"
            ));
        }
        Ok(())
    }

    /// Posts and flushes until a call fails. Returns the number of posts that failed and kept their message.
    fn post_all(&self, to: &Postbox<u64>, victim: usize, row: &Row) -> Outcome<usize> {
        to.set_protocol(self.protocol).map_err(text)?;
        let (mut accepted, mut unknown, mut told) = (0, 0, false);
        let is_right = |error: &DeckError, accepted| match error {
            DeckError::Undelivered { rank, count, .. } if *rank == victim && *count <= accepted => Ok(()),
            error => is_loss_of(victim, error),
        };
        for number in 0..MESSAGES {
            let mut message = self.world.buf(row.words).map_err(text)?;
            pairs::fill(&mut message, victim, number);
            let Err(failed) = to.post(message) else {
                accepted += 1;
                continue;
            };
            is_right(&failed.error, accepted)?;
            told |= matches!(failed.error, DeckError::Undelivered { .. });
            match failed.message {
                None => unknown += 1,
                Some(message) if pairs::is_filled(&message, victim, number) => {}
                Some(_) => return Err(format!("message {number} came back changed")),
            }
        }
        match to.flush() {
            Err(error) => is_right(&error, accepted)?,
            // A successful flush means that the messages were read: with `handshake` the accepted ones, otherwise only if
            // the victim lived to the end.
            Ok(()) if told || accepted == 0 || row.protocol == Protocol::Handshake => {}
            Ok(()) if matches!(row.at, Death::Over) => {}
            // The flush also succeeds if the victim had taken all fragments, two of each message, before it died: the later posts
            // came too late to be accepted.
            Ok(()) if matches!(row.at, Death::At("copy.taken", taken) if 2 * accepted as u64 <= taken) => {}
            Ok(()) => return Err(format!("flushed, though {accepted} messages cannot have been read")),
        }
        self.post_until_lost(to, victim)?;
        Ok(unknown)
    }
}

/// Messages that have arrived from a victim.
struct Arrived {
    victim: usize,
    words: usize,
    count: usize,
    most: usize,
}

impl Arrived {
    /// Checks that a message is the next one posted, and complete.
    fn check(&mut self, message: &Received<u64>) -> Outcome {
        let Arrived { victim, words, count, most } = *self;
        if count == most {
            return Err(format!("more than {most} messages"));
        }
        let whole = message.len() == words && pairs::is_filled(message, victim, count);
        if !whole || message.source() != victim {
            return Err(format!("{} words instead of message {count} of rank {victim}", message.len()));
        }
        self.count += 1;
        Ok(())
    }
}

fn check_late(message: &Received<u64>, late: &mut Option<Arrived>) -> Outcome {
    let nobody = || format!("{} words from rank {}, who posts nothing", message.len(), message.source());
    late.as_mut().ok_or_else(nobody)?.check(message)
}

fn is_loss_of(victim: usize, error: &DeckError) -> Outcome {
    match error {
        DeckError::PeerLost { rank, how } if *rank == victim && !how.contains("protocol") => Ok(()),
        error => Err(format!("instead of its loss: {error}")),
    }
}
