//! NPB's problem classes: grid, iterations, and the checksums of a correct run.

use crate::checksums::{self, Reference};
use clap::ValueEnum;
use num_complex::Complex64;

/// An NPB class, by the letter that NPB gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "verbatim")]
pub enum Class {
    /// 64 x 64 x 64, 6 iterations
    S,
    /// 128 x 128 x 32, 6 iterations
    W,
    /// 256 x 256 x 128, 6 iterations
    A,
    /// 512 x 256 x 256, 20 iterations
    B,
    /// 512 x 512 x 512, 20 iterations
    C,
}

/// The size of a grid, in points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub nx: usize,
    pub ny: usize,
    pub nz: usize,
}

/// Tolerance of NPB 3.3's `verify` between a checksum and its reference.
pub const TOLERANCE: f64 = 1e-12;

impl Class {
    pub fn grid(self) -> Grid {
        let (nx, ny, nz) = match self {
            Self::S => (64, 64, 64),
            Self::W => (128, 128, 32),
            Self::A => (256, 256, 128),
            Self::B => (512, 256, 256),
            Self::C => (512, 512, 512),
        };
        Grid { nx, ny, nz }
    }

    pub fn iterations(self) -> usize {
        self.references().len()
    }

    /// Whether these are the checksums of a correct run.
    ///
    /// The error is relative and complex as in NPB 3.3, |sum − reference| / |reference|, not one per component;
    /// a NaN fails.
    pub fn verify(self, sums: &[Complex64]) -> bool {
        let within = |(sum, &(re, im)): (&Complex64, &Reference)| {
            let reference = Complex64::new(re, im);
            ((sum - reference) / reference).norm() <= TOLERANCE
        };
        sums.len() == self.iterations() && sums.iter().zip(self.references()).all(within)
    }

    fn references(self) -> &'static [Reference] {
        match self {
            Self::S => &checksums::S,
            Self::W => &checksums::W,
            Self::A => &checksums::A,
            Self::B => &checksums::B,
            Self::C => &checksums::C,
        }
    }
}

impl Grid {
    pub fn points(self) -> usize {
        self.nx * self.ny * self.nz
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(class: Class) -> Vec<Complex64> {
        class.references().iter().map(|&(re, im)| Complex64::new(re, im)).collect()
    }

    #[test]
    fn classes_have_npbs_iterations() {
        let iterations = Class::value_variants().iter().map(|class| class.iterations());
        assert!(iterations.eq([6, 6, 6, 20, 20]));
    }

    #[test]
    fn verification_takes_the_references_and_refuses_what_is_off() {
        for class in Class::value_variants() {
            let sums = references(*class);
            assert!(class.verify(&sums));
            assert!(!class.verify(&sums[1..]), "an iteration is missing");

            let mut off = sums.clone();
            off[class.iterations() - 1] *= 1.0 + 2.0 * TOLERANCE;
            assert!(!class.verify(&off), "beyond the tolerance");
            off[class.iterations() - 1] = sums[class.iterations() - 1] * (1.0 + 0.5 * TOLERANCE);
            assert!(class.verify(&off), "within the tolerance");
            off[0].im = f64::NAN;
            assert!(!class.verify(&off), "not a number");
        }
    }
}
