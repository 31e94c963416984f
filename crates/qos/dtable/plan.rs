//! Configuration of DTable: from each class's share, distance and largest packet to the weights of the entries.
//!
//! In a table of N entries, a class at the distance d has n = N/d entries. The pool of credits, N·GMTU·k, is divided
//! by the shares φ. The weight of an entry is at least its class's MTU and nominally at most GMTU·w. So k determines
//! the smallest share that a class can have, and w the largest: min φ = n·MTU/pool and max φ = n·w/(N·k).

use super::Slot;
use crate::{sequences::Sequences, table::LANES};
use thiserror::Error;

/// Demands of a class of traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Service level, 0 to 15.
    pub level: u8,
    /// Distance of its entries in the table: a power of two.
    pub distance: u32,
    /// Share φ of the link, above 0 and at most 1.
    pub share: f64,
    /// Largest packet in credits of 64 bytes.
    pub mtu: u32,
}

/// The two factors of a configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Factor of the pool.
    pub k: f64,
    /// Factor of the largest weight.
    pub w: f64,
}

/// A planned class.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedClass {
    /// The class as requested.
    pub class: Class,
    /// Number n of its entries.
    pub entries: u32,
    /// Weight E of each entry before the correction.
    pub first_weight: u32,
    /// Credits D that the correction adds or takes.
    pub correction: i64,
    /// Credits of all its entries after the correction.
    pub credits: u64,
}

/// A planned table.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Entries of the table.
    pub slots: Vec<Slot>,
    /// The factors k and w.
    pub factors: Factors,
    /// Pool of credits that is divided.
    pub pool: f64,
    /// Planned classes, in the order of the request.
    pub classes: Vec<PlannedClass>,
}

impl Plan {
    /// Number of credits of all entries, which is one cycle of the table.
    pub fn credits(&self) -> u64 {
        self.classes.iter().map(|class| class.credits).sum()
    }
}

/// Why there is no such table. `class` counts from 0.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BadShare {
    /// The number of entries is invalid.
    #[error("a table of {entries} entries: take a power of two from 2 to 1024")]
    Table {
        /// Requested number of entries.
        entries: usize,
    },
    /// The size of the largest packet is invalid.
    #[error("the largest packet (gmtu) is {gmtu} credits: take 1 to 65535")]
    Gmtu {
        /// Requested size in credits.
        gmtu: u32,
    },
    /// A factor is invalid, or k is above w.
    #[error("k = {k} and w = {w}: both are above 0 and at most 1000, and k is at most w")]
    Factors {
        /// Requested k.
        k: f64,
        /// Requested w.
        w: f64,
    },
    /// A share is invalid.
    #[error("the share is {share}: it is above 0 and at most 1")]
    Share {
        /// Index of the class.
        class: usize,
        /// Requested share.
        share: f64,
    },
    /// A distance is invalid in this table.
    #[error("the distance is {distance}: take a power of two from 1 to {entries}")]
    Distance {
        /// Index of the class.
        class: usize,
        /// Requested distance.
        distance: u32,
        /// Number of the table's entries.
        entries: usize,
    },
    /// A class's largest packet is larger than that of the table, or empty.
    #[error("its largest packet is {mtu} credits: it is 1 to {gmtu}, the largest of all")]
    Mtu {
        /// Index of the class.
        class: usize,
        /// Requested size in credits.
        mtu: u32,
        /// Largest packet of the table in credits.
        gmtu: u32,
    },
    /// A level is invalid, or two classes have it. There are 16 levels.
    #[error("level {level} is above 15, or another class has it")]
    Level {
        /// Index of the class.
        class: usize,
        /// Requested level.
        level: u8,
    },
    /// The shares together exceed the link.
    #[error("the shares add up to {sum}, and the link has 1")]
    Sum {
        /// Sum of the shares.
        sum: f64,
    },
    /// The classes together need more entries than the table has.
    #[error(
        "no entry is left for it: all classes together need {needs}, and the table has {entries}. Give one a larger distance"
    )]
    Full {
        /// Index of the class without entries.
        class: usize,
        /// Number of entries that all classes need.
        needs: u64,
        /// Number of the table's entries.
        entries: usize,
    },
    /// A share is below min φ, for any k or for the requested one.
    #[error(
        "the share {share} is not above {least}, the least for {entries} entries of {mtu} credits with k = {k}: take a larger \
             distance, a smaller packet or a larger share or k"
    )]
    TooSmall {
        /// Index of the class.
        class: usize,
        /// Requested share.
        share: f64,
        /// Smallest share, min φ.
        least: f64,
        /// Number of the class's entries.
        entries: u32,
        /// Largest packet of the class in credits.
        mtu: u32,
        /// Factor of the pool.
        k: f64,
    },
    /// A share is above max φ.
    #[error(
        "the share {share} is above {most}, the most for {entries} entries with k = {k} and w = {w}: take a smaller distance or \
             a larger w"
    )]
    TooLarge {
        /// Index of the class.
        class: usize,
        /// Requested share.
        share: f64,
        /// Largest share, max φ.
        most: f64,
        /// Number of the class's entries.
        entries: u32,
        /// Factor of the pool.
        k: f64,
        /// Factor of the largest weight.
        w: f64,
    },
}

