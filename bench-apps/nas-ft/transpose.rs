//! Transposing a matrix in memory. (A file of its own, because `benches/transpose.rs` measures it.)

use num_complex::Complex64;

/// Edge of the tiles in which matrices are transposed: 8 points are two cache lines, and 8 lines that lie a
/// power of two apart, as they do in every class, still fit the ways of a first-level cache's set.
pub const TILE: usize = 8;

/// `into[column][row] = from[row][column]`, rows of either matrix starting every so many points (its stride).
pub fn transpose(
    from: &[Complex64],
    from_stride: usize,
    into: &mut [Complex64],
    into_stride: usize,
    rows: usize,
    columns: usize,
) {
    for top in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - top);
        for left in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - left);
            // By way of a tile on the stack, every line of both matrices is touched once and whole.
            let mut tile = [[Complex64::ZERO; TILE]; TILE];
            for (row, line) in tile.iter_mut().enumerate().take(height) {
                line[..width].copy_from_slice(&from[(top + row) * from_stride + left..][..width]);
            }
            for column in 0..width {
                let line = &mut into[(left + column) * into_stride + top..][..height];
                for (point, tile_row) in line.iter_mut().zip(&tile) {
                    *point = tile_row[column];
                }
            }
        }
    }
}
