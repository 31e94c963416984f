//! Fourier transforms down the columns of a matrix whose rows may lie anywhere, even in messages.

#[cfg(target_arch = "x86_64")]
mod avx2;

use num_complex::Complex64;
use rustfft::{Fft, FftPlanner};
use std::ops::Range;
use std::sync::Arc;

pub use rustfft::FftDirection as Direction;

/// Number of neighbouring columns in a cache line.
const LANES: usize = 4;
/// Number of columns that are copied at a time: two cache lines of each row.
const TILE: usize = 8;

/// The transforms of one length. Neither direction is scaled.
pub struct Columns {
    len: usize,
    method: Method,
}

enum Method {
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Columns),
    Gathered(Box<Gathered>),
}

/// Factors for points that are read: each point is multiplied by the factors of its row and its column.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    pub rows: &'a [f64],
    pub columns: &'a [f64],
}

/// Method for any processor and any length: some columns are copied so that each is contiguous, and transformed by
/// rustfft.
struct Gathered {
    forward: Arc<dyn Fft<f64>>,
    inverse: Arc<dyn Fft<f64>>,
    columns: Vec<Complex64>,
    scratch: Vec<Complex64>,
}

impl Columns {
    /// Chooses the fastest method for this length on this processor.
    pub fn new(len: usize) -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(columns) = avx2::Columns::new(len) {
            return Self { len, method: Method::Avx2(columns) };
        }
        Self::gathered(len)
    }

    fn gathered(len: usize) -> Self {
        Self { len, method: Method::Gathered(Box::new(Gathered::new(len))) }
    }

    /// Transforms the columns of `from` into those of `into`: the first points of the rows, then the second ones, and
    /// so on, for all points in the rows of `into`.
    ///
    /// # Panics
    /// If the number of rows is not the transform's length, or rows are not equally long.
    pub fn transform(
        &mut self,
        direction: Direction,
        from: &[&[Complex64]],
        weights: Option<Weights<'_>>,
        into: &mut [&mut [Complex64]],
    ) {
        let width = into.first().map_or(0, |row| row.len());
        assert!(from.len() == self.len && into.len() == self.len, "a row for each point of the transform");
        assert!(
            from.iter().all(|row| row.len() == width) && into.iter().all(|row| row.len() == width),
            "equal rows"
        );
        match &mut self.method {
            #[cfg(target_arch = "x86_64")]
            Method::Avx2(columns) => columns.transform(direction, from, weights, into),
            Method::Gathered(gathered) => gathered.transform(direction, from, weights, into),
        }
    }

    /// Transforms columns as [`Columns::transform`] does, each in place.
    ///
    /// # Panics
    /// Same as for [`Columns::transform`].
    pub fn transform_in_place(&mut self, direction: Direction, rows: &mut [&mut [Complex64]]) {
        let width = rows.first().map_or(0, |row| row.len());
        assert!(rows.len() == self.len, "a row for each point of the transform");
        assert!(rows.iter().all(|row| row.len() == width), "equal rows");
        match &mut self.method {
            #[cfg(target_arch = "x86_64")]
            Method::Avx2(columns) => columns.transform_in_place(direction, rows),
            Method::Gathered(gathered) => gathered.transform_in_place(direction, rows),
        }
    }
}

impl Gathered {
    /// Copies columns from the rows, so that each is contiguous.
    fn gather<R: AsRef<[Complex64]>>(&mut self, from: &[R], x: Range<usize>) {
        let len = from.len();
        for (y, row) in from.iter().enumerate() {
            let points = &row.as_ref()[x.clone()];
            for (column, point) in self.columns[y..].iter_mut().step_by(len).zip(points) {
                *column = *point;
            }
        }
    }

    /// Transforms the gathered columns, and copies them to the rows.
    fn finish(&mut self, direction: Direction, into: &mut [&mut [Complex64]], x: Range<usize>) {
        let len = into.len();
        let fft = match direction {
            Direction::Forward => &self.forward,
            Direction::Inverse => &self.inverse,
        };
        let columns = &mut self.columns[..x.len() * len];
        fft.process_with_scratch(columns, &mut self.scratch);
        for (y, row) in into.iter_mut().enumerate() {
            for (point, column) in row[x.clone()].iter_mut().zip(columns[y..].iter().step_by(len)) {
                *point = *column;
            }
        }
    }

