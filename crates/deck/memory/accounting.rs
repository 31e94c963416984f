//! Holders of the message memory. Errors name the holders, and a wait for memory asks whether any of it can
//! come back.
//!
//! To keep posts fast, a post counts nothing. A connection knows what it lent, a channel records the bytes of its queue when the
//! queue changes, and a mailbox records what it granted. The program holds the rest. The sums are made only when memory runs out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck_boot::waits::{Call, Wait};
use udeck_via::transport::LinkReport;

use crate::error::is_internal;

/// Number of holders that an error names. The others are summed up.
const NAMED: usize = 8;

/// A channel's part in the accounting.
#[derive(Default)]
pub(crate) struct PostboxAccount {
    mailbox: String,
    owner: u32,
    /// Bytes of messages that wait for the mailbox.
    queued: AtomicUsize,
    /// Number of these messages. (Short ones have no bytes here.)
    messages: AtomicUsize,
    /// Report on this rank's memory that the mailbox's process has; `None`: the transport cannot tell.
    lent: Option<Weak<dyn LinkReport>>,
}

/// Accounting of one world: its channels, also those that are gone while their memory is lent, and its
/// mailboxes.
#[derive(Default)]
pub(crate) struct Accounting {
    postboxes: Mutex<Vec<Arc<PostboxAccount>>>,
    mailboxes: Mutex<Vec<(String, Weak<MemoryQuota>)>>,
}

impl PostboxAccount {
    pub fn note_queued(&self, bytes: usize, messages: usize) {
        self.messages.store(messages, Ordering::Release);
        self.queued.store(bytes, Ordering::Release);
    }

    fn lent(&self) -> usize {
        self.lent.as_ref().and_then(Weak::upgrade).map_or(0, |lent| lent.lent())
    }
}

impl Accounting {
    pub fn open_postbox(
        &self,
        mailbox: &str,
        owner: u32,
        lent: Option<Weak<dyn LinkReport>>,
    ) -> Arc<PostboxAccount> {
        let postbox = Arc::new(PostboxAccount {
            mailbox: mailbox.to_owned(),
            owner,
            queued: AtomicUsize::new(0),
            messages: AtomicUsize::new(0),
            lent,
        });
        if !is_internal(mailbox) {
            let mut postboxes = self.postboxes.lock();
            postboxes.retain(|postbox| Arc::strong_count(postbox) > 1 || postbox.lent() > 0);
            postboxes.push(postbox.clone());
        }
        postbox
    }

    pub fn open_mailbox(&self, name: &str) -> Arc<MemoryQuota> {
        let grants = Arc::<MemoryQuota>::default();
        if !is_internal(name) {
            let mut mailboxes = self.mailboxes.lock();
            mailboxes.retain(|(_, grants)| grants.strong_count() > 0);
            mailboxes.push((name.to_owned(), Arc::downgrade(&grants)));
        }
        grants
    }

    /// The holders of `memory`, of which `used` bytes are in use.
    pub fn holders(&self, memory: Memory, used: usize) -> Holders {
        let (mut held, mut is_unsure) = (BTreeMap::<Holder, usize>::new(), false);
        let mut waiting = BTreeMap::<(String, u32), usize>::new();
        let mut add = |bytes: usize, holder: Holder| *held.entry(holder).or_default() += bytes;
        if memory == Memory::Outbox {
            for postbox in self.postboxes.lock().iter() {
                is_unsure |= postbox.lent.is_none();
                let messages = postbox.messages.load(Ordering::Acquire);
                if messages > 0 {
                    *waiting.entry((postbox.mailbox.clone(), postbox.owner)).or_default() += messages;
                }
                // Read first: a message that leaves the queue meanwhile is counted as lent afterwards.
                let queued = postbox.queued.load(Ordering::Acquire);
                add(queued, Holder::Queued(postbox.mailbox.clone(), postbox.owner));
                add(postbox.lent(), Holder::Lent(postbox.mailbox.clone(), postbox.owner));
            }
        }
        for (name, grants) in self.mailboxes.lock().iter() {
            let granted = grants.upgrade().map_or(0, |grants| grants.bytes(memory));
            add(granted, Holder::Grant(name.clone()));
        }
        // Memory that was lent to several ranks counts for each.
        let others: usize = held.values().sum();
        held.insert(Holder::Program, used.saturating_sub(others));
        let held = held.into_iter().map(|(holder, bytes)| (bytes, holder)).filter(|held| held.0 > 0);
        let mut held: Vec<_> = held.collect();
        held.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        Holders { memory, held, waiting, is_unsure }
    }
}

/// One holder of memory. The order of the variants sorts holders of equally many bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    /// Lent to the owner of a mailbox, which has not given it back.
    Lent(String, u32),
    /// Queued here until the owner of a mailbox asks for it.
    Queued(String, u32),
    /// Granted to the postboxes of a mailbox of this rank, which have not filled it yet.
    Grant(String),
    Program,
}

