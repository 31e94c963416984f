//! A member's knowledge of its group, and the texts of its errors.

use std::any::Any;
use std::sync::Arc;

use udeck_via::{Deadline, Error as ViaError};

use super::deferred::Deferred;
use super::kind::{Kind, Signature};
use super::layout::Layout;
use super::plan::BarrierStep;
use crate::error::{Error, FailureCause, INTERNAL, Quoted, Result};
use crate::exits::check::MAX_WAIT;
use crate::world_state::WorldState;

/// The fixed part of a membership: names and layout of the group.
pub(crate) struct GroupState {
    world: Arc<WorldState>,
    /// Name in the program; empty: the group of all ranks.
    name: String,
    /// Identifier that distinguishes the group's mailboxes from other groups'.
    id: String,
    layout: Layout,
    /// Steps of this member in a barrier.
    steps: Vec<BarrierStep>,
    deferred: Deferred,
}

impl GroupState {
    pub fn new(world: Arc<WorldState>, name: String, id: String, layout: Layout) -> Self {
        let steps = layout.plan().steps(layout.me, layout.size());
        GroupState { world, name, id, layout, steps, deferred: Deferred::default() }
    }

    pub fn world(&self) -> &Arc<WorldState> {
        &self.world
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Steps of this member in a barrier.
    pub fn steps(&self) -> &[BarrierStep] {
        &self.steps
    }

    pub fn deferred(&self) -> &Deferred {
        &self.deferred
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn is_world(&self) -> bool {
        self.name.is_empty()
    }

    /// Name of a member's mailbox.
    pub fn mailbox_of(&self, member: usize) -> String {
        mailbox_name(&self.id, self.layout.ranks[member])
    }

    // ---- words ----

    /// The name of a call in errors.
    pub fn title(&self, call: Signature) -> String {
        let kind = call.kind().unwrap_or(Kind::Barrier);
        match (kind, self.is_world()) {
            (Kind::Barrier, true) => "the barrier".into(),
            (Kind::Create, _) => format!("making group {}", Quoted(&self.name)),
            (_, true) => kind.name().into(),
            (_, false) => format!("{} of group {}", kind.name(), Quoted(&self.name)),
        }
    }

    pub fn titled(&self) -> String {
        if self.is_world() {
            "the group of all ranks".into()
        } else {
            format!("group {}", Quoted(&self.name))
        }
    }

    /// The error of a call that a finished rank will not make any more: perhaps because another rank was
    /// lost.
    #[cold]
    pub fn ended(&self, rank: usize, call: Signature) -> Error {
        let how = || match call.kind() {
            Some(Kind::Create) => format!("it finished without making group {}", Quoted(&self.name)),
            kind => format!("it finished without coming to this {}", kind.unwrap_or(Kind::Barrier).name()),
        };
        let (rank, how) = self.lost().unwrap_or_else(|| (rank, how()));
        Error::PeerLost { rank, how }
    }

    /// A lost member, and how it was lost: without it no call can complete.
    pub fn lost(&self) -> Option<(usize, String)> {
        let is_member = |rank| self.is_world() || self.layout.member_of(rank as usize).is_some();
        self.world.exit_log().find_lost(is_member).map(|(rank, how)| (rank as usize, how))
    }

    /// Turns the error of a missing mailbox into that of its rank: to the program, the rank has ended.
    #[cold]
    pub fn as_ended(&self, error: Error, call: Signature) -> Error {
        let Error::MailboxGone { rank, .. } = error else { return error };
        // The launcher reports in a moment whether the rank has finished or is lost.
        let _ = self.world.client().wait_for_exit_report(
            rank as u32,
            MAX_WAIT,
            Deadline::after(2 * MAX_WAIT).instant(),
        );
        let log = self.world.exit_log();
        if self.lost().is_some() || log.has_finished(rank as u32) {
            return self.ended(rank, call);
        }
        Error::PeerLost { rank, how: format!("it has dropped {}", self.titled()) }
    }

    #[cold]
    pub fn mismatch(&self, member: usize, theirs: u32, ours: Signature) -> Error {
        Error::CallMismatch {
            group: self.titled(),
            rank: self.layout.ranks[member],
            theirs: Signature::of_tag(theirs).to_string(),
            ours: ours.to_string(),
        }
    }

    /// The error of a member whose data have another length.
    #[cold]
    pub fn wrong_length(&self, member: usize, theirs: usize, ours: usize, call: Signature) -> Error {
        Error::CallMismatch {
            group: self.titled(),
            rank: self.layout.ranks[member],
            theirs: format!("{call} with a part of {theirs} bytes"),
            ours: format!("{call} with one of {ours}"),
        }
    }

    /// The error of a member that has sent more parts than the call has here.
    #[cold]
    pub fn too_many_parts(&self, member: usize, call: Signature) -> Error {
        Error::CallMismatch {
            group: self.titled(),
            rank: self.layout.ranks[member],
            theirs: format!("{call} with more parts"),
            ours: call.to_string(),
        }
    }

    #[cold]
    pub fn too_many_early(&self, member: usize) -> Error {
        let rank = self.layout.ranks[member];
        let why = format!("rank {rank} has sent more messages than its calls need");
        Error::via(self.titled(), ViaError::rejected(why))
    }

    /// The error of a group that an earlier call has failed.
    #[cold]
    pub fn failed(&self, cause: FailureCause, why: &str) -> Error {
        Error::GroupFailed { group: self.titled(), why: why.to_owned(), cause }
    }

    /// The error of a call made by an operator, or from within a wait.
    #[cold]
    pub fn nested_call(&self, call: Signature) -> Error {
        self.invalid(
            call,
            "it was called from within another call of the group: an operator cannot do that".into(),
        )
    }

    /// The error of a call in which the program's code panicked.
    #[cold]
    pub fn panicked(&self, call: Signature, panic: &(dyn Any + Send)) -> Error {
        let words = panic.downcast_ref::<&str>().copied();
        let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        self.broken_call(
            call,
            format!(
                "code that the program passed to the call panicked: {}",
                words.unwrap_or("without words")
            ),
        )
    }

    /// The error of a call that cannot end, though this member's arguments are right.
    #[cold]
    pub fn broken_call(&self, call: Signature, why: String) -> Error {
        Error::via(self.title(call), ViaError::InvalidParameter(why))
    }

    /// The error of invalid arguments: `why` has the argument, its value and the values that would do.
    #[cold]
    pub fn invalid(&self, call: Signature, why: String) -> Error {
        Error::InvalidArgument { what: self.title(call), why }
    }

    /// Checks that no member is lost.
    ///
    /// # Errors
    /// A member is lost.
    #[inline]
    pub fn check_members(&self) -> Result {
        if self.world.exit_log().version() == 0 {
            return Ok(());
        }
        self.lost().map_or(Ok(()), |(rank, how)| Err(Error::PeerLost { rank, how }))
    }

    /// Checks that a root is a member.
    ///
    /// # Errors
    /// No member has that number.
    #[inline]
    pub fn check_root(&self, root: usize, call: Signature) -> Result {
        if root < self.layout.size() {
            return Ok(());
        }
        Err(self
            .invalid(call, format!("no member {root}: there are {}, numbered from 0", self.layout.size())))
    }
}

/// Name of the mailbox of a rank in a group.
pub(crate) fn mailbox_name(id: &str, rank: usize) -> String {
    format!("{INTERNAL}group/{id}/{rank}")
}
