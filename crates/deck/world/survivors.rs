//! Agreements of the ranks that are left after a death: who they are, and flags.

use std::time::Duration;

use udeck_boot::wire::{Agreement as Answer, Question, Vote};
use udeck_boot::{BootError, Ranks};
use udeck_via::Deadline;

use super::World;
use crate::error::{Error, Result, check_process};
use crate::group::{Group, SURVIVORS, settings};
use crate::long_wait::asking;

/// Result of [`World::agree`], the same at all ranks that took part.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// The bits that were set at all ranks that took part.
    pub flags: u64,
    /// The ranks that took part, sorted: all that had not ended when the last of them came.
    pub ranks: Vec<usize>,
}

impl World {
    /// Makes a group of all ranks that have not ended, after the death of one. Collective: all ranks that are
    /// left make the call, however they learned of the death. A rank that dies meanwhile is waited for no
    /// longer, and is no member. Waits at most the world's deadline.
    ///
    /// All members have the same list, in the order of their ranks, because the process that serves the job's
    /// names decides it, once. A rank that others suspect, because a connection to it broke, is a member until
    /// that process knows that it has ended. If a member dies after the decision, the group's calls return
    /// [`Error::PeerLost`] at all members, and the next call of this function makes a smaller group.
    ///
    /// A rank that waits for another one in a group without the dead rank, or at a mailbox, does not learn of
    /// the death there. Drop groups that are not needed any more: each has a mailbox.
    ///
    #[cfg_attr(not(doctest), doc = include_str!("../examples/survivors.md"))]
    ///
    /// # Errors
    /// [`Error::Deadline`] names the ranks that have not come. Call again, to take part in the same agreement.
    /// [`Error::Boot`]: other ranks are in [`World::agree`], or another thread of this rank is in an agreement;
    /// or the process that serves names is gone (under a cluster's own launcher rank 0). [`Error::Via`]: this
    /// rank has no place for the group's mailbox. After an error of the mailbox, or of its registration, this
    /// rank is a member to the others all the same: let it end, so that they learn of it and make a smaller
    /// group.
    #[doc(alias = "MPIX_Comm_shrink")]
    pub fn survivors(&self) -> Result<Group> {
        self.survivors_timeout(self.state.config().deadline)
    }

    /// Like [`World::survivors`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`World::survivors`].
    pub fn survivors_timeout(&self, limit: Duration) -> Result<Group> {
        let agreement = self.vote(Question::Survivors, settings(&self.state), limit)?;
        Group::of_survivors(&self.state, &agreement)
    }

    /// Agrees with all ranks that have not ended: the result has the bits that are set in the `flags` of all of
    /// them, and who they are. Collective, as [`World::survivors`] is, and like it sure of the same result at
    /// all ranks, whoever dies meanwhile. Waits at most the world's deadline.
    ///
    /// An all-reduce in which a rank dies may succeed at some members and fail at others. A program thus ends a
    /// step, or its work, by this call: `world.agree(u64::from(result.is_ok()))`.
    ///
    #[cfg_attr(not(doctest), doc = include_str!("../examples/agree.md"))]
    ///
    /// # Errors
    /// The errors of [`World::survivors`], except [`Error::Via`]. A rank whose call failed calls again. The
    /// flags of the first call count if the others have the result already.
    #[doc(alias = "MPIX_Comm_agree")]
    pub fn agree(&self, flags: u64) -> Result<Agreement> {
        self.agree_timeout(flags, self.state.config().deadline)
    }

    /// Like [`World::agree`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`World::agree`].
    pub fn agree_timeout(&self, flags: u64, limit: Duration) -> Result<Agreement> {
        let Answer { ranks, all, .. } = self.vote(Question::Agree, flags, limit)?;
        Ok(Agreement { flags: all, ranks: ranks.into_iter().map(|rank| rank as usize).collect() })
    }

    fn vote(&self, question: Question, value: u64, limit: Duration) -> Result<Answer> {
        check_process()?;
        self.state.check()?;
        let deadline = Deadline::after(limit).instant();
        let vote = Vote { question, value };
        asking(&self.state, |asked| match self.state.client().agree(vote, deadline, Some(&asked)) {
            Err(BootError::Deadline { waited, missing, .. }) => {
                let what = match question {
                    Question::Survivors => SURVIVORS,
                    Question::Agree => "agree",
                };
                let whom = match missing.is_empty() {
                    true => "the process that serves the job's names".into(),
                    false => format!("{}, which have not called it", Ranks(&missing)),
                };
                Err(Error::Deadline { what: what.into(), waited, whom })
            }
            answer => Ok(answer?),
        })
    }
}
