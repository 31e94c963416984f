//! Grids: neighbours, halos in all directions, parts.

use udeck::{Error, Grid, Result, World};

use crate::common::{config, ranks_believing, ranks_over};

/// Checks neighbours by coordinates, and that each halo comes from its neighbour's side that faces this member.
fn exchange_all<const D: usize>(grid: &Grid<D>) -> Result {
    let (me, here) = (grid.group().rank(), grid.coords());
    assert_eq!(grid.coords_of(me), Some(here));
    assert_eq!(grid.coords_of(grid.group().size()), None);
    for dimension in 0..D {
        let points = grid.dims()[dimension];
        let [before, after] = grid.neighbours()[dimension];
        for (neighbour, step, edge) in [(before, points - 1, 0), (after, 1, points - 1)] {
            let is_outside = here[dimension] == edge && !grid.periodic()[dimension];
            let mut there = here;
            there[dimension] = (here[dimension] + step) % points;
            assert_eq!(neighbour.map(|member| grid.coords_of(member)), (!is_outside).then_some(Some(there)));
        }

        const NONE: [usize; 3] = [usize::MAX; 3];
        let (mut from_before, mut from_after) = (NONE, NONE);
        let part = |member, side| [member, side, dimension];
        grid.exchange(dimension, [&part(me, 0), &part(me, 1)], [&mut from_before, &mut from_after])?;
        assert_eq!(from_before, before.map_or(NONE, |member| part(member, 1)), "{grid:?}");
        assert_eq!(from_after, after.map_or(NONE, |member| part(member, 0)), "{grid:?}");
    }
    Ok(())
}

fn of_twelve(world: World) -> Result {
    let all = world.all()?;
    let grids =
        [([4, 3], [false, false]), ([2, 6], [true, true]), ([12, 1], [false, true]), ([0, 0], [true, false])];
    for (dims, periodic) in grids {
        exchange_all(&all.grid(dims, periodic)?)?;
    }
    let grid = all.grid([2, 3, 2], [true, false, true])?;
    exchange_all(&grid)?;

    let plane = grid.sub_grid([true, false, true])?;
    assert_eq!((plane.dims(), plane.periodic()), ([2, 1, 2], [true, false, true]));
    let [x, y, z] = grid.coords();
    assert_eq!(plane.coords(), [x, 0, z]);
    assert_eq!(plane.group().all_gather_value(y)?, [y; 4]);
    exchange_all(&plane)?;
    world.finish()
}

#[test]
fn neighbours_exchange_halos() {
    ranks_believing(12, |_| config(), |_| true, of_twelve);
    ranks_over("tcp", 12, |_| config(), |_| true, of_twelve);
}

#[test]
fn points_outside_belong_to_nobody() {
    let body = |world: World| {
        let all = world.all()?;
        let grid = all.grid([2, 3], [false, true])?;
        assert_eq!(grid.member_at([1, 2]), Some(5));
        assert_eq!((grid.member_at([1, -1]), grid.member_at([0, 301])), (Some(5), Some(1)));
        assert_eq!((grid.member_at([-1, 0]), grid.member_at([2, 0])), (None, None));
        assert_eq!(grid.neighbour(0, isize::MIN), None);
        let error = all.grid([4, 0], [false; 2]).map(drop).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        let words = error.to_string();
        assert!(words.contains("a grid of [4, 0]") && words.contains("as many as the members: 6"), "{words}");
        exchange_all(&grid)?;
        world.finish()
    };
    ranks_believing(6, |_| config(), |_| true, body);
}