/// Holders with their bytes, the largest first.
#[derive(Debug)]
pub(crate) struct Holders {
    memory: Memory,
    held: Vec<(usize, Holder)>,
    /// Number of messages that wait here, by mailbox and its owner.
    waiting: BTreeMap<(String, u32), usize>,
    /// Whether some transport cannot tell what it lent.
    is_unsure: bool,
}

impl Holders {
    /// Whether others have memory that may come back without this program's doing.
    pub fn may_give_back(&self) -> bool {
        let others = |holder: &Holder| matches!(holder, Holder::Lent(..) | Holder::Queued(..));
        self.is_unsure || self.held.iter().any(|(_, holder)| others(holder))
    }
}

impl Holders {
    /// Describes a wait for memory for the report of who waits for whom.
    pub fn wait(&self) -> Wait {
        let mut ranks: Vec<u32> = self.held.iter().filter_map(|(_, holder)| holder.rank()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        // Another thread of this program may give some back.
        Wait { call: Call::Memory, name: String::new(), ranks, open: true }
    }

    /// Describes the wait for receivers at the end.
    pub fn wait_at_end(&self) -> Wait {
        let mut wait = Wait { call: Call::Finish, ..self.wait() };
        wait.ranks.extend(self.waiting.keys().map(|(_, owner)| owner));
        wait.ranks.sort_unstable();
        wait.ranks.dedup();
        wait
    }

    /// Numbers of the messages that wait here, by mailbox, in words; empty if there are none.
    pub fn waiting(&self) -> String {
        let named = self.waiting.iter().take(NAMED).map(|((mailbox, owner), messages)| {
            format!("{messages} message(s) for mailbox {mailbox:?} of rank {owner}")
        });
        let others = self.waiting.len().saturating_sub(NAMED);
        let others = (others > 0).then(|| format!("more for {others} other mailboxes"));
        named.chain(others).collect::<Vec<_>>().join(", ")
    }
}

impl Holder {
    /// The rank that has to give the memory back.
    fn rank(&self) -> Option<u32> {
        match self {
            Holder::Lent(_, owner) | Holder::Queued(_, owner) => Some(*owner),
            Holder::Grant(_) | Holder::Program => None,
        }
    }
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "held:")?;
        for (nth, (bytes, holder)) in self.held.iter().take(NAMED).enumerate() {
            write!(f, "{} {bytes} bytes ", if nth == 0 { "" } else { "," })?;
            match (holder, self.memory) {
                (Holder::Lent(name, owner), _) => {
                    write!(f, "by mailbox {name:?} of rank {owner}, which has to retrieve and drop them")
                }
                (Holder::Queued(name, owner), _) => {
                    write!(f, "queued for mailbox {name:?} of rank {owner}, which has to retrieve")
                }
                (Holder::Grant(name), _) => {
                    write!(f, "granted to postboxes of mailbox {name:?} here, not filled yet")
                }
                (Holder::Program, Memory::Outbox) => {
                    write!(f, "by this program, in messages not posted or in received ones that it keeps")
                }
                (Holder::Program, Memory::Landing) => {
                    write!(f, "by this program, in received messages that it keeps")
                }
            }?;
        }
        let rest = self.held.iter().skip(NAMED);
        match rest.len() {
            0 if self.held.is_empty() => write!(f, " by no rank any more"),
            0 => Ok(()),
            others => write!(f, ", {} bytes by {others} others", rest.map(|(bytes, _)| bytes).sum::<usize>()),
        }
    }
}

// ---- grants ----

/// The arenas that messages are received in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    Outbox,
    Landing,
}

/// Both arenas, by index.
pub(crate) const MEMORIES: [Memory; 2] = [Memory::Outbox, Memory::Landing];

/// Bytes that one mailbox has granted to its postboxes before their messages arrive, by [`Memory`].
///
/// A mailbox's postboxes together may announce far more than there is memory. A mailbox grants up to a bound,
/// so that a thousand slow writers leave room for the program itself and for its other mailboxes. A message
/// larger than the bound is granted alone.
#[derive(Debug, Default)]
pub(crate) struct MemoryQuota([AtomicUsize; 2]);

/// A grant of memory, in force until it is dropped.
pub(crate) struct Grant {
    of: Arc<MemoryQuota>,
    memory: Memory,
    bytes: usize,
}

impl MemoryQuota {
    /// Bytes granted and not filled yet.
    pub fn bytes(&self, memory: Memory) -> usize {
        self.0[memory as usize].load(Ordering::Relaxed)
    }

    /// Grants `bytes` if all grants together stay within `bound`; `None` otherwise. The first grant may
    /// exceed the bound.
    pub fn grant(self: &Arc<Self>, memory: Memory, bytes: usize, bound: usize) -> Option<Grant> {
        let granted = self.bytes(memory);
        if granted > 0 && granted.saturating_add(bytes) > bound {
            return None;
        }
        self.0[memory as usize].fetch_add(bytes, Ordering::Relaxed);
        Some(Grant { of: self.clone(), memory, bytes })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.of.0[self.memory as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
