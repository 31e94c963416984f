//! Shares of service levels, and their text form: `5:50,3:30,0:20`.
//!
//! ```text
//! LEVEL:SHARE[@DISTANCE],...      5:5,3:3,0:2      7:10@2,0:90
//! ```
//!
//! Shares are parts of their sum. A level with the distance d has every d-th entry of the [table](crate::dtable), so
//! it waits for at most d - 1 entries of other levels. Levels without a distance all get the same one. Levels that
//! are not named are sent as the lowest named one.

use std::str::FromStr;

use thiserror::Error;

use crate::dtable::{BadShare, Class, DTable, Plan, WhenStalled, plan};
use crate::table::LANES;

/// Number of the table's entries.
const ENTRIES: usize = 64;
/// Bytes of a credit.
pub const CREDIT: usize = 64;
/// Upper bound of one turn in credits: 16 KiB. A turn is a system call; an entry of the table is one or more.
pub const TURN: u16 = 256;

/// Levels with shares, and their table.
#[derive(Clone, Debug, PartialEq)]
pub struct Levels {
    plan: Plan,
    /// Level as which each level is sent.
    sent_as: [u8; LANES],
}

/// Why a text is no valid list of shares.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum BadLevels {
    /// A part has another form.
    #[error("{part:?} is not LEVEL:SHARE or LEVEL:SHARE@DISTANCE (for example 5:50,3:30,0:20)")]
    Form {
        /// The part of the text.
        part: String,
    },
    /// A level is invalid or named twice.
    #[error("level {level} is named twice, or is above 15")]
    Level {
        /// The level.
        level: u8,
    },
    /// No table has these shares.
    #[error("{why}{}", level.map_or(String::new(), |level| format!(" (level {level})")))]
    Share {
        /// The level that the error is about; `None` if it is about no single level.
        level: Option<u8>,
        /// The planner's error.
        why: BadShare,
    },
}

impl Levels {
    /// Makes a table at its start. A level whose data cannot go at the moment keeps its deficit.
    pub fn table(&self) -> DTable {
        DTable::new(self.plan.slots.clone(), WhenStalled::Keep)
    }

    /// Returns the level as which `level` is sent: itself, if it has a share.
    ///
    /// # Panics
    /// If `level` is above 15.
    pub fn sent_as(&self, level: u8) -> u8 {
        self.sent_as[usize::from(level)]
    }

    /// Returns each level that has a share, and its share as the table has it, as a part of 1.
    pub fn shares(&self) -> impl Iterator<Item = (u8, f64)> + '_ {
        let all = self.plan.credits() as f64;
        self.plan.classes.iter().map(move |class| (class.class.level, class.credits as f64 / all))
    }
}

/// Demands of one level, as in the text.
struct LevelDemand {
    level: u8,
    share: f64,
    distance: Option<u32>,
}

impl FromStr for LevelDemand {
    type Err = BadLevels;

    fn from_str(part: &str) -> Result<Self, BadLevels> {
        let form = || BadLevels::Form { part: part.to_owned() };
        let (level, rest) = part.split_once(':').ok_or_else(form)?;
        let (share, distance) =
            rest.split_once('@').map_or((rest, None), |(share, distance)| (share, Some(distance)));
        let share: f64 = share.trim().parse().map_err(|_| form())?;
        let distance = distance.map(|distance| distance.trim().parse()).transpose().map_err(|_| form())?;
        if !(share > 0.0 && share.is_finite()) {
            return Err(form());
        }
        Ok(LevelDemand { level: level.trim().parse().map_err(|_| form())?, share, distance })
    }
}

impl FromStr for Levels {
    type Err = BadLevels;

    fn from_str(text: &str) -> Result<Self, BadLevels> {
        let wanted: Vec<LevelDemand> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
        for (at, LevelDemand { level, .. }) in wanted.iter().enumerate() {
            if usize::from(*level) >= LANES || wanted[..at].iter().any(|other| other.level == *level) {
                return Err(BadLevels::Level { level: *level });
            }
        }
        let sum: f64 = wanted.iter().map(|wanted| wanted.share).sum();
        let usual = usual_distance(&wanted);
        let classes: Vec<Class> = wanted
            .iter()
            .map(|LevelDemand { level, share, distance }| Class {
                level: *level,
                distance: distance.unwrap_or(usual),
                share: share / sum,
                mtu: TURN.into(),
            })
            .collect();
        let plan = plan(ENTRIES, TURN.into(), &classes)
            .map_err(|why| BadLevels::Share { level: why.class().map(|class| classes[class].level), why })?;
        let lowest = wanted.iter().map(|wanted| wanted.level).min().unwrap_or_default();
        let is_named = |level: u8| wanted.iter().any(|wanted| wanted.level == level);
        let sent_as = std::array::from_fn(|level| if is_named(level as u8) { level as u8 } else { lowest });
        Ok(Levels { plan, sent_as })
    }
}