    fn new(len: usize) -> Self {
        let mut planner = FftPlanner::new();
        let (forward, inverse) = (planner.plan_fft_forward(len), planner.plan_fft_inverse(len));
        let scratch = forward.get_inplace_scratch_len().max(inverse.get_inplace_scratch_len());
        let zeros = |points| vec![Complex64::ZERO; points];
        Self { forward, inverse, columns: zeros(TILE * len), scratch: zeros(scratch) }
    }

    fn transform(
        &mut self,
        direction: Direction,
        from: &[&[Complex64]],
        weights: Option<Weights<'_>>,
        into: &mut [&mut [Complex64]],
    ) {
        for x in tiles(into[0].len()) {
            self.gather(from, x.clone());
            if let Some(weights) = weights {
                let columns = self.columns.chunks_exact_mut(from.len()).zip(&weights.columns[x.clone()]);
                for (column, factor) in columns {
                    column.iter_mut().zip(weights.rows).for_each(|(point, row)| *point *= row * factor);
                }
            }
            self.finish(direction, into, x);
        }
    }

    fn transform_in_place(&mut self, direction: Direction, rows: &mut [&mut [Complex64]]) {
        for x in tiles(rows[0].len()) {
            self.gather(rows, x.clone());
            self.finish(direction, rows, x);
        }
    }
}

/// Ranges of the columns that are copied together.
fn tiles(width: usize) -> impl Iterator<Item = Range<usize>> {
    (0..width).step_by(TILE).map(move |left| left..width.min(left + TILE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f64::consts::TAU;

    /// Transforms by the definition: for each k the sum over j of point j times e^(∓2 pi i j k / n).
    fn by_definition(column: &[Complex64], direction: Direction) -> Vec<Complex64> {
        let n = column.len();
        let sign = if direction == Direction::Forward { -1.0 } else { 1.0 };
        let root = |power: usize| Complex64::cis(sign * TAU * (power % n) as f64 / n as f64);
        (0..n).map(|k| column.iter().enumerate().map(|(j, point)| point * root(j * k)).sum()).collect()
    }

    fn check(mut columns: Columns, width: usize, direction: Direction) {
        let len = columns.len;
        let value = |i: usize| Complex64::new((i * 37 % 101) as f64 - 50.0, (i * 53 % 97) as f64 - 48.0);
        let data: Vec<_> = (0..len * width).map(value).collect();
        let (row_factors, column_factors): (Vec<_>, Vec<_>) =
            ((0..len).map(|i| 1.0 + i as f64).collect(), (0..width).map(|i| 0.5 - i as f64).collect());
        let from: Vec<_> = data.chunks_exact(width).collect();
        for weights in [None, Some(Weights { rows: &row_factors, columns: &column_factors })] {
            let mut found = vec![Complex64::new(f64::NAN, f64::NAN); len * width];
            let mut into: Vec<_> = found.chunks_exact_mut(width).collect();
            columns.transform(direction, &from, weights, &mut into);
            if weights.is_none() {
                let mut data = data.clone();
                let mut rows: Vec<_> = data.chunks_exact_mut(width).collect();
                columns.transform_in_place(direction, &mut rows);
                assert_eq!(data, found);
            }
            for x in 0..width {
                let factor =
                    |y: usize| if weights.is_some() { row_factors[y] * column_factors[x] } else { 1.0 };
                let column: Vec<_> = (0..len).map(|y| data[y * width + x] * factor(y)).collect();
                let size: f64 = column.iter().map(|point| point.norm()).sum();
                for (y, expected) in by_definition(&column, direction).into_iter().enumerate() {
                    let error = (found[y * width + x] - expected).norm();
                    assert!(
                        error <= 1e-14 * size,
                        "{direction:?} of {len} x {width}, at {y}, {x}: off by {error}"
                    );
                }
            }
        }
    }

    #[test]
    fn columns_of_any_length_and_number_are_transformed_as_the_definition_says() {
        for len in [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 32, 45, 64, 128, 256, 512] {
            for width in [1, 3, 4, 9] {
                for direction in [Direction::Forward, Direction::Inverse] {
                    check(Columns::new(len), width, direction);
                    check(Columns::gathered(len), width, direction);
                }
            }
        }
    }
}
