//! Guarantees of tables: each lane's share where all lanes have packets, and the longest wait of a packet.

use crate::{
    table::{Entry, LANES, UNIT, VlTables},
    vl_arbiter::{LowTurn, Table, VlArbiter},
};
use std::{ops::Add, time::Duration};

/// Upper bound of the simulated packets, in case the port's state does not repeat. The shares are taken then.
const MOST_PACKETS: u64 = 1 << 20;

/// Result of a port whose lanes always have packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saturation {
    /// Each lane's part of the bytes that the port sends.
    pub shares: [f64; LANES],
    /// Mean distance from a turn of a lane to its next one, in turns of either table. `None`: the lane has no turn.
    pub distances: [Option<f64>; LANES],
}

/// Bytes and turns of each lane.
#[derive(Clone, Copy, Default)]
struct Counts {
    bytes: [u64; LANES],
    turns: [u64; LANES],
}

/// Simulates a port's arbiter until its state repeats. `packets` has the size in bytes of each lane's packets, all alike,
/// or `None` if the lane has none.
///
/// A turn of the high table is an entry, which goes on after an interruption by the low one. A turn of the low table is all
/// that it sends of an entry at a stretch.
pub fn saturate(tables: &VlTables, low_turn: LowTurn, packets: &[Option<u32>; LANES]) -> Saturation {
    let mut port = VlArbiter::new(tables.clone(), low_turn);
    let (mut counts, mut last) = (Counts::default(), Table::Low);
    // Brent's algorithm: the state is compared with one that is renewed at each power of two.
    let (mut old, mut then, mut renewal) = (port.clone(), counts, 1);
    for packet in 1..=MOST_PACKETS {
        let Some(choice) = port.next(|vl| packets[usize::from(vl)]) else { break };
        let begins = choice.begins || choice.table == Table::Low && last == Table::High;
        counts.bytes[usize::from(choice.vl)] += u64::from(choice.bytes);
        counts.turns[usize::from(choice.vl)] += u64::from(begins);
        last = choice.table;
        if port == old {
            counts.bytes.iter_mut().zip(then.bytes).for_each(|(count, then)| *count -= then);
            counts.turns.iter_mut().zip(then.turns).for_each(|(count, then)| *count -= then);
            break;
        }
        if packet == renewal {
            (old, then, renewal) = (port.clone(), counts, 2 * renewal);
        }
    }
    let (bytes, turns) = (counts.bytes.iter().sum::<u64>(), counts.turns.iter().sum::<u64>());
    Saturation {
        shares: counts.bytes.map(|own| own as f64 / bytes.max(1) as f64),
        distances: counts.turns.map(|own| (own > 0).then(|| turns as f64 / own as f64)),
    }
}

/// Upper bound of the bytes that go before a packet at the head of its lane begins: the packet that is being sent,
/// the entries up to the lane's next one with all their weights, and the packets of the low table that the limit
/// lets through. `None` if there is no such bound: the lane is in no table, or in the low one while the high one has
/// no limit.
///
/// The bound leaves out management packets, waiting for credits, and packets of the same lane.
pub fn wait_bytes(tables: &VlTables, low_turn: LowTurn, mtu: u32, vl: u8) -> Option<u64> {
    let of_low = || {
        let bytes = low_wait(tables, mtu, vl)?;
        Some(bytes + u64::from(mtu))
    };
    let of_high = || {
        let others = between(&tables.high, mtu, vl)?;
        let low = low_bytes(tables, low_turn, mtu);
        Some(u64::from(mtu) + others.bytes + low_turns(tables.limit_bytes(), others) * low)
    };
    of_high().into_iter().chain(of_low()).min()
}

/// The bound of [`wait_bytes`] for a lane whose high entries are `distance` apart in a full table, whatever the
/// other entries are.
pub fn wait_bytes_at(distance: usize, high_limit: u8, mtu: u32) -> u64 {
    let limit = VlTables { high_limit, ..VlTables::default() }.limit_bytes();
    let entry = Burst::of(Entry { vl: 0, weight: u8::MAX }, mtu);
    let others = (1..distance).fold(Burst::default(), |sum, _| sum + entry);
    u64::from(mtu) + others.bytes + low_turns(limit, others) * u64::from(mtu)
}

