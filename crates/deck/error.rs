//! Errors. Their texts say what was tried, with which rank or mailbox, and what the user can do.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use udeck_boot::waits::Wait;
use udeck_boot::{BootError, ENV_RANK, Ranks, family};

use crate::matching::Match;
use crate::pack::PackError;
use crate::protocol::Protocol;

/// Result of a µDECK call.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Why a call failed.
///
/// `Debug` prints the same words as `Display`: a program whose `main` returns [`Result`] shows them to its user. In a job it
/// says first whose they are, `rank 3: …`, and all in one piece, so that what other ranks say does not get between.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank died. Each mailbox says so once per lost rank, and can be used on.
    #[error("rank {rank} is lost: {how}")]
    PeerLost {
        /// Which rank.
        rank: usize,
        /// What became of it.
        how: String,
    },
    /// The time was up.
    #[error("{what}: nothing within {waited:.1?}; waited for {whom}")]
    Deadline {
        /// What was tried.
        what: String,
        /// How long.
        waited: Duration,
        /// Who should have acted.
        whom: String,
    },
    /// A signal ended the wait ([`crate::interruptible`]).
    #[error("a signal interrupted the wait")]
    Interrupted,
    /// Another thread asks for the mailbox at which this one waits. Only where threads share one by [`crate::Turns`], which deals with it.
    #[error("another thread of this rank asks for the mailbox: wait by in_turn")]
    TurnOver {
        /// How long this one has waited.
        waited: Duration,
        /// The wait that goes on when the turn comes again.
        #[doc(hidden)]
        wait: Box<Wait>,
    },
    /// A `try_` call would have had to wait.
    #[error("{what} would have to wait for {whom}")]
    WouldBlock {
        /// What was tried.
        what: &'static str,
        /// Who should act first.
        whom: String,
    },
    /// No mailbox of that name.
    #[error("no mailbox is named {name:?}{}{}; {}{}", of(*.rank), after(*.waited), listing(.existing), lost_ranks(.lost))]
    NoSuchMailbox {
        /// The name asked for.
        name: String,
        /// Whose it was to be, if a member of a family was asked for ([`crate::World::postbox_of`]).
        rank: Option<usize>,
        /// Names that exist; of a family with the ranks that have made their members.
        existing: Vec<String>,
        /// How long it was waited for.
        waited: Duration,
        /// Ranks that are lost: one of them may have been to make it.
        lost: Vec<usize>,
    },
    /// A mailbox of that name exists already.
    #[error("{} exists already, on rank {rank}: names are unique within a job, those of a family within a rank", Titled(.name))]
    NameTaken {
        /// The name.
        name: String,
        /// Its owner.
        rank: usize,
    },
    /// A name that cannot be.
    #[error("{} cannot be the name of a mailbox, or of what ranks share: {why}", Quoted(.name))]
    BadName {
        /// The name.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// What messages cannot consist of.
    #[error("messages cannot consist of {kind}: {why}")]
    BadPayload {
        /// The type.
        kind: &'static str,
        /// Why not.
        why: &'static str,
    },
    /// The mailbox was destroyed by its owner.
    #[error("{} is gone: rank {rank} destroyed it or finished", Titled(.name))]
    MailboxGone {
        /// Its name.
        name: String,
        /// Who owned it.
        rank: usize,
    },
    /// None of this rank's NICs leads to the mailbox.
    #[error("{} of rank {rank} cannot be reached: {tried} (DECK_TRANSPORT sets what is tried)", Titled(.name))]
    Unreachable {
        /// The mailbox.
        name: String,
        /// Its owner.
        rank: usize,
        /// Each transport, and why it was no way.
        tried: String,
    },
    /// The mailbox carries something else.
    #[error("{} carries {theirs}, the postbox was made for {ours}", Titled(.name))]
    WrongType {
        /// The mailbox.
        name: String,
        /// What it carries.
        theirs: String,
        /// What was asked for.
        ours: String,
    },
    /// A message whose bytes are no whole number of elements. Its sender is not one of ours.
    #[error("rank {rank} sent {bytes} bytes, which are no whole number of {kind}")]
    WrongLength {
        /// The sender.
        rank: usize,
        /// The message's length.
        bytes: usize,
        /// The mailbox's type.
        kind: &'static str,
    },
    /// The buffer given to `retrieve_into` is too small. The message stays where it is.
    #[error("the message from rank {rank} needs room for {needed} elements, the buffer has {have}")]
    TooSmall {
        /// Elements of the message.
        needed: usize,
        /// Elements of the buffer.
        have: usize,
        /// The sender.
        rank: usize,
    },
    /// The buffer that the receiver had ready for a message is too small. Posted by `handshake`, which asks first: the
    /// message comes back, and can be posted again.
    #[error(
        "rank {rank} had room for {have} bytes, the message has {needed}; post it again, or a shorter one"
    )]
    ReceiverBufferTooSmall {
        /// The receiver.
        rank: usize,
        /// Bytes of the message.
        needed: usize,
        /// Bytes of the receiver's buffer.
        have: usize,
    },
    /// A message larger than any that can be sent: than the rank's message memory (`DECK_ARENA`), or than one of its transports
    /// carries (of today's only verbs has a bound of its own).
    #[error(
        "a message of {asked} bytes: at most {limit} are possible, which is what this rank's message memory (DECK_ARENA) and its \
         transports allow; send it in pieces, or raise DECK_ARENA"
    )]
    TooLarge {
        /// Bytes asked for.
        asked: usize,
        /// The bound.
        limit: usize,
    },
    /// No memory is left for a message, and waiting would not help: this program itself has all of it. Other than
    /// [`Error::Deadline`], which names memory when what others had did not come back in time.
    #[error("{what}: {source}; {holders}")]
    NoMemory {
        /// What was tried.
        what: String,
        /// Who has how much, most first.
        holders: String,
        /// What is full, and its bound.
        source: Box<udeck_via::Error>,
    },
    /// The receiver could not take a message.
    #[error("rank {rank} could not take the message: {why}")]
    Refused {
        /// The receiver.
        rank: usize,
        /// Why.
        why: String,
    },
    /// Messages that were posted earlier did not arrive.
    #[error("{count} earlier message(s) to {} on rank {rank} were not delivered: {why}", Titled(.name))]
    Undelivered {
        /// How many.
        count: usize,
        /// The mailbox.
        name: String,
        /// Its owner.
        rank: usize,
        /// Why.
        why: String,
    },
    /// External buffers have come back, and none was taken: [`crate::Postbox::take_returned`] gives them out.
    #[error(
        "{count} external buffers posted to mailbox {name:?} have come back, the most that are kept: take them by \
         Postbox::take_returned"
    )]
    ReturnQueueFull {
        /// The mailbox.
        name: String,
        /// How many are kept.
        count: usize,
    },
    /// Several things went wrong, all told by `finish`.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Multiple(Vec<Error>),
    /// The rank whose messages were waited for has finished, and what it posted here was retrieved.
    #[error("rank {rank} has finished, and all that it posted to {} was retrieved: nothing more comes from it", Titled(.name))]
    RankFinished {
        /// The rank.
        rank: usize,
        /// The mailbox.
        name: String,
    },
    /// More messages came before the one that was asked for than are set aside (`DECK_SET_ASIDE`). They stay, and any
    /// retrieve that they match takes them.
    #[error(
        "looking for{wanted} in {}: more than {limit} bytes (DECK_SET_ASIDE) were set aside for it and wait to be retrieved: {}",
        Titled(.name), counted(.messages.iter().copied())
    )]
    SetAsideFull {
        /// The mailbox.
        name: String,
        /// What was asked for.
        wanted: Match,
        /// The bound, in bytes.
        limit: usize,
        /// The ranks that posted what is set aside, each with how many messages.
        messages: Vec<(usize, usize)>,
    },
    /// A rank that the job does not have.
    #[error("there is no rank {rank}: the job has {size} rank(s), numbered from 0")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// How many there are.
        size: usize,
    },
    /// Nobody is left who could post, or make the mailbox.
    #[error(
        "{}: every other rank has finished or is lost, nobody can make it or post to it any more", Titled(.name)
    )]
    NobodyLeft {
        /// The mailbox.
        name: String,
    },
    /// The NIC cannot carry messages by that protocol.
    #[error(
        "protocol {protocol} needs {needed}, and the connection to rank {rank} has {have}; possible: {possible}"
    )]
    Unsupported {
        /// The protocol.
        protocol: Protocol,
        /// The peer.
        rank: usize,
        /// The missing ability.
        needed: String,
        /// The abilities there are.
        have: String,
        /// Protocols that work.
        possible: String,
    },
    /// A message that was to be posted without holding the thread, by `handshake`, which holds it until the message was
    /// received.
    #[error(
        "a post by handshake to mailbox {name:?} on rank {rank} holds its thread until it was received: use post, or \
         another protocol"
    )]
    WouldBlockThread {
        /// The mailbox.
        name: String,
        /// Its owner.
        rank: usize,
    },
    /// Members of a group made different calls.
    #[error(
        "in {group}, rank {rank} called {theirs}, where this rank called {ours}: all members make the same calls, in the same order"
    )]
    CallMismatch {
        /// The group.
        group: String,
        /// The other member, by its rank in the world.
        rank: usize,
        /// What it called.
        theirs: String,
        /// What this rank called.
        ours: String,
    },
    /// An earlier call of a group failed, so that its members may be at different places.
    #[error("{group} cannot be used any more: {why}; the members that are left can make a new one")]
    GroupFailed {
        /// The group.
        group: String,
        /// Which call, and why.
        why: String,
        /// What kind of failure it was.
        cause: FailureCause,
    },
    /// A call by a handle that outlived its world.
    #[error(
        "this rank has finished: what outlives World::finish gives out messages that have come, and does nothing else"
    )]
    WorldFinished,
    /// A setting that makes no sense.
    #[error("{variable}={value:?}: expected {expected}")]
    Config {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: Cow<'static, str>,
    },
    /// Memory, or a semaphore, was to be shared with a rank of another host.
    #[error(
        "{what} is shared within one host, and rank {rank} runs on {host}, this rank on {ours}: share it among the ranks of one host \
         (World::host_ranks), and use mailboxes between hosts"
    )]
    OtherHost {
        /// The shared segment or semaphore.
        what: String,
        /// A rank of another host.
        rank: usize,
        /// That host.
        host: String,
        /// This rank's.
        ours: String,
    },
    /// Those that are to share something cannot be.
    #[error("{what} cannot be shared among ranks {ranks:?}: {why}")]
    BadMembers {
        /// The shared segment or semaphore.
        what: String,
        /// The ranks.
        ranks: Vec<usize>,
        /// Why not.
        why: String,
    },
    /// Two ranks share something by one name that is not the same.
    #[error(
        "rank {rank} and this rank share by one name what is not the same: {theirs}; this rank asks for {ours}"
    )]
    SegmentMismatch {
        /// The rank that makes it: the lowest of those that share it.
        rank: usize,
        /// What it says of it.
        theirs: String,
        /// What this rank wants.
        ours: String,
    },
    /// Who held the lock of a shared segment died, or panicked: the data may be half written. It is so for everybody until somebody
    /// takes the lock by `recover`.
    #[error(
        "{what} may be half written: rank {rank} held its lock when {how}; take it by `recover`, which says that it is whole again"
    )]
    Abandoned {
        /// The shared segment.
        what: String,
        /// Who held the lock.
        rank: usize,
        /// What became of it.
        how: String,
    },
    /// More permits than a semaphore may have.
    #[error("{what} cannot have {asked} permits more: at most {limit} are possible")]
    TooManyPermits {
        /// The semaphore.
        what: String,
        /// How many were to be added.
        asked: u32,
        /// The bound.
        limit: u32,
    },
    /// Packing or unpacking failed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The launcher, or the name service in it.
    #[error(transparent)]
    Boot(Box<BootError>),
    /// The VI layer.
    #[error("{what}: {source}")]
    Via {
        /// What was tried.
        what: String,
        /// Why not.
        source: Box<udeck_via::Error>,
    },
}

