//! A thread that reads one mailbox, or several by `select`, until all messages that can arrive have arrived.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::thread;
use std::time::Duration;

use udeck::{Error, Mailbox, Received, Retrieved, Selectable};
use udeck_jobs::soak::content;
use udeck_jobs::soak::facts::{COMPLETE, Fact};
use udeck_jobs::soak::plan::{MailboxPlan, Round, Style};

use crate::watch::Patience;
use crate::{PATIENCE, Rank};

/// Time of silence after which nothing more is expected from a dead rank.
const QUIET: Duration = Duration::from_secs(3);
/// Longest wait where a mailbox's own limit is longer: no end of a rank or stream is noticed later.
const LOOK: Duration = Duration::from_millis(500);

/// Reads all streams of these mailboxes.
pub fn all(rank: &Rank<'_>, round: Round, mailboxes: Vec<(usize, Mailbox<u8>)>) {
    Reader::new(rank, round, mailboxes).run();
}

struct Reader<'a> {
    rank: &'a Rank<'a>,
    round: Round,
    mailboxes: Vec<(usize, Mailbox<u8>)>,
    /// Number of messages that have arrived of each stream.
    came: BTreeMap<usize, u32>,
    /// The postbox, by rank and number, of each stream.
    through: BTreeMap<usize, (usize, u32)>,
    kept: VecDeque<Received<u8>>,
    /// Ranks whose end a mailbox has reported.
    lost: BTreeSet<usize>,
    patience: Patience<'a>,
    quiet: Patience<'a>,
    /// Length of the longest message in bytes.
    longest: usize,
}

/// Result of an attempt to retrieve.
enum Found {
    Message(Received<u8>),
    /// Bytes of a message, and the rank that posted it.
    Copied(Vec<u8>, usize),
    Nothing,
}

impl<'a> Reader<'a> {
    fn new(rank: &'a Rank<'a>, round: Round, mailboxes: Vec<(usize, Mailbox<u8>)>) -> Self {
        let streams = mailboxes.iter().flat_map(|(at, _)| rank.plan.into(*at));
        let came: BTreeMap<usize, u32> = streams.map(|stream| (stream, 0)).collect();
        let longest = came.keys().map(|stream| rank.plan.streams[*stream].longest).max();
        Reader {
            rank,
            round,
            mailboxes,
            came,
            through: BTreeMap::new(),
            kept: VecDeque::new(),
            lost: BTreeSet::new(),
            patience: rank.watch.patience(PATIENCE),
            quiet: rank.watch.patience(QUIET),
            longest: longest.unwrap_or(0),
        }
    }

    fn run(mut self) {
        // Reason for the end of each stream.
        let mut ends: BTreeMap<usize, String> = BTreeMap::new();
        while ends.len() < self.came.len() {
            let open: Vec<usize> =
                self.came.keys().copied().filter(|stream| !ends.contains_key(stream)).collect();
            for stream in open {
                if let Some(end) = self.end_of(stream) {
                    ends.insert(stream, end);
                }
            }
            if ends.len() == self.came.len() || !self.step() {
                break;
            }
        }
        self.kept.clear();
        for (stream, messages) in &self.came {
            let end = ends.get(stream).cloned().unwrap_or_else(|| "given up".into());
            self.rank.tell(self.round, &Fact::Got { stream: *stream, messages: *messages, end });
        }
    }