/// Returns the time that `bytes` bytes take at `rate` bits a second, rounded up.
pub fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanos = (u128::from(bytes) * 8 * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns the largest distance between two entries of a lane, in entries of the table; `None` if the lane has no entry.
pub fn distance(table: &[Entry], vl: u8) -> Option<usize> {
    let own = own_entries(table, vl);
    let last = own.last()?;
    let gaps = own.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.chain([own[0] + table.len() - last]).max()
}

/// Upper bound of the packets and bytes in the turns of some entries.
#[derive(Clone, Copy, Default)]
struct Burst {
    packets: u64,
    bytes: u64,
}

impl Burst {
    /// Burst of one entry. Its last packet is sent whole if one unit of the weight is left.
    fn of(entry: Entry, mtu: u32) -> Self {
        match u64::from(entry.weight) {
            0 => Self::default(),
            weight => Self { packets: weight, bytes: (weight - 1) * UNIT + u64::from(mtu) },
        }
    }
}

impl Add for Burst {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

fn own_entries(table: &[Entry], vl: u8) -> Vec<usize> {
    (0..table.len()).filter(|&at| table[at].vl == vl && table[at].weight > 0).collect()
}

/// Returns the largest burst of other lanes between two entries of a lane.
fn between(table: &[Entry], mtu: u32, vl: u8) -> Option<Burst> {
    let own = own_entries(table, vl);
    let bursts = own.iter().map(|&at| {
        let next = (1..=table.len()).map(|step| table[(at + step) % table.len()]);
        let others = next.take_while(|entry| entry.vl != vl || entry.weight == 0);
        others.fold(Burst::default(), |sum, entry| sum + Burst::of(entry, mtu))
    });
    bursts.max_by_key(|burst| (burst.bytes, burst.packets))
}

/// Upper bound of the turns of the low table during a burst of the high one.
fn low_turns(limit: Option<u64>, others: Burst) -> u64 {
    limit.map_or(0, |limit| (others.bytes / limit).min(others.packets) + 1)
}

/// Upper bound of the bytes of a low turn.
fn low_bytes(tables: &VlTables, low_turn: LowTurn, mtu: u32) -> u64 {
    let entries = tables.low.iter().map(|&entry| Burst::of(entry, mtu).bytes);
    let most = entries.max().unwrap_or(0);
    if low_turn == LowTurn::Packet { most.min(u64::from(mtu)) } else { most }
}

/// Upper bound of a low lane's wait: the other entries of the table, and before each of their packets and its own
/// the bytes that the high table may send.
fn low_wait(tables: &VlTables, mtu: u32, vl: u8) -> Option<u64> {
    let others = between(&tables.low, mtu, vl)?;
    if tables.high.iter().all(|entry| entry.weight == 0) {
        return Some(others.bytes);
    }
    let burst = tables.limit_bytes()? - 1 + u64::from(mtu);
    Some(others.bytes + (others.packets + 1) * burst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn entries(pairs: &[(u8, u8)]) -> Vec<Entry> {
        pairs.iter().map(|&(vl, weight)| Entry { vl, weight }).collect()
    }

    /// Returns the shares of the lanes 0 to 3, in hundredths of a percent.
    fn measured(high: &[(u8, u8)], low: &[(u8, u8)]) -> [i64; 4] {
        let tables = VlTables { high: entries(high), low: entries(low), high_limit: 1 };
        let mut packets = [None; LANES];
        packets[..4].fill(Some(64));
        let shares = saturate(&tables, LowTurn::Entry, &packets).shares;
        [0, 1, 2, 3].map(|vl: usize| (shares[vl] * 10_000.0).round() as i64)
    }

    /// The high tables have totals of 264, 158 and 106; 704, 432 and 288. The thesis prints level 3's share in configuration
    /// A alone, 8.57 %. The others follow from its algorithm 4: 64 packets of the high table, then all of a low entry.
    #[test]
    fn shares_of_table_6_1_are_those_of_algorithm_4() {
        let first = measured(&[(0, 132), (1, 158), (0, 132), (2, 106)], &[(3, 6)]);
        assert_eq!(first, [4571, 2736, 1835, 857]);
        let second =
            measured(&[(0, 252), (1, 216), (0, 252), (2, 144), (0, 200), (1, 216), (2, 144)], &[(3, 2)]);
        assert_eq!(second, [4794, 2942, 1961, 303]);
    }

    #[test]
    fn a_low_packet_at_a_time_is_a_smaller_share() {
        let tables = VlTables { high: entries(&[(0, 100)]), low: entries(&[(3, 6)]), high_limit: 1 };
        let mut packets = [None; LANES];
        packets[0] = Some(64);
        packets[3] = Some(64);
        let saturate = |low_turn| saturate(&tables, low_turn, &packets);
        let of = |lane: usize, Saturation { shares, distances }: Saturation| (shares[lane], distances[lane]);
        assert_eq!(of(3, saturate(LowTurn::Packet)).0, 1.0 / 65.0);
        assert_eq!(of(3, saturate(LowTurn::Entry)).0, 6.0 / 70.0);
        // In 1,600 high packets there are 16 turns of the high entry and 25 of the low table.
        assert_eq!(of(3, saturate(LowTurn::Packet)).1, Some(41.0 / 25.0));
        assert_eq!(of(0, saturate(LowTurn::Entry)).1, Some(41.0 / 16.0));
        let nothing = super::saturate(&tables, LowTurn::Packet, &[None; LANES]);
        assert_eq!(nothing, Saturation { shares: [0.0; LANES], distances: [None; LANES] });
    }

    #[test]
    fn distances_are_cyclic_and_skip_what_has_no_weight() {
        let table = entries(&[(0, 1), (1, 1), (0, 0), (0, 1)]);
        assert_eq!(distance(&table, 0), Some(3));
        assert_eq!((distance(&table, 1), distance(&table, 2)), (Some(4), None));
    }

    #[test]
    fn waits_of_lanes_that_have_no_bound() {
        let tables = VlTables { high: entries(&[(0, 1)]), low: entries(&[(1, 1)]), high_limit: 255 };
        let wait = |vl| wait_bytes(&tables, LowTurn::Packet, 2048, vl);
        // The packet waits only for the one that is being sent.
        assert_eq!((wait(0), wait(1), wait(2)), (Some(2048), None, None));
        let tables = VlTables { high_limit: 1, ..tables };
        let wait = |vl| wait_bytes(&tables, LowTurn::Packet, 2048, vl);
        assert_eq!((wait(0), wait(1)), (Some(2048 + 2048), Some(2048 + 4095 + 2048)));
        assert_eq!(time_of(2500, 10_000_000_000), Duration::from_micros(2));
    }

    const MTU: u32 = 512;

    fn table() -> impl Strategy<Value = Vec<Entry>> {
        vec((0u8..4, 0u8..20).prop_map(|(vl, weight)| Entry { vl, weight }), 0..10)
    }

    proptest! {
        /// A lane's packet comes at any time into a port whose other lanes are busy, with packets of any size.
        #[test]
        fn proptest_no_packet_waits_longer_than_its_bound(
            (high, low) in (table(), table()),
            limit in prop_oneof![Just(0u8), Just(1), Just(2), Just(255)],
            entry_turn: bool,
            vl in 0u8..4,
            sizes in vec(1u32..=MTU, 97),
            times in vec(1usize..60, 1..20),
        ) {
            let tables = VlTables { high, low, high_limit: limit };
            let low_turn = if entry_turn { LowTurn::Entry } else { LowTurn::Packet };
            let Some(bound) = wait_bytes(&tables, low_turn, MTU, vl) else { return Ok(()) };
            let mut port = VlArbiter::new(tables, low_turn);
            let mut packet = 0;
            for before in times {
                let mut send = |own: bool| {
                    packet += 1;
                    port.next(|lane| {
                        let size = sizes[(packet + 31 * usize::from(lane)) % sizes.len()];
                        (lane < 4 && (own || lane != vl)).then_some(size)
                    })
                };
                // The packet comes when the other one has just begun.
                let last = (0..before).filter_map(|_| send(false)).last();
                let mut waited = last.map_or(0, |last| u64::from(last.bytes));
                while let Some(choice) = send(true).filter(|choice| choice.vl != vl) {
                    waited += u64::from(choice.bytes);
                    prop_assert!(waited <= bound, "{} and not {}", waited, bound);
                }
            }
        }
    }
}
