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

/// Error of a call.
///
/// `Debug` prints the same words as `Display`, so a program whose `main` returns [`Result`] shows them to its
/// user. In a job the text begins with the rank, `rank 3: …`, and is written in one piece, so that other
/// ranks' texts do not get between.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another rank died. Each mailbox reports each lost rank once, and remains usable.
    #[error("rank {rank} is lost: {how}")]
    PeerLost {
        /// The lost rank.
        rank: usize,
        /// How the rank ended, in words.
        how: String,
    },
    /// The deadline passed.
    #[error("{what}: nothing within {waited:.1?}; waited for {whom}")]
    Deadline {
        /// The operation that was tried.
        what: String,
        /// How long the call waited.
        waited: Duration,
        /// The ranks or mailboxes that should have acted.
        whom: String,
    },
    /// A signal ended the wait ([`crate::interruptible`]).
    #[error("a signal interrupted the wait")]
    Interrupted,
    /// Another thread asks for the mailbox at which this one waits. Only where threads share a mailbox by
    /// [`crate::Turns`], which handles this error.
    #[error("another thread of this rank needs the mailbox: wait with udeck::in_turn")]
    TurnOver {
        /// How long this thread has waited.
        waited: Duration,
        /// The wait that goes on when the turn comes again.
        #[doc(hidden)]
        wait: Box<Wait>,
    },
    /// A `try_` call would have had to wait.
    #[error("{what} would have to wait for {whom}")]
    WouldBlock {
        /// The operation that was tried.
        what: &'static str,
        /// The ranks or mailboxes that should act first.
        whom: String,
    },
    /// No mailbox has that name.
    #[error("no mailbox is named {name:?}{}{}; {}{}", of(*.rank), after(*.waited), listing(.existing), lost_ranks(.lost))]
    NoSuchMailbox {
        /// The name asked for.
        name: String,
        /// The rank of the family's member that was asked for ([`crate::World::postbox_of`]), if any.
        rank: Option<usize>,
        /// Names that exist; for a family, with the ranks that have made their members.
        existing: Vec<String>,
        /// How long the call waited for the mailbox.
        waited: Duration,
        /// Ranks that are lost: one of them may have been meant to make the mailbox.
        lost: Vec<usize>,
    },
    /// A mailbox of that name exists already.
    #[error("{} exists already, on rank {rank}: names are unique within a job, those of a family within a rank", Titled(.name))]
    NameTaken {
        /// The name.
        name: String,
        /// The rank that owns the mailbox.
        rank: usize,
    },
    /// The name is not possible.
    #[error("{} cannot be the name of a mailbox or of a shared object: {why}", Quoted(.name))]
    BadName {
        /// The name.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// Messages cannot consist of this type.
    #[error("messages cannot consist of {kind}: {why}")]
    BadPayload {
        /// The type.
        kind: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// The mailbox was destroyed by its owner.
    #[error("{} is gone: rank {rank} destroyed it or finished", Titled(.name))]
    MailboxGone {
        /// The name of the mailbox.
        name: String,
        /// The rank that owned the mailbox.
        rank: usize,
    },
    /// None of this rank's NICs leads to the mailbox.
    #[error("{} of rank {rank} cannot be reached: {tried} (DECK_TRANSPORT sets what is tried)", Titled(.name))]
    Unreachable {
        /// The mailbox.
        name: String,
        /// The rank that owns the mailbox.
        rank: usize,
        /// Each transport, and why it does not reach the mailbox.
        tried: String,
    },
    /// The mailbox carries another type.
    #[error("{} carries {theirs}, the postbox was made for {ours}", Titled(.name))]
    WrongType {
        /// The mailbox.
        name: String,
        /// The type that the mailbox carries.
        theirs: String,
        /// The type that the postbox was made for.
        ours: String,
    },
    /// A message's length is not a whole number of elements. Its sender does not use this library.
    #[error("rank {rank} sent {bytes} bytes, which is not a whole number of {kind}")]
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
    /// The buffer that the receiver had ready for a message is too small. The message was posted by
    /// `handshake`, which asks first: it comes back, and can be posted again.
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
    /// The message is larger than any that can be sent: larger than the rank's message memory (`DECK_ARENA`),
    /// or than a transport carries (only verbs has such a bound today).
    #[error(
        "a message of {asked} bytes is too large: this rank's message memory (DECK_ARENA) and its transports allow at most {limit}; \
         send it in pieces, or raise DECK_ARENA"
    )]
    TooLarge {
        /// Bytes asked for.
        asked: usize,
        /// The upper bound.
        limit: usize,
    },
    /// No memory is left for a message, and waiting would not help: this program itself has all of it.
    /// [`Error::Deadline`], in contrast, names memory that other ranks did not give back in time.
    #[error("{what}: {source}; {holders}")]
    NoMemory {
        /// The operation that was tried.
        what: String,
        /// The holders of memory, the largest first.
        holders: String,
        /// The arena that is full, and its bound.
        source: Box<udeck_via::Error>,
    },
    /// The receiver could not take a message.
    #[error("rank {rank} could not take the message: {why}")]
    Refused {
        /// The receiver.
        rank: usize,
        /// The reason.
        why: String,
    },
    /// Messages that were posted earlier did not arrive.
    #[error("{count} earlier message(s) to {} on rank {rank} were not delivered: {why}", Titled(.name))]
    Undelivered {
        /// Number of lost messages.
        count: usize,
        /// The mailbox.
        name: String,
        /// The rank that owns the mailbox.
        rank: usize,
        /// The reason.
        why: String,
    },
    /// Too many external buffers have come back, and none was taken: [`crate::Postbox::take_returned`]
    /// returns them.
    #[error(
        "{count} external buffers posted to mailbox {name:?} have come back, the most that are kept: take them by \
         Postbox::take_returned"
    )]
    ReturnQueueFull {
        /// The mailbox.
        name: String,
        /// Number of buffers that are kept.
        count: usize,
    },
    /// Several errors, all reported by `finish`.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Multiple(Vec<Error>),
    /// One of several requests failed ([`crate::wait_all`]).
    #[error("request {index} of {count} ({call}): {source}")]
    RequestFailed {
        /// Index of the request in the list, from 0.
        index: usize,
        /// Number of requests in the list.
        count: usize,
        /// The request's call.
        call: String,
        /// The error of the request.
        source: Box<Error>,
    },
    /// The rank whose messages the call waited for has finished, and all that it posted here was retrieved.
    #[error("rank {rank} has finished, and all that it posted to {} was retrieved: nothing more comes from it", Titled(.name))]
    RankFinished {
        /// The rank.
        rank: usize,
        /// The mailbox.
        name: String,
    },
    /// Before the wanted message, more messages came than may be set aside (`DECK_SET_ASIDE`). They stay, and
    /// any retrieve that they match takes them.
    #[error(
        "looking for{wanted} in {}: more than {limit} bytes (DECK_SET_ASIDE) were set aside for it and wait to be retrieved: {}",
        Titled(.name), counted(.messages.iter().copied())
    )]
    SetAsideFull {
        /// The mailbox.
        name: String,
        /// The messages that were asked for.
        wanted: Match,
        /// The bound, in bytes.
        limit: usize,
        /// The ranks that posted the messages set aside, and the number of messages of each.
        messages: Vec<(usize, usize)>,
    },
    /// The job has no such rank.
    #[error("there is no rank {rank}: the job has {size} rank(s), numbered from 0")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// Number of ranks in the job.
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
    /// The connection cannot carry messages by that protocol.
    #[error(
        "protocol {protocol} needs {needed}, and the connection to rank {rank} has {have}; possible: {possible}"
    )]
    Unsupported {
        /// The protocol.
        protocol: Protocol,
        /// The peer.
        rank: usize,
        /// The missing capability.
        needed: String,
        /// The capabilities of the connection.
        have: String,
        /// Protocols that are possible.
        possible: String,
    },
    /// A message was to be posted by `handshake` without holding the thread, but `handshake` holds it until
    /// the message was received.
    #[error(
        "a post by handshake to mailbox {name:?} on rank {rank} blocks its thread until the message was received: use post, or \
         another protocol"
    )]
    WouldBlockThread {
        /// The mailbox.
        name: String,
        /// The rank that owns the mailbox.
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
        /// The call that the other member made.
        theirs: String,
        /// The call that this rank made.
        ours: String,
    },
    /// An earlier call of the group failed, so its members may be at different calls.
    #[error("{group} cannot be used any more: {why}; the members that are left can make a new one")]
    GroupFailed {
        /// The group.
        group: String,
        /// The failed call, and the reason.
        why: String,
        /// Kind of the failure.
        cause: FailureCause,
    },
    /// The call used a handle that outlived its world.
    #[error(
        "this rank has finished: after World::finish a handle only returns messages that have already arrived"
    )]
    WorldFinished,
    /// A setting has no valid value.
    #[error("{variable}={value:?}: expected {expected}")]
    Config {
        /// The environment variable.
        variable: &'static str,
        /// The value of the variable.
        value: String,
        /// The values that are allowed.
        expected: Cow<'static, str>,
    },
    /// Memory or a semaphore was to be shared with a rank of another host.
    #[error(
        "{what} is shared within one host, and rank {rank} runs on {host}, this rank on {ours}: share it among the ranks of one host \
         (World::host_ranks), and use mailboxes between hosts"
    )]
    OtherHost {
        /// The shared segment or semaphore.
        what: String,
        /// A rank of another host.
        rank: usize,
        /// The host of that rank.
        host: String,
        /// This rank's host.
        ours: String,
    },
    /// The given ranks cannot share something.
    #[error("{what} cannot be shared among ranks {ranks:?}: {why}")]
    BadMembers {
        /// The shared segment or semaphore.
        what: String,
        /// The ranks.
        ranks: Vec<usize>,
        /// The reason.
        why: String,
    },
    /// Two ranks ask for different shared objects by one name.
    #[error(
        "rank {rank} and this rank use one name for different shared objects: {theirs}; this rank asks for {ours}"
    )]
    SegmentMismatch {
        /// The rank that makes the shared object: the lowest of the ranks that share it.
        rank: usize,
        /// The object that the maker describes.
        theirs: String,
        /// The object that this rank asks for.
        ours: String,
    },
    /// The holder of a shared segment's lock died or panicked, so the data may be half written. Every call
    /// fails so until a rank takes the lock by `recover`.
    #[error(
        "{what} may be half written: rank {rank} held its lock when {how}; take it by `recover`, which marks the data as whole again"
    )]
    Abandoned {
        /// The shared segment.
        what: String,
        /// The rank that held the lock.
        rank: usize,
        /// How that rank ended.
        how: String,
    },
    /// The semaphore would get more permits than it may have.
    #[error("{what} cannot have {asked} more permits: at most {limit} are possible")]
    TooManyPermits {
        /// The semaphore.
        what: String,
        /// Number of permits that were to be added.
        asked: u32,
        /// The upper bound.
        limit: u32,
    },
    /// An argument of a call is wrong, or the call is not allowed at this place. Nothing was sent; the call with
    /// another argument may succeed.
    #[error("{what}: {why}")]
    InvalidArgument {
        /// The call, in words.
        what: String,
        /// The argument, its value, and the values that would do.
        why: String,
    },
    /// Packing or unpacking failed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// The launcher, or its name service, failed.
    #[error(transparent)]
    Boot(Box<BootError>),
    /// The VI layer failed.
    #[error("{what}: {source}")]
    Via {
        /// The operation that was tried.
        what: String,
        /// The reason.
        source: Box<udeck_via::Error>,
    },
}

