//! Recursive doubling: in round k each member exchanges all its data with the member at distance 2^k.
//!
//! Sources: Thakur and others (see [`super`]), 4.5; for scans Hillis, Steele, *Data parallel algorithms*, 1986.

use bytemuck::Pod;

use super::super::call::{Call, Link, pieces};
use super::super::layout::Team;
use super::super::op::{Operator, Side};
use crate::error::Result;

/// Reduction of the members to a power of two: each surplus member gives its data to a neighbour, which takes
/// part for both.
pub(super) struct Folded {
    /// Number of members that take part, a power of two.
    pub size: usize,
    /// Number of pairs, which are at the first places.
    pairs: usize,
    /// This member's place among those that take part; `None` if it does not.
    pub place: Option<usize>,
}

impl Folded {
    pub fn new(team: Team<'_>) -> Self {
        let size = (team.size / 2 + 1).next_power_of_two();
        let pairs = team.size - size;
        let place = match team.me {
            me if me >= 2 * pairs => Some(me - pairs),
            me if me % 2 == 1 => Some(me / 2),
            _ => None,
        };
        Folded { size, pairs, place }
    }

    /// The place in the team of a member that takes part.
    pub fn team_place(&self, place: usize) -> usize {
        if place < self.pairs { 2 * place + 1 } else { place + self.pairs }
    }

    fn partner(&self, me: usize) -> Option<usize> {
        (me < 2 * self.pairs).then_some(me ^ 1)
    }

    /// Surplus members give their data to their partners.
    pub async fn fold<L: Link, T: Pod, O: Operator<T>>(
        &self,
        call: &Call<L>,
        team: Team<'_>,
        data: &mut [T],
        op: &O,
    ) -> Result {
        match (self.partner(team.me), self.place) {
            (Some(partner), None) => call.send_slice(team.member(partner), data).await,
            (Some(partner), Some(_)) => call.combine(team.member(partner), data, op, Side::Left).await,
            (None, _) => Ok(()),
        }
    }

    /// Surplus members receive the result.
    pub async fn unfold<L: Link, T: Pod>(&self, call: &Call<L>, team: Team<'_>, data: &mut [T]) -> Result {
        match (self.partner(team.me), self.place) {
            (Some(partner), None) => call.receive_into(team.member(partner), data).await,
            (Some(partner), Some(_)) => call.send_slice(team.member(partner), data).await,
            (None, _) => Ok(()),
        }
    }
}

pub async fn all_reduce<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    data: &mut [T],
    op: &O,
) -> Result {
    let folded = Folded::new(team);
    folded.fold(call, team, data, op).await?;
    if let Some(place) = folded.place {
        let mut distance = 1;
        while distance < folded.size {
            let partner = place ^ distance;
            let member = team.member(folded.team_place(partner));
            // Both combine the lower member's data with the higher one's, so that both get the same result.
            let side = if partner < place { Side::Left } else { Side::Right };
            for piece in pieces::<T>(data.len()) {
                let mine = &mut data[piece];
                call.send(member, bytemuck::cast_slice(mine)).await?;
                call.combine_piece(member, mine, op, side).await?;
            }
            distance *= 2;
        }
    }
    folded.unfold(call, team, data).await
}

/// Computes prefixes: in the round of distance d a member receives the combination of the d members before
/// it.
pub async fn scan<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    data: &mut [T],
    op: &O,
    inclusive: bool,
) -> Result {
    let (me, size) = (team.me, team.size);
    // Combination of all data received so far, including the member's own.
    let mut partial = data.to_vec();
    let mut heard: Vec<T> = Vec::new();
    let mut distance = 1;
    while distance < size {
        if me + distance < size {
            call.send_slice(team.member(me + distance), &partial).await?;
        }
        if let Some(before) = me.checked_sub(distance) {
            let mut theirs = partial.clone();
            call.receive_into(team.member(before), &mut theirs).await?;
            call.combine_here(op, &mut partial, &theirs, Side::Left);
            if heard.is_empty() {
                heard = theirs;
            } else {
                call.combine_here(op, &mut heard, &theirs, Side::Left);
            }
        }
        distance *= 2;
    }
    match inclusive {
        true => data.copy_from_slice(&partial),
        false if me > 0 => data.copy_from_slice(&heard),
        false => {} // nobody is before it
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::layout::Team;

    #[test]
    fn those_that_take_part_are_a_power_of_two() {
        for size in 1..40 {
            let everybody: Vec<usize> = (0..size).collect();
            let mut taking_part = Vec::new();
            for me in 0..size {
                let folded = Folded::new(Team::new(&everybody, me));
                assert!(folded.size.is_power_of_two() && folded.size <= size && size < 2 * folded.size);
                if let Some(place) = folded.place {
                    assert_eq!(folded.team_place(place), me);
                    taking_part.push(place);
                } else {
                    assert_eq!(Folded::new(Team::new(&everybody, me + 1)).partner(me + 1), Some(me));
                }
            }
            assert!(taking_part.into_iter().eq(0..Folded::new(Team::new(&everybody, 0)).size), "{size}");
        }
    }
}
