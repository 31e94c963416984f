//! Fourier transforms of contiguous lines, by rustfft.

use num_complex::Complex64;
use rustfft::{Fft, FftDirection, FftPlanner};
use std::sync::Arc;

/// The transforms of one length. Neither direction is scaled.
pub struct Lines {
    forward: Arc<dyn Fft<f64>>,
    inverse: Arc<dyn Fft<f64>>,
    scratch: Vec<Complex64>,
}

impl Lines {
    pub fn new(len: usize) -> Self {
        let mut planner = FftPlanner::new();
        let (forward, inverse) = (planner.plan_fft_forward(len), planner.plan_fft_inverse(len));
        let scratch = forward.get_immutable_scratch_len().max(inverse.get_immutable_scratch_len());
        Self { forward, inverse, scratch: vec![Complex64::ZERO; scratch] }
    }

    /// Transforms one line.
    pub fn transform(&mut self, direction: FftDirection, from: &[Complex64], into: &mut [Complex64]) {
        let fft = match direction {
            FftDirection::Forward => &self.forward,
            FftDirection::Inverse => &self.inverse,
        };
        fft.process_immutable_with_scratch(from, into, &mut self.scratch);
    }
}
