//! Grids of ranks, for a transform that is divided along two axes, and the orders in which ranks exchange.

use crate::input::Order;
use udeck::exchange::{self, Step};

/// Ranks of the row and of the column of `rank`, each in ascending order. The grid is as square as `ranks` allows.
pub fn lines(rank: usize, ranks: usize) -> [Vec<usize>; 2] {
    let rows = (1..=ranks.isqrt()).rev().find(|rows| ranks.is_multiple_of(*rows)).unwrap_or(1);
    let columns = ranks / rows;
    let (row, column) = (rank / columns, rank % columns);
    [
        (0..columns).map(|column| row * columns + column).collect(),
        (0..rows).map(|row| row * columns + column).collect(),
    ]
}

/// Steps of a rank in an order.
pub fn steps(order: Order, rank: usize, ranks: usize) -> Vec<Step> {
    match order {
        Order::Tournament => exchange::tournament(rank, ranks).collect(),
        Order::Hypercube => exchange::hypercube(rank, ranks).map(Iterator::collect).unwrap_or_default(),
        Order::Triangle => exchange::triangle(rank, ranks).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_as_square_as_it_can_be() {
        assert_eq!(lines(7, 12), [vec![4, 5, 6, 7], vec![3, 7, 11]]);
        assert_eq!(lines(33, 1024).map(|line| line.len()), [32, 32]);
        assert_eq!(lines(2, 5), [vec![0, 1, 2, 3, 4], vec![2]]);
    }
}
