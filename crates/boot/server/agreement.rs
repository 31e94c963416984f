//! Agreements: the ranks that are left decide together who they are, and combine a value.
//!
//! A rank votes by [`Call::Agree`](crate::wire::Call::Agree), and waits. The vote is over when every rank that
//! has not ended has voted. All voters then get the same [`Agreement`], which names them. A rank that ends
//! meanwhile is waited for no longer, and is not in it.
//!
//! The set of ranks cannot split: this state machine alone decides who has ended, and decides once for all
//! voters. A rank that some others suspect, because their connections to it broke, belongs to the set until the
//! launcher or the end of its connection to this service says that it has ended.
//!
//! Votes are numbered. A rank that gave up (its deadline passed, a signal came) may have been counted all the
//! same. It then votes in the same round again, and gets the agreement that the others have.

use std::sync::Arc;

use super::{Awaited, Server, State};
use crate::wire::{Agreement, Reply, RequestError, Vote};

/// The last agreement, for voters that gave up before they heard of it.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Agreements {
    /// Number of agreements so far.
    round: u64,
    last: Option<(Vote, Arc<Agreement>)>,
}

impl Server {
    /// Handles a vote, up to its wait.
    pub(super) fn vote(&mut self, rank: u32, id: u64, round: u64, vote: Vote) -> Option<Awaited> {
        if self.waiting.iter().any(|w| w.rank == rank && matches!(w.awaited, Awaited::Agreement(_))) {
            self.refuse(rank, id, "another thread of this rank is already in an agreement");
            return None;
        }
        if round == self.agreements.round {
            return Some(Awaited::Agreement(vote));
        }
        match &self.agreements.last {
            Some((theirs, agreement))
                if round.checked_add(1) == Some(self.agreements.round) && agreement.ranks.contains(&rank) =>
            {
                let reply = match theirs.question == vote.question {
                    true => Reply::Agreed(Arc::clone(agreement)),
                    false => Reply::Failed(other_question(theirs, &vote, agreement.ranks.iter().copied())),
                };
                self.reply(rank, id, reply);
            }
            _ => {
                let why = format!("round {round} of the agreements, where {} is next", self.agreements.round);
                self.refuse(rank, id, &why);
            }
        }
        None
    }

    /// Ends the vote if every rank that is left has voted.
    pub(super) fn decide(&mut self) {
        if self.waiting.iter().all(|w| !matches!(w.awaited, Awaited::Agreement(_)))
            || !self.missing_at_agreement().is_empty()
        {
            return;
        }
        let mut voters = self.take_waiting(|w| matches!(w.awaited, Awaited::Agreement(_)));
        voters.sort_by_key(|w| w.rank);
        let votes: Vec<(u32, Vote)> = voters
            .iter()
            .filter_map(|w| match &w.awaited {
                Awaited::Agreement(vote) => Some((w.rank, *vote)),
                _ => None,
            })
            .collect();
        let Some((_, first)) = votes.first().copied() else { return };
        let reply = match votes.iter().find(|(_, vote)| vote.question != first.question) {
            Some((_, other)) => {
                let others = votes.iter().filter(|(_, vote)| vote.question == other.question);
                Reply::Failed(other_question(other, &first, others.map(|(rank, _)| *rank)))
            }
            None => {
                let agreement = Arc::new(Agreement {
                    round: self.agreements.round,
                    ranks: votes.iter().map(|(rank, _)| *rank).collect(),
                    all: votes.iter().fold(u64::MAX, |all, (_, vote)| all & vote.value),
                    first: first.value,
                });
                self.agreements.round += 1;
                self.agreements.last = Some((first, Arc::clone(&agreement)));
                Reply::Agreed(agreement)
            }
        };
        voters.iter().for_each(|w| self.reply(w.rank, w.id, reply.clone()));
    }

    /// Returns the ranks that are left and have not voted, sorted.
    pub(super) fn missing_at_agreement(&self) -> Vec<u32> {
        let is_left = |state: &State| matches!(state, State::Starting | State::Joined);
        let mut is_missing: Vec<bool> = self.ranks.iter().map(is_left).collect();
        for voter in self.waiting.iter().filter(|w| matches!(w.awaited, Awaited::Agreement(_))) {
            is_missing[voter.rank as usize] = false;
        }
        (0u32..).zip(is_missing).filter_map(|(rank, is_missing)| is_missing.then_some(rank)).collect()
    }
}

fn other_question(theirs: &Vote, ours: &Vote, ranks: impl Iterator<Item = u32>) -> RequestError {
    let ranks: Vec<u32> = ranks.collect();
    let why = format!(
        "{} called {}, and others {}: all ranks that are left have to make the same call",
        crate::Ranks(&ranks),
        theirs.question,
        ours.question
    );
    RequestError::Refused { why }
}
