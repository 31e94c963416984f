//! The 3-D Fourier transform of the whole grid, in both directions, unscaled.
//!
//! Memory is the limit, so every pass over the grid does as much as possible: it reads rows where they arrived,
//! transforms them in the cache, and writes them into the blocks to be sent. A finished piece of the grid is sent during
//! the computation of the next one.

use crate::block::{Block, Shape};
use crate::columns::{Columns, Weights};
use crate::division::Division;
use crate::exchange::{Exchange, Links};
use crate::layout::Layout;
use crate::lines::Lines;
use crate::profile::{Phase, Profile};
use num_complex::Complex64;
use rustfft::FftDirection::{Forward, Inverse};
use std::ops::{Deref, Range};

/// A rank's part of the transforms: plans and scratch memory.
pub struct Transform {
    layout: Layout,
    x: Lines,
    y: Columns,
    z: Columns,
    /// Rows between the transforms of x and y.
    plane: Vec<Complex64>,
    /// Distance in points between rows of `plane`, and of the state.
    stride: usize,
    pub profile: Profile,
}

/// Factors for the points of a rank's spectrum: one for each x, y and z.
pub struct Factors {
    pub x: Vec<f64>,
    pub y: Vec<f64>,
    pub z: Vec<f64>,
}

type Blocks<E> = Vec<Block<<E as Exchange>::Arrived>>;

impl Transform {
    pub fn new(layout: Layout) -> Self {
        let grid = layout.grid();
        let stride = layout.state_stride();
        Self {
            x: Lines::new(grid.nx),
            y: Columns::new(grid.ny),
            z: Columns::new(grid.nz),
            plane: vec![Complex64::ZERO; grid.ny * stride],
            stride,
            layout,
            profile: Profile::default(),
        }
    }

    /// Transforms the state to the spectrum.
    pub fn forward<E: Exchange>(
        &mut self,
        links: &mut Links<E>,
        state: &[Complex64],
        spectrum: &mut [Complex64],
    ) -> Result<(), E::Error> {
        if self.layout.is_slab() {
            self.planes_forward(&mut links.along, state)?;
        } else {
            self.x_forward(&mut links.across, state)?;
            let arrived = self.receive(
                &mut links.across,
                |layout, member| {
                    let (outer, inner) = (layout.z(), layout.state_y_of(member));
                    Shape { outer, inner, width: layout.x().len() }
                },
                Cut::Outer,
            )?;
            self.y_forward::<E>(&mut links.along, &arrived)?;
        }
        let arrived = self.receive(
            &mut links.along,
            |layout, member| {
                let (outer, inner) = (layout.spectrum_y(), layout.z_of(member));
                Shape { outer, inner, width: layout.x().len() }
            },
            Cut::Inner,
        )?;
        self.z_forward(&arrived, spectrum);
        Ok(())
    }

    /// Transforms the spectrum, times the factors, to the state.
    pub fn inverse<E: Exchange>(
        &mut self,
        links: &mut Links<E>,
        spectrum: &[Complex64],
        factors: Option<&Factors>,
        state: &mut [Complex64],
    ) -> Result<(), E::Error> {
        self.z_inverse(&mut links.along, spectrum, factors)?;
        let arrived = self.receive(
            &mut links.along,
            |layout, member| {
                let (outer, inner) = (layout.spectrum_y_of(member), layout.z());
                Shape { outer, inner, width: layout.x().len() }
            },
            Cut::Outer,
        )?;
        if self.layout.is_slab() {
            self.planes_inverse(&arrived, state);
            return Ok(());
        }
        self.y_inverse(&mut links.across, &arrived)?;
        drop(arrived);
        let arrived = self.receive(
            &mut links.across,
            |layout, member| {
                let (outer, inner) = (layout.z(), layout.state_y());
                Shape { outer, inner, width: layout.x_of(member).len() }
            },
            Cut::Outer,
        )?;
        self.x_inverse(&arrived, state);
        Ok(())
    }

