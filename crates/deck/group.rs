//! Groups of ranks, and their collective calls: barrier, broadcast, reductions, gathering, scattering and exchange.
//!
//! | file | contents |
//! |---|---|
//! | here | groups: making, splitting, attributes |
//! | `blocking` | the calls, for slices |
//! | `ragged` | the calls for parts of different lengths (`_v`) |
//! | `values` | the calls for one value of each member (`_value`, `sum`) |
//! | `zero_copy` | the calls for whole messages, which are not copied (`_buf`) |
//! | `request` | calls that return at once (`_nonblocking`), and their handles |
//! | `wait_set` | waiting for several of them |
//! | `grid` | members at the points of a grid, and the exchange of halos |
//! | `op` | operators of reductions |
//! | `algorithm` | the algorithms by which a result is computed |
//! | `choice`, `choose` | the choice of an algorithm |
//! | `call` | one member's part of a call: the interface that algorithms are written against |
//! | `waiting` | how a blocking call waits |
//! | `membership` | one member's part of a group: state and engine |
//! | `deferred` | work that threads leave to the one that holds the engine |
//! | `engine` | a member's mailbox and postboxes, and messages that came early |
//! | `state` | a member's knowledge of the group, and texts of errors |
//! | `kind` | the tag by which a message identifies its call |
//! | `failure` | failure of a group, and how its members learn of it |
//! | `layout`, `plan` | members and hosts; the messages of a barrier |
//! | `join` | connecting to members |
//! | `survivors` | the group of the ranks that are left after a death |
//!
//! A member has one mailbox in a group, and a postbox to each member that it has sent to, made when it first
//! sends. This folder knows no transport: on one host, long messages are read where they lie because posting
//! does so there.

mod algorithm;
mod blocking;
mod call;
pub(crate) mod choice;
mod choose;
mod deferred;
mod engine;
mod failure;
mod grid;
mod join;
mod kind;
mod layout;
mod membership;
pub mod op;
pub mod plan;
mod ragged;
mod request;
mod state;
mod survivors;
mod values;
mod wait_set;
mod waiting;
mod zero_copy;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use udeck_via::Deadline;

pub use self::choice::{Algorithm, AlgorithmChoice};
pub use self::grid::Grid;
pub(crate) use self::join::invalid;
use self::join::own_view;
use self::kind::{Elements, Kind, Signature};
use self::layout::Agreed;
pub(crate) use self::membership::NewGroup;
use self::membership::{Membership, make};
pub use self::request::Request;
pub(crate) use self::survivors::{SURVIVORS, settings};
pub use self::wait_set::{AnyRequest, wait_all, wait_all_timeout, wait_any, wait_any_timeout};
#[cfg(doc)]
use crate::error::Error;
use crate::error::{Quoted, Result};
use crate::world_state::WorldState;

/// A group of ranks. Each call here is *collective*: all members make it, in the same order.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/group.md"))]
///
/// # Use
///
/// [`crate::World::all`] is the group of all ranks, [`crate::World::group`] makes a group of some ranks,
/// [`Group::split`] makes several. Members are numbered from 0 in the order of the list.
///
/// A call waits at most the world's deadline (`DECK_DEADLINE`), or the limit of [`Group::within`]. One thread
/// at a time calls. A call that only sends (a broadcast's root) may return before others have made it.
///
/// # Errors of all calls
///
/// - [`Error::PeerLost`]: a member is lost, or has finished without making the call. All members that wait
///   get it within a second on one host. Every later call returns it again: the remaining members can make a
///   new group.
/// - [`Error::Deadline`] names the members that have not come.
/// - [`Error::CallMismatch`]: a member made another call: another collective, root, operator, type or length.
///   The error names both calls.
/// - [`Error::InvalidArgument`] says what is wrong with the arguments; nothing was sent.
///
/// After a deadline or a mismatch the members may be at different calls, and every later call is
/// [`Error::GroupFailed`], at all members. Calls that all members had made before still end normally, also at
/// members that are behind. If the member that failed had requests under way, the calls from the oldest of
/// them on fail. (A barrier that ran out of time can be called again.)
pub struct Group {
    member: Arc<Membership>,
    limit: Duration,
    /// Element type that calls moving data announce; `None`: the Rust type.
    elements: Option<Elements>,
}

