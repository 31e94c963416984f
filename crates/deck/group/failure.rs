//! Failure of a group, and how its members learn of it.
//!
//! A member whose call fails tells all others, and sends the number of the first call in which it takes no
//! part any more. Otherwise a member that waits for it, and not for the member that is to blame, would wait
//! until its deadline. Earlier calls go on.

use std::time::Duration;

use udeck_via::Deadline;

use super::kind::{Kind, Signature};
use super::state::GroupState;
use crate::connect::{LookupMode, connect};
use crate::error::{Error, FailureCause, Result};
use crate::postbox::Postbox;
use crate::received::Received;
use crate::wait_policy::WaitPolicy;

/// Time, in all, for connecting to members that this one has not sent to before.
const REPORT_LIMIT: Duration = Duration::from_millis(500);
/// Maximum length of the words of a failure, in bytes.
const WORDS: usize = 400;

/// Reason why a group cannot be used any more.
pub(crate) enum CallFailure {
    /// A member is lost, or has finished.
    Lost { rank: usize, how: String },
    /// Another failure, in words that are true at all members.
    Other { cause: FailureCause, why: String },
}

/// Codes of the causes, sent in place of a lost rank.
const CAUSES: [(u32, FailureCause); 3] = [
    (u32::MAX, FailureCause::Other),
    (u32::MAX - 1, FailureCause::Deadline),
    (u32::MAX - 2, FailureCause::Mismatch),
];

impl CallFailure {
    pub fn of(state: &GroupState, call: Signature, error: &Error) -> Self {
        let cause = match error {
            Error::PeerLost { rank, how } => return CallFailure::Lost { rank: *rank, how: how.clone() },
            Error::Deadline { .. } => FailureCause::Deadline,
            Error::CallMismatch { .. } => FailureCause::Mismatch,
            _ => FailureCause::Other,
        };
        let here = format!("rank {}", state.world().rank());
        let why = format!("an earlier {call} failed: {}", error.to_string().replace("this rank", &here));
        CallFailure::Other { cause, why }
    }

    /// Decodes a member's message: its failure, and the number of the first call that cannot end.
    pub fn decode_message(state: &GroupState, member: usize, message: &Received<u8>) -> (u32, Self) {
        let (first, lost, words) = decode(message);
        let of = state.layout().ranks[member];
        let words: String = String::from_utf8_lossy(words).chars().flat_map(char::escape_debug).collect();
        let cause =
            CAUSES.iter().find(|(code, _)| *code == lost).map_or(FailureCause::Other, |(_, cause)| *cause);
        let lost = lost as usize;
        // A member may report itself or another member as lost, but not this rank.
        if state.layout().member_of(lost).is_some() && lost != state.world().rank() {
            return (
                first,
                CallFailure::Lost { rank: lost, how: format!("{words} (reported by rank {of})") },
            );
        }
        (first, CallFailure::Other { cause, why: format!("at rank {of} {words}") })
    }

    pub fn error(&self, state: &GroupState) -> Error {
        match self {
            // This rank's own knowledge of the loss takes precedence.
            CallFailure::Lost { rank, .. }
                if let Some(how) = state.world().exit_log().how_lost(*rank as u32) =>
            {
                Error::PeerLost { rank: *rank, how }
            }
            CallFailure::Lost { rank, how } => Error::PeerLost { rank: *rank, how: how.clone() },
            CallFailure::Other { cause, why } => state.failed(*cause, why),
        }
    }

    fn encode(&self, first: u32) -> Vec<u8> {
        let (lost, words) = match self {
            CallFailure::Lost { rank, how } => (*rank as u32, how),
            CallFailure::Other { cause, why } => {
                (CAUSES.iter().find(|(_, known)| known == cause).map_or(u32::MAX, |(code, _)| *code), why)
            }
        };
        let mut bytes = [first.to_le_bytes(), lost.to_le_bytes()].concat();
        let end = (0..=WORDS.min(words.len())).rev().find(|&at| words.is_char_boundary(at)).unwrap_or(0);
        bytes.extend_from_slice(&words.as_bytes()[..end]);
        bytes
    }
}

/// Decodes the number of the first call that cannot end, the lost rank or the cause, and the words. In a
/// truncated message, the number is that of the group's first call.
fn decode(message: &[u8]) -> (u32, u32, &[u8]) {
    let (first, rest) = message.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let (lost, words) = rest.split_first_chunk::<4>().unwrap_or((&[0xff; 4], &[]));
    (u32::from_le_bytes(*first), u32::from_le_bytes(*lost), words)
}

/// Tells all members, as far as possible without waiting for them. `first`: the number of the first call that
/// cannot end. `postbox` returns a postbox to a member, if there is one.
#[cold]
pub(super) fn report(
    state: &GroupState,
    first: u32,
    failure: &CallFailure,
    mut postbox: impl FnMut(usize) -> Option<Postbox<u8>>,
) {
    let (bytes, until) = (failure.encode(first), Deadline::after(REPORT_LIMIT));
    let tag = Signature::plain(Kind::Failed).tag();
    let (world, log) = (state.world(), state.world().exit_log());
    for member in state.layout().everybody().others() {
        let rank = state.layout().ranks[member] as u32;
        if log.how_lost(rank).is_some() || log.has_finished(rank) {
            continue;
        }
        let connect_now = || -> Result<Postbox<u8>> {
            let name = state.mailbox_of(member);
            Ok(Postbox::new(world, &name, connect::<u8>(world, &name, LookupMode::Now, None, until)?))
        };
        if let Some(postbox) = postbox(member).or_else(|| connect_now().ok()) {
            // A member that is not told waits no longer than its deadline.
            let _ = postbox.poster().post_copy(&bytes, tag, WaitPolicy::None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_decoded_as_it_was_encoded() {
        let failure = CallFailure::Other { cause: FailureCause::Deadline, why: "an ü".repeat(200) };
        for first in [0, 3, 259, u32::MAX - 1] {
            let bytes = failure.encode(first);
            let (decoded, lost, words) = decode(&bytes);
            assert_eq!((decoded, lost), (first, u32::MAX - 1));
            assert!(
                str::from_utf8(words).is_ok_and(|words| words.len() <= WORDS && words.starts_with("an ü"))
            );
        }
        let lost = CallFailure::Lost { rank: 7, how: String::new() }.encode(5);
        assert_eq!(decode(&lost), (5, 7, &[][..]));
        for len in 0..lost.len() {
            let (first, lost, words) = decode(&lost[..len]);
            assert_eq!((first, lost, words), (if len < 4 { 0 } else { 5 }, u32::MAX, &[][..]));
        }
    }
}
