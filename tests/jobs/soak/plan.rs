//! The plan that a seed determines: the whole of a random job, and its faults.
//!
//! Every process derives the plan from the seed, so none needs further information. The abilities of the
//! machine ([`Plan::needs`]) do not influence it: where one is missing, the run of this seed is skipped.

use std::fmt;
use std::time::Duration;

use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use rand_xorshift::XorShiftRng;
use udeck::Protocol;

/// Largest number of ranks in a job.
const MAX_RANKS: usize = 6;
/// Number of bytes that identify a message.
pub const HEAD: usize = 4;
/// Approximate number of bytes in a stream: long streams have short messages.
const STREAM_BYTES: usize = 24 << 20;
/// Largest number of messages in a stream.
const MAX_MESSAGES: u32 = 1500;

/// A random job.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub place: Place,
    pub ranks: usize,
    /// Value of `DECK_TRANSPORT`; empty: the library's choice.
    pub transport: &'static str,
    /// Other settings of the library.
    pub settings: Vec<(&'static str, &'static str)>,
    pub mailboxes: Vec<MailboxPlan>,
    pub streams: Vec<StreamPlan>,
    /// Ranks that start programs while they exchange messages.
    pub forks: Vec<usize>,
    /// Ranks that fork meanwhile, without starting a program.
    pub children: Vec<usize>,
    pub faults: Vec<Fault>,
    /// Whether deckrun ends the others when a rank fails.
    pub aborts: bool,
    /// Joint action of all ranks after the streams; `None` if the plan has faults.
    pub together: Option<Together>,
}

/// A joint action of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// All-reduces of NaN, infinities and zeros of both signs.
    Numbers,
    /// A reduction whose operator panics on one rank.
    Panic,
    /// Threads of each rank retrieve from one mailbox at the same time.
    Sharing,
}

/// Place where the ranks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All ranks run in one process, as with `udeck::run_local`: the only place where the stand-in for
    /// libibverbs works.
    OneProcess,
    OneHost,
    /// The ranks run in this number of network namespaces.
    Hosts(usize),
}

/// A mailbox.
#[derive(Clone, Debug)]
pub struct MailboxPlan {
    pub owner: usize,
    /// Mailboxes of one owner with the same number are read by one thread: several by `select`.
    pub thread: usize,
    pub style: Style,
    /// Number of messages that are held while others are retrieved.
    pub keeps: usize,
    /// Pause of the thread after each message.
    pub rest: Duration,
    /// Time limit of a call.
    pub limit: Duration,
}

/// Way to retrieve messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Retrieve,
    Try,
    Into,
}

/// A postbox and its messages.
#[derive(Clone, Debug)]
pub struct StreamPlan {
    pub from: usize,
    /// Index in [`Plan::mailboxes`].
    pub to: usize,
    /// Streams of one rank with the same number are posted by one thread, in turn.
    pub thread: usize,
    pub count: u32,
    /// Length of the longest message in bytes.
    pub longest: usize,
    /// Protocols of its messages, in random order.
    pub protocols: Vec<Protocol>,
    pub post_calls: Vec<PostCall>,
    pub limit: Duration,
    /// Whether the poster waits now and then until all messages were read.
    pub flushes: bool,
}

/// Way to make and post a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostCall {
    Buf,
    Try,
    Start,
    Slice,
    ExternalBuf,
    Shared,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct MessagePlan {
    pub len: usize,
    pub protocol: Protocol,
    pub post_call: PostCall,
}

/// A fault of the plan. Times count from the moment when all ranks are in the second round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL from outside.
    Kill { rank: usize, after: Duration },
    /// A rank kills itself when it has posted or retrieved this number of messages.
    Suicide { rank: usize, messages: u64 },
    /// SIGSTOP, and SIGCONT.
    Stop { rank: usize, after: Duration, pause: Duration },
    /// A host's cable is disconnected and connected again, too soon for a loss.
    Blink { host: usize, after: Duration, pause: Duration, at_switch: bool },
    /// A host's cable is disconnected for good.
    Cut { host: usize, after: Duration },
    /// The network of a host loses packets.
    Loss { host: usize },
    /// A rank may open only this number of further descriptors.
    Cramp { rank: usize, spare: u64 },
    /// A rank may map only this number of further MiB.
    Famine { rank: usize, spare: u64 },
}