    /// Why nothing more arrives of a stream; `None`: more may arrive.
    fn end_of(&self, stream: usize) -> Option<String> {
        let Rank { plan, folder, .. } = self.rank;
        let (came, from) = (self.came[&stream], plan.streams[stream].from);
        let is_quiet = self.quiet.is_over();
        let count = plan.count(stream, self.round);
        if came == count || (is_quiet && self.may_be_missing(stream, came..count)) {
            return Some(COMPLETE.into());
        }
        if let Some(tried) = folder.ended(self.round, stream)
            && (came == tried || is_quiet)
        {
            return Some("its poster has given up".into());
        }
        // Only the library knows that a rank has aborted for lack of memory.
        let is_told = || self.rank.world.exited_ranks().any(|ended| ended.rank == from);
        let is_dead = folder.is_dead(from) || (plan.is_cramped(from) && is_told());
        // A rank that has posted here is missed here.
        let is_known = came == 0 || self.lost.contains(&from);
        if plan.is_doomed(from) && is_dead && is_known && is_quiet {
            return Some("its poster is dead".into());
        }
        if !self.patience.is_over() {
            return None;
        }
        // A victim that was not killed in time, or has no postbox here any more, has posted all its messages.
        if !plan.is_doomed(self.rank.rank) {
            let why = if folder.is_dead(from) { ", and nobody said that its poster is lost" } else { "" };
            let missing = plan.message(stream, came);
            self.rank
                .wrong(format!("nothing comes of stream {stream} after {came} messages{why}: {missing:?}"));
        }
        Some("nothing came".into())
    }

    /// Waits for a message and takes it. `false`: no mailbox can be read any more.
    fn step(&mut self) -> bool {
        match self.look() {
            Ok(Found::Nothing) => self.kept.clear(),
            Ok(Found::Message(message)) => {
                self.take(&message, message.tag(), message.source(), Some(message.postbox()));
                self.kept.push_back(message);
            }
            Ok(Found::Copied(bytes, from)) => self.take(&bytes, 0, from, None),
            Err(Error::PeerLost { rank, how }) => {
                // A rank that is cut off loses all others.
                if !self.rank.plan.is_doomed(rank) && !self.rank.plan.is_doomed(self.rank.rank) {
                    self.rank.wrong(format!("rank {rank} is said to be lost, and nobody killed it: {how}"));
                }
                self.lost.insert(rank);
            }
            Err(Error::NobodyLeft { .. }) => return self.is_somebody_left(),
            Err(error) => {
                self.rank.unexpected("retrieving", &error);
                self.kept.clear();
                thread::sleep(Duration::from_millis(1));
                return !self.patience.is_over();
            }
        }
        true
    }

    /// Whether a rank may still post, although the library says that none is left.
    fn is_somebody_left(&self) -> bool {
        let Rank { plan, rank, .. } = self.rank;
        let open = |stream: &usize| self.came[stream] < plan.count(*stream, self.round);
        let missing: Vec<usize> = self.came.keys().copied().filter(open).collect();
        // The missing rank is this one, whose thread has not made its postbox yet.
        if missing.iter().any(|stream| plan.streams[*stream].from == *rank) {
            thread::sleep(Duration::from_millis(1));
            return true;
        }
        if let Some(stream) = missing.iter().find(|stream| plan.is_sound(**stream)) {
            self.rank.wrong(format!("nobody is left, and stream {stream} is incomplete"));
        }
        false
    }

    fn look(&self) -> Result<Found, Error> {
        let (at, only) = &self.mailboxes[0];
        let plan = &self.rank.plan.mailboxes[*at];
        let limit = plan.limit.min(LOOK);
        let watch = &self.rank.watch;
        let found = match (self.mailboxes.len(), plan.style) {
            (2.., _) => {
                let all: Vec<&dyn Selectable> =
                    self.mailboxes.iter().map(|(_, mailbox)| mailbox as &dyn Selectable).collect();
                let named = watch.call("select", limit, || udeck::select_timeout(&all, limit));
                named.and_then(|named| self.named(named, plan))
            }
            (_, Style::Retrieve) => {
                watch.call("retrieve", limit, || only.retrieve_timeout(limit)).map(Found::Message)
            }
            (_, Style::Try) => {
                watch.call("try_retrieve", Duration::ZERO, || only.try_retrieve()).map(or_rest)
            }
            (_, Style::Into) => self.look_into(only, limit),
        };
        or_nothing(found)
    }

