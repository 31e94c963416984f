//! Arbitration at a port: one of the schedulers of `udeck-qos`, or one of two simple ones.

use udeck_qos::{
    dtable::{DTable, Head, Slot, WhenStalled},
    sbt::Sbt,
    table::{LANES, VlTables},
    vl_arbiter::{LowTurn, VlArbiter},
    wrr::Wrr,
};

/// Bytes of a flit, unless a configuration has others.
pub const FLIT_BYTES: u32 = 64;

/// Scheme by which ports choose among levels. All ports of a network have the same.
#[derive(Clone, Debug, PartialEq)]
pub enum Scheme {
    /// One packet of each level in turn.
    RoundRobin,
    /// The highest level that has a packet goes first.
    Priority,
    /// The published simple bandwidth table: weights in packets, restored when all levels are ready and have none left.
    Sbt {
        /// Weights by level.
        weights: [u32; LANES],
    },
    /// Weighted round robin: weights in packets, restored when no ready level has any left.
    Wrr {
        /// Weights by level.
        weights: [u32; LANES],
    },
    /// A table with deficits.
    DTable {
        /// Entries of the table.
        slots: Vec<Slot>,
        /// Whether a stalled level keeps its deficit.
        when_stalled: WhenStalled,
    },
    /// InfiniBand's two tables; the lane of a level is the level.
    Vl {
        /// The tables and the high limit.
        tables: VlTables,
        /// Turn of the low table when the high one has sent its limit.
        low_turn: LowTurn,
    },
}

impl Scheme {
    /// Levels and weights of all entries. Round robin and priority have none.
    pub(crate) fn entries(&self) -> Vec<(usize, u32)> {
        match self {
            Self::RoundRobin | Self::Priority => Vec::new(),
            Self::Sbt { weights } | Self::Wrr { weights } => weights.iter().copied().enumerate().collect(),
            Self::DTable { slots, .. } => slots.iter().map(|slot| (slot.level.into(), slot.weight)).collect(),
            Self::Vl { tables, .. } => {
                let entries = tables.high.iter().chain(&tables.low);
                entries.map(|entry| (entry.vl.into(), entry.weight.into())).collect()
            }
        }
    }
}

/// First packet of a level at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The level has no packet.
    Nothing,
    /// The next buffer has no room for the packet.
    Stalled,
    /// The packet may go; its size in flits.
    Ready(u16),
}

/// Choice of a port's scheduler: the first packet of a level, or of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Number of the level.
    Level(u8),
    /// Number of the lane.
    Lane(u8),
}

/// State of a port's arbitration.
#[derive(Clone, Debug)]
pub enum Arbiter {
    /// Round robin, with the level that sent last.
    RoundRobin(u8),
    /// Priority, which has no state.
    Priority,
    /// The simple bandwidth table.
    Sbt(Sbt),
    /// Weighted round robin.
    Wrr(Wrr),
    /// A table with deficits.
    DTable(DTable),
    /// InfiniBand's two tables, and the bytes of a flit.
    Vl(Box<VlArbiter>, u32),
}

impl Arbiter {
    /// Makes the state of a port at the beginning. InfiniBand's tables, which count bytes, see flits of `flit_bytes`.
    pub fn new(scheme: &Scheme, flit_bytes: u32) -> Self {
        match scheme {
            Scheme::RoundRobin => Self::RoundRobin(LANES as u8 - 1),
            Scheme::Priority => Self::Priority,
            Scheme::Sbt { weights } => Self::Sbt(Sbt::new(*weights)),
            Scheme::Wrr { weights } => Self::Wrr(Wrr::new(*weights)),
            Scheme::DTable { slots, when_stalled } => Self::DTable(DTable::new(slots.clone(), *when_stalled)),
            Scheme::Vl { tables, low_turn } => {
                Self::Vl(Box::new(VlArbiter::new(tables.clone(), *low_turn)), flit_bytes)
            }
        }
    }