    /// Transforms planes along y, then along x: the lines of the last transform are the rows to be sent.
    fn planes_forward<E: Exchange>(&mut self, exchange: &mut E, state: &[Complex64]) -> Result<(), E::Error> {
        let nx = self.layout.grid().nx;
        let points = self.stride * self.layout.grid().ny;
        for z in pieces(self.layout.z(), exchange.pieces()) {
            let mut blocks = self.outgoing(exchange, |layout, member| Shape {
                outer: layout.spectrum_y_of(member),
                inner: z.clone(),
                width: nx,
            })?;
            let clock = self.profile.start();
            for z in z.clone() {
                let from = &state[(z - self.layout.z().start) * points..][..points];
                let from: Vec<_> = from.chunks_exact(self.stride).map(|row| &row[..nx]).collect();
                let mut plane: Vec<_> =
                    self.plane.chunks_exact_mut(self.stride).map(|row| &mut row[..nx]).collect();
                self.y.transform(Forward, &from, None, &mut plane);
                let rows = blocks.iter_mut().flat_map(|block| block.rows_at_inner_mut(z));
                for (from, into) in plane.into_iter().zip(rows) {
                    self.x.transform(Forward, from, into);
                }
            }
            self.profile.stop(Phase::Planes, clock, 2 * z.len() * points);
            self.send(exchange, blocks)?;
        }
        Ok(())
    }

    fn planes_inverse<D: Deref<Target = [Complex64]>>(
        &mut self,
        arrived: &[Block<D>],
        state: &mut [Complex64],
    ) {
        let clock = self.profile.start();
        let nx = self.layout.grid().nx;
        let points = self.stride * self.layout.grid().ny;
        for (z, into) in self.layout.z().zip(state.chunks_exact_mut(points)) {
            let rows = arrived.iter().flat_map(|block| block.rows_at_inner(z));
            let mut into: Vec<_> = into.chunks_exact_mut(self.stride).map(|row| &mut row[..nx]).collect();
            for (from, into) in rows.zip(&mut into) {
                self.x.transform(Inverse, from, into);
            }
            self.y.transform_in_place(Inverse, &mut into);
        }
        self.profile.stop(Phase::Planes, clock, 2 * self.layout.state_points());
    }

    fn z_forward<D: Deref<Target = [Complex64]>>(
        &mut self,
        arrived: &[Block<D>],
        spectrum: &mut [Complex64],
    ) {
        let clock = self.profile.start();
        let width = self.layout.x().len();
        let stride = self.layout.spectrum_stride();
        let points = self.layout.grid().nz * stride;
        for (y, into) in self.layout.spectrum_y().zip(spectrum.chunks_exact_mut(points)) {
            let from: Vec<_> = arrived.iter().flat_map(|block| block.rows_at_outer(y)).collect();
            let mut into: Vec<_> = into.chunks_exact_mut(stride).map(|row| &mut row[..width]).collect();
            self.z.transform(Forward, &from, None, &mut into);
        }
        self.profile.stop(Phase::Z, clock, 2 * self.layout.spectrum_points());
    }

    fn z_inverse<E: Exchange>(
        &mut self,
        exchange: &mut E,
        spectrum: &[Complex64],
        factors: Option<&Factors>,
    ) -> Result<(), E::Error> {
        let width = self.layout.x().len();
        let stride = self.layout.spectrum_stride();
        let points = self.layout.grid().nz * stride;
        let first = self.layout.spectrum_y().start;
        let mut columns = vec![0.0; width];
        for y in pieces(self.layout.spectrum_y(), exchange.pieces()) {
            let mut blocks = self.outgoing(exchange, |layout, member| Shape {
                outer: y.clone(),
                inner: layout.z_of(member),
                width,
            })?;
            let clock = self.profile.start();
            for y in y.clone() {
                let from = spectrum[(y - first) * points..][..points].chunks_exact(stride);
                let from: Vec<_> = from.map(|row| &row[..width]).collect();
                let mut into: Vec<_> =
                    blocks.iter_mut().flat_map(|block| block.rows_at_outer_mut(y)).collect();
                let weights = factors.map(|factors| {
                    let factor = factors.y[y - first];
                    columns.iter_mut().zip(&factors.x).for_each(|(column, x)| *column = x * factor);
                    Weights { rows: &factors.z, columns: &columns }
                });
                self.z.transform(Inverse, &from, weights, &mut into);
            }
            self.profile.stop(Phase::Z, clock, 2 * y.len() * points);
            self.send(exchange, blocks)?;
        }
        Ok(())
    }

