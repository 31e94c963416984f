//! Synthetic runs, with the noise of real ones.

use super::*;
use crate::experiment::exchange::mix;

/// Noise of a run, in logarithms of times.
#[derive(Clone, Copy, Debug, Default)]
struct Noise {
    /// Noise of each single round.
    white: f64,
    /// Noise that lasts for about five rounds.
    lasting: f64,
    /// Added now and then, for about ten rounds.
    mood: f64,
    /// Drift from the first round to the last.
    drift: f64,
    /// Noise of a whole run.
    run: f64,
    /// Noise of the limit in a run.
    line: f64,
}

struct Dice(u64);

impl Dice {
    fn uniform(&mut self) -> f64 {
        self.0 += 1;
        (mix(self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Approximate sample of a normal distribution.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// Track of a message that follows the limit by two thirds, as small ones do.
fn track(dice: &mut Dice, rounds: usize, noise: Noise, shift: f64) -> Track {
    let mut lasting = dice.normal();
    let mut slow = dice.uniform() < 0.5;
    let of_run = noise.run * dice.normal();
    let line_of_run = noise.line * dice.normal();
    let (mut times, mut line) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        lasting = 0.8 * lasting + 0.6 * dice.normal();
        slow ^= dice.uniform() < 0.1;
        let drift = noise.drift * round as f64 / rounds as f64;
        let moved = line_of_run + noise.line / 4.0 * dice.normal();
        let mood = if slow { noise.mood } else { 0.0 };
        line.push(Some(moved));
        times.push(Some(
            shift
                + 0.66 * moved
                + of_run
                + drift
                + mood
                + noise.white * dice.normal()
                + noise.lasting * lasting,
        ));
    }
    Track { times, limits: vec![("line", line)] }
}

fn side(dice: &mut Dice, runs: usize, noise: Noise, shift: f64) -> Vec<Track> {
    (0..runs).map(|_| track(dice, 40, noise, shift)).collect()
}

const SEEDS: u64 = 400;

/// Share of the seeds in which a change of more than 5 % is found that chance does not explain.
fn found(runs: usize, noise: Noise, shift: f64) -> f64 {
    let hit = |seed: &u64| {
        let mut dice = Dice(seed << 32);
        let base = side(&mut dice, runs, noise, 0.0);
        let new = side(&mut dice, runs, noise, shift);
        // There is no effect if one of four pairs is left out because of a disturbed limit.
        let Some(effect) = effect(&base, &new, 0.0) else { return false };
        let right = if shift < 0.0 { effect.ratio < 1.0 / 1.05 } else { effect.ratio > 1.05 };
        effect.p_value < 0.05 && if shift == 0.0 { (effect.ratio - 1.0).abs() > 0.05 } else { right }
    };
    (0..SEEDS).filter(hit).count() as f64 / SEEDS as f64
}

/// The kinds of noise, each by itself and all together, as large as on a shared machine.
fn noises() -> [Noise; 6] {
    let calm = Noise { white: 0.05, ..Noise::default() };
    [
        calm,
        Noise { lasting: 0.15, ..calm },
        Noise { mood: 0.7, ..calm },
        Noise { drift: 0.3, ..calm },
        Noise { line: 0.4, ..calm },
        Noise { white: 0.1, lasting: 0.1, mood: 0.3, drift: 0.1, run: 0.0, line: 0.2 },
    ]
}

#[test]
fn noise_alone_is_rarely_a_difference_of_two_runs() {
    for noise in noises() {
        let share = found(1, noise, 0.0);
        assert!(share <= 0.05, "{share} with {noise:?}");
    }
}

#[test]
fn noise_alone_is_rarely_a_difference_of_pairs() {
    for noise in noises().map(|noise| Noise { run: 0.1, ..noise }) {
        for runs in [4, 12] {
            let share = found(runs, noise, 0.0);
            // The promise is 5 %; four standard errors of the count are 4.4 %.
            assert!(share <= 0.095, "{share} with {noise:?}, {runs} pairs");
        }
    }
}

#[test]
fn a_tenth_is_found_in_two_calm_runs() {
    let noise = Noise { white: 0.02, lasting: 0.01, ..Noise::default() };
    for shift in [1.1_f64.ln(), -1.1_f64.ln()] {
        let share = found(1, noise, shift);
        assert!(share >= 0.95, "{share} of {shift}");
    }
}

#[test]
fn a_tenth_is_found_in_pairs_while_the_line_moves() {
    let noise = Noise { white: 0.05, lasting: 0.03, line: 0.3, run: 0.02, ..Noise::default() };
    let share = found(12, noise, 1.1_f64.ln());
    assert!(share >= 0.95, "{share}");
    // Two runs alone cannot decide it, and do not claim to.
    assert!(found(1, noise, 1.1_f64.ln()) < 0.5);
}

#[test]
fn the_bounds_of_pairs_hold_the_truth() {
    let noise = Noise { white: 0.05, line: 0.3, run: 0.05, ..Noise::default() };
    let holds = |seed: &u64| {
        let mut dice = Dice(seed << 32);
        let base = side(&mut dice, 10, noise, 0.0);
        let effect = effect(&base, &side(&mut dice, 10, noise, 0.2), 0.0).expect("enough rounds");
        effect.low <= 0.2_f64.exp() && 0.2_f64.exp() <= effect.high
    };
    let share = (0..SEEDS).filter(holds).count() as f64 / SEEDS as f64;
    assert!(share >= 0.9, "{share}");
}

#[test]
fn a_machine_that_changed_is_no_slowdown() {
    let mut dice = Dice(1);
    let noise = Noise { white: 0.01, ..Noise::default() };
    let base = side(&mut dice, 1, noise, 0.0);
    let mut new = side(&mut dice, 1, noise, 0.2);
    // The line takes half as long again, and the message a fifth: absolute and relative differences contradict each other.
    new[0].limits[0].1.iter_mut().flatten().for_each(|line| *line += 0.4);
    let effect = effect(&base, &new, 0.0).expect("enough rounds");
    assert_eq!((effect.ratio, effect.p_value), (1.0, 1.0));
    assert!(effect.absolute > 1.2 && effect.relative.is_some_and(|relative| relative < 0.85), "{effect:?}");
    assert!(effect.low < 0.85 && effect.high > 1.2, "{effect:?}");
}

#[test]
fn what_the_limits_differ_by_is_noise() {
    let noise = Noise { white: 0.01, ..Noise::default() };
    let mut dice = Dice(2);
    let (base, new) = (side(&mut dice, 1, noise, 0.0), side(&mut dice, 1, noise, 0.1));
    let (calm, moved) = (effect(&base, &new, 0.0), effect(&base, &new, 0.3));
    let (calm, moved) = calm.zip(moved).expect("enough rounds");
    assert!(calm.p_value < 0.01 && moved.p_value > 0.5 && moved.high > calm.high, "{calm:?} {moved:?}");
    let one = |level: f64| vec![vec![Some(level), None, Some(level)]];
    assert_eq!(level_difference(&one(1.0), &one(1.5)), Some(0.5));
    assert_eq!(level_difference(&one(1.0), &[]), None);
}

#[test]
fn a_pair_whose_limit_was_disturbed_is_left_out() {
    let noise = Noise { white: 0.01, ..Noise::default() };
    let mut dice = Dice(5);
    let (base, mut new) = (side(&mut dice, 6, noise, 0.0), side(&mut dice, 6, noise, 0.1));
    let before = effect(&base, &new, 0.0).expect("enough pairs");
    // Two pairs are more than are trimmed. Their messages take longer first, then their limits as well.
    for run in &mut new[..2] {
        run.times.iter_mut().flatten().for_each(|time| *time += 3.0);
    }
    assert!(effect(&base, &new, 0.0).expect("enough pairs").high > 2.0 * before.high);
    for run in &mut new[..2] {
        run.limits[0].1.iter_mut().flatten().for_each(|line| *line += 3.0);
    }
    let after = effect(&base, &new, 0.0).expect("four pairs");
    assert!((after.ratio - before.ratio).abs() < 0.02 && after.high < 1.2, "{before:?} {after:?}");
}

#[test]
fn one_pair_in_which_something_else_ran_counts_for_little() {
    let noise = Noise { white: 0.01, ..Noise::default() };
    let mut dice = Dice(6);
    let (base, mut new) = (side(&mut dice, 8, noise, 0.0), side(&mut dice, 8, noise, 0.1));
    new[2].times.iter_mut().flatten().for_each(|time| *time += 3.0);
    let found = effect(&base, &new, 0.0).expect("enough pairs");
    assert!((found.ratio - 0.1_f64.exp()).abs() < 0.03 && found.p_value < 0.01, "{found:?}");
}

#[test]
fn a_side_with_itself_is_no_difference() {
    for runs in [1, 5] {
        let side = side(&mut Dice(7), runs, noises()[5], 0.0);
        let effect = effect(&side, &side, 0.0).expect("enough rounds");
        assert_eq!((effect.ratio, effect.absolute, effect.p_value), (1.0, 1.0, 1.0));
        assert!(effect.low <= 1.0 && effect.high >= 1.0);
    }
}

#[test]
fn rounds_without_a_figure_are_left_out() {
    let mut dice = Dice(3);
    let noise = Noise { white: 0.02, ..Noise::default() };
    let (base, mut new) = (side(&mut dice, 1, noise, 0.0), side(&mut dice, 1, noise, 0.2));
    for round in (0..40).step_by(2) {
        new[0].times[round] = None;
        new[0].limits[0].1[round + 1] = None;
    }
    let found = effect(&base, &new, 0.0).expect("half of the rounds");
    assert!((found.absolute - 0.2_f64.exp()).abs() < 0.05, "{found:?}");
    // No round has both a time and a limit.
    assert_eq!(found.limit, None);
    new[0].times.clear();
    assert_eq!(effect(&base, &new, 0.0), None);
}

#[test]
fn few_rounds_say_nothing() {
    let few = |rounds| vec![track(&mut Dice(0), rounds, noises()[0], 0.0)];
    let enough = MIN_BLOCKS * MIN_BLOCK;
    assert_eq!(effect(&few(1), &few(1), 0.0), None);
    assert_eq!(effect(&few(enough - 1), &few(enough), 0.0), None);
    assert!(effect(&few(enough), &few(enough), 0.0).is_some());
    // A pair counts as one figure, however few rounds it has.
    let pairs =
        |count| (0..count).map(|seed| track(&mut Dice(seed), 1, noises()[0], 0.0)).collect::<Vec<_>>();
    assert!(effect(&pairs(4), &pairs(4), 0.0).is_some());
    assert_eq!(effect(&[], &[], 0.0), None);
}

#[test]
fn what_never_changes_has_no_noise() {
    let constant = |time| vec![Track { times: vec![Some(time); 20], limits: vec![] }];
    let same = effect(&constant(1.0), &constant(1.0), 0.0).expect("enough rounds");
    assert_eq!((same.low, same.high, same.p_value), (1.0, 1.0, 1.0));
    let slower = effect(&constant(1.0), &constant(1.5), 0.0).expect("enough rounds");
    assert_eq!((slower.p_value, slower.limit), (0.0, None));
}

#[test]
fn a_spike_does_not_move_the_mean_and_a_mood_counts_for_its_share() {
    assert_eq!(middle_mean(&[1.0, 1.0, 1.0, 9.0]), 1.0);
    assert_eq!(middle_mean(&[3.0]), 3.0);
    assert_eq!(middle_mean(&[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]), 1.5);
}
