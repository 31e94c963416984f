//! Binomial trees: each round doubles the members that have been served. Places count from the root on, and the children of
//! place v are v + 2^k for each 2^k below v's lowest bit.
//!
//! Source: Thakur and others (see [`super`]), 3.1 and 3.3.

use bytemuck::Pod;

use super::super::call::{Call, Link, pieces};
use super::super::layout::Team;
use super::super::op::{Operator, Side};
use crate::error::Result;

/// A place in the tree.
struct Tree<'a> {
    team: Team<'a>,
    root: usize,
    /// Place of this member, counted from the root.
    place: usize,
}

impl<'a> Tree<'a> {
    fn new(team: Team<'a>, root: usize) -> Self {
        Tree { team, root, place: (team.me + team.size - root) % team.size }
    }

    fn member(&self, place: usize) -> usize {
        self.team.member((place + self.root) % self.team.size)
    }

    /// The parent in the tree; `None`: this is the root.
    fn parent(&self) -> Option<usize> {
        (self.place != 0).then(|| self.member(self.place & (self.place - 1)))
    }

    /// The places of the children, the largest subtree first.
    fn children(&self) -> impl Iterator<Item = usize> + use<> {
        let (place, size) = (self.place, self.team.size);
        let reach = if place == 0 { size.next_power_of_two() } else { 1 << place.trailing_zeros() };
        let steps = std::iter::successors(Some(reach / 2), |step| Some(step / 2));
        steps.take_while(|step| *step > 0).map(move |step| place + step).filter(move |child| *child < size)
    }

    /// Number of places in a subtree, its root included.
    fn subtree_size(&self, place: usize) -> usize {
        let reach = if place == 0 { self.team.size } else { 1 << place.trailing_zeros() };
        reach.min(self.team.size - place)
    }
}

/// Broadcasts: a member passes each piece on before it receives the next one.
pub async fn broadcast<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    root: usize,
    data: &mut [T],
) -> Result {
    let tree = Tree::new(team, root);
    for piece in pieces::<T>(data.len()) {
        if let Some(parent) = tree.parent() {
            call.receive_piece(parent, &mut data[piece.clone()]).await?;
        }
        for child in tree.children() {
            call.send(tree.member(child), bytemuck::cast_slice(&data[piece.clone()])).await?;
        }
    }
    Ok(())
}

pub async fn reduce<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    root: usize,
    data: &mut [T],
    op: &O,
) -> Result {
    let tree = Tree::new(team, root);
    let Some(parent) = tree.parent() else {
        return combine_children(call, &tree, data, op).await;
    };
    if tree.children().next().is_none() {
        return call.send_slice(parent, data).await;
    }
    // The member's own data stay unchanged.
    let mut sum = data.to_vec();
    combine_children(call, &tree, &mut sum, op).await?;
    call.send_slice(parent, &sum).await
}

/// Combines the children's data, the nearest child first: it has the least to wait for.
async fn combine_children<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    tree: &Tree<'_>,
    data: &mut [T],
    op: &O,
) -> Result {
    let children: Vec<usize> = tree.children().collect();
    for child in children.into_iter().rev() {
        call.combine(tree.member(child), data, op, Side::Right).await?;
    }
    Ok(())
}

/// Gathers: a member sends the data of its whole subtree, in the order of the places.
pub async fn gather<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    root: usize,
    mine: &[T],
    all: &mut [T],
) -> Result {
    let (tree, each) = (Tree::new(team, root), mine.len());
    let mut gathered = vec![T::zeroed(); tree.subtree_size(tree.place) * each];
    gathered[..each].copy_from_slice(mine);
    let children: Vec<usize> = tree.children().collect();
    for child in children.into_iter().rev() {
        let first = (child - tree.place) * each;
        let part = &mut gathered[first..first + tree.subtree_size(child) * each];
        call.receive_into(tree.member(child), part).await?;
    }
    match tree.parent() {
        Some(parent) => call.send_slice(parent, &gathered).await,
        None => {
            // Rotates: places count from the root.
            all.copy_from_slice(&gathered);
            all.rotate_right(root * each);
            Ok(())
        }
    }
}

pub async fn scatter<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    root: usize,
    all: &[T],
    mine: &mut [T],
) -> Result {
    let (tree, each) = (Tree::new(team, root), mine.len());
    let mut parts = vec![T::zeroed(); tree.subtree_size(tree.place) * each];
    match tree.parent() {
        Some(parent) => call.receive_into(parent, &mut parts).await?,
        None => {
            parts.copy_from_slice(all);
            parts.rotate_left(root * each);
        }
    }
    for child in tree.children() {
        let first = (child - tree.place) * each;
        call.send_slice(tree.member(child), &parts[first..first + tree.subtree_size(child) * each]).await?;
    }
    mine.copy_from_slice(&parts[..each]);
    Ok(())
}