/// Why the call failed after which a group cannot be used any more ([`Error::GroupFailed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureCause {
    /// It ran out of time.
    Deadline,
    /// Members made different calls.
    Mismatch,
    /// Something else: an operator panicked, a request was dropped, a member had no memory.
    Other,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&of_rank(std::env::var(ENV_RANK).ok(), self))
    }
}

/// An error as a program's user sees it, among those of other ranks.
fn of_rank(rank: Option<String>, error: &Error) -> String {
    rank.map_or_else(|| error.to_string(), |rank| format!("rank {rank}: {error}"))
}

/// Names of the library's own mailboxes begin so.
pub(crate) const INTERNAL: &str = "\u{1}deck/";
pub(crate) fn is_internal(name: &str) -> bool {
    name.starts_with(INTERNAL)
}

/// A mailbox as errors name it. Names of the library's own tell a user nothing.
pub(crate) struct Titled<'a>(pub &'a str);

impl fmt::Display for Titled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match is_internal(self.0) {
            true => f.write_str("a mailbox of the library's own (for a group's calls)"),
            false => write!(f, "mailbox {:?}", self.0),
        }
    }
}

/// A name in quotes, of which a long one is shown by its ends.
pub(crate) struct Quoted<'a>(pub &'a str);

/// Bytes of a name that is shown whole; and characters of each end of a longer one.
const WHOLE: usize = 100;
const END: usize = 40;

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0;
        if name.len() <= WHOLE {
            return write!(f, "{name:?}");
        }
        let place = |found: Option<(usize, char)>| found.map_or(0, |(place, _)| place);
        let (head, tail) =
            (place(name.char_indices().nth(END)), place(name.char_indices().nth_back(END - 1)));
        let (head, tail) = (name[..head].escape_debug(), name[tail..].escape_debug());
        write!(f, "\"{head}…{tail}\" ({} bytes)", name.len())
    }
}