    /// Transforms pencils along x; the lines are sent in pieces.
    fn x_forward<E: Exchange>(&mut self, exchange: &mut E, state: &[Complex64]) -> Result<(), E::Error> {
        let nx = self.layout.grid().nx;
        let points = self.layout.state_y().len() * self.stride;
        let mut line = vec![Complex64::ZERO; nx];
        for z in pieces(self.layout.z(), exchange.pieces()) {
            let mut blocks = self.outgoing(exchange, |layout, member| Shape {
                outer: z.clone(),
                inner: layout.state_y(),
                width: layout.x_of(member).len(),
            })?;
            let clock = self.profile.start();
            for z in z.clone() {
                let from = &state[(z - self.layout.z().start) * points..][..points];
                let mut rows: Vec<_> = blocks.iter_mut().map(|block| block.rows_at_outer_mut(z)).collect();
                for from in from.chunks_exact(self.stride) {
                    self.x.transform(Forward, &from[..nx], &mut line);
                    let mut rest = line.as_slice();
                    for row in rows.iter_mut().filter_map(Iterator::next) {
                        let (piece, behind) = rest.split_at(row.len());
                        row.copy_from_slice(piece);
                        rest = behind;
                    }
                }
            }
            self.profile.stop(Phase::X, clock, 2 * z.len() * points);
            self.send(exchange, blocks)?;
        }
        Ok(())
    }

    fn x_inverse<D: Deref<Target = [Complex64]>>(&mut self, arrived: &[Block<D>], state: &mut [Complex64]) {
        let clock = self.profile.start();
        let nx = self.layout.grid().nx;
        let mut line = Vec::with_capacity(nx);
        let mut lines = state.chunks_exact_mut(self.stride);
        for z in self.layout.z() {
            let mut rows: Vec<_> = arrived
                .iter()
                .filter(|block| block.has_outer(z))
                .map(|block| block.rows_at_outer(z))
                .collect();
            for into in lines.by_ref().take(self.layout.state_y().len()) {
                line.clear();
                rows.iter_mut().filter_map(Iterator::next).for_each(|row| line.extend_from_slice(row));
                self.x.transform(Inverse, &line, &mut into[..nx]);
            }
        }
        self.profile.stop(Phase::X, clock, 2 * self.layout.state_points());
    }

    /// Transforms pencils along y, from the first transpose to the second.
    fn y_forward<E: Exchange>(&mut self, exchange: &mut E, arrived: &Blocks<E>) -> Result<(), E::Error> {
        let width = self.layout.x().len();
        for z in pieces(self.layout.z(), exchange.pieces()) {
            let mut blocks = self.outgoing(exchange, |layout, member| Shape {
                outer: layout.spectrum_y_of(member),
                inner: z.clone(),
                width,
            })?;
            let clock = self.profile.start();
            for z in z.clone() {
                let from: Vec<_> = arrived.iter().flat_map(|block| block.rows_at_outer(z)).collect();
                let mut into: Vec<_> =
                    blocks.iter_mut().flat_map(|block| block.rows_at_inner_mut(z)).collect();
                self.y.transform(Forward, &from, None, &mut into);
            }
            self.profile.stop(Phase::Y, clock, 2 * z.len() * self.layout.grid().ny * width);
            self.send(exchange, blocks)?;
        }
        Ok(())
    }

