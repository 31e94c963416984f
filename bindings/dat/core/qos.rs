//! Qualities of service (`DAT_QOS`), and their service levels of the interface below.

use udeck::via::ServiceLevel;

/// Quality of service of a connection's data (`DAT_QOS`). Each is the service level of the same number. The levels' shares, or the tables
/// of a network, say what a level is worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Qos {
    /// `DAT_QOS_BEST_EFFORT`: level 0.
    #[default]
    BestEffort = 0,
    /// `DAT_QOS_HIGH_THROUGHPUT`: level 1.
    HighThroughput = 1,
    /// `DAT_QOS_LOW_LATENCY`: level 2.
    LowLatency = 2,
    /// `DAT_QOS_ECONOMY`: level 4. Neither low latency nor high throughput.
    Economy = 4,
    /// `DAT_QOS_PREMIUM`: level 8. Both low latency and high throughput.
    Premium = 8,
}

impl Qos {
    /// All qualities.
    pub const ALL: [Qos; 5] =
        [Qos::BestEffort, Qos::HighThroughput, Qos::LowLatency, Qos::Economy, Qos::Premium];

    /// The quality with this number in `dat.h`. `None`: no quality has it; a set of several is none either.
    pub(crate) fn of(number: u32) -> Option<Qos> {
        Qos::ALL.into_iter().find(|qos| *qos as u32 == number)
    }

    /// The level that the interface below sends at.
    pub fn level(self) -> ServiceLevel {
        ServiceLevel::new(self as u8).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_quality_has_a_level_of_its_own() {
        assert_eq!(Qos::ALL.map(|qos| qos.level().get()), [0, 1, 2, 4, 8]);
        assert_eq!(Qos::ALL.map(|qos| Qos::of(qos as u32)), Qos::ALL.map(Some));
        assert!([3, 5, 16, u32::MAX].into_iter().all(|number| Qos::of(number).is_none()));
    }
}