/// As in `3 messages of rank 1, 1 of rank 2`.
pub(crate) fn counted(messages: impl IntoIterator<Item = (impl fmt::Display, usize)>) -> String {
    let mut words = Vec::new();
    for (rank, n) in messages {
        let noun = match (words.is_empty(), n) {
            (false, _) => "",
            (true, 1) => " message",
            (true, _) => " messages",
        };
        words.push(format!("{n}{noun} of rank {rank}"));
    }
    words.join(", ")
}

fn after(waited: Duration) -> String {
    if waited.is_zero() { String::new() } else { format!(" (waited {waited:.1?})") }
}

fn of(rank: Option<usize>) -> String {
    rank.map_or(String::new(), |rank| format!(" of rank {rank}"))
}

fn listing(existing: &[String]) -> String {
    match existing {
        [] => "none exists".into(),
        names => format!("there are: {}", names.join(", ")),
    }
}

fn lost_ranks(lost: &[usize]) -> String {
    let ranks: Vec<u32> = lost.iter().map(|rank| *rank as u32).collect();
    match ranks.len() {
        0 => String::new(),
        1 => format!(". {} is lost, and may have been to make it", Ranks(&ranks)),
        _ => format!(". {} are lost, and one of them may have been to make it", Ranks(&ranks)),
    }
}

