//! Bruck's algorithms: ⌈log2 n⌉ messages for each member, which also carry other members' data. Best where a
//! message costs more than its bytes.
//!
//! Source: Bruck, Ho, Kipnis, Upfal, Weathersby, *Efficient algorithms for all-to-all communications in multiport message-passing
//! systems*, IEEE Transactions on Parallel and Distributed Systems 8 (11), 1997.

use bytemuck::Pod;

use super::super::call::{Call, Link};
use super::super::layout::Team;
use crate::error::Result;

/// Gathers: in the round of distance d a member has the parts of d members from itself on, and sends them to
/// the one d before.
pub async fn all_gather<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    mine: &[T],
    all: &mut [T],
) -> Result {
    let (me, size, each) = (team.me, team.size, mine.len());
    all[..each].copy_from_slice(mine);
    let mut have = 1;
    while have < size {
        let count = have.min(size - have);
        let (before, after) = ((me + size - have) % size, (me + have) % size);
        let (old, new) = all.split_at_mut(have * each);
        call.send_slice(team.member(before), &old[..count * each]).await?;
        call.receive_into(team.member(after), &mut new[..count * each]).await?;
        have += count;
    }
    // Rotates: the first part is the member's own.
    all.rotate_right(me * each);
    Ok(())
}

/// Exchanges: in the round of distance d a member passes on all parts whose distance to go has the bit d.
pub async fn all_to_all<L: Link, T: Pod>(call: &Call<L>, team: Team<'_>, from: &[T], to: &mut [T]) -> Result {
    let (me, size) = (team.me, team.size);
    let each = from.len() / size;
    // Orders the parts by the distance that they have to go.
    to.copy_from_slice(from);
    to.rotate_left(me * each);
    let mut distance = 1;
    while distance < size {
        let ways = || (0..size).filter(|way| way & distance != 0);
        let part = |way: usize| way * each..(way + 1) * each;
        let mut packed = Vec::with_capacity(ways().count() * each);
        ways().for_each(|way| packed.extend_from_slice(&to[part(way)]));
        let (after, before) = ((me + distance) % size, (me + size - distance) % size);
        call.send_slice(team.member(after), &packed).await?;
        call.receive_into(team.member(before), &mut packed).await?;
        ways()
            .zip(packed.chunks_exact(each.max(1)))
            .for_each(|(way, received)| to[part(way)].copy_from_slice(received));
        distance *= 2;
    }
    // The part at distance w has come from the member w before.
    let come = to.to_vec();
    for way in 0..size {
        let of = (me + size - way) % size;
        to[of * each..(of + 1) * each].copy_from_slice(&come[way * each..(way + 1) * each]);
    }
    Ok(())
}
