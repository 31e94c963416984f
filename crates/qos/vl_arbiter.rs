//! InfiniBand's arbiter of virtual lanes: two cyclic tables, and a limit of what the high one may send at a stretch.
//!
//! A turn of an entry ends when its weight is used up or its lane has no packet. Packets are sent whole, so the last
//! packet of a turn may exceed the weight. The excess is not taken off later turns, unlike in [`crate::dtable`].

use crate::table::{Entry, MANAGEMENT_VL, UNIT, VlTables};

/// Turn of the low table when the high table has sent its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LowTurn {
    /// One packet of the low table, as in the specification.
    #[default]
    Packet,
    /// One whole entry of the low table, as measured on switches.
    Entry,
}

/// Table by which a packet was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Table {
    /// Neither table: VL 15.
    Management,
    /// The high table.
    High,
    /// The low table.
    Low,
}

/// The packet that goes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// Lane of the packet.
    pub vl: u8,
    /// Size in bytes.
    pub bytes: u32,
    /// Table by which it goes.
    pub table: Table,
    /// Whether an entry begins its turn with it.
    pub begins: bool,
}

/// State of a port's arbiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VlArbiter {
    tables: VlTables,
    low_turn: LowTurn,
    high: Turn,
    low: Turn,
    /// Bytes that the high table has sent since the low one had its last opportunity.
    since_low: u64,
    in_low_entry: bool,
}

/// The entry whose turn it is, and the rest of its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Turn {
    at: usize,
    left: u64,
}

impl VlArbiter {
    /// Makes an arbiter that starts at the first entry of each table.
    pub fn new(tables: VlTables, low_turn: LowTurn) -> Self {
        let (high, low) = (Turn::before(&tables.high), Turn::before(&tables.low));
        Self { tables, low_turn, high, low, since_low: 0, in_low_entry: false }
    }

    /// Chooses among the lanes' first packets. `head` gives the size in bytes of a lane's first packet, or `None` if
    /// none may be sent: there is none, or no credit for it.
    pub fn next(&mut self, head: impl Fn(u8) -> Option<u32>) -> Option<Choice> {
        if let Some(bytes) = head(MANAGEMENT_VL) {
            return Some(Choice { vl: MANAGEMENT_VL, bytes, table: Table::Management, begins: false });
        }
        if std::mem::take(&mut self.in_low_entry)
            && let Some((vl, bytes)) = self.low.go_on(&self.tables.low, &head)
        {
            self.in_low_entry = true;
            return Some(Choice { vl, bytes, table: Table::Low, begins: false });
        }
        if self.tables.limit_bytes().is_some_and(|limit| self.since_low >= limit) {
            // The opportunity counts whether the low table has a packet or not.
            self.since_low = 0;
            if let Some((vl, bytes, begins)) = self.low.next(&self.tables.low, &head) {
                self.in_low_entry = self.low_turn == LowTurn::Entry;
                return Some(Choice { vl, bytes, table: Table::Low, begins });
            }
        }
        if let Some((vl, bytes, begins)) = self.high.next(&self.tables.high, &head) {
            self.since_low += u64::from(bytes);
            return Some(Choice { vl, bytes, table: Table::High, begins });
        }
        let (vl, bytes, begins) = self.low.next(&self.tables.low, &head)?;
        self.since_low = 0;
        Some(Choice { vl, bytes, table: Table::Low, begins })
    }
}

impl Turn {
    fn before(table: &[Entry]) -> Self {
        Self { at: table.len().saturating_sub(1), left: 0 }
    }

    /// Returns the same entry's next packet, or that of the next entry which has one, and whether that entry begins.
    fn next(&mut self, table: &[Entry], head: &impl Fn(u8) -> Option<u32>) -> Option<(u8, u32, bool)> {
        if let Some((vl, bytes)) = self.go_on(table, head) {
            return Some((vl, bytes, false));
        }
        for step in 1..=table.len() {
            let at = (self.at + step) % table.len();
            let Entry { vl, weight } = table[at];
            if weight > 0
                && let Some(bytes) = head(vl)
            {
                *self = Self { at, left: u64::from(weight) };
                let (vl, bytes) = self.spend(vl, bytes);
                return Some((vl, bytes, true));
            }
        }
        None
    }

    fn go_on(&mut self, table: &[Entry], head: &impl Fn(u8) -> Option<u32>) -> Option<(u8, u32)> {
        let vl = table.get(self.at)?.vl;
        let bytes = if self.left > 0 { head(vl)? } else { return None };
        Some(self.spend(vl, bytes))
    }