    fn y_inverse<E: Exchange>(&mut self, exchange: &mut E, arrived: &Blocks<E>) -> Result<(), E::Error> {
        let width = self.layout.x().len();
        for z in pieces(self.layout.z(), exchange.pieces()) {
            let mut blocks = self.outgoing(exchange, |layout, member| Shape {
                outer: z.clone(),
                inner: layout.state_y_of(member),
                width,
            })?;
            let clock = self.profile.start();
            for z in z.clone() {
                let from: Vec<_> = arrived.iter().flat_map(|block| block.rows_at_inner(z)).collect();
                let mut into: Vec<_> =
                    blocks.iter_mut().flat_map(|block| block.rows_at_outer_mut(z)).collect();
                self.y.transform(Inverse, &from, None, &mut into);
            }
            self.profile.stop(Phase::Y, clock, 2 * z.len() * self.layout.grid().ny * width);
            self.send(exchange, blocks)?;
        }
        Ok(())
    }

    /// Makes a block for each member.
    fn outgoing<E: Exchange>(
        &mut self,
        exchange: &mut E,
        shape: impl Fn(&Layout, usize) -> Shape,
    ) -> Result<Vec<Block<E::Outgoing>>, E::Error> {
        let clock = self.profile.start();
        let mut blocks = Vec::with_capacity(exchange.members());
        for member in 0..exchange.members() {
            let shape = shape(&self.layout, member);
            let data = exchange.outgoing(shape.points())?;
            blocks.push(Block::new(shape, data));
        }
        self.profile.stop(Phase::Exchange, clock, 0);
        Ok(blocks)
    }

    fn send<E: Exchange>(
        &mut self,
        exchange: &mut E,
        blocks: Vec<Block<E::Outgoing>>,
    ) -> Result<(), E::Error> {
        let clock = self.profile.start();
        let sent = exchange.send(blocks.into_iter().map(Block::into_data).collect());
        self.profile.stop(Phase::Exchange, clock, 0);
        sent
    }

    /// Receives all blocks of a transpose, in the order of members and pieces. `whole` is the shape of what
    /// comes from a member.
    fn receive<E: Exchange>(
        &mut self,
        exchange: &mut E,
        whole: impl Fn(&Layout, usize) -> Shape,
        cut: Cut,
    ) -> Result<Blocks<E>, E::Error> {
        let clock = self.profile.start();
        let shapes = |member| cut.shapes(whole(&self.layout, member), exchange.pieces());
        let shapes: Vec<Vec<Shape>> = (0..exchange.members()).map(shapes).collect();
        let points: Vec<Vec<usize>> =
            shapes.iter().map(|shapes| shapes.iter().map(Shape::points).collect()).collect();
        let arrived = exchange.receive(&points)?;
        let blocks = shapes.into_iter().flatten().zip(arrived.into_iter().flatten());
        let blocks = blocks.map(|(shape, data)| Block::new(shape, data)).collect();
        self.profile.stop(Phase::Exchange, clock, 0);
        Ok(blocks)
    }
}

/// Index that the sender of a block cuts into pieces.
#[derive(Clone, Copy)]
enum Cut {
    Outer,
    Inner,
}

impl Cut {
    fn shapes(self, whole: Shape, count: usize) -> Vec<Shape> {
        let shape = |outer: Range<usize>, inner: Range<usize>| Shape { outer, inner, width: whole.width };
        match self {
            Self::Outer => {
                pieces(whole.outer.clone(), count).map(|piece| shape(piece, whole.inner.clone())).collect()
            }
            Self::Inner => {
                pieces(whole.inner.clone(), count).map(|piece| shape(whole.outer.clone(), piece)).collect()
            }
        }
    }
}

/// Cuts a range of indices into `count` pieces.
fn pieces(range: Range<usize>, count: usize) -> impl Iterator<Item = Range<usize>> {
    let division = Division::new(range.len(), count);
    (0..count).map(move |piece| {
        let part = division.part(piece);
        range.start + part.start..range.start + part.end
    })
}