/// Round of a run: a short one, after which a rank's holdings are counted, and the one with the faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    First,
    Second,
}

impl Plan {
    #[must_use]
    pub fn new(seed: u64) -> Plan {
        let mut dice = XorShiftRng::seed_from_u64(seed);
        let place = match dice.random_range(0..10) {
            0 | 1 => Place::OneProcess,
            2..7 => Place::OneHost,
            _ => Place::Hosts(dice.random_range(2..=3)),
        };
        let ranks = match place {
            Place::Hosts(hosts) => hosts * dice.random_range(1..=2),
            _ => dice.random_range(2..=MAX_RANKS),
        };
        let transports: &[&str] = match place {
            Place::OneProcess => &["shm", "tcp", "udp", "verbs", "verbs"],
            Place::OneHost => &["shm", "shm", "shm", "tcp", "udp"],
            Place::Hosts(_) => &["", "shm,udp", "tcp", "udp"],
        };
        let transport = pick(transports, &mut dice);
        let mut plan = Plan {
            seed,
            place,
            ranks,
            transport,
            settings: settings(&mut dice),
            mailboxes: Vec::new(),
            streams: Vec::new(),
            forks: Vec::new(),
            children: Vec::new(),
            faults: Vec::new(),
            aborts: false,
            together: None,
        };
        plan.mailboxes = (0..dice.random_range(1..=2 * ranks)).map(|_| mailbox(ranks, &mut dice)).collect();
        let longest = plan.longest();
        let streams = dice.random_range(1..=3 * ranks);
        plan.streams = (0..streams).map(|_| stream(&plan, longest, &mut dice)).collect();
        plan.forks = (0..ranks).filter(|_| dice.random_ratio(1, 8)).collect();
        plan.faults = plan.random_faults(&mut dice);
        plan.aborts = !plan.victims().is_empty() && dice.random_ratio(1, 8);
        let together = pick(&[Together::Numbers, Together::Panic, Together::Sharing], &mut dice);
        plan.together = plan.faults.is_empty().then_some(together);
        plan.children = (0..ranks).filter(|_| dice.random_ratio(1, 8)).collect();
        plan
    }

    /// Largest length of a message in bytes: a fraction of the memory for messages, because readers keep some.
    fn longest(&self) -> usize {
        match self.setting("DECK_ARENA") {
            Some("2M") => 64 << 10,
            Some("8M") => 256 << 10,
            _ => 3 << 20,
        }
    }

