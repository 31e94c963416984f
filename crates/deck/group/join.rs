//! Connecting to the members of a group, and waiting for the objects that they make when they join it.

use std::sync::Arc;
use std::time::Instant;

use udeck_boot::{BootError, Maker};
use udeck_via::{Deadline, Error as ViaError};

use super::kind::{Kind, Signature};
use super::layout::Agreed;
use super::state::GroupState;
use crate::connect::{LookupMode, connect};
use crate::error::{Error, INTERNAL, Quoted, Result};
use crate::long_wait::asking;
use crate::send::Channel;
use crate::world_state::WorldState;

/// This rank's view of the settings that members have to agree on.
pub(super) fn own_view(world: &WorldState) -> Agreed {
    Agreed { oversubscribed: world.oversubscribed(), forced: world.config().group }
}

#[cold]
pub(crate) fn invalid(name: &str, why: String) -> Error {
    Error::InvalidArgument { what: format!("making group {}", Quoted(name)), why }
}

/// Agrees on the settings of the first member, which it puts where all members can read them, at the
/// launcher. Members with different plans would wait for each other.
pub(super) fn agree(
    world: &Arc<WorldState>,
    name: &str,
    id: &str,
    ranks: &[usize],
    me: usize,
    deadline: Deadline,
) -> Result<Agreed> {
    let own = own_view(world);
    if name.is_empty() && ranks.len() <= 2 {
        return Ok(Agreed { oversubscribed: false, ..own }); // there is no other plan
    }
    let key = format!("{INTERNAL}group/{id}");
    let mut record = own.encode().to_vec();
    record.extend(ranks.iter().flat_map(|rank| (*rank as u32).to_le_bytes()));
    if me == 0 {
        world.client().put(&key, &record, Deadline::after(world.config().setup).instant())?;
        return Ok(own);
    }
    let maker = maker(name, ranks[0]);
    let join_wait = JoinWait { world, name, rank: ranks[0], deadline };
    let said = join_wait.wait_for(|deadline| {
        asking(world, |asked| match world.client().get_of(&key, maker, deadline.instant(), Some(&asked)) {
            Ok(said) => Ok(Some(said)),
            Err(BootError::NoSuchKey { .. }) => Ok(None),
            Err(BootError::PeerDone { .. } | BootError::NobodyLeft { .. }) => Err(join_wait.ended()),
            Err(error) => Err(error.into()),
        })
    })?;
    let (agreed, theirs) = said.split_at(own.encode().len().min(said.len()));
    let Some(agreed) = Agreed::decode(agreed) else {
        let other = ViaError::rejected(format!("rank {} has another version of this library", ranks[0]));
        return Err(Error::via(join_wait.title(), other));
    };
    if theirs != &record[own.encode().len()..] {
        return Err(invalid(
            name,
            format!(
                "rank {} has made a group of other ranks by that name: give the same list, or another name",
                ranks[0]
            ),
        ));
    }
    Ok(agreed)
}

/// The maker to name in a request to the launcher, by which the launcher knows when nobody can make the requested
/// thing any more.
fn maker(group: &str, rank: usize) -> Maker {
    let rank = rank as u32;
    // The loss of a rank that is no member changes nothing.
    if group.is_empty() { Maker::Collective(rank) } else { Maker::Rank(rank) }
}

/// Connects to a member, once it has joined the group.
pub(super) fn connect_member(
    state: &GroupState,
    to: usize,
    call: Signature,
    until: Deadline,
) -> Result<Channel> {
    let rank = state.layout().ranks[to];
    let join_wait = JoinWait { world: state.world(), name: state.name(), rank, deadline: until };
    let mode = LookupMode::Of(maker(state.name(), rank));
    join_wait.wait_for(|deadline| attempt(state, to, call, mode, deadline))
}

/// Connects to a member, if it has joined the group.
pub(super) fn try_connect_member(state: &GroupState, to: usize, call: Signature) -> Result<Option<Channel>> {
    let (rank, log) = (state.layout().ranks[to], state.world().exit_log());
    // Read before the attempt: whatever a rank has made before it finished is found.
    let has_finished = log.has_finished(rank as u32);
    let setup = Deadline::after(state.world().config().setup);
    match attempt(state, to, call, LookupMode::Now, setup) {
        Ok(None) if has_finished => Err(state.ended(rank, call)),
        Ok(None) => state.check_members().map(|()| None),
        Err(Error::WouldBlock { .. }) => Ok(None), // no place for a connection now
        made => made,
    }
}

fn attempt(
    state: &GroupState,
    to: usize,
    call: Signature,
    mode: LookupMode,
    deadline: Deadline,
) -> Result<Option<Channel>> {
    let (name, rank) = (state.mailbox_of(to), state.layout().ranks[to]);
    match connect::<u8>(state.world(), &name, mode, None, deadline) {
        // Another rank may have taken the name first.
        Ok(channel) if channel.owner() as usize != rank => {
            Err(Error::NameTaken { name, rank: channel.owner() as usize })
        }
        Ok(channel) => Ok(Some(channel)),
        Err(Error::NoSuchMailbox { .. }) => Ok(None),
        Err(Error::NobodyLeft { .. }) => Err(state.ended(rank, call)),
        Err(error) => Err(state.as_ended(error, call)),
    }
}

/// Waits for something that another rank makes when it joins the group. A rank that computes before is not a
/// failed set-up. It may end instead, and any member may be lost: the launcher then answers at once.
struct JoinWait<'a> {
    world: &'a WorldState,
    /// Name of the group.
    name: &'a str,
    rank: usize,
    deadline: Deadline,
}

impl JoinWait<'_> {
    fn wait_for<T>(&self, mut attempt: impl FnMut(Deadline) -> Result<Option<T>>) -> Result<T> {
        let (start, config, log) = (Instant::now(), self.world.config(), self.world.exit_log());
        let deadline = self.deadline;
        loop {
            match attempt(Deadline::after(config.setup).min(deadline)) {
                Ok(Some(made)) => return Ok(made),
                _ if log.has_finished(self.rank as u32) => return Err(self.ended()),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            let is_missed = |rank| self.name.is_empty() || rank as usize == self.rank;
            if let Some((rank, how)) = log.find_lost(is_missed) {
                return Err(Error::PeerLost { rank: rank as usize, how });
            }
            if deadline.passed() {
                let whom = match self.name {
                    "" => format!("rank {}, which has not reached a barrier yet", self.rank),
                    name => format!("rank {}, which has not joined group {}", self.rank, Quoted(name)),
                };
                return Err(Error::Deadline { what: self.title(), waited: start.elapsed(), whom });
            }
        }
    }

    fn title(&self) -> String {
        if self.name.is_empty() {
            "the barrier".into()
        } else {
            format!("making group {}", Quoted(self.name))
        }
    }

    #[cold]
    fn ended(&self) -> Error {
        let kind = if self.name.is_empty() { Kind::Barrier } else { Kind::Create };
        let how = match kind {
            Kind::Barrier => "it finished without coming to this barrier".into(),
            _ => format!("it finished without making group {}", Quoted(self.name)),
        };
        let is_missed = |rank| self.name.is_empty() || rank as usize == self.rank;
        let lost = self.world.exit_log().find_lost(is_missed);
        let (rank, how) = lost.map_or((self.rank, how), |(rank, how)| (rank as usize, how));
        Error::PeerLost { rank, how }
    }
}
