//! Direct algorithms: every member communicates with each member concerned. Fewest rounds, and on one host
//! fewest copies, because a member reads the others' data where they lie.

use std::collections::BTreeMap;

use bytemuck::Pod;
use smallvec::SmallVec;

use super::super::call::{Call, Link, PIECE, pieces};
use super::super::choose::is_split;
use super::super::layout::Team;
use super::super::op::{Operator, Side};
use super::share_of;
use crate::error::Result;

/// Length in bytes up to which a copy for each receiver is cheaper than a shared message.
const SHORT: usize = 256;
/// Pieces that a member sends before it takes the others' first one, if there is memory for them. Then this
/// many blocks are used in turn, together as large as the caches of one processor: what a member reads has
/// left its writer's cache, and what it writes has left the reader's. To take a line out of another
/// processor's own cache takes two to three times as long as out of a cache that both share.
const AHEAD: usize = 8;

/// Broadcasts: the root makes one message of each piece, which all others read.
pub async fn broadcast<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    root: usize,
    data: &mut [T],
) -> Result {
    if team.me != root {
        return call.receive_into(team.member(root), data).await;
    }
    send_to_all(call, team, data).await
}

/// Sends to all others of the team.
async fn send_to_all<L: Link, T: Pod>(call: &Call<L>, team: Team<'_>, data: &[T]) -> Result {
    for piece in pieces::<T>(data.len()) {
        let bytes: &[u8] = bytemuck::cast_slice(&data[piece]);
        if team.size <= 2 || bytes.len() <= SHORT {
            for place in team.others() {
                call.send(team.member(place), bytes).await?;
            }
            continue;
        }
        let next = team.member((team.me + 1) % team.size);
        let mut block = call.block(next, bytes.len()).await?;
        block.bytes_mut().copy_from_slice(bytes);
        let shared = call.share(block);
        for place in team.others() {
            call.send_shared(team.member(place), &shared).await?;
        }
    }
    Ok(())
}

/// Reduces: the root reads the data of all others.
pub async fn reduce<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    root: usize,
    data: &mut [T],
    op: &O,
) -> Result {
    if team.me != root {
        return call.send_slice(team.member(root), data).await;
    }
    for piece in pieces::<T>(data.len()) {
        fold_piece(call, team, &mut data[piece], op).await?;
    }
    Ok(())
}

/// Combines the elements of all members into `mine`, from place 0 on if the operator requires it.
async fn fold_piece<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    mine: &mut [T],
    op: &O,
) -> Result {
    if op.code().is_in_order() {
        return fold_in_order(call, team, mine, op, team.size).await;
    }
    for place in (0..team.size).filter(|place| *place != team.me) {
        call.combine_piece(team.member(place), mine, op, Side::Right).await?;
    }
    Ok(())
}

/// Combines the elements of the places before `end`, from place 0 on; `mine` takes part if its place is one
/// of them.
async fn fold_in_order<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    mine: &mut [T],
    op: &O,
    end: usize,
) -> Result {
    let own: SmallVec<[T; 8]> = if team.me == 0 { SmallVec::new() } else { SmallVec::from_slice(mine) };
    for place in 0..end {
        match place {
            _ if place == team.me && place == 0 => {}
            _ if place == team.me => call.combine_here(op, mine, &own, Side::Right),
            0 => call.receive_piece(team.member(0), mine).await?,
            _ => call.combine_piece(team.member(place), mine, op, Side::Right).await?,
        }
    }
    Ok(())
}