    fn setting(&self, name: &str) -> Option<&'static str> {
        self.settings.iter().find(|(variable, _)| *variable == name).map(|(_, value)| *value)
    }

    fn random_faults(&self, dice: &mut XorShiftRng) -> Vec<Fault> {
        let count = pick(&[0, 0, 1, 1, 2], dice);
        let mut faults: Vec<Fault> = (0..count).filter_map(|_| self.random_fault(dice)).collect();
        // Two faults of one rank or host would need an oracle of their own.
        let mut seen = Vec::new();
        faults.retain(|fault| {
            let is_new = !seen.contains(&fault.subject());
            seen.push(fault.subject());
            is_new
        });
        faults
    }

    fn random_fault(&self, dice: &mut XorShiftRng) -> Option<Fault> {
        let rank = dice.random_range(0..self.ranks);
        let after = millis(dice, 0..=300);
        let pause = millis(dice, 20..=1500);
        let hosts = match self.place {
            // Ranks in one process share their descriptors and their end.
            Place::OneProcess => return None,
            Place::OneHost => None,
            // The first host is deckrun's own.
            Place::Hosts(hosts) => Some(dice.random_range(1..hosts)),
        };
        Some(match (dice.random_range(0..12_u32), hosts) {
            (0 | 1, _) => Fault::Kill { rank, after },
            (2 | 3, _) => Fault::Suicide { rank, messages: dice.random_range(1..=200) },
            (4 | 5, _) | (9.., None) => Fault::Stop { rank, after, pause },
            (6, _) => Fault::Cramp { rank, spare: dice.random_range(0..=8) },
            (7 | 8, None) => Fault::Famine { rank, spare: pick(&[8, 32, 64, 128, 256], dice) },
            (7 | 8, Some(host)) => Fault::Blink { host, after, pause, at_switch: dice.random() },
            (9, Some(host)) => Fault::Cut { host, after },
            (_, Some(host)) => Fault::Loss { host },
        })
    }

    /// Abilities that the machine must have.
    #[must_use]
    pub fn needs(&self) -> Needs {
        Needs { namespaces: matches!(self.place, Place::Hosts(_)), standin: self.transport == "verbs" }
    }

    /// Host of a rank: hosts are filled one after the other.
    #[must_use]
    pub fn host_of(&self, rank: usize) -> usize {
        match self.place {
            Place::Hosts(hosts) => rank / (self.ranks / hosts),
            _ => 0,
        }
    }

    /// Ranks that faults end, or may end: the standard library's collections abort if there is no memory.
    #[must_use]
    pub fn victims(&self) -> Vec<usize> {
        let is_hit = |rank: &usize| {
            self.faults.iter().any(|fault| match fault {
                Fault::Kill { rank: victim, .. }
                | Fault::Suicide { rank: victim, .. }
                | Fault::Famine { rank: victim, .. } => victim == rank,
                Fault::Cut { host, .. } => self.host_of(*rank) == *host,
                _ => false,
            })
        };
        (0..self.ranks).filter(is_hit).collect()
    }

    /// Whether a rank's end is part of the plan.
    #[must_use]
    pub fn is_doomed(&self, rank: usize) -> bool {
        let victims = self.victims();
        victims.contains(&rank) || (self.aborts && !victims.is_empty())
    }

    /// Whether calls of this rank may fail for lack of descriptors or memory.
    #[must_use]
    pub fn is_cramped(&self, rank: usize) -> bool {
        self.faults.iter().any(|fault| match fault {
            Fault::Cramp { rank: cramped, .. } | Fault::Famine { rank: cramped, .. } => *cramped == rank,
            _ => false,
        })
    }

    /// Whether all messages of a stream must arrive.
    #[must_use]
    pub fn is_sound(&self, stream: usize) -> bool {
        let StreamPlan { from, to, .. } = self.streams[stream];
        let ends = [from, self.mailboxes[to].owner];
        !ends.iter().any(|rank| self.is_doomed(*rank) || self.is_cramped(*rank))
    }

    /// Number of messages of a stream in a round.
    #[must_use]
    pub fn count(&self, stream: usize, round: Round) -> u32 {
        let count = self.streams[stream].count;
        match round {
            Round::First => count.min(3),
            Round::Second => count,
        }
    }

    /// A message of the second round; the first round has the same ones.
    #[must_use]
    pub fn message(&self, stream: usize, number: u32) -> MessagePlan {
        let plan = &self.streams[stream];
        let mut dice = XorShiftRng::seed_from_u64(mixed(self.seed, stream as u64, u64::from(number)));
        // Short lengths are as frequent as long ones, whatever the bound.
        let bits = plan.longest.ilog2();
        let most = 1_usize << dice.random_range(0..=bits);
        let mut len = dice.random_range(0..=most).min(plan.longest);
        if self.mailboxes[plan.to].style == Style::Into {
            // A retrieve into a buffer does not return a message's tag.
            len = len.max(HEAD);
        }
        let protocol = pick(&plan.protocols, &mut dice);
        let post_call = match pick(&plan.post_calls, &mut dice) {
            // Such a post waits until the message was received.
            PostCall::Start | PostCall::Try if protocol == Protocol::Handshake => PostCall::Buf,
            // A slice has no tag, so its number must be in its bytes.
            PostCall::Slice if len < HEAD => PostCall::Buf,
            post_call => post_call,
        };
        MessagePlan { len, protocol, post_call }
    }

    /// Streams into a mailbox.
    pub fn into(&self, mailbox: usize) -> impl Iterator<Item = usize> {
        (0..self.streams.len()).filter(move |stream| self.streams[*stream].to == mailbox)
    }
}

