//! Making groups of a world's ranks.

use std::time::Duration;

use udeck_boot::Ranks;
use udeck_via::Deadline;

use super::{World, check_name};
use crate::error::{Error, Result, check_process};
use crate::group::{Group, NewGroup, invalid};
use crate::turns::lock_within;

impl World {
    /// The group of all ranks, made by the first call. That call is collective: it waits for ranks that have
    /// not come yet, like any collective call.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Deadline`]: rank 0 has not come.
    pub fn all(&self) -> Result<&Group> {
        self.all_within(self.state.config().deadline)
    }

    /// Like [`World::all`], but waits at most `limit`, for rank 0 or for another thread of this rank that
    /// makes the group.
    pub(crate) fn all_within(&self, limit: Duration) -> Result<&Group> {
        check_process()?;
        if let Some(all) = self.all.get() {
            return Ok(all);
        }
        let deadline = Deadline::after(limit);
        let lock = |limit| Ok::<_, Error>(self.making_all.try_lock_for(limit));
        let _one_makes_it = lock_within(&[], &"the group of all ranks", limit, lock)?;
        if let Some(all) = self.all.get() {
            return Ok(all);
        }
        let all = Group::of_world(&self.state, deadline)?;
        Ok(self.all.get_or_init(|| all))
    }

    /// Makes a group of these ranks, in this order. Collective among them: all of them give the same name and
    /// the same list. Several groups may have the same name, one after another.
    ///
    /// # Errors
    /// [`Error::Deadline`] names the rank that has not come; [`Error::PeerLost`]; [`Error::BadName`];
    /// [`Error::InvalidArgument`] if this rank is not in the list, a rank is listed twice or does not exist, or the first
    /// rank has made a group of other ranks by that name.
    pub fn group(&self, name: &str, ranks: &[usize]) -> Result<Group> {
        check_process()?;
        check_name(name)?;
        self.check_ranks(name, ranks)?;
        let id = format!("{name}#{}", self.state.next_group(name));
        Group::create(&self.state, NewGroup { name: name.into(), id, ranks: ranks.to_vec(), agreed: None })
    }

    /// Makes a group like [`World::group`], without a name from the program. Calls with the same ranks are
    /// matched in order.
    ///
    /// # Errors
    /// The errors of [`World::group`].
    pub fn anonymous_group(&self, ranks: &[usize]) -> Result<Group> {
        check_process()?;
        let numbers: Vec<u32> = ranks.iter().map(|rank| u32::try_from(*rank).unwrap_or(u32::MAX)).collect();
        let name = Ranks(&numbers).to_string();
        self.check_ranks(&name, ranks)?;
        let key = format!("of {} ranks, {:016x}", ranks.len(), fingerprint(ranks));
        let id = format!("{key}#{}", self.state.next_group(&key));
        Group::create(&self.state, NewGroup { name, id, ranks: ranks.to_vec(), agreed: None })
    }

    fn check_ranks(&self, name: &str, ranks: &[usize]) -> Result {
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]) {
            return Err(invalid(
                name,
                format!("rank {} is in the list twice: name each rank once", twice[0]),
            ));
        }
        match sorted.last() {
            Some(last) if *last >= self.size() => Err(invalid(
                name,
                format!("there is no rank {last}: the job has {} rank(s), numbered from 0", self.size()),
            )),
            _ if !sorted.contains(&self.rank()) => Err(invalid(
                name,
                format!("rank {} is not in the list: only members make a group", self.rank()),
            )),
            _ => Ok(()),
        }
    }
}

/// Hash that tells lists of ranks apart (FNV-1a). Members compare the lists themselves when they meet.
fn fingerprint(ranks: &[usize]) -> u64 {
    ranks.iter().fold(0xcbf2_9ce4_8422_2325, |hash, rank| {
        (*rank as u64 ^ hash).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    })
}
