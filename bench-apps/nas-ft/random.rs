//! NPB's random numbers (`randlc`): x ← a x mod 2^46, uniform in (0, 1).
//!
//! NPB computes in doubles, split into halves of 23 bits, so that the sequence is the same on every machine;
//! 64-bit integers give the same sequence directly. A rank starts anywhere in it by a power of the multiplier
//! (NPB's `ipow46`), so that the initial state does not depend on the number of ranks.

/// NPB's seed.
const SEED: u64 = 314_159_265;
/// NPB's multiplier, 5^13.
const MULTIPLIER: u64 = 1_220_703_125;
/// Bits of the state.
const BITS: u32 = 46;

/// The sequence from some position on.
#[derive(Clone, Debug)]
pub struct Randlc {
    state: u64,
}

impl Randlc {
    /// The sequence after `position` drawn numbers.
    pub fn at(position: u64) -> Self {
        Self { state: modulo(SEED.wrapping_mul(power(MULTIPLIER, position))) }
    }

    /// The next number, in (0, 1).
    pub fn draw(&mut self) -> f64 {
        self.state = modulo(self.state.wrapping_mul(MULTIPLIER));
        // The conversion is exact: 46 bits fit a double's 53, and the scale is a power of two.
        self.state as f64 * (1.0 / (1_u64 << BITS) as f64)
    }
}

/// Computes base^exponent mod 2^46, by squaring.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    let mut result = 1_u64;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = modulo(result.wrapping_mul(base));
        }
        base = modulo(base.wrapping_mul(base));
        exponent >>= 1;
    }
    result
}

/// Reduces modulo 2^46; a product that wrapped at 2^64 still has the right residue.
fn modulo(x: u64) -> u64 {
    x & ((1 << BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NPB's `randlc`, in doubles as in NPB.
    fn randlc_in_doubles(x: &mut f64, a: f64) -> f64 {
        let (r23, t23) = (0.5_f64.powi(23), 2.0_f64.powi(23));
        let (r46, t46) = (r23 * r23, t23 * t23);
        let a1 = (r23 * a).trunc();
        let a2 = a - t23 * a1;
        let x1 = (r23 * *x).trunc();
        let x2 = *x - t23 * x1;
        let t1 = a1 * x2 + a2 * x1;
        let z = t1 - t23 * (r23 * t1).trunc();
        let t3 = t23 * z + a2 * x2;
        *x = t3 - t46 * (r46 * t3).trunc();
        r46 * *x
    }

    #[test]
    fn the_first_states_are_those_of_the_definition() {
        // The expected states are 5^13 * 314159265 mod 2^46, and so on, in arbitrary precision.
        let mut numbers = Randlc::at(0);
        let states = [(); 3].map(|()| {
            numbers.draw();
            numbers.state
        });
        assert_eq!(states, [55_909_509_111_989, 61_155_031_930_969, 45_573_031_421_645]);
    }

    #[test]
    fn the_sequence_is_npbs() {
        let (mut ours, mut x) = (Randlc::at(0), SEED as f64);
        for _ in 0..10_000 {
            assert_eq!(ours.draw(), randlc_in_doubles(&mut x, MULTIPLIER as f64));
        }
    }

    #[test]
    fn jumping_equals_stepping() {
        let mut stepped = Randlc::at(0);
        for position in 0..2_000 {
            assert_eq!(Randlc::at(position).state, stepped.state, "at {position}");
            stepped.draw();
        }
        // The position is far beyond what stepping reaches: jumps add up. The multiplier's order divides 2^44,
        // so that the sequence repeats.
        let far = Randlc::at((1 << 44) + 123);
        assert_eq!(far.state, Randlc::at(123).state);
    }
}