impl BadShare {
    /// Index of the class that the error is about; `None` if it is about no single class.
    pub fn class(&self) -> Option<usize> {
        match *self {
            Self::Table { .. } | Self::Gmtu { .. } | Self::Factors { .. } | Self::Sum { .. } => None,
            Self::Share { class, .. }
            | Self::Distance { class, .. }
            | Self::Mtu { class, .. }
            | Self::Level { class, .. }
            | Self::Full { class, .. }
            | Self::TooSmall { class, .. }
            | Self::TooLarge { class, .. } => Some(class),
        }
    }

    /// Whether a value is none that a plan can have. Other errors are about values that do not go together.
    pub fn is_out_of_range(&self) -> bool {
        !matches!(self, Self::Sum { .. } | Self::Full { .. } | Self::TooSmall { .. } | Self::TooLarge { .. })
    }
}

/// Plans a table of `entries` entries, and finds the smallest factors in tenths: first k, then w from k on.
pub fn plan(entries: usize, gmtu: u32, classes: &[Class]) -> Result<Plan, BadShare> {
    check(entries, gmtu, classes)?;
    let table = Table { entries, gmtu };
    let fits = |k: f64| classes.iter().all(|class| table.least(class, k) < class.share);
    let factor = |tenths: u32| f64::from(tenths) / 10.0;
    let least = (1..=MAX_TENTHS).find(|tenths| fits(factor(*tenths))).unwrap_or(MAX_TENTHS);
    let k = factor(least);
    let holds = |w: f64| classes.iter().all(|class| table.most(class, Factors { k, w }) > class.share);
    let w = (least..=MAX_TENTHS).map(factor).find(|w| holds(*w));
    table.plan(classes, Factors { k, w: w.unwrap_or(factor(MAX_TENTHS)) })
}

/// Plans a table as [`plan`], with given factors.
pub fn plan_with(entries: usize, gmtu: u32, classes: &[Class], factors: Factors) -> Result<Plan, BadShare> {
    check(entries, gmtu, classes)?;
    let Factors { k, w } = factors;
    // The comparison is written so that NaN is refused.
    let is_factor = |factor: f64| factor > 0.0 && factor <= f64::from(MAX_TENTHS) / 10.0;
    if !(is_factor(k) && is_factor(w) && k <= w) {
        return Err(BadShare::Factors { k, w });
    }
    Table { entries, gmtu }.plan(classes, factors)
}

/// Upper bound of a factor, in tenths.
const MAX_TENTHS: u32 = 10_000;
/// Tolerance of the shares' sum above 1, because shares are decimal fractions.
const ROUNDING: f64 = 1e-9;

fn check(entries: usize, gmtu: u32, classes: &[Class]) -> Result<(), BadShare> {
    if !(entries.is_power_of_two() && (2..=1024).contains(&entries)) {
        return Err(BadShare::Table { entries });
    }
    if !(1..=u32::from(u16::MAX)).contains(&gmtu) {
        return Err(BadShare::Gmtu { gmtu });
    }
    for (at, class) in classes.iter().enumerate() {
        let Class { level, distance, share, mtu } = *class;
        if usize::from(level) >= LANES || classes[..at].iter().any(|other| other.level == level) {
            return Err(BadShare::Level { class: at, level });
        }
        if !(share > 0.0 && share <= 1.0) {
            return Err(BadShare::Share { class: at, share });
        }
        if !(distance.is_power_of_two() && distance as usize <= entries) {
            return Err(BadShare::Distance { class: at, distance, entries });
        }
        if !(1..=gmtu).contains(&mtu) {
            return Err(BadShare::Mtu { class: at, mtu, gmtu });
        }
    }
    let sum = classes.iter().map(|class| class.share).sum();
    if sum > 1.0 + ROUNDING { Err(BadShare::Sum { sum }) } else { Ok(()) }
}