/// Cause of the failure after which a group cannot be used any more ([`Error::GroupFailed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureCause {
    /// The call ran out of time.
    Deadline,
    /// Members made different calls.
    Mismatch,
    /// Another failure: an operator panicked, a request was dropped, a member had no memory.
    Other,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&of_rank(std::env::var(ENV_RANK).ok(), self))
    }
}

/// Formats an error for a program's user, among those of other ranks.
fn of_rank(rank: Option<String>, error: &Error) -> String {
    rank.map_or_else(|| error.to_string(), |rank| format!("rank {rank}: {error}"))
}

/// Prefix of the names of the library's own mailboxes.
pub(crate) const INTERNAL: &str = "\u{1}deck/";
pub(crate) fn is_internal(name: &str) -> bool {
    name.starts_with(INTERNAL)
}

/// Formats a mailbox's name for errors. The library's own names would tell a user nothing.
pub(crate) struct Titled<'a>(pub &'a str);

impl fmt::Display for Titled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match is_internal(self.0) {
            true => f.write_str("an internal mailbox of the library (for a group's calls)"),
            false => write!(f, "mailbox {:?}", self.0),
        }
    }
}

/// Formats a name in quotes; shows a long name by its two ends.
pub(crate) struct Quoted<'a>(pub &'a str);

