//! Student's t distribution, for as many degrees of freedom as a comparison has: exact for whole numbers (Abramowitz and
//! Stegun, 26.7.3 and 26.7.4).

use std::f64::consts::FRAC_PI_2;

/// Probability that chance exceeds `|t|`.
pub fn exceeded(t: f64, degrees_of_freedom: usize) -> f64 {
    if t.is_nan() || degrees_of_freedom == 0 {
        return 1.0;
    }
    if t.is_infinite() {
        return 0.0;
    }
    let angle = (t.abs() / (degrees_of_freedom as f64).sqrt()).atan();
    let (sin, cos) = angle.sin_cos();
    // 1 + (first/second) cos² + (first·third)/(second·fourth) cos⁴ and so on, below `degrees_of_freedom`.
    let series = |from: usize| {
        let (mut term, mut sum) = (1.0, 1.0);
        for at in (from..degrees_of_freedom.saturating_sub(1)).step_by(2) {
            term *= cos * cos * (at - 1) as f64 / at as f64;
            sum += term;
        }
        sum
    };
    let inside = match degrees_of_freedom {
        1 => angle / FRAC_PI_2,
        even if even.is_multiple_of(2) => sin * series(2),
        _ => (angle + sin * cos * series(3)) / FRAC_PI_2,
    };
    (1.0 - inside).clamp(0.0, 1.0)
}

/// Value that `|t|` exceeds by chance in a `share` of all cases.
pub fn quantile(share: f64, degrees_of_freedom: usize) -> f64 {
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        if exceeded(middle, degrees_of_freedom) > share { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (degrees_of_freedom, expected) in
            [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (8, 2.306), (14, 2.145), (120, 1.980)]
        {
            let found = quantile(0.05, degrees_of_freedom);
            assert!((found - expected).abs() < 0.001, "{degrees_of_freedom}: {found}");
            assert!((exceeded(-found, degrees_of_freedom) - 0.05).abs() < 1e-9);
        }
    }

    #[test]
    fn the_ends_are_certain() {
        assert_eq!(exceeded(0.0, 7), 1.0);
        assert_eq!(exceeded(f64::INFINITY, 7), 0.0);
        assert_eq!(exceeded(f64::NAN, 7), 1.0);
        assert_eq!(exceeded(9.0, 0), 1.0);
    }
}