    /// Takes a packet off the weight. The packet is sent whole if any weight is left.
    fn spend(&mut self, vl: u8, bytes: u32) -> (u8, u32) {
        self.left = self.left.saturating_sub(u64::from(bytes).div_ceil(UNIT).max(1));
        (vl, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(pairs: &[(u8, u8)]) -> Vec<Entry> {
        pairs.iter().map(|&(vl, weight)| Entry { vl, weight }).collect()
    }

    fn arbiter(high: &[(u8, u8)], low: &[(u8, u8)], high_limit: u8) -> VlArbiter {
        VlArbiter::new(VlTables { high: entries(high), low: entries(low), high_limit }, LowTurn::Packet)
    }

    /// Returns the lanes of the next packets if all of `busy` have packets of `bytes` bytes.
    fn order(arbiter: &mut VlArbiter, busy: &[u8], bytes: u32, packets: usize) -> Vec<u8> {
        let head = |vl| busy.contains(&vl).then_some(bytes);
        (0..packets).map_while(|_| arbiter.next(head)).map(|choice| choice.vl).collect()
    }

    #[test]
    fn weights_are_units_of_64_bytes_and_packets_are_whole() {
        let mut port = arbiter(&[(0, 2), (1, 1), (2, 0)], &[], 255);
        assert_eq!(order(&mut port, &[0, 1, 2], 64, 6), [0, 0, 1, 0, 0, 1]);
        // A packet of 65 bytes takes two units, and the second packet of a weight of 3 exceeds it.
        let mut port = arbiter(&[(0, 3), (1, 1)], &[], 255);
        assert_eq!(order(&mut port, &[0, 1], 65, 6), [0, 0, 1, 0, 0, 1]);
    }

    #[test]
    fn a_high_limit_of_0_alternates_and_255_starves_the_low_table() {
        let (high, low) = (&[(0, 255)], &[(1, 255)]);
        assert_eq!(order(&mut arbiter(high, low, 0), &[0, 1], 2048, 6), [0, 1, 0, 1, 0, 1]);
        assert_eq!(order(&mut arbiter(high, low, 255), &[0, 1], 2048, 1000), [0; 1000]);
        // The limit of 4096 bytes is two packets.
        assert_eq!(order(&mut arbiter(high, low, 1), &[0, 1], 2048, 6), [0, 0, 1, 0, 0, 1]);
    }

    #[test]
    fn the_high_entry_resumes_with_what_was_left_of_its_weight() {
        // A turn of VL 0 has 96 units: 64 of them, a low packet, 32 more, and then VL 1's turn.
        let mut port = arbiter(&[(0, 96), (1, 32)], &[(2, 1)], 1);
        let order = order(&mut port, &[0, 1, 2], 2048, 5);
        assert_eq!(order, [0, 0, 2, 0, 1]);
    }

    /// VL 0 has three packets of 64 bytes, VL 2 two, and the high table has sent 3,968 of its 4,096 bytes.
    #[test]
    fn figure_6_1() {
        let tables = VlTables { high: entries(&[(0, 3)]), low: entries(&[(2, 2)]), high_limit: 1 };
        let mut port = VlArbiter { since_low: 3968, ..VlArbiter::new(tables, LowTurn::Entry) };
        let mut waiting = [3, 0, 2];
        let mut order = Vec::new();
        while let Some(choice) =
            port.next(|vl| waiting.get(usize::from(vl)).filter(|packets| **packets > 0).map(|_| 64))
        {
            waiting[usize::from(choice.vl)] -= 1;
            order.push(choice.vl);
        }
        assert_eq!(order, [0, 0, 2, 2, 0]);
    }

    #[test]
    fn the_low_table_goes_when_the_high_one_has_nothing_and_management_before_all() {
        let mut port = arbiter(&[(0, 1)], &[(1, 1), (2, 1)], 255);
        assert_eq!(order(&mut port, &[1, 2], 64, 4), [1, 2, 1, 2]);
        assert_eq!(order(&mut port, &[0, 1, 15], 64, 2), [15, 15]);
        assert_eq!(order(&mut port, &[3], 64, 1), [], "a lane in no table");
        assert_eq!(order(&mut arbiter(&[], &[], 0), &[0, 1], 64, 1), []);
    }

    #[test]
    fn a_lane_that_has_nothing_loses_what_was_left_of_its_turn() {
        let mut port = arbiter(&[(0, 4), (1, 1)], &[], 255);
        assert_eq!(order(&mut port, &[0, 1], 64, 1), [0]);
        assert_eq!(order(&mut port, &[1], 64, 1), [1]);
        assert_eq!(order(&mut port, &[0, 1], 64, 5), [0, 0, 0, 0, 1]);
    }
}
