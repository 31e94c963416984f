//! Processor time of messages, computed from the batches of all rounds.

use super::{schedule::CpuSample, usage::Usage};
use crate::stats::{self, Ratio, median};

/// Costs of one contender under one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Messages that arrived per second: the median over the rounds.
    pub rate: f64,
    /// Costs of the sender and of the receiver.
    pub sides: [SideCost; 2],
    /// Processor time of both sides for a message that arrived, in µs, with its 95 % bounds.
    pub both: Ratio,
    /// Processor time of both sides for 10⁶ bits of payload, in µs; `None` for empty messages.
    pub per_megabit: Option<f64>,
    /// Messages that did not arrive, in all rounds.
    pub lost: u64,
    /// Share of the sent messages that arrived, in all rounds.
    pub arrived: f64,
}

/// Costs of one side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SideCost {
    /// User time for a message that arrived, in µs: the median of the processor time over the rounds, times the share of
    /// user time in all rounds.
    pub user: f64,
    /// System time for a message that arrived, in µs: the rest of the processor time.
    pub system: f64,
    /// Use of a core while the batches ran, in percent: the median over the rounds.
    pub core: f64,
    /// Messages that this side sent, or received, per second of its clock: the median over the rounds.
    pub rate: f64,
}

impl CpuSample {
    /// Processor time of both sides for a message that arrived, in µs.
    pub fn micros(&self) -> f64 {
        let both = self.sender.processor + self.receiver.processor;
        both.as_secs_f64() * 1e6 / self.messages.max(1) as f64
    }

    /// Messages that arrived per second.
    pub fn rate(&self) -> f64 {
        self.messages as f64 / self.sender.wall.as_secs_f64()
    }
}

impl Cost {
    /// Computes the costs; `None` without samples, or if nothing arrived.
    pub fn of(samples: &[CpuSample], bytes: usize) -> Option<Self> {
        let messages = |sample: &CpuSample| sample.messages.max(1) as f64;
        let over = |figure: &dyn Fn(&CpuSample) -> f64| samples.iter().map(figure).collect::<Vec<f64>>();
        let micros = |usage: &Usage| usage.processor.as_secs_f64() * 1e6;
        if samples.iter().all(|sample| sample.messages == 0) {
            return None;
        }
        let both = stats::bounded_median(&over(&CpuSample::micros))?;
        let side = |of: &dyn Fn(&CpuSample) -> Usage, own: &dyn Fn(&CpuSample) -> u64| -> Option<SideCost> {
            let total = median(&over(&|sample| micros(&of(sample)) / messages(sample)))?;
            let sum =
                |part: &dyn Fn(Usage) -> f64| samples.iter().map(|sample| part(of(sample))).sum::<f64>();
            let user = sum(&|usage| usage.user.as_secs_f64());
            let divided = user + sum(&|usage| usage.system.as_secs_f64());
            let user = if divided > 0.0 { total * user / divided } else { total };
            let core = |sample: &CpuSample| {
                let Usage { wall, processor, .. } = of(sample);
                processor.as_secs_f64() / wall.as_secs_f64() * 100.0
            };
            let system = (total - user).max(0.0); // rounding could give less than 0
            let rate = |sample: &CpuSample| own(sample) as f64 / of(sample).wall.as_secs_f64();
            Some(SideCost { user, system, core: median(&over(&core))?, rate: median(&over(&rate))? })
        };
        let count = |of: &dyn Fn(&CpuSample) -> u64| samples.iter().map(of).sum::<u64>();
        let (arrived, lost) = (count(&|sample| sample.messages), count(&|sample| sample.lost));
        Some(Cost {
            rate: median(&over(&CpuSample::rate))?,
            sides: [
                side(&|sample| sample.sender, &|sample| sample.messages + sample.lost)?,
                side(&|sample| sample.receiver, &|sample| sample.messages)?,
            ],
            both,
            per_megabit: (bytes > 0).then(|| both.median / (bytes as f64 * 8.0 / 1e6)),
            lost,
            arrived: arrived as f64 / (arrived + lost) as f64,
        })
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::*;

    pub fn usage(processor: u64, user: u64) -> Usage {
        let [wall, processor, user, system] =
            [1000, processor, user, processor - user].map(Duration::from_micros);
        Usage { wall, processor, user, system }
    }

    /// A round of 100 messages in a millisecond: the sender takes 3 µs for each, a third of it user time, the receiver 10 µs.
    pub fn a_round() -> CpuSample {
        CpuSample { sender: usage(300, 100), receiver: usage(1000, 1000), messages: 100, lost: 0 }
    }

    #[test]
    fn costs_are_for_each_message_that_arrived() {
        let cost = Cost::of(&[a_round(), a_round()], 100).expect("samples");
        let close = |one: f64, other: f64| (one - other).abs() < 1e-6;
        assert!(close(cost.rate, 100_000.0) && close(cost.both.median, 13.0), "{cost:?}");
        let [sender, receiver] = cost.sides;
        assert!(close(sender.user, 1.0) && close(sender.system, 2.0) && close(sender.core, 30.0), "{cost:?}");
        assert!(close(receiver.user, 10.0) && close(receiver.system, 0.0), "{cost:?}");
        assert!(close(receiver.core, 100.0), "{cost:?}");
        // The costs are those of 800 bits in 13 µs.
        assert!(cost.per_megabit.is_some_and(|cost| close(cost, 16_250.0)), "{cost:?}");
        assert_eq!(Cost::of(&[a_round()], 0).expect("samples").per_megabit, None);
    }

    #[test]
    fn a_disturbed_round_moves_the_bounds_and_not_the_median() {
        let disturbed = CpuSample { receiver: usage(9000, 9000), ..a_round() };
        let samples = [a_round(), disturbed, a_round(), a_round(), a_round()];
        let both = Cost::of(&samples, 100).expect("samples").both;
        assert!((both.median - 13.0).abs() < 1e-6 && (both.high - 93.0).abs() < 1e-6, "{both:?}");
        assert_eq!(both.rounds, 5);
    }

    #[test]
    fn nothing_costs_nothing_to_say() {
        assert_eq!(Cost::of(&[], 100), None);
        assert_eq!(Cost::of(&[CpuSample { messages: 0, lost: 100, ..a_round() }], 100), None);
    }
}