/// Bytes up to which a name is shown whole, and characters of each end of a longer name.
const MAX_SHOWN: usize = 100;
const SHOWN_END: usize = 40;

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0;
        if name.len() <= MAX_SHOWN {
            return write!(f, "{name:?}");
        }
        let place = |found: Option<(usize, char)>| found.map_or(0, |(place, _)| place);
        let (head, tail) =
            (place(name.char_indices().nth(SHOWN_END)), place(name.char_indices().nth_back(SHOWN_END - 1)));
        let (head, tail) = (name[..head].escape_debug(), name[tail..].escape_debug());
        write!(f, "\"{head}…{tail}\" ({} bytes)", name.len())
    }
}

/// Formats numbers of messages by rank: `3 messages of rank 1, 1 of rank 2`.
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
        1 => format!(". {} is lost, and may be the rank that was to make it", Ranks(&ranks)),
        _ => format!(". {} are lost, and one of them may be the rank that was to make it", Ranks(&ranks)),
    }
}

impl Error {
    pub(crate) fn via(what: impl Into<String>, source: udeck_via::Error) -> Self {
        Error::Via { what: what.into(), source: Box::new(source) }
    }
}

/// Checks that this process may use its world.
///
/// # Errors
/// This process is a forked child: the world is its parent's.
#[inline]
pub(crate) fn check_process() -> Result {
    if udeck_via::is_forked() { Err(forked()) } else { Ok(()) }
}

#[cold]
fn forked() -> Error {
    let source = udeck_via::check_process().err().unwrap_or_else(|| std::io::ErrorKind::Unsupported.into());
    Error::via("using a world", udeck_via::Error::os("checking that this process made it", source))
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

/// A failed post. The message comes back if no peer ever saw it. (A message that was to be copied does not:
/// the program still has it.)
pub struct PostError<M> {
    /// The error of the post.
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

/// A message of [`crate::Postbox::post_each`] was not posted, nor was any behind it.
#[derive(Debug, thiserror::Error)]
#[error("message {posted} of the list: {error}")]
pub struct PostEachError {
    /// Number of messages posted before it: the index at which to go on.
    pub posted: usize,
    /// The error of the post.
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

    /// Collects the pieces in which something is written.
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
        assert!(text.starts_with("an internal mailbox of the library") && !text.contains("deck/"), "{text}");
    }
}