    /// Chooses what sends now, among what may. SBT asks for the port's `lanes`: `level_of` returns the level of a lane's first
    /// packet if that may go. The others ask for the levels below `levels`.
    pub fn next(
        &mut self,
        levels: u8,
        waiting: impl Fn(u8) -> Waiting,
        lanes: u8,
        level_of: impl Fn(u8) -> Option<u8>,
    ) -> Option<Choice> {
        let is_ready = |level: u8| level < levels && matches!(waiting(level), Waiting::Ready(_));
        match self {
            Self::RoundRobin(last) => {
                let first = (*last + 1) % levels;
                let level = (first..levels).chain(0..first).find(|level| is_ready(*level))?;
                *last = level;
                Some(Choice::Level(level))
            }
            Self::Priority => (0..levels).rev().find(|level| is_ready(*level)).map(Choice::Level),
            Self::Sbt(table) => table.next(lanes, level_of).map(Choice::Lane),
            Self::Wrr(table) => table.next(is_ready).map(Choice::Level),
            Self::DTable(table) => {
                let head = |level| match if level < levels { waiting(level) } else { Waiting::Nothing } {
                    Waiting::Nothing => Head::Empty,
                    Waiting::Stalled => Head::Stalled,
                    Waiting::Ready(flits) => Head::Ready(flits),
                };
                table.next(head).map(|(level, _)| Choice::Level(level))
            }
            Self::Vl(port, flit_bytes) => {
                let head = |level| match if level < levels { waiting(level) } else { Waiting::Nothing } {
                    Waiting::Ready(flits) => Some(u32::from(flits) * *flit_bytes),
                    _ => None,
                };
                port.next(head).map(|choice| Choice::Level(choice.vl))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    /// Level that a port with a lane for each level chooses.
    fn next(arbiter: &mut Arbiter, levels: u8, waiting: impl Fn(u8) -> Waiting) -> Option<u8> {
        let level_of = |lane: u8| matches!(waiting(lane), Waiting::Ready(_)).then_some(lane);
        arbiter.next(levels, &waiting, levels, level_of).map(|choice| match choice {
            Choice::Level(level) | Choice::Lane(level) => level,
        })
    }

    fn any_scheme() -> impl Strategy<Value = Scheme> {
        let slot = (0u8..4, 1u32..40).prop_map(|(level, weight)| Slot { level, weight });
        let entry = (0u8..4, 1u8..=255).prop_map(|(vl, weight)| udeck_qos::table::Entry { vl, weight });
        // The table has every level, so that none can starve for ever.
        let all_slots = vec(slot, 0..60).prop_map(|mut slots| {
            slots.extend((0..4).map(|level| Slot { level, weight: 1 }));
            slots
        });
        let low = vec(entry, 0..30).prop_map(|mut low| {
            low.extend((0..4).map(|vl| udeck_qos::table::Entry { vl, weight: 1 }));
            low
        });
        prop_oneof![
            Just(Scheme::RoundRobin),
            Just(Scheme::Priority),
            (vec(1u32..50, 4), any::<bool>()).prop_map(|(some, published)| {
                let mut weights = [0; LANES];
                weights[..4].copy_from_slice(&some);
                if published { Scheme::Sbt { weights } } else { Scheme::Wrr { weights } }
            }),
            (all_slots, any::<bool>()).prop_map(|(slots, keep)| {
                let when_stalled = if keep { WhenStalled::Keep } else { WhenStalled::Lose };
                Scheme::DTable { slots, when_stalled }
            }),
            (low, prop_oneof![0u8..=16, Just(255u8)]).prop_map(|(low, high_limit)| {
                let tables = VlTables { high: low[..low.len() / 2].to_vec(), low, high_limit };
                Scheme::Vl { tables, low_turn: LowTurn::Packet }
            }),
        ]
    }

    proptest! {
        /// The chosen level may send, and one is chosen whenever any may.
        #[test]
        fn proptest_an_arbiter_chooses_whoever_may_send(
            scheme in any_scheme(),
            rounds in vec(vec(prop_oneof![Just(Waiting::Nothing), Just(Waiting::Stalled), (1u16..30).prop_map(Waiting::Ready)], 4), 1..200),
        ) {
            let mut arbiter = Arbiter::new(&scheme, FLIT_BYTES);
            for waiting in rounds {
                let may = |level: u8| matches!(waiting[usize::from(level)], Waiting::Ready(_));
                match next(&mut arbiter, 4, |level| waiting[usize::from(level)]) {
                    Some(level) => prop_assert!(level < 4 && may(level)),
                    None => prop_assert!(!(0..4).any(may)),
                }
            }
        }

        /// If all levels have packets, every level of a fair scheme goes sooner or later.
        #[test]
        fn proptest_no_level_starves(scheme in any_scheme()) {
            let unlimited = matches!(&scheme, Scheme::Vl { tables, .. } if tables.high_limit == 255);
            prop_assume!(scheme != Scheme::Priority && !unlimited);
            let mut arbiter = Arbiter::new(&scheme, FLIT_BYTES);
            let mut sent = [0; 4];
            // The high table may send 64 times 255 units between two packets of the low one.
            for _ in 0..2_000_000 {
                let level = next(&mut arbiter, 4, |_| Waiting::Ready(4)).expect("all may");
                sent[usize::from(level)] += 1;
                if sent.iter().all(|sent| *sent > 0) {
                    return Ok(());
                }
            }
            prop_assert!(false, "{:?}", sent);
        }
    }

    #[test]
    fn the_simple_ones() {
        let order = |scheme: &Scheme, ready: &[u8]| {
            let mut arbiter = Arbiter::new(scheme, FLIT_BYTES);
            let waiting = |level| if ready.contains(&level) { Waiting::Ready(1) } else { Waiting::Nothing };
            (0..4).filter_map(|_| next(&mut arbiter, 8, waiting)).collect::<Vec<_>>()
        };
        assert_eq!(order(&Scheme::RoundRobin, &[0, 2, 7]), [0, 2, 7, 0]);
        assert_eq!(order(&Scheme::Priority, &[0, 2, 7]), [7; 4]);
        assert_eq!(order(&Scheme::RoundRobin, &[]), [0u8; 0]);
    }
}
