//! Parts of different lengths. The length of each part, in bytes, travels before the data. The receiver then makes
//! room for the part, or finds that the room it has does not fit; the data travel like parts of known lengths.

use bytemuck::Pod;

use super::super::call::{Call, Link};
use super::super::choice::Algorithm;
use super::super::kind::Kind;
use super::{direct, equal, equal_mut, pairwise, ring, take};
use crate::error::Result;

/// Allocates room for a part of `bytes` bytes.
///
/// # Errors
/// The length is no whole number of elements, or there is no memory for it.
pub fn allocated<L: Link, T: Pod>(call: &Call<L>, from: usize, bytes: u64) -> Result<Vec<T>> {
    let broken = |why| Err(call.state().broken_call(call.signature(), why));
    let rank = call.layout().ranks[from];
    if !bytes.is_multiple_of(size_of::<T>() as u64) {
        return broken(format!("rank {rank} sends {bytes} bytes, which is not a whole number of elements"));
    }
    let len = usize::try_from(bytes / size_of::<T>() as u64).unwrap_or(usize::MAX);
    // Tried first: an allocation that fails would end the process.
    let mut room = Vec::new();
    if room.try_reserve_exact(len).is_err() {
        return broken(format!("there is no memory for the {bytes} bytes that rank {rank} sends"));
    }
    room.resize(len, T::zeroed());
    Ok(room)
}

/// Checks that a part of `bytes` bytes fits its room exactly, and returns the room.
///
/// # Errors
/// The room has another length.
pub fn fitting<'a, L: Link, T>(
    call: &Call<L>,
    from: usize,
    bytes: u64,
    room: &'a mut [T],
) -> Result<&'a mut [T]> {
    if size_of_val(room) as u64 == bytes {
        return Ok(room);
    }
    let theirs = usize::try_from(bytes).unwrap_or(usize::MAX);
    Err(call.state().wrong_length(from, theirs, size_of_val(room), call.signature()))
}

/// Gathers. `room` makes room for a member's part of so many bytes; it is called at the root, for each member in
/// their order. Elsewhere the result is empty.
pub async fn gather<L: Link, T: Pod, R: AsMut<[T]>>(
    call: &Call<L>,
    root: usize,
    mine: &[T],
    room: impl FnMut(usize, u64) -> Result<R>,
) -> Result<Vec<R>> {
    let team = call.layout().everybody();
    let mut lengths = vec![0; if team.me == root { team.size } else { 0 }];
    direct::gather(call, team, root, &[bytes(mine)], &mut equal_mut(&mut lengths, team.size)).await?;
    let mut all = rooms(&lengths, room)?;
    direct::gather(call, team, root, mine, &mut slices(&mut all)).await?;
    Ok(all)
}

/// Scatters. `all` has a part for each member, at the root. `room` makes room for this member's part of so many
/// bytes.
pub async fn scatter<L: Link, T: Pod, R: AsMut<[T]>>(
    call: &Call<L>,
    root: usize,
    all: &[&[T]],
    room: impl FnOnce(u64) -> Result<R>,
) -> Result<R> {
    let team = call.layout().everybody();
    let lengths: Vec<u64> = all.iter().map(|part| bytes(part)).collect();
    let mut length = [0];
    direct::scatter(call, team, root, &equal(&lengths, team.size), &mut length).await?;
    let mut mine = room(length[0])?;
    direct::scatter(call, team, root, all, mine.as_mut()).await?;
    Ok(mine)
}

/// Gathers for all. `room` makes room for a member's part of so many bytes; it is called for each member in their
/// order.
pub async fn all_gather<L: Link, T: Pod, R: AsMut<[T]>>(
    call: &Call<L>,
    mine: &[T],
    room: impl FnMut(usize, u64) -> Result<R>,
) -> Result<Vec<R>> {
    let team = call.layout().everybody();
    let mut lengths = vec![0; team.size];
    super::all_gather(call, &[bytes(mine)], &mut lengths).await?;
    let mut all = rooms(&lengths, room)?;
    // The choice depends on no length: no member knows all lengths before.
    match take(call, Kind::AllGather, 0, false) {
        Algorithm::Ring => ring::all_gather(call, team, mine, &mut slices(&mut all)).await?,
        _ => direct::all_gather(call, team, mine, &mut slices(&mut all)).await?,
    }
    Ok(all)
}

/// Exchanges. `from` has a part for each member. `room` makes room for a member's part of so many bytes; it is called
/// for each member in their order.
pub async fn all_to_all<L: Link, T: Pod, R: AsMut<[T]>>(
    call: &Call<L>,
    from: &[&[T]],
    room: impl FnMut(usize, u64) -> Result<R>,
) -> Result<Vec<R>> {
    let team = call.layout().everybody();
    let sent: Vec<u64> = from.iter().map(|part| bytes(part)).collect();
    let mut lengths = vec![0; team.size];
    super::all_to_all(call, &sent, &mut lengths).await?;
    let mut to = rooms(&lengths, room)?;
    match take(call, Kind::AllToAll, 0, false) {
        Algorithm::Pairwise => pairwise::all_to_all(call, team, from, &mut slices(&mut to)).await?,
        _ => direct::all_to_all(call, team, from, &mut slices(&mut to)).await?,
    }
    Ok(to)
}

/// Length of a part in bytes.
fn bytes<T>(part: &[T]) -> u64 {
    size_of_val(part) as u64
}

fn rooms<R>(lengths: &[u64], mut room: impl FnMut(usize, u64) -> Result<R>) -> Result<Vec<R>> {
    lengths.iter().enumerate().map(|(member, bytes)| room(member, *bytes)).collect()
}

fn slices<T, R: AsMut<[T]>>(rooms: &mut [R]) -> Vec<&mut [T]> {
    rooms.iter_mut().map(AsMut::as_mut).collect()
}
