//! Allocations of crossbars whose inputs offer one lane in each: all switches have them at the same times.

use super::{Engine, Event};
use crate::{config::Config, stages::Allocator, workload::Workload};

/// Cycles between allocations, if inputs offer one lane in each.
pub(super) fn every(config: &Config) -> Option<u32> {
    match config.stages?.allocator {
        Allocator::AllLanes => None,
        Allocator::OneLane { every } => Some(every),
    }
}

impl<W: Workload> Engine<'_, W> {
    /// Schedules the next allocation, at a multiple of the cycles between two of them.
    pub(super) fn schedule_allocation(&mut self) {
        let Some(every) = self.allocates_every.map(u64::from).filter(|_| !self.will_allocate) else { return };
        self.will_allocate = true;
        self.wheel.schedule((self.wheel.now() / every + 1) * every, Event::Allocate);
    }

    /// Begins an allocation: the outputs that get an offer choose in this cycle. The next one follows if it could grant a packet.
    /// Otherwise it waits for a packet or for room, so that a network where nothing can move has no events.
    pub(super) fn allocate(&mut self) {
        self.will_allocate = false;
        let before = self.due.len();
        if self.ports.offer_lanes(&self.packets, &mut self.due) {
            self.schedule_allocation();
        }
        for port in &self.due[before..] {
            self.is_due[*port as usize] = true;
        }
    }
}