/// Reduces for all. Short data: every member sends all data to every member. Long data: each member reduces a
/// part, which all others read.
pub async fn all_reduce<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    data: &mut [T],
    op: &O,
) -> Result {
    if is_split(size_of_val(data), team.size) {
        return reduce_parts(call, team, data, op).await;
    }
    let (mut unsent, mut sent) = (pieces::<T>(data.len()).peekable(), 0);
    for (nth, piece) in pieces::<T>(data.len()).enumerate() {
        while sent < nth + AHEAD
            && let Some(next) = unsent.peek()
        {
            let bytes = bytemuck::cast_slice(&data[next.clone()]);
            if sent > nth && team.size == 2 {
                // Optional: a member that waits for memory here would wait for the other one, which may do
                // the same.
                if !call.send_if_room(team.member(1 - team.me), bytes).await? {
                    break;
                }
            } else {
                for place in team.others() {
                    call.send(team.member(place), bytes).await?;
                }
            }
            (_, sent) = (unsent.next(), sent + 1);
        }
        let mine = &mut data[piece];
        // Combined in one order, so that all members round alike.
        if team.size == 2 {
            let side = if team.me == 0 { Side::Right } else { Side::Left };
            call.combine_piece(team.member(1 - team.me), mine, op, side).await?;
        } else {
            fold_in_order(call, team, mine, op, team.size).await?;
        }
    }
    Ok(())
}

async fn reduce_parts<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    data: &mut [T],
    op: &O,
) -> Result {
    let part = |place| share_of(data.len(), place, team.size);
    let own = part(team.me);
    for place in team.others() {
        call.send_slice(team.member(place), &data[part(place)]).await?;
    }
    let mine = &mut data[own.clone()];
    for piece in pieces::<T>(mine.len()) {
        fold_piece(call, team, &mut mine[piece], op).await?;
    }
    send_to_all(call, team, mine).await?;
    for place in team.others() {
        let part = share_of(data.len(), place, team.size);
        call.receive_into(team.member(place), &mut data[part]).await?;
    }
    Ok(())
}

/// Gathers. `all` has a part for each place, at the root.
pub async fn gather<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    root: usize,
    mine: &[T],
    all: &mut [&mut [T]],
) -> Result {
    if team.me != root {
        return call.send_slice(team.member(root), mine).await;
    }
    all[root].copy_from_slice(mine);
    for place in team.others() {
        call.receive_into(team.member(place), all[place]).await?;
    }
    Ok(())
}

/// Scatters. `all` has a part for each place, at the root.
pub async fn scatter<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    root: usize,
    all: &[&[T]],
    mine: &mut [T],
) -> Result {
    if team.me != root {
        return call.receive_into(team.member(root), mine).await;
    }
    for place in team.others() {
        call.send_slice(team.member(place), all[place]).await?;
    }
    mine.copy_from_slice(all[root]);
    Ok(())
}

/// Gathers for all: each member makes one message of each of its pieces, which all others read.
pub async fn all_gather<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    mine: &[T],
    all: &mut [&mut [T]],
) -> Result {
    send_to_all(call, team, mine).await?;
    all[team.me].copy_from_slice(mine);
    for place in team.others() {
        call.receive_into(team.member(place), all[place]).await?;
    }
    Ok(())
}

/// Exchanges. Parts that fit into a piece are sent to all before anything is received: fewest turns where
/// members take turns on processors. For longer parts, one to a member and one from a member are in flight at
/// a time.
pub async fn all_to_all<L: Link, T: Pod>(
    call: &Call<L>,
    team: Team<'_>,
    from: &[&[T]],
    to: &mut [&mut [T]],
) -> Result {
    let (me, size) = (team.me, team.size);
    for place in team.others().filter(|place| size_of_val(from[*place]) <= PIECE) {
        call.send_slice(team.member(place), from[place]).await?;
    }
    to[me].copy_from_slice(from[me]);
    for distance in 1..size {
        let (after, before) = ((me + distance) % size, (me + size - distance) % size);
        let (send, receive) = (team.member(after), team.member(before));
        if size_of_val(from[after]) <= PIECE {
            call.receive_into(receive, to[before]).await?;
        } else {
            call.exchange(send, from[after], receive, to[before]).await?;
        }
    }
    Ok(())
}

/// Reduces and scatters. `from` has a part for each place.
pub async fn reduce_scatter<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    from: &[&[T]],
    mine: &mut [T],
    op: &O,
) -> Result {
    for place in team.others() {
        call.send_slice(team.member(place), from[place]).await?;
    }
    mine.copy_from_slice(from[team.me]);
    for piece in pieces::<T>(mine.len()) {
        fold_piece(call, team, &mut mine[piece], op).await?;
    }
    Ok(())
}

