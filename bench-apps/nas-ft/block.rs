//! A block that one rank sends another in a transpose: an array of rows.

use num_complex::Complex64;
use std::ops::{Deref, DerefMut, Range};

/// A block `[outer][inner][x]`: for each outer index a row of x for each inner one. Indices are those of the
/// grid.
pub struct Block<D> {
    outer: Range<usize>,
    inner: Range<usize>,
    /// Points in a row.
    width: usize,
    data: D,
}

/// Shape of a block, before there is memory for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    pub outer: Range<usize>,
    pub inner: Range<usize>,
    pub width: usize,
}

impl Shape {
    pub fn points(&self) -> usize {
        self.outer.len() * self.inner.len() * self.width
    }
}

impl<D: Deref<Target = [Complex64]>> Block<D> {
    /// Makes a block. `data` has the points of the shape.
    pub fn new(shape: Shape, data: D) -> Self {
        assert_eq!(data.len(), shape.points(), "the points of {shape:?}");
        let Shape { outer, inner, width } = shape;
        Self { outer, inner, width, data }
    }

    pub fn into_data(self) -> D {
        self.data
    }

    pub fn has_outer(&self, outer: usize) -> bool {
        self.outer.contains(&outer)
    }

    /// The rows at one outer index, one for each inner index; none if the block has no such index.
    pub fn rows_at_outer(&self, outer: usize) -> impl Iterator<Item = &[Complex64]> {
        let at = self.plane(outer);
        self.data[at].chunks_exact(self.width)
    }

    /// The rows at one inner index, one for each outer index; none if the block has no such index.
    pub fn rows_at_inner(&self, inner: usize) -> impl Iterator<Item = &[Complex64]> {
        let (skip, take) = self.skip_take(inner);
        self.data.chunks_exact(self.width).skip(skip).step_by(self.inner.len()).take(take)
    }

    /// Place of the rows at an outer index, in points.
    fn plane(&self, outer: usize) -> Range<usize> {
        if !self.has_outer(outer) {
            return 0..0;
        }
        let points = self.inner.len() * self.width;
        let start = (outer - self.outer.start) * points;
        start..start + points
    }

    /// Number of rows before the first row of an inner index, and number of its rows.
    fn skip_take(&self, inner: usize) -> (usize, usize) {
        if self.inner.contains(&inner) { (inner - self.inner.start, self.outer.len()) } else { (0, 0) }
    }
}

impl<D: DerefMut<Target = [Complex64]>> Block<D> {
    pub fn rows_at_outer_mut(&mut self, outer: usize) -> impl Iterator<Item = &mut [Complex64]> {
        let at = self.plane(outer);
        self.data[at].chunks_exact_mut(self.width)
    }

    pub fn rows_at_inner_mut(&mut self, inner: usize) -> impl Iterator<Item = &mut [Complex64]> {
        let (skip, take) = self.skip_take(inner);
        self.data.chunks_exact_mut(self.width).skip(skip).step_by(self.inner.len()).take(take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_either_index() {
        let shape = Shape { outer: 5..7, inner: 10..13, width: 2 };
        let data: Vec<_> = (0..shape.points()).map(|i| Complex64::from(i as f64)).collect();
        let mut block = Block::new(shape, data);
        let firsts = |rows: Vec<&[Complex64]>| rows.into_iter().map(|row| row[0].re).collect::<Vec<_>>();
        assert_eq!(firsts(block.rows_at_outer(6).collect()), [6.0, 8.0, 10.0]);
        assert_eq!(firsts(block.rows_at_inner(12).collect()), [4.0, 10.0]);
        assert_eq!(block.rows_at_outer(7).count() + block.rows_at_inner(9).count(), 0);

        block.rows_at_outer_mut(5).last().unwrap()[1].im = 1.0;
        assert!(block.rows_at_inner_mut(12).next().unwrap()[1].im == 1.0);
    }
}
