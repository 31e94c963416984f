//! Rabenseifner's all-reduce: in each round a member exchanges half of its range with a member half as far
//! away, until each has reduced one part; then back. Each member sends and receives about twice its data, in
//! 2 ⌈log2 n⌉ rounds.
//!
//! Source: Rabenseifner, *Optimization of collective reduction operations*, International Conference on Computational Science,
//! 2004.

use bytemuck::Pod;

use super::super::call::{Call, Link};
use super::super::layout::Team;
use super::super::op::{Operator, Side};
use super::doubling::Folded;
use crate::error::Result;

pub async fn all_reduce<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    data: &mut [T],
    op: &O,
) -> Result {
    let folded = Folded::new(team);
    folded.fold(call, team, data, op).await?;
    if let Some(place) = folded.place {
        // Ranges that this member reduces, one before each round.
        let mut ranges = Vec::new();
        ranges.push(0..data.len());
        let mut distance = folded.size / 2;
        while distance > 0 {
            let range = ranges.last().cloned().unwrap_or_default();
            let middle = range.start + range.len() / 2;
            let (low, high) = (range.start..middle, middle..range.end);
            let partner = place ^ distance;
            let member = team.member(folded.team_place(partner));
            let (keep, give, side) =
                if place < partner { (low, high, Side::Right) } else { (high, low, Side::Left) };
            call.send_slice(member, &data[give]).await?;
            call.combine(member, &mut data[keep.clone()], op, side).await?;
            ranges.push(keep);
            distance /= 2;
        }
        let mut distance = 1;
        while distance < folded.size {
            let own = ranges.pop().unwrap_or_default();
            let both = ranges.last().cloned().unwrap_or_default();
            let member = team.member(folded.team_place(place ^ distance));
            let theirs = if own.start == both.start { own.end..both.end } else { both.start..own.start };
            call.send_slice(member, &data[own]).await?;
            call.receive_into(member, &mut data[theirs]).await?;
            distance *= 2;
        }
    }
    folded.unfold(call, team, data).await
}