/// Computes prefixes: each member sends to all behind it.
pub async fn scan<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    team: Team<'_>,
    data: &mut [T],
    op: &O,
    inclusive: bool,
) -> Result {
    for place in team.me + 1..team.size {
        call.send_slice(team.member(place), data).await?;
    }
    let end = team.me + usize::from(inclusive);
    // An exclusive scan combines nothing at member 0, whose data stay unchanged.
    for piece in pieces::<T>(data.len()) {
        fold_in_order(call, team, &mut data[piece], op, end).await?;
    }
    Ok(())
}

/// Exchanges the parts listed for each member, in the order of the lists. If a list has more parts than a
/// member keeps for later, the first [`WINDOW`] are received before the next are sent.
pub async fn neighbours<L: Link, T: Pod>(
    call: &Call<L>,
    to: &[(usize, &[T])],
    from: &mut [(usize, &mut [T])],
) -> Result {
    let me = call.layout().me;
    let mut own = to.iter().filter(|(member, _)| *member == me).map(|(_, part)| *part);
    if to.len().max(from.len()) <= WINDOW {
        let places = 0..from.len();
        exchange_parts(call, (to, 0..to.len()), (from, places), &mut own).await?;
    } else {
        let sent = turns(to.iter().map(|(member, _)| *member));
        let received = turns(from.iter().map(|(member, _)| *member));
        let none = Turn::default();
        for nth in 0..sent.len().max(received.len()) {
            let (send, receive) = (sent.get(nth).unwrap_or(&none), received.get(nth).unwrap_or(&none));
            let parts = (to, send.places.iter().copied());
            exchange_parts(call, parts, (from, receive.places.iter().copied()), &mut own).await?;
            for member in receive.more.iter().filter(|member| **member != me) {
                call.send(*member, &[]).await?;
            }
            for member in send.more.iter().filter(|member| **member != me) {
                call.receive_piece::<u8>(*member, &mut []).await?;
            }
        }
    }
    own.next().map_or(Ok(()), |_| Err(call.state().too_many_parts(me, call.signature())))
}

/// Parts for one member that are sent before it confirms that it has taken them. Members are up to 128 calls
/// apart, and keep as many parts of each call.
const WINDOW: usize = 256;

/// The parts of a list that move at a time, and the members that have more.
#[derive(Default)]
struct Turn {
    places: Vec<usize>,
    more: Vec<usize>,
}

/// Divides a list into turns. Both members of a pair get the same turns, whatever else is in their lists.
fn turns(members: impl Iterator<Item = usize>) -> Vec<Turn> {
    let (mut turns, mut counts) = (Vec::<Turn>::new(), BTreeMap::new());
    for (place, member) in members.enumerate() {
        let count: &mut usize = counts.entry(member).or_default();
        let turn = *count / WINDOW;
        turns.resize_with(turns.len().max(turn + 1), Turn::default);
        turns[turn].places.push(place);
        if turn > 0 && count.is_multiple_of(WINDOW) {
            turns[turn - 1].more.push(member);
        }
        *count += 1;
    }
    turns
}

/// Sends the parts of a list at some places, and receives those of another list.
async fn exchange_parts<'a, L: Link, T: Pod>(
    call: &Call<L>,
    (to, send): (&[(usize, &[T])], impl Iterator<Item = usize>),
    (from, receive): (&mut [(usize, &mut [T])], impl Iterator<Item = usize>),
    own: &mut impl Iterator<Item = &'a [T]>,
) -> Result {
    let me = call.layout().me;
    for (member, part) in send.map(|place| to[place]).filter(|(member, _)| *member != me) {
        call.send_slice(member, part).await?;
    }
    for place in receive {
        let (member, part) = &mut from[place];
        if *member != me {
            call.receive_into(*member, part).await?;
            continue;
        }
        match own.next() {
            Some(sent) if sent.len() == part.len() => part.copy_from_slice(sent),
            sent => {
                let bytes = sent.map_or(0, size_of_val);
                return Err(call.state().wrong_length(me, bytes, size_of_val(*part), call.signature()));
            }
        }
    }
    Ok(())
}