impl Group {
    pub(crate) fn of_world(world: &Arc<WorldState>, deadline: Deadline) -> Result<Self> {
        let ranks = (0..world.size()).collect();
        let new_group = NewGroup { name: String::new(), id: String::new(), ranks, agreed: None };
        Group::new(world, new_group, deadline)
    }

    /// Makes the group, and waits until all members have made it.
    pub(crate) fn create(world: &Arc<WorldState>, new_group: NewGroup) -> Result<Self> {
        let group = Group::new(world, new_group, Deadline::after(world.config().deadline))?;
        group.first_barrier()?;
        Ok(group)
    }

    fn new(world: &Arc<WorldState>, new_group: NewGroup, deadline: Deadline) -> Result<Self> {
        Ok(Group {
            member: Arc::new(make(world, new_group, deadline)?),
            limit: world.config().deadline,
            elements: None,
        })
    }

    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.member.state.layout().me
    }

    /// Number of members.
    pub fn size(&self) -> usize {
        self.member.state.layout().size()
    }

    /// The members' ranks in the world.
    pub fn ranks(&self) -> &[usize] {
        &self.member.state.layout().ranks
    }

    /// The name given when the group was made. A part of a group is named after the group and the colour.
    pub fn name(&self) -> &str {
        self.member.state.name()
    }

    /// Returns the same group with calls that wait at most `limit`.
    pub fn within(&self, limit: Duration) -> Group {
        Group { member: self.member.clone(), limit, elements: self.elements }
    }

    /// Longest wait of a call.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Returns the same group with calls that announce `elements` as their element type, so that members
    /// notice when their types differ. For bindings of languages whose types are known only at run time.
    #[doc(hidden)]
    pub fn moving(&self, elements: &str) -> Group {
        Group { elements: Some(Elements::named(elements)), ..self.within(self.limit) }
    }

    /// Splits the group: members of the same colour form a new group, in the order of their keys (members
    /// with equal keys keep their order). A member without a colour gets no group. Collective.
    ///
    /// # Errors
    /// The errors of all calls ([`Group`]).
    pub fn split(&self, colour: Option<usize>, key: i64) -> Result<Option<Group>> {
        let world = self.member.state.world();
        world.check()?;
        let coloured = [u64::from(colour.is_some()), colour.unwrap_or(0) as u64];
        let oversubscribed = u64::from(own_view(world).oversubscribed);
        let mine = [coloured[0], coloured[1], key as u64, oversubscribed, u64::from(world.next_group(PARTS))];
        let mut all = vec![[0_u64; 5]; self.size()];
        self.all_gather_for(Kind::Split, &[mine], &mut all)?;
        let Some(colour) = colour else { return Ok(None) };
        let mut members: Vec<usize> =
            (0..self.size()).filter(|member| all[*member][..2] == coloured).collect();
        members.sort_by_key(|member| all[*member][2] as i64);
        let agreed = Agreed {
            oversubscribed: members.iter().any(|member| all[*member][3] != 0),
            forced: self.member.state.layout().agreed.forced,
        };
        let of = if self.member.state.is_world() { "all" } else { self.name() };
        // The id: the first member, and the number of parts that it has led. (Other groups' ids contain a
        // `#`.)
        let first = members[0];
        let new_group = NewGroup {
            name: format!("{of}/{colour}"),
            id: format!("/{}.{}", self.ranks()[first], all[first][4]),
            ranks: members.iter().map(|member| self.ranks()[*member]).collect(),
            agreed: Some(agreed),
        };
        Group::create(world, new_group).map(Some)
    }

    /// The algorithm that a call of that name would take, and why. `bytes`: data of each member (for
    /// `all_to_all`, data for each other member). `None`: a call of that name has no choice.
    pub fn explain(&self, call: &str, bytes: usize) -> Option<AlgorithmChoice> {
        let kind = Kind::with_algorithms().find(|kind| kind.name() == call)?;
        Some(choose::choose(kind, bytes, false, self.member.state.layout()))
    }
}

/// Name under which parts of groups are counted: no group has this name.
const PARTS: &str = "";

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.member.state.is_world() { "all" } else { self.name() };
        write!(f, "Group({}, member {} of {})", Quoted(name), self.rank(), self.size())
    }
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<Group>();
};