/// Abilities that a plan requires of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    pub namespaces: bool,
    pub standin: bool,
}

impl Fault {
    fn subject(&self) -> (bool, usize) {
        match self {
            Fault::Kill { rank, .. }
            | Fault::Suicide { rank, .. }
            | Fault::Stop { rank, .. }
            | Fault::Cramp { rank, .. }
            | Fault::Famine { rank, .. } => (true, *rank),
            Fault::Blink { host, .. } | Fault::Cut { host, .. } | Fault::Loss { host } => (false, *host),
        }
    }
}

fn settings(dice: &mut XorShiftRng) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![("DECK_ARENA", pick(&["2M", "8M", "64M", "64M", "64M"], dice))];
    let mut sometimes = |name, value| {
        if dice.random_ratio(1, 6) {
            settings.push((name, value));
        }
    };
    sometimes("DECK_RECEIVE", "wq");
    sometimes("DECK_TRUST", "none");
    sometimes("DECK_COPY_WINDOW", "1");
    settings
}

fn mailbox(ranks: usize, dice: &mut XorShiftRng) -> MailboxPlan {
    MailboxPlan {
        owner: dice.random_range(0..ranks),
        thread: dice.random_range(0..2),
        style: pick(&[Style::Retrieve, Style::Retrieve, Style::Try, Style::Into], dice),
        keeps: pick(&[0, 0, 1, 4], dice),
        rest: Duration::from_micros(pick(&[0, 0, 0, 100, 5000], dice)),
        limit: Duration::from_millis(pick(&[1, 20, 1000, 5000], dice)),
    }
}

fn stream(plan: &Plan, longest: usize, dice: &mut XorShiftRng) -> StreamPlan {
    let longest = pick(&[8, 40, 4096, 64 << 10, longest], dice).min(longest);
    let all = [
        Protocol::Auto,
        Protocol::Eager,
        Protocol::Copy,
        Protocol::RdmaWrite,
        Protocol::RdmaRead,
        Protocol::Handshake,
        Protocol::HandOff,
    ];
    let mut protocols = all.to_vec();
    protocols.shuffle(dice);
    protocols.truncate(pick(&[1, 2, 7], dice));
    let mut post_calls = vec![
        PostCall::Buf,
        PostCall::Try,
        PostCall::Start,
        PostCall::Slice,
        PostCall::ExternalBuf,
        PostCall::Shared,
    ];
    post_calls.shuffle(dice);
    post_calls.truncate(pick(&[1, 6], dice));
    let most = u32::try_from(STREAM_BYTES / longest).unwrap_or(u32::MAX).clamp(4, MAX_MESSAGES);
    StreamPlan {
        from: dice.random_range(0..plan.ranks),
        to: dice.random_range(0..plan.mailboxes.len()),
        thread: dice.random_range(0..2),
        count: dice.random_range(1..=most),
        longest,
        protocols,
        post_calls,
        limit: Duration::from_millis(pick(&[5, 200, 2000, 20_000], dice)),
        flushes: dice.random_ratio(1, 4),
    }
}

fn pick<T: Copy>(choices: &[T], dice: &mut XorShiftRng) -> T {
    *choices.choose(dice).expect("there are some")
}

fn millis(dice: &mut XorShiftRng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(dice.random_range(range))
}

