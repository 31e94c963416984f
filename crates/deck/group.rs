//! Groups of ranks, and their collective calls: barrier, broadcast, reductions, gathering, scattering and exchange.
//!
//! | file | what it is |
//! |---|---|
//! | here | groups: making, splitting, what they know |
//! | `blocking` | the calls, for slices |
//! | `ragged` | the calls for parts of different lengths (`_v`) |
//! | `zero_copy` | the calls for whole messages, which are not copied (`_buf`) |
//! | `request` | calls that return at once (`_nonblocking`), and their handles |
//! | `op` | operators of reductions |
//! | `algorithm` | how a result is reached |
//! | `choice`, `choose` | which way is taken |
//! | `call` | one member's part of a call: what algorithms are written in |
//! | `waiting` | how a blocking call waits |
//! | `membership` | one member's part of a group: the next two |
//! | `deferred` | what threads leave to the one that has the part |
//! | `engine` | its mailbox and postboxes, and messages that came early |
//! | `state` | what it knows, and words for errors |
//! | `kind` | what a message says of its call |
//! | `failure` | why a group cannot be used any more, and how its members hear of it |
//! | `layout`, `plan` | who is where; who tells whom at a barrier |
//! | `meet` | connecting to members |
//!
//! A member has one mailbox in a group, and a postbox to each member that it has sent to, made when it first sends. Nothing here
//! knows a transport: on one host, long messages are read where they lie because that is what posting does there.

mod algorithm;
mod blocking;
mod call;
pub(crate) mod choice;
mod choose;
mod deferred;
mod engine;
mod failure;
mod kind;
mod layout;
mod meet;
mod membership;
pub mod op;
mod plan;
mod ragged;
mod request;
mod state;
mod waiting;
mod zero_copy;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use udeck_via::Deadline;

pub use self::choice::{Algorithm, AlgorithmChoice};
use self::kind::{Elements, Kind, Signature};
use self::layout::Agreed;
pub(crate) use self::meet::bad;
use self::meet::own_view;
pub(crate) use self::membership::Making;
use self::membership::{Membership, make};
pub use self::request::Request;
#[cfg(doc)]
use crate::error::Error;
use crate::error::{Quoted, Result};
use crate::world_state::WorldState;

/// Ranks that do something together: each call here is *collective*, made by all members in the same order.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/group.md"))]
///
/// # Use
///
/// [`crate::World::all`] is the group of all ranks, [`crate::World::group`] makes one of some, [`Group::split`] makes several. Members are numbered
/// from 0 in the order of the list.
///
/// A call waits at most the world's deadline (`DECK_DEADLINE`), or what [`Group::within`] says. One thread at a time calls. A call
/// that sends only (a broadcast's root) may return before others have come to it.
///
/// # Errors of all calls
///
/// - [`Error::PeerLost`]: a member is lost, or has finished without coming to the call. All members that wait get it within a second
///   on one host. Every later call says the same: those that are left make a new group.
/// - [`Error::Deadline`] names the members that have not come.
/// - [`Error::CallMismatch`]: a member called something else: another collective, root, operator, type or length. It names both
///   calls.
/// - [`Error::Via`] says what is wrong with the arguments; nothing was sent.
///
/// After a deadline or a mismatch the members may be at different places, and every later call is [`Error::GroupFailed`], at all members. A call
/// that they have made before ends as if nothing had happened, also at members that are behind. If the member that failed had requests under way,
/// the calls from the oldest of them on fail. (A barrier that ran out of time can be called again.)
pub struct Group {
    member: Arc<Membership>,
    limit: Duration,
    /// What calls that move data say they move; `None`: what the compiler knows.
    elements: Option<Elements>,
}

impl Group {
    pub(crate) fn of_world(world: &Arc<WorldState>, deadline: Deadline) -> Result<Self> {
        let ranks = (0..world.size()).collect();
        let making = Making { name: String::new(), id: String::new(), ranks, agreed: None };
        Group::new(world, making, deadline)
    }

    /// Makes the group, and waits for all members to do so.
    pub(crate) fn met(world: &Arc<WorldState>, making: Making) -> Result<Self> {
        let group = Group::new(world, making, Deadline::after(world.config().deadline))?;
        group.meet_all()?;
        Ok(group)
    }

    fn new(world: &Arc<WorldState>, making: Making, deadline: Deadline) -> Result<Self> {
        Ok(Group {
            member: Arc::new(make(world, making, deadline)?),
            limit: world.config().deadline,
            elements: None,
        })
    }

    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.member.state.layout().me
    }

    /// How many members there are.
    pub fn size(&self) -> usize {
        self.member.state.layout().size()
    }

    /// The members' ranks in the world.
    pub fn ranks(&self) -> &[usize] {
        &self.member.state.layout().ranks
    }

    /// The name that it was made by; of parts of a group, that of the group and the colour.
    pub fn name(&self) -> &str {
        self.member.state.name()
    }

    /// The same group, whose calls wait at most `limit`.
    pub fn within(&self, limit: Duration) -> Group {
        Group { member: self.member.clone(), limit, elements: self.elements }
    }

    /// The same group, whose calls that move bytes say that these are elements of this type, so that members find out when they mean different
    /// ones. For bindings of languages whose types are known when the program runs.
    #[doc(hidden)]
    pub fn moving(&self, elements: &str) -> Group {
        Group { elements: Some(Elements::named(elements)), ..self.within(self.limit) }
    }

    /// Parts the group: members of the same colour are together in a new one, in the order of their keys (of equal ones, in today's
    /// order). A member without a colour gets none. Collective.
    ///
    /// # Errors
    /// As of all calls.
    pub fn split(&self, colour: Option<usize>, key: i64) -> Result<Option<Group>> {
        let world = self.member.state.world();
        world.check()?;
        let coloured = [u64::from(colour.is_some()), colour.unwrap_or(0) as u64];
        let crowded = u64::from(own_view(world).crowded);
        let mine = [coloured[0], coloured[1], key as u64, crowded, u64::from(world.next_group(PARTS))];
        let mut all = vec![[0_u64; 5]; self.size()];
        self.all_gather_for(Kind::Split, &[mine], &mut all)?;
        let Some(colour) = colour else { return Ok(None) };
        let mut members: Vec<usize> =
            (0..self.size()).filter(|member| all[*member][..2] == coloured).collect();
        members.sort_by_key(|member| all[*member][2] as i64);
        let agreed = Agreed {
            crowded: members.iter().any(|member| all[*member][3] != 0),
            forced: self.member.state.layout().agreed.forced,
        };
        let of = if self.member.state.is_world() { "all" } else { self.name() };
        // Its first member has led so many parts. (Other groups' names in the library have a `#`.)
        let first = members[0];
        let making = Making {
            name: format!("{of}/{colour}"),
            id: format!("/{}.{}", self.ranks()[first], all[first][4]),
            ranks: members.iter().map(|member| self.ranks()[*member]).collect(),
            agreed: Some(agreed),
        };
        Group::met(world, making).map(Some)
    }

    /// Which algorithm a call of that name would take for so many bytes of each member (or for each other, for `all_to_all`), and why.
    /// `None`: there is no choice for a call of that name.
    pub fn explain(&self, call: &str, bytes: usize) -> Option<AlgorithmChoice> {
        let kind = Kind::with_algorithms().find(|kind| kind.name() == call)?;
        Some(choose::choose(kind, bytes, false, self.member.state.layout()))
    }
}

/// By which parts of groups are counted: no group has this name.
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
