//! All-to-all with one partner after another, each pair in the same round ([`crate::exchange::tournament`]):
//! one long message to a member and one from it are in flight at a time.

use bytemuck::Pod;

use super::super::call::{Call, Link};
use super::super::layout::Team;
use crate::error::Result;
use crate::exchange::tournament;

/// Exchanges. `from` and `to` have a part for each place.
pub async fn all_to_all<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    from: &[&[T]],
    to: &mut [&mut [T]],
) -> Result {
    to[team.me].copy_from_slice(from[team.me]);
    for step in tournament(team.me, team.size) {
        let partner = team.member(step.peer);
        call.exchange(partner, from[step.peer], partner, to[step.peer]).await?;
    }
    Ok(())
}