struct Table {
    entries: usize,
    gmtu: u32,
}

impl Table {
    fn entries_of(&self, class: &Class) -> u32 {
        self.entries as u32 / class.distance
    }

    fn pool(&self, k: f64) -> f64 {
        self.entries as f64 * f64::from(self.gmtu) * k
    }

    /// Smallest share min φ of a class.
    fn least(&self, class: &Class, k: f64) -> f64 {
        f64::from(self.entries_of(class)) * f64::from(class.mtu) / self.pool(k)
    }

    /// Largest share max φ of a class.
    fn most(&self, class: &Class, Factors { k, w }: Factors) -> f64 {
        f64::from(self.entries_of(class)) * w / (self.entries as f64 * k)
    }

    fn plan(&self, classes: &[Class], factors: Factors) -> Result<Plan, BadShare> {
        let Factors { k, w } = factors;
        let pool = self.pool(k);
        // The lower bounds are checked first: if no k reaches one, no w can be right.
        for (at, class) in classes.iter().enumerate() {
            let (share, entries, least) = (class.share, self.entries_of(class), self.least(class, k));
            if least > share + ROUNDING {
                return Err(BadShare::TooSmall { class: at, share, least, entries, mtu: class.mtu, k });
            }
        }
        for (at, class) in classes.iter().enumerate() {
            let (share, entries, most) = (class.share, self.entries_of(class), self.most(class, factors));
            if share > most + ROUNDING {
                return Err(BadShare::TooLarge { class: at, share, most, entries, k, w });
            }
        }
        let places = self.places(classes)?;
        let weights: Vec<_> = classes.iter().map(|class| self.first_weight(class, pool)).collect();
        let total: u64 = classes
            .iter()
            .zip(&weights)
            .map(|(class, &weight)| u64::from(self.entries_of(class)) * u64::from(weight))
            .sum();
        let mut slots = vec![Slot::default(); self.entries];
        let mut planned = Vec::new();
        for ((class, places), first_weight) in classes.iter().zip(places).zip(weights) {
            let entries = self.entries_of(class);
            let own = f64::from(entries) * f64::from(first_weight);
            let correction = -((own / total as f64 - class.share) * total as f64).round() as i64;
            places.iter().for_each(|&place| slots[place] = Slot { level: class.level, weight: first_weight });
            correct(&mut slots, &places, correction, class.mtu);
            let credits = places.iter().map(|&place| u64::from(slots[place].weight)).sum();
            planned.push(PlannedClass { class: class.clone(), entries, first_weight, correction, credits });
        }
        Ok(Plan { slots, factors, pool, classes: planned })
    }

    /// Weight E of a class's entries, at least its largest packet.
    fn first_weight(&self, class: &Class, pool: f64) -> u32 {
        ((pool * class.share / f64::from(self.entries_of(class))).ceil() as u32).max(class.mtu)
    }

    /// Chooses each class's entries, in ascending order. Classes of small distances come first.
    fn places(&self, classes: &[Class]) -> Result<Vec<Vec<usize>>, BadShare> {
        let mut order: Vec<_> = (0..classes.len()).collect();
        order.sort_by_key(|&at| classes[at].distance);
        let mut sequences = Sequences::new(self.entries);
        let mut places = vec![Vec::new(); classes.len()];
        for at in order {
            let needs = self.entries_of(&classes[at]);
            // Larger blocks were taken before, so the number of free entries is a multiple of this one: it fits, or
            // nothing does.
            let Some(id) = sequences.allocate(needs as usize) else {
                let needs = classes.iter().map(|class| u64::from(self.entries_of(class))).sum();
                return Err(BadShare::Full { class: at, needs, entries: self.entries });
            };
            places[at] = sequences.entries(id);
        }
        Ok(places)
    }
}