/// Mixes the arguments: similar arguments give different numbers (the finaliser of SplitMix64).
#[must_use]
pub fn mixed(seed: u64, stream: u64, number: u64) -> u64 {
    let mut mixed = seed ^ stream.rotate_left(40) ^ number.rotate_left(20);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Formats the plan in one line.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            Place::OneProcess => "one process".to_owned(),
            Place::OneHost => "one host".to_owned(),
            Place::Hosts(hosts) => format!("{hosts} hosts"),
        };
        let transport = if self.transport.is_empty() { "any transport" } else { self.transport };
        let messages: u32 = self.streams.iter().map(|stream| stream.count).sum();
        write!(
            f,
            "{place}, {transport}, {} ranks, {} mailboxes, {} streams, {messages} messages",
            self.ranks,
            self.mailboxes.len(),
            self.streams.len()
        )?;
        for (name, value) in &self.settings {
            write!(f, ", {name}={value}")?;
        }
        if let Some(together) = self.together {
            write!(f, ", together {together:?}")?;
        }
        for rank in &self.forks {
            write!(f, ", rank {rank} starts programs")?;
        }
        for rank in &self.children {
            write!(f, ", rank {rank} forks")?;
        }
        for fault in &self.faults {
            write!(f, ", {fault}")?;
        }
        f.write_str(if self.aborts { ", aborts" } else { "" })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Kill { rank, after } => write!(f, "kill rank {rank} after {after:?}"),
            Fault::Suicide { rank, messages } => write!(f, "rank {rank} kills itself at message {messages}"),
            Fault::Stop { rank, after, pause } => {
                write!(f, "stop rank {rank} after {after:?} for {pause:?}")
            }
            Fault::Blink { host, after, pause, at_switch } => {
                let side = if *at_switch { "switch" } else { "host" };
                write!(f, "link of host {host} down after {after:?} for {pause:?} at the {side}")
            }
            Fault::Cut { host, after } => write!(f, "host {host} cut off after {after:?}"),
            Fault::Loss { host } => write!(f, "host {host} loses packets"),
            Fault::Cramp { rank, spare } => write!(f, "rank {rank} has {spare} descriptors to spare"),
            Fault::Famine { rank, spare } => write!(f, "rank {rank} has {spare} MiB to map"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_each_time_and_another_one_something_else() {
        let text = |seed| format!("{:?}", Plan::new(seed));
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }

    #[test]
    fn plans_are_within_their_bounds_and_all_that_can_be_drawn_is_drawn() {
        let plans: Vec<Plan> = (0..2000).map(Plan::new).collect();
        for plan in &plans {
            assert!((2..=MAX_RANKS).contains(&plan.ranks), "{plan}");
            for (at, stream) in plan.streams.iter().enumerate() {
                assert!(stream.from < plan.ranks && stream.to < plan.mailboxes.len());
                assert!((0..stream.count).all(|number| plan.message(at, number).len <= stream.longest));
            }
            if plan.place == Place::OneProcess {
                assert!(plan.victims().is_empty(), "its end would be everybody's: {plan}");
            }
        }
        let drawn = |is: &dyn Fn(&Fault) -> bool| plans.iter().any(|plan| plan.faults.iter().any(is));
        assert!(drawn(&|fault| matches!(fault, Fault::Kill { .. })));
        assert!(drawn(&|fault| matches!(fault, Fault::Suicide { .. })));
        assert!(drawn(&|fault| matches!(fault, Fault::Stop { .. })));
        assert!(drawn(&|fault| matches!(fault, Fault::Blink { .. })));
        assert!(drawn(&|fault| matches!(fault, Fault::Cut { .. })));
        assert!(drawn(&|fault| matches!(fault, Fault::Loss { .. })));
        assert!(drawn(&|fault| matches!(fault, Fault::Cramp { .. })));
        assert!(drawn(&|fault| matches!(fault, Fault::Famine { .. })));
        for together in [Together::Numbers, Together::Panic, Together::Sharing] {
            assert!(plans.iter().any(|plan| plan.together == Some(together)), "{together:?}");
        }
        assert!(plans.iter().any(|plan| !plan.children.is_empty() && !plan.faults.is_empty()));
        for transport in ["shm", "tcp", "udp", "verbs", "", "shm,udp"] {
            assert!(plans.iter().any(|plan| plan.transport == transport), "{transport}");
        }
    }
}
