//! The group of the ranks that are left.

use std::sync::Arc;

use udeck_boot::wire::Agreement;
use udeck_via::{Deadline, Error as ViaError};

use super::Group;
use super::join::own_view;
use super::layout::Agreed;
use super::membership::NewGroup;
use crate::error::{Error, Result};
use crate::world_state::WorldState;

/// Name of such a group.
pub(crate) const SURVIVORS: &str = "survivors";

/// This rank's settings of a group, as a value to agree on: the group has those of its first member.
pub(crate) fn settings(world: &WorldState) -> u64 {
    u64::from(u16::from_le_bytes(own_view(world).encode()))
}

impl Group {
    /// Makes the group of the agreement's ranks. Waits for no member: the agreement was the meeting.
    pub(crate) fn of_survivors(world: &Arc<WorldState>, agreement: &Agreement) -> Result<Group> {
        let settings = (agreement.first as u16).to_le_bytes();
        let agreed = Agreed::decode(&settings);
        let agreed = agreed.ok_or_else(|| {
            let why = format!(
                "its first member has another version of this library: its settings are {settings:?}"
            );
            Error::via("making group survivors", ViaError::rejected(why))
        })?;
        let ranks = agreement.ranks.iter().map(|rank| *rank as usize).collect();
        // No other group's id begins like this.
        let id = format!("/{SURVIVORS}.{}", agreement.round);
        let new_group = NewGroup { name: SURVIVORS.into(), id, ranks, agreed: Some(agreed) };
        Group::new(world, new_group, Deadline::after(world.config().deadline))
    }
}