impl Error {
    pub(crate) fn via(what: impl Into<String>, source: udeck_via::Error) -> Self {
        Error::Via { what: what.into(), source: Box::new(source) }
    }
}

/// # Errors
/// This process is a forked child: the world is its parent's.
#[inline]
pub(crate) fn check_process() -> Result {
    if udeck_via::is_forked() { Err(forked()) } else { Ok(()) }
}

#[cold]
fn forked() -> Error {
    let source = udeck_via::check_process().err().unwrap_or_else(|| std::io::ErrorKind::Unsupported.into());
    Error::via("using a world", udeck_via::Error::os("asking whose it is", source))
}

impl From<BootError> for Error {
    fn from(error: BootError) -> Self {
        match error {
            BootError::NameTaken { name, owner } => {
                Error::NameTaken { name: family::parts(&name).0.to_owned(), rank: owner as usize }
            }
            BootError::PeerLost { rank, how, .. } => Error::PeerLost { rank: rank as usize, how },
            BootError::Interrupted { .. } => Error::Interrupted,
            other => Error::Boot(Box::new(other)),
        }
    }
}

/// A post that failed. If no peer ever saw the message, it comes back. (Of what was to be copied nothing does: the program has it.)
pub struct PostError<M> {
    /// Why.
    pub error: Error,
    /// The message, unless it was under way.
    pub message: Option<M>,
}

impl<M> fmt::Debug for PostError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<M> fmt::Display for PostError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<M> std::error::Error for PostError<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<M> From<PostError<M>> for Error {
    fn from(failed: PostError<M>) -> Self {
        failed.error
    }
}

/// A message of [`crate::Postbox::post_each`] was not posted; nor were those behind it.
#[derive(Debug, thiserror::Error)]
#[error("message {posted} of the list: {error}")]
pub struct PostEachError {
    /// How many before it were posted: where to go on.
    pub posted: usize,
    /// Why.
    #[source]
    pub error: Error,
}

impl From<PostEachError> for Error {
    fn from(failed: PostEachError) -> Self {
        failed.error
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// Notes in how many pieces something is written.
    #[derive(Default)]
    struct Pieces(Vec<String>);

    impl Write for Pieces {
        fn write_str(&mut self, piece: &str) -> fmt::Result {
            self.0.push(piece.to_owned());
            Ok(())
        }
    }

    fn gone(name: &str) -> Error {
        Error::MailboxGone { name: name.into(), rank: 1 }
    }

    #[test]
    fn what_main_returns_is_written_in_one_piece() {
        let mut pieces = Pieces::default();
        write!(pieces, "{:?}", gone("in")).unwrap();
        assert_eq!(pieces.0, [gone("in").to_string()]);
    }

    #[test]
    fn in_a_job_it_is_led_by_its_rank() {
        let text = of_rank(Some("3".into()), &gone("in"));
        assert_eq!(text, "rank 3: mailbox \"in\" is gone: rank 1 destroyed it or finished");
    }

    #[test]
    fn names_of_the_librarys_own_are_not_shown() {
        let text = gone(&format!("{}barrier/1", INTERNAL)).to_string();
        assert!(text.starts_with("a mailbox of the library's own") && !text.contains("deck/"), "{text}");
    }
}
