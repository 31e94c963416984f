//! Algorithms over hosts that have several members each: within a host members read each other's memory, and
//! one member of each host communicates with other hosts. Thus each host's data cross the network once.
//!
//! Source: Träff, *Improved MPI all-to-all communication on a Giganet SMP cluster*, EuroPVM/MPI 2002, for the idea; MPICH calls it
//! SMP-aware.

use bytemuck::Pod;

use super::super::call::{Call, Link};
use super::super::layout::{Layout, Team};
use super::super::op::Operator;
use super::{binomial, direct, doubling, rabenseifner, ring};
use crate::error::Result;

/// Length in bytes from which the members of different hosts each reduce a part.
const SPLIT_FROM: usize = 8 << 10;

/// The leader of each host: its first member, but `root` on the root's host.
fn leaders(layout: &Layout, root: Option<usize>) -> Vec<usize> {
    let own = root.map(|root| (layout.host_of(root), root));
    let leader = |(host, members): (usize, &Vec<usize>)| match own {
        Some((of_root, root)) if of_root == host => root,
        _ => members[0],
    };
    layout.hosts.iter().enumerate().map(leader).collect()
}

/// The team of this member's host, and the place of its leader.
fn own_host<'a>(layout: &'a Layout, leaders: &[usize]) -> (Team<'a>, usize) {
    let team = layout.team(layout.neighbours());
    let team = team.unwrap_or_else(|| layout.everybody());
    let leader = leaders[layout.host_of(layout.me)];
    (team, team.place_of(leader).unwrap_or(0))
}

pub async fn broadcast<L: Link, T: Pod>(call: &Call<L>, root: usize, data: &mut [T]) -> Result {
    let layout = call.layout();
    let leaders = leaders(layout, Some(root));
    let (host, leader) = own_host(layout, &leaders);
    if let Some(team) = layout.team(&leaders) {
        let root = team.place_of(root).unwrap_or(0);
        binomial::broadcast(call, team, root, data).await?;
    }
    direct::broadcast(call, host, leader, data).await
}

pub async fn reduce<L: Link, T: Pod, O: Operator<T>>(
    call: &Call<L>,
    root: usize,
    data: &mut [T],
    op: &O,
) -> Result {
    let layout = call.layout();
    let leaders = leaders(layout, Some(root));
    let (host, leader) = own_host(layout, &leaders);
    let Some(team) = layout.team(&leaders) else {
        return direct::reduce(call, host, leader, data, op).await;
    };
    let at = team.place_of(root).unwrap_or(0);
    if layout.me == root {
        direct::reduce(call, host, leader, data, op).await?;
        return binomial::reduce(call, team, at, data, op).await;
    }
    // The member's own data stay unchanged.
    let mut sum = data.to_vec();
    direct::reduce(call, host, leader, &mut sum, op).await?;
    binomial::reduce(call, team, at, &mut sum, op).await
}

pub async fn all_reduce<L: Link, T: Pod, O: Operator<T>>(call: &Call<L>, data: &mut [T], op: &O) -> Result {
    let layout = call.layout();
    let leaders = leaders(layout, None);
    let (host, leader) = own_host(layout, &leaders);
    direct::reduce(call, host, leader, data, op).await?;
    if let Some(team) = layout.team(&leaders) {
        match size_of_val(data) {
            short if short < SPLIT_FROM => doubling::all_reduce(call, team, data, op).await?,
            _ if team.size.is_power_of_two() => rabenseifner::all_reduce(call, team, data, op).await?,
            _ => ring::all_reduce(call, team, data, op).await?,
        }
    }
    direct::broadcast(call, host, leader, data).await
}
