//! Members of a shared object: ranks of one host.

use crate::error::{Error, Result};
use crate::world::World;
use crate::world_state::WorldState;

impl World {
    /// The ranks of this rank's host, in ascending order: the ranks that can share memory with it.
    pub fn host_ranks(&self) -> Vec<usize> {
        let neighbours = self.state.client().welcome().neighbours();
        neighbours.map(|rank| rank as usize).collect()
    }
}

/// Returns all ranks of the job, if they are on one host.
pub(crate) fn all(world: &WorldState, what: &str) -> Result<Vec<usize>> {
    checked(world, what, &(0..world.size()).collect::<Vec<_>>())
}

/// Returns these ranks, sorted, if they can share an object with this one.
pub(crate) fn checked(world: &WorldState, what: &str, ranks: &[usize]) -> Result<Vec<usize>> {
    let mut members = ranks.to_vec();
    members.sort_unstable();
    let bad = |why: String| Err(Error::BadMembers { what: what.to_owned(), ranks: ranks.to_vec(), why });
    if let Some(twice) = members.windows(2).find(|pair| pair[0] == pair[1]) {
        return bad(format!("rank {} is named twice", twice[0]));
    }
    if let Some(rank) = members.iter().find(|rank| **rank >= world.size()) {
        return bad(format!("this job has ranks 0 to {}, and no rank {rank}", world.size() - 1));
    }
    if !members.contains(&world.rank()) {
        return bad(format!("this rank, {}, is not among them", world.rank()));
    }
    let welcome = world.client().welcome();
    let host = |rank: usize| welcome.placement.host_of(rank as u32);
    match members.iter().find(|rank| host(**rank) != host(world.rank())) {
        None => Ok(members),
        Some(&rank) => {
            let name = |rank| {
                host(rank).map_or("another host".into(), |host| welcome.placement.hosts()[host].clone())
            };
            Err(Error::OtherHost { what: what.to_owned(), rank, host: name(rank), ours: name(world.rank()) })
        }
    }
}
