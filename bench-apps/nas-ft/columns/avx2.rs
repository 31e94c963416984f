//! Transforms of four columns at a time, in the vector registers of a processor with AVX2.
//!
//! Four neighbouring columns of a row are 64 bytes, a cache line. The columns are therefore transformed in place, without
//! a transpose: each number of the algorithm is a vector of four, with separate real and imaginary parts.
//!
//! The algorithm is Stockham's, which sorts as it goes: with n = r m, a pass of radix r turns a transform of n into r
//! interleaved ones of m. (C. Van Loan, *Computational Frameworks for the Fast Fourier Transform*, 1992, section 1.7.) The
//! first pass reads the rows and the last one writes them; the data in between stay in the first-level cache.

use super::{LANES, Weights};
use bytemuck::Zeroable;
use num_complex::Complex64;
use rustfft::FftDirection;
use std::arch::x86_64::{
    __m256d, _MM_HINT_ET0, _MM_HINT_T1, _mm_prefetch, _mm256_add_pd, _mm256_fmadd_pd, _mm256_fmsub_pd,
    _mm256_mul_pd, _mm256_set_pd, _mm256_set1_pd, _mm256_setzero_pd, _mm256_sub_pd, _mm256_unpackhi_pd,
    _mm256_unpacklo_pd, _mm256_xor_pd,
};
use std::f64::consts::{FRAC_1_SQRT_2, TAU};

/// Four complex numbers, in the order 0, 2, 1, 3. In this order loads and stores do not cross between the halves of a
/// register.
#[derive(Clone, Copy)]
struct Lanes {
    re: __m256d,
    im: __m256d,
}

/// The transform of one length.
pub struct Columns {
    /// Passes of the transform: at least two.
    passes: Vec<Pass>,
    /// Sources and destinations of passes that do not access the rows.
    buffers: [Vec<Lanes>; 2],
}

/// One pass over `stride` interleaved transforms of `radix · m` points each.
struct Pass {
    radix: usize,
    m: usize,
    stride: usize,
    /// For each p below m: w^p, w^2p, … w^((radix − 1) p), where w is the root of radix · m.
    twiddles: Vec<Complex64>,
}

impl Columns {
    /// Plans a transform. `None`: the processor has no AVX2, or the length is not a power of two that takes two
    /// passes.
    pub fn new(len: usize) -> Option<Self> {
        let able = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma");
        if !able || !len.is_power_of_two() || len < 16 {
            return None;
        }
        let (mut passes, mut rest, mut stride) = (Vec::new(), len, 1);
        while rest > 1 {
            // Passes have radix 4, whose numbers fit the registers. If a factor of two remains, one pass has radix 8: not
            // the first and, if there are three passes, not the last.
            let radix = if stride == 4 && rest.trailing_zeros() % 2 == 1 { 8 } else { 4 };
            rest /= radix;
            passes.push(Pass::new(radix, rest, stride));
            stride *= radix;
        }
        Some(Self {
            passes,
            buffers: [(); 2].map(|()| vec![Lanes { re: Zeroable::zeroed(), im: Zeroable::zeroed() }; len]),
        })
    }

    /// Transforms as [`super::Columns::transform`] does, which has checked the rows.
    pub fn transform(
        &mut self,
        direction: FftDirection,
        from: &[&[Complex64]],
        weights: Option<Weights<'_>>,
        into: &mut [&mut [Complex64]],
    ) {
        // SAFETY: `new` makes this only where the processor has the instructions for which these are compiled.
        #[allow(unsafe_code, reason = "the compiler cannot know what `new` asked")]
        unsafe {
            match direction {
                FftDirection::Forward => self.transform_with::<false>(from, weights, into),
                FftDirection::Inverse => self.transform_with::<true>(from, weights, into),
            }
        }
    }

