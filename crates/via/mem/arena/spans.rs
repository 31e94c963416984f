//! The span allocator: tables of an arena's free lines, which grow with the number of blocks.
//!
//! The table of one `offset-allocator` has a fixed size, and is written when it is made. So the arena's own table is small.
//! When the arena has many blocks, further small ones come from *zones*: spans of the arena with a table each.

use offset_allocator::{Allocation, Allocator};

use super::LINE;

/// Entries of the arena's own table: its spans and the gaps between them, 32 bytes each, 1 MiB.
const ENTRIES: u32 = 1 << 15;
/// Number of spans of the arena's own table beyond which small ones come from zones. Larger ones and zones have the rest.
const BEFORE_ZONES: u32 = ENTRIES / 4;
/// Lines of a zone: 2 MiB.
const ZONE: u32 = (2 << 20) / LINE as u32;
/// Lines of the largest span of a zone: 128 KiB.
const LARGEST_IN_ZONE: u32 = ZONE / 16;

/// A span of lines that is in use.
pub(super) struct Span {
    /// Index of the first line in the arena.
    pub first: u32,
    allocation: Allocation<u32>,
    /// Index of the span's zone.
    zone: Option<usize>,
}

/// Allocator of an arena's lines.
pub(super) struct Spans {
    whole: Allocator<u32>,
    /// Number of spans of `whole`, zones included (`live`), and of lines in no span (`left`).
    live: u32,
    left: u32,
    /// Zones by index; `None`: a free index.
    zones: Vec<Option<Zone>>,
    /// Index of the zone that gave the last span.
    recent: usize,
}

struct Zone {
    at: Allocation<u32>,
    spans: Allocator<u32>,
    live: u32,
}

impl Spans {
    /// An allocator of all `lines` of an arena.
    pub fn new(lines: u32) -> Self {
        Spans { whole: table(lines, lines), live: 0, left: lines, zones: Vec::new(), recent: 0 }
    }

    pub fn allocate(&mut self, lines: u32) -> Option<Span> {
        if self.live < BEFORE_ZONES || lines > LARGEST_IN_ZONE {
            return self.of_whole(lines);
        }
        let recent = self.of_zone(self.recent, lines);
        recent
            .or_else(|| self.of_new_zone(lines))
            .or_else(|| self.of_any_zone(lines))
            .or_else(|| self.of_whole(lines))
    }

    fn take(&mut self, lines: u32) -> Option<Allocation<u32>> {
        let allocation = self.whole.allocate(lines)?;
        (self.live, self.left) = (self.live + 1, self.left - lines);
        Some(allocation)
    }

    fn give_back(&mut self, allocation: Allocation<u32>) {
        (self.live, self.left) = (self.live - 1, self.left + self.whole.allocation_size(allocation));
        self.whole.free(allocation);
    }

    fn of_whole(&mut self, lines: u32) -> Option<Span> {
        let allocation = self.take(lines)?;
        Some(Span { first: allocation.offset, allocation, zone: None })
    }

    fn of_zone(&mut self, at: usize, lines: u32) -> Option<Span> {
        let zone = self.zones.get_mut(at)?.as_mut()?;
        let allocation = zone.spans.allocate(lines)?;
        zone.live += 1;
        self.recent = at;
        Some(Span { first: zone.at.offset + allocation.offset, allocation, zone: Some(at) })
    }

    /// Allocates from a new zone, whose table holds as many spans of that length as the zone can. Where no 2 MiB lie
    /// together, the zone is small.
    fn of_new_zone(&mut self, lines: u32) -> Option<Span> {
        let (size, at) =
            [ZONE, LARGEST_IN_ZONE].into_iter().find_map(|size| Some((size, self.take(size)?)))?;
        let free = self.zones.iter().position(Option::is_none).unwrap_or(self.zones.len());
        if free == self.zones.len() {
            self.zones.push(None);
        }
        self.zones[free] = Some(Zone { at, spans: table(size, 2 * (size / lines) + 1), live: 0 });
        self.of_zone(free, lines)
    }

    fn of_any_zone(&mut self, lines: u32) -> Option<Span> {
        (0..self.zones.len()).find_map(|at| self.of_zone(at, lines))
    }

    pub fn free(&mut self, span: Span) {
        let Some(at) = span.zone else { return self.give_back(span.allocation) };
        let Some(zone) = &mut self.zones[at] else { unreachable!("a zone lasts as long as its spans") };
        zone.spans.free(span.allocation);
        zone.live -= 1;
        if zone.live == 0
            && let Some(zone) = self.zones[at].take()
        {
            self.give_back(zone.at);
        }
    }

    /// Number of entries of the arena's own table, if the table is full although lines are left.
    pub fn full_table(&self) -> Option<u32> {
        // The allocator reports no free space when its table is full.
        (self.left > 0 && self.whole.storage_report().total_free_space == 0).then_some(ENTRIES)
    }
}

/// An allocator of `lines`, for at most `entries` spans and gaps. A span takes a line at least, so no table needs more
/// entries than lines.
fn table(lines: u32, entries: u32) -> Allocator<u32> {
    // The allocator keeps two entries free.
    Allocator::with_max_allocs(lines, entries.min(lines).min(ENTRIES) + 2)
}