    fn named(&self, named: usize, plan: &MailboxPlan) -> Result<Found, Error> {
        let mailbox = &self.mailboxes[named].1;
        if plan.style == Style::Retrieve {
            return mailbox.retrieve().map(Found::Message);
        }
        match mailbox.try_retrieve()? {
            Some(message) => Ok(Found::Message(message)),
            None => {
                self.rank.wrong(format!("select named {mailbox:?}, and there is nothing"));
                Ok(Found::Nothing)
            }
        }
    }

    fn look_into(&self, mailbox: &Mailbox<u8>, limit: Duration) -> Result<Found, Error> {
        let mut bytes = vec![0; self.longest];
        let call = || mailbox.within(limit).retrieve_into(&mut bytes);
        let Retrieved { len, source: from, .. } = self.rank.watch.call("retrieve_into", limit, call)?;
        bytes.truncate(len);
        Ok(Found::Copied(bytes, from))
    }

    /// Takes a message, and rests as the plan says.
    fn take(&mut self, bytes: &[u8], tag: u32, from: usize, postbox: Option<u32>) {
        self.patience.renew();
        self.quiet.renew();
        self.check(bytes, tag, from, postbox);
        self.rank.moved(self.round);
        let plan = &self.rank.plan.mailboxes[self.mailboxes[0].0];
        if self.kept.len() > plan.keeps {
            // The oldest or the newest message goes, so that messages return in another order than they
            // arrived.
            if self.kept.len().is_multiple_of(2) {
                self.kept.pop_back()
            } else {
                self.kept.pop_front()
            };
        }
        if !plan.rest.is_zero() {
            thread::sleep(plan.rest);
        }
    }

    /// Checks the bytes of a message, its stream, and that it is the stream's next message.
    fn check(&mut self, bytes: &[u8], tag: u32, from: usize, postbox: Option<u32>) {
        let Rank { plan, .. } = self.rank;
        match content::check(bytes, tag, plan, self.round) {
            Err(what) => self.rank.wrong(format!("from rank {from}: {what}")),
            Ok((stream, number)) => match self.came.get_mut(&stream) {
                None => self.rank.wrong(format!("a message of stream {stream} came to another mailbox")),
                Some(_) if plan.streams[stream].from != from => {
                    self.rank.wrong(format!("a message of stream {stream} came from rank {from}"));
                }
                Some(came) if *came != number => {
                    let next = *came;
                    *came = (number + 1).max(next);
                    if number > next && self.may_be_missing(stream, next..number) {
                        return;
                    }
                    let missing = plan.message(stream, next);
                    self.rank.wrong(format!(
                        "message {number} of stream {stream} came instead of {next}, {missing:?}"
                    ));
                }
                Some(came) => {
                    *came += 1;
                    self.same_postbox(stream, from, postbox);
                }
            },
        }
    }

    /// Whether the fate of all these messages is unknown.
    fn may_be_missing(&self, stream: usize, numbers: Range<u32>) -> bool {
        numbers.into_iter().all(|number| self.rank.folder.is_in_doubt(self.round, stream, number))
    }

    /// Checks that a stream has only one postbox.
    fn same_postbox(&mut self, stream: usize, from: usize, postbox: Option<u32>) {
        let Some(postbox) = postbox else { return };
        let known = *self.through.entry(stream).or_insert((from, postbox));
        let others = self.through.iter().filter(|(other, through)| **other != stream && **through == known);
        if known != (from, postbox) || others.count() > 0 {
            self.rank.wrong(format!("stream {stream} came through postbox {postbox} of rank {from}"));
        }
    }
}

fn or_rest(found: Option<Received<u8>>) -> Found {
    if found.is_none() {
        thread::sleep(Duration::from_micros(500));
    }
    found.map_or(Found::Nothing, Found::Message)
}

/// Turns a deadline into no message.
fn or_nothing(found: Result<Found, Error>) -> Result<Found, Error> {
    match found {
        Err(Error::Deadline { .. }) => Ok(Found::Nothing),
        found => found,
    }
}