    /// Transforms as [`super::Columns::transform_in_place`] does, which has checked the rows.
    pub fn transform_in_place(&mut self, direction: FftDirection, rows: &mut [&mut [Complex64]]) {
        // SAFETY: as in `transform`.
        #[allow(unsafe_code, reason = "the compiler cannot know what `new` asked")]
        unsafe {
            match direction {
                FftDirection::Forward => self.transform_rows::<false>(rows),
                FftDirection::Inverse => self.transform_rows::<true>(rows),
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn transform_with<const INVERSE: bool>(
        &mut self,
        from: &[&[Complex64]],
        weights: Option<Weights<'_>>,
        into: &mut [&mut [Complex64]],
    ) {
        let width = into[0].len();
        for x in (0..width).step_by(LANES) {
            let weights = weights.map(|w| (w.rows, Lanes::column_factors(w, x)));
            // The prefetches are for the lines of the next columns, and for those that this last pass will write: they
            // lie far apart, so that no processor predicts them. Each arrives from memory during the computation.
            from.iter().for_each(|row| prefetch::<_MM_HINT_T1>(row, x + LANES));
            into.iter().for_each(|row| prefetch::<_MM_HINT_ET0>(row, x));
            let source = Source::<INVERSE, _> { from, x, weights };
            let (last, filled) = self.all_but_last(&source);
            last.write_rows::<INVERSE>(filled, x, into);
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn transform_rows<const INVERSE: bool>(&mut self, rows: &mut [&mut [Complex64]]) {
        let width = rows[0].len();
        for x in (0..width).step_by(LANES) {
            rows.iter().for_each(|row| prefetch::<_MM_HINT_T1>(row, x + LANES));
            let source = Source::<INVERSE, _> { from: &*rows, x, weights: None };
            let (last, filled) = self.all_but_last(&source);
            last.write_rows::<INVERSE>(filled, x, rows);
        }
    }

    /// Transforms four columns up to the last pass. Returns the last pass, and the buffer that it reads.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn all_but_last<const INVERSE: bool, R: AsRef<[Complex64]>>(
        &mut self,
        source: &Source<'_, INVERSE, R>,
    ) -> (&Pass, &[Lanes]) {
        let (first, rest) = self.passes.split_first().expect("there are two passes or more");
        let (last, middle) = rest.split_last().expect("there are two passes or more");
        let [a, b] = &mut self.buffers;
        let (mut filled, mut free) = (a.as_mut_slice(), b.as_mut_slice());
        first.read(source, filled);
        for pass in middle {
            match pass.radix {
                4 => pass.between::<4>(filled, free),
                _ => pass.between::<8>(filled, free),
            }
            (filled, free) = (free, filled);
        }
        (last, filled)
    }
}

/// Source of the first pass.
struct Source<'a, const INVERSE: bool, R> {
    from: &'a [R],
    x: usize,
    weights: Option<(&'a [f64], __m256d)>,
}

impl<const INVERSE: bool, R: AsRef<[Complex64]>> Source<'_, INVERSE, R> {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn get(&self, row: usize) -> Lanes {
        let lanes = Lanes::load(&self.from[row].as_ref()[self.x..]).swapped::<INVERSE>();
        match self.weights {
            None => lanes,
            Some((rows, columns)) => lanes.scaled(_mm256_mul_pd(columns, _mm256_set1_pd(rows[row]))),
        }
    }
}

impl Pass {
    fn new(radix: usize, m: usize, stride: usize) -> Self {
        let n = radix * m;
        let root = |power: usize| Complex64::cis(-TAU * (power % n) as f64 / n as f64);
        let twiddles = (0..m).flat_map(|p| (1..radix).map(move |k| root(k * p))).collect();
        Self { radix, m, stride, twiddles }
    }

    /// Runs the first pass: of radix 4, with a stride of 1.
    #[target_feature(enable = "avx2,fma")]
    fn read<const INVERSE: bool, R: AsRef<[Complex64]>>(
        &self,
        source: &Source<'_, INVERSE, R>,
        into: &mut [Lanes],
    ) {
        let m = self.m;
        for ((p, twiddles), into) in self.twiddles.chunks_exact(3).enumerate().zip(into.chunks_exact_mut(4)) {
            let [a, b, c, d] =
                [source.get(p), source.get(p + m), source.get(p + 2 * m), source.get(p + 3 * m)];
            let [a, b, c, d] = butterfly_4([a, b, c, d]);
            into[0] = a;
            into[1] = b.times(twiddles[0]);
            into[2] = c.times(twiddles[1]);
            into[3] = d.times(twiddles[2]);
        }
    }

    #[target_feature(enable = "avx2,fma")]
    fn between<const R: usize>(&self, from: &[Lanes], into: &mut [Lanes]) {
        let &Self { m, stride, .. } = self;
        for ((p, twiddles), into) in
            self.twiddles.chunks_exact(R - 1).enumerate().zip(into.chunks_exact_mut(R * stride))
        {
            let mut parts = [from; R];
            for j in 0..R {
                parts[j] = &from[stride * (p + j * m)..][..stride];
            }
            let (first, rest) = into.split_at_mut(stride);
            for q in 0..stride {
                let mut points = [Lanes::zero(); R];
                for j in 0..R {
                    points[j] = parts[j][q];
                }
                butterfly(&mut points);
                first[q] = points[0];
                for k in 1..R {
                    rest[q + stride * (k - 1)] = points[k].times(twiddles[k - 1]);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn write_rows<const INVERSE: bool>(&self, from: &[Lanes], x: usize, into: &mut [&mut [Complex64]]) {
        match self.radix {
            4 => self.write::<4, INVERSE>(from, x, into),
            _ => self.write::<8, INVERSE>(from, x, into),
        }
    }

    /// Runs the last pass: its m is 1, and so are its twiddles.
    #[target_feature(enable = "avx2,fma")]
    fn write<const R: usize, const INVERSE: bool>(
        &self,
        from: &[Lanes],
        x: usize,
        into: &mut [&mut [Complex64]],
    ) {
        let stride = self.stride;
        for q in 0..stride {
            let mut points = [Lanes::zero(); R];
            for j in 0..R {
                points[j] = from[q + stride * j];
            }
            butterfly(&mut points);
            for k in 0..R {
                points[k].swapped::<INVERSE>().store(&mut into[q + stride * k][x..]);
            }
        }
    }
}

impl Lanes {
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn zero() -> Self {
        Self { re: _mm256_setzero_pd(), im: _mm256_setzero_pd() }
    }

    /// Loads the first numbers of `row`; zeros where it ends.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn load(row: &[Complex64]) -> Self {
        let Some(points) = row.first_chunk::<LANES>() else { return Self::load_some(row) };
        let [low, high]: [__m256d; 2] = bytemuck::cast(*points);
        Self { re: _mm256_unpacklo_pd(low, high), im: _mm256_unpackhi_pd(low, high) }
    }

    #[cold]
    #[target_feature(enable = "avx2,fma")]
    fn load_some(row: &[Complex64]) -> Self {
        let mut points = [Complex64::ZERO; LANES];
        points[..row.len()].copy_from_slice(row);
        Self::load(&points)
    }

    /// Stores numbers at the beginning of `row`, as many as it has room for.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn store(self, row: &mut [Complex64]) {
        let points = [_mm256_unpacklo_pd(self.re, self.im), _mm256_unpackhi_pd(self.re, self.im)];
        let points: [Complex64; LANES] = bytemuck::cast(points);
        match row.first_chunk_mut::<LANES>() {
            Some(place) => *place = points,
            None => row.copy_from_slice(&points[..row.len()]),
        }
    }

    /// Factors of four columns, in the order of the lanes.
    #[target_feature(enable = "avx2,fma")]
    fn column_factors(weights: Weights<'_>, x: usize) -> __m256d {
        let factor = |lane: usize| weights.columns.get(x + lane).copied().unwrap_or_default();
        _mm256_set_pd(factor(3), factor(1), factor(2), factor(0))
    }

    /// Exchanges real and imaginary parts for the inverse, which is a forward transform between two exchanges.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn swapped<const INVERSE: bool>(self) -> Self {
        if INVERSE { Self { re: self.im, im: self.re } } else { self }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn plus(self, other: Self) -> Self {
        Self { re: _mm256_add_pd(self.re, other.re), im: _mm256_add_pd(self.im, other.im) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn minus(self, other: Self) -> Self {
        Self { re: _mm256_sub_pd(self.re, other.re), im: _mm256_sub_pd(self.im, other.im) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn scaled(self, factors: __m256d) -> Self {
        Self { re: _mm256_mul_pd(self.re, factors), im: _mm256_mul_pd(self.im, factors) }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn times(self, w: Complex64) -> Self {
        let (re, im) = (_mm256_set1_pd(w.re), _mm256_set1_pd(w.im));
        Self {
            re: _mm256_fmsub_pd(self.re, re, _mm256_mul_pd(self.im, im)),
            im: _mm256_fmadd_pd(self.re, im, _mm256_mul_pd(self.im, re)),
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn times_minus_i(self) -> Self {
        Self { re: self.im, im: _mm256_xor_pd(self.re, _mm256_set1_pd(-0.0)) }
    }
}

/// Prefetches the cache line of a point, if the point exists.
#[inline(always)]
fn prefetch<const HINT: i32>(row: &[Complex64], x: usize) {
    if let Some(point) = row.get(x) {
        // SAFETY: a prefetch has no effect that a program could see, whatever its address.
        #[allow(unsafe_code, reason = "the intrinsic takes a pointer")]
        unsafe {
            _mm_prefetch::<HINT>(std::ptr::from_ref(point).cast());
        }
    }
}

/// Computes a transform of `R` points, 4 or 8.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn butterfly<const R: usize>(points: &mut [Lanes; R]) {
    match points.as_mut_slice() {
        [a, b, c, d] => [*a, *b, *c, *d] = butterfly_4([*a, *b, *c, *d]),
        [a, b, c, d, e, f, g, h] => {
            [*a, *b, *c, *d, *e, *f, *g, *h] = butterfly_8([*a, *b, *c, *d, *e, *f, *g, *h]);
        }
        _ => {}
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn butterfly_4([a, b, c, d]: [Lanes; 4]) -> [Lanes; 4] {
    let (even, odd) = (a.plus(c), b.plus(d));
    let (even_difference, odd_difference) = (a.minus(c), b.minus(d).times_minus_i());
    [
        even.plus(odd),
        even_difference.plus(odd_difference),
        even.minus(odd),
        even_difference.minus(odd_difference),
    ]
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn butterfly_8([a, b, c, d, e, f, g, h]: [Lanes; 8]) -> [Lanes; 8] {
    let half = _mm256_set1_pd(FRAC_1_SQRT_2);
    let [even_0, even_1, even_2, even_3] = butterfly_4([a, c, e, g]);
    let [odd_0, odd_1, odd_2, odd_3] = butterfly_4([b, d, f, h]);
    // The odd outputs are multiplied by the powers of the root of 8.
    let odd_1 = odd_1.plus(odd_1.times_minus_i()).scaled(half);
    let odd_2 = odd_2.times_minus_i();
    let odd_3 = odd_3.times_minus_i().minus(odd_3).scaled(half);
    [
        even_0.plus(odd_0),
        even_1.plus(odd_1),
        even_2.plus(odd_2),
        even_3.plus(odd_3),
        even_0.minus(odd_0),
        even_1.minus(odd_1),
        even_2.minus(odd_2),
        even_3.minus(odd_3),
    ]
}