/// Returns the distance for levels without one: the entries that the others leave, divided among them.
fn usual_distance(wanted: &[LevelDemand]) -> u32 {
    let taken: usize = wanted
        .iter()
        .filter_map(|wanted| wanted.distance)
        .map(|distance| ENTRIES.div_ceil(distance.max(1) as usize))
        .sum();
    let others = wanted.iter().filter(|wanted| wanted.distance.is_none()).count().max(1);
    let each = ENTRIES.saturating_sub(taken) / others;
    let entries = each.checked_ilog2().map_or(1, |log| 1 << log);
    (ENTRIES / entries) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtable::Head;

    fn shares(text: &str) -> Vec<(u8, f64)> {
        text.parse::<Levels>()
            .unwrap()
            .shares()
            .map(|(level, share)| (level, (share * 1000.0).round()))
            .collect()
    }

    #[test]
    fn shares_are_parts_of_their_sum() {
        assert_eq!(shares("5:5,3:3,0:2"), [(5, 500.0), (3, 300.0), (0, 200.0)]);
        assert_eq!(shares("0:1"), [(0, 1000.0)]);
        for (level, share) in shares("7:10@2, 4:30@8, 0:60") {
            let wanted = [(7, 100.0), (4, 300.0), (0, 600.0)].iter().find(|one| one.0 == level).unwrap().1;
            assert!((share - wanted).abs() < 5.0, "{level}: {share}");
        }
    }

    #[test]
    fn a_level_without_a_share_is_sent_as_the_lowest() {
        let levels: Levels = "5:50,3:50".parse().unwrap();
        assert_eq!([0, 3, 4, 5, 15].map(|level| levels.sent_as(level)), [3, 3, 3, 5, 3]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let words = |text: &str| text.parse::<Levels>().unwrap_err().to_string();
        for text in ["", "5", "5:", "x:1", "1:-1", "1:nan", "1:1@", "1:0", "5:50;3:50"] {
            assert!(words(text).contains("LEVEL:SHARE"), "{text}: {}", words(text));
        }
        assert!(words("5:1,5:2").contains("level 5 is named twice"));
        assert!(words("16:1").contains("above 15"));
        assert!(words("5:1@3,0:1").contains("(level 5)"), "{}", words("5:1@3,0:1"));
        assert!(words("5:1@1,0:1").contains("no entry is left"), "{}", words("5:1@1,0:1"));
    }

    /// A level of the distance 2 waits for one entry of other levels, which may be many turns.
    #[test]
    fn an_urgent_level_waits_for_one_entry() {
        for (text, largest) in [("7:10@2,5:45,3:27,0:18", 4703), ("7:90@2,5:45,3:27,0:18", 667)] {
            let levels: Levels = text.parse().unwrap();
            let others = levels.plan.slots.iter().filter(|slot| slot.level != 7);
            assert_eq!(others.map(|slot| slot.weight).max(), Some(largest), "{text}");
            let mut table = levels.table();
            let bulk = |level| if level == 7 { Head::Empty } else { Head::Ready(TURN) };
            let longest = (0..2000).map(|_| {
                table.next(bulk).unwrap();
                let mut joined = table.clone();
                let sent = std::iter::from_fn(|| joined.next(|_| Head::Ready(TURN)));
                sent.take_while(|(level, _)| *level != 7).map(|(_, credits)| u32::from(credits)).sum::<u32>()
            });
            let longest = longest.max().unwrap();
            // A deficit is less than a turn. The turn before is the one in which the level got its message.
            let turn = u32::from(TURN);
            assert!((largest - 2 * turn..largest + turn).contains(&longest), "{text}: {longest}");
        }
    }

    /// Each level sends as much as its share says, however much it sends at a time.
    #[test]
    fn tables_keep_to_the_shares() {
        let levels: Levels = "5:50,3:30,0:20".parse().unwrap();
        let mut table = levels.table();
        let mut sent = [0_u64; LANES];
        for _ in 0..20_000 {
            let (level, credits) =
                table.next(|level| Head::Ready([TURN, 1, 1, 17, 1, 200][level as usize])).unwrap();
            sent[usize::from(level)] += u64::from(credits);
        }
        let all: u64 = sent.iter().sum();
        for (level, share) in levels.shares() {
            let got = sent[usize::from(level)] as f64 / all as f64;
            assert!((got - share).abs() < 0.005, "level {level}: {got} for {share}");
        }
    }
}
