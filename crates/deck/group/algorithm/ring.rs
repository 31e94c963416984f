//! Rings: in each of n − 1 rounds every member sends a part to the next one and receives a part from the one
//! before. Each link carries each part once, so this is the fastest way for long data where links are the
//! bottleneck.
//!
//! Source: Patarasuk, Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, Journal of Parallel and
//! Distributed Computing 69 (2), 2009.

use bytemuck::Pod;

use super::super::call::{Call, Link};
use super::super::layout::Team;
use super::super::op::{Operator, Side};
use super::share_of;
use crate::error::Result;

/// The next member of a member's ring, and the one before.
fn neighbours(team: Team<'_>) -> (usize, usize) {
    let (me, size) = (team.me, team.size);
    (team.member((me + 1) % size), team.member((me + size - 1) % size))
}

/// The part of the member that is `rounds` members back.
fn back(team: Team<'_>, rounds: usize) -> usize {
    (team.me + 2 * team.size - rounds) % team.size
}

pub async fn all_reduce<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    data: &mut [T],
    op: &O,
) -> Result {
    let (next, before) = neighbours(team);
    let len = data.len();
    let part = |place| share_of(len, place, team.size);
    for round in 0..team.size - 1 {
        call.send_slice(next, &data[part(back(team, round))]).await?;
        call.combine(before, &mut data[part(back(team, round + 1))], op, Side::Left).await?;
    }
    // This member now has the complete result of the next one's part.
    for round in 0..team.size - 1 {
        call.send_slice(next, &data[part((back(team, round) + 1) % team.size)]).await?;
        call.receive_into(before, &mut data[part(back(team, round))]).await?;
    }
    Ok(())
}

/// Gathers. Parts may differ in length.
pub async fn all_gather<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    mine: &[T],
    all: &mut [&mut [T]],
) -> Result {
    let (next, before) = neighbours(team);
    all[team.me].copy_from_slice(mine);
    for round in 0..team.size - 1 {
        call.send_slice(next, all[back(team, round)]).await?;
        call.receive_into(before, all[back(team, round + 1)]).await?;
    }
    Ok(())
}

pub async fn reduce_scatter<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    from: &[&[T]],
    mine: &mut [T],
    op: &O,
) -> Result {
    let (next, before) = neighbours(team);
    // The running sum of a part, which is passed on.
    let mut sum = from[back(team, 1)].to_vec();
    for round in 1..team.size {
        call.send_slice(next, &sum).await?;
        sum.clear();
        sum.extend_from_slice(from[back(team, round + 1)]);
        call.combine(before, &mut sum, op, Side::Left).await?;
    }
    mine.copy_from_slice(&sum);
    Ok(())
}