/// Applies the correction D: one credit per entry from the table's end, again and again. No entry gets less than the
/// class's largest packet.
fn correct(slots: &mut [Slot], places: &[usize], correction: i64, mtu: u32) {
    let mut left = correction;
    while left != 0 {
        let before = left;
        for &place in places.iter().rev() {
            let weight = &mut slots[place].weight;
            if left > 0 {
                *weight += 1;
                left -= 1;
            } else if left < 0 && *weight > mtu {
                *weight -= 1;
                left += 1;
            }
        }
        if left == before {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtable::{DTable, Head, WhenStalled};
    use proptest::{collection::vec, prelude::*};

    /// Makes classes of the levels 0, 1, 2, … from rows of (distance, share, MTU).
    fn classes(rows: &[(u32, f64, u32)]) -> Vec<Class> {
        (0..)
            .zip(rows)
            .map(|(level, &(distance, share, mtu))| Class { level, distance, share, mtu })
            .collect()
    }

    fn columns(plan: &Plan) -> (Vec<u32>, Vec<i64>, Vec<u64>) {
        let rows = plan.classes.iter();
        (
            rows.clone().map(|row| row.first_weight).collect(),
            rows.clone().map(|row| row.correction).collect(),
            rows.map(|row| row.credits).collect(),
        )
    }

    /// Returns the weights of a class in the table's order.
    fn weights(plan: &Plan, level: u8) -> Vec<u32> {
        plan.slots.iter().filter(|slot| slot.level == level).map(|slot| slot.weight).collect()
    }

    /// Returns the shares of the credits if all classes always have packets of their MTU.
    fn saturated(plan: &Plan, packets: usize) -> Vec<f64> {
        let mut table = DTable::new(plan.slots.clone(), WhenStalled::Lose);
        let mut sent = [0u64; LANES];
        for _ in 0..packets {
            let head = |level| {
                let class = plan.classes.iter().find(|row| row.class.level == level);
                class.map_or(Head::Empty, |row| Head::Ready(row.class.mtu as u16))
            };
            let (level, size) = table.next(head).expect("all have packets");
            sent[usize::from(level)] += u64::from(size);
        }
        let all: u64 = sent.iter().sum();
        plan.classes.iter().map(|row| sent[usize::from(row.class.level)] as f64 / all as f64).collect()
    }

    #[test]
    fn tables_4_8_and_4_9() {
        // The rows are the classes VO, VI, CL, BE, BK, with packets of 128, 256, 512, 1024 and 1024 bytes.
        let rows = [(2, 0.10, 2), (4, 0.30, 4), (8, 0.50, 8), (16, 0.05, 16), (16, 0.05, 16)];
        let plan = plan_with(128, 16, &classes(&rows), Factors { k: 2.0, w: 8.0 }).expect("it is a table");
        assert_eq!(plan.pool, 4096.0);
        let (first, correction, credits) = columns(&plan);
        assert_eq!(first, [7, 39, 128, 26, 26]);
        assert_eq!(correction, [-32, 0, 32, 0, 0]);
        assert_eq!(credits, [416, 1248, 2080, 208, 208]);
        assert_eq!(plan.credits(), 4160);
        assert_eq!(weights(&plan, 0), [[7; 32], [6; 32]].concat());
        assert_eq!(weights(&plan, 2), [130; 16]);
        for (share, (_, expected, _)) in saturated(&plan, 200_000).into_iter().zip(rows) {
            assert!((share - expected).abs() < 0.001, "{share} and not {expected}");
        }
    }

    /// The rule that the thesis states (steps of 0.1 until the largest shares are above the requested ones) ends at
    /// w = 2.9; the thesis has chosen 3. The weights are the same, because w is only a bound.
    #[test]
    fn table_5_4_and_its_factors_are_found() {
        // The rows are the classes NC, VO, VI, CL, EE, BE, BK, with packets of 192, 128, 2048, 2048 and three times 1024
        // bytes.
        let rows = [
            (2, 0.094, 3),
            (4, 0.164, 2),
            (8, 0.30, 32),
            (16, 0.35, 32),
            (32, 0.04, 16),
            (64, 0.036, 16),
            (64, 0.016, 16),
        ];
        let plan = plan(64, 32, &classes(&rows)).expect("it is a table");
        assert_eq!(plan.factors, Factors { k: 0.5, w: 2.9 });
        let published =
            plan_with(64, 32, &classes(&rows), Factors { k: 0.5, w: 3.0 }).expect("it is a table");
        assert_eq!(published.slots, plan.slots);
        assert_eq!(plan.pool, 1024.0);
        assert_eq!(columns(&plan).2, [101, 176, 322, 375, 43, 39, 17]);
        assert_eq!(plan.credits(), 1073);
        assert_eq!(weights(&plan, 0), [[4; 5].as_slice(), &[3; 27]].concat());
        for (share, (_, expected, _)) in saturated(&plan, 100_000).into_iter().zip(rows) {
            assert!((share - expected).abs() < 0.002, "{share} and not {expected}");
        }
    }

    #[test]
    fn table_4_4() {
        let rows = [(2, 0.33334, 1), (4, 0.33333, 2), (4, 0.33333, 3)];
        let plan = plan_with(128, 3, &classes(&rows), Factors { k: 3.0, w: 4.0 }).expect("it is a table");
        assert_eq!(plan.pool, 1152.0);
        let (first, _, credits) = columns(&plan);
        assert_eq!(first, [7, 12, 12]);
        assert_eq!(credits, [405, 405, 405]);
        assert_eq!([7 * 64, 12 * 32, 12 * 32], [448, 384, 384], "before the correction");
    }

    #[test]
    fn table_4_5() {
        let levels = [0, 1, 0, 2, 0, 1, 0, 2];
        let slots = |weights: [u32; 8]| -> Vec<Slot> {
            levels.into_iter().zip(weights).map(|(level, weight)| Slot { level, weight }).collect()
        };
        let mut table = slots([4, 2, 4, 3, 4, 2, 4, 3]);
        for (level, correction) in [(0, -3), (1, 1), (2, 2)] {
            let places: Vec<_> = (0..levels.len()).filter(|&at| levels[at] == level).collect();
            correct(&mut table, &places, correction, 1);
        }
        assert_eq!(table, slots([4, 2, 3, 4, 3, 3, 3, 4]));
    }

    #[test]
    fn what_cannot_be_says_which_class_and_what_would_fit() {
        let fails = |rows: &[(u32, f64, u32)]| plan(64, 32, &classes(rows)).expect_err("no table");
        let error = fails(&[(2, 0.5, 3), (2, 0.3, 3), (64, 0.1, 3)]);
        assert_eq!(error.class(), Some(2));
        let expected = "no entry is left for it: all classes together need 65, and the table has 64. Give one a larger distance";
        assert_eq!(error.to_string(), expected);
        let error = fails(&[(2, 0.5, 3), (8, 0.3, 3), (4, 0.1, 3), (4, 0.1, 3)]);
        assert!(matches!(error, BadShare::Full { class: 1, needs: 72, .. }), "{error}");
        assert_eq!(fails(&[(2, 0.9, 3), (4, 0.2, 3)]).class(), None);
        for share in [0.0, -0.1, f64::NAN, f64::INFINITY, 1.1] {
            assert_eq!(fails(&[(2, 0.1, 3), (4, share, 3)]).class(), Some(1), "{share}");
        }
        assert!(matches!(fails(&[(1, 1e-300, 32)]), BadShare::TooSmall { class: 0, .. }));
        assert!(matches!(fails(&[(64, 0.99, 32), (1, 1e-5, 32)]), BadShare::TooSmall { class: 1, .. }));
        for distance in [0, 3, 128, u32::MAX] {
            assert!(matches!(fails(&[(distance, 0.1, 3)]), BadShare::Distance { .. }), "{distance}");
        }
        for factors in [(0.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 1.0)] {
            let (k, w) = factors;
            let error = plan_with(64, 32, &[], Factors { k, w }).expect_err("no factors");
            assert!(matches!(error, BadShare::Factors { .. }), "{factors:?}");
        }
    }

    proptest! {
        /// A plan has the shares within 2 %, entries at the distance, and room for the largest packet in each.
        #[test]
        fn proptest_plans_hold_what_they_promise(
            rows in vec((1u32..=6, 1u32..=100, 1u32..=32), 1..8),
        ) {
            let total: u32 = rows.iter().map(|row| row.1).sum();
            let rows: Vec<_> =
                rows.into_iter()
                    .map(|(bits, part, mtu)| (1 << bits, f64::from(part) / f64::from(total), mtu))
                    .collect();
            let wanted = classes(&rows);
            let Ok(plan) = plan(64, 32, &wanted) else { return Ok(()) };
            let cycle = plan.credits() as f64;
            for row in &plan.classes {
                let is_own = |slot: Slot| slot.weight > 0 && slot.level == row.class.level;
                let places: Vec<_> = (0..64).filter(|&at| is_own(plan.slots[at])).collect();
                prop_assert!(places.windows(2).all(|pair| pair[1] - pair[0] == row.class.distance as usize));
                prop_assert_eq!(places.len(), row.entries as usize);
                prop_assert!(places.iter().all(|&at| plan.slots[at].weight >= row.class.mtu));
                let share = row.credits as f64 / cycle;
                prop_assert!((share - row.class.share).abs() <= 0.02, "{} and not {}", share, row.class.share);
            }
        }
    }
}
