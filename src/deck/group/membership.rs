//! One member's part of a group: what it knows, and its end of the messages.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use udeck_via::Home;

use super::engine::Engine;
use super::layout::{Agreed, Layout};
use super::meet::{agree, bad};
use super::state::{GroupState, mailbox_name};
use crate::error::Result;
use crate::mailbox::Mailbox;
use crate::mailbox_options::MailboxOptions;
use crate::world_state::WorldState;

/// One member's part of a group.
pub(crate) struct Membership {
    pub state: GroupState,
    /// Held by one blocking call as long as it lasts, and by a request for each step.
    engine: Mutex<RefCell<Engine>>,
}

impl Membership {
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, RefCell<Engine>> {
        self.engine.lock()
    }
}

/// A group of which this rank is a member.
pub(crate) struct Making {
    /// As the program calls it; empty: all ranks.
    pub name: String,
    /// The same at all members, and at no other group.
    pub id: String,
    /// Ranks of the world, by member.
    pub ranks: Vec<usize>,
    /// Known to all members already; otherwise its first member says it.
    pub agreed: Option<Agreed>,
}

/// This rank's part of the group. (The members have not met.)
pub(super) fn make(world: &Arc<WorldState>, making: Making) -> Result<Membership> {
    let Making { name, id, ranks, agreed } = making;
    let me = ranks.iter().position(|rank| *rank == world.rank());
    let me = me.ok_or_else(|| bad(&name, format!("rank {} is no member", world.rank())))?;
    let inbox = Mailbox::create(world, mailbox_name(&id, world.rank()), &MailboxOptions::new())?;
    inbox.expect(ranks.iter().copied()); // whoever is lost comes to no call
    let agreed = match agreed {
        Some(agreed) => agreed,
        None => agree(world, &name, &id, &ranks, me)?,
    };
    let layout = Layout::new(ranks.clone(), me, world.client().welcome(), agreed);
    let home = layout.plan().is_by_turns().then(|| Home::nth(world.rank()));
    let engine = Engine::new(inbox, ranks.len(), home);
    let state = GroupState::new(world.clone(), name, id, layout);
    Ok(Membership { state, engine: Mutex::new(RefCell::new(engine)) })
}
