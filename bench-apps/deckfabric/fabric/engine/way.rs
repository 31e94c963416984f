//! Choice of a packet's way at a switch: among equal ports, at random or by their queues, and between the minimal route and a
//! detour by a random group (UGAL, with the queues of the packet's first switch).

use super::Engine;
use crate::{
    packet::{NO_DETOUR, NONE, PASSED, Packet},
    topology::Route,
    workload::Workload,
};
use rand::RngExt;
use std::ops::Range;

impl<W: Workload> Engine<'_, W> {
    /// Chooses the next hop of a packet whose minimal route is `route`.
    pub(super) fn choose_way(&mut self, node: usize, at: u32, route: Route) -> Route {
        let equal = self.network.equal_ports(node, route.port);
        if equal.len() > 1 {
            let port = match self.network.is_adaptive() {
                true => self.least_loaded(node, equal),
                false => self.random.random_range(equal),
            };
            return Route { port, ..route };
        }
        if self.network.groups() == 0 { route } else { self.by_group(node, at, route) }
    }

    /// Returns one of the ports where the fewest flits wait, at random.
    fn least_loaded(&mut self, node: usize, ports: Range<u8>) -> u8 {
        let first = self.random.random_range(ports.clone());
        let turn = (first..ports.end).chain(ports.start..first);
        turn.min_by_key(|port| self.waiting_at(node, *port)).unwrap_or(first)
    }

    fn waiting_at(&self, node: usize, port: u8) -> u32 {
        self.ports.waiting(self.ports.port(node as u32, port.into()))
    }

    /// Next hop on a detour, or on the minimal route.
    fn by_group(&mut self, node: usize, at: u32, route: Route) -> Route {
        let Packet { detour, input_port, to, .. } = self.packets[at];
        let is_first = input_port != NONE && self.leads_to_host(input_port);
        if detour == NO_DETOUR && is_first {
            self.packets[at].detour = self.intermediate(node, to as usize, route);
        }
        match self.packets[at].detour {
            NO_DETOUR => route,
            PASSED => self.network.route_behind(node, to as usize),
            group => self.network.detour(node, usize::from(group) - 1).unwrap_or_else(|| {
                self.packets[at].detour = PASSED;
                self.network.route_behind(node, to as usize)
            }),
        }
    }

    /// Chooses a random group for a detour if the queue to it is short: the way is about twice as long as the minimal one.
    fn intermediate(&mut self, node: usize, to: usize, route: Route) -> u16 {
        let (own, goal) = (self.network.group(node), self.network.group(self.network.attachment(to).node));
        if own == goal {
            return NO_DETOUR;
        }
        let group = self.random.random_range(0..self.network.groups());
        let Some(hop) = self.network.detour(node, group).filter(|_| group != goal) else { return NO_DETOUR };
        let is_shorter = self.waiting_at(node, route.port)
            > 2 * self.waiting_at(node, hop.port) + u32::from(self.config.packet);
        if hop.port != route.port && is_shorter { group as u16 + 1 } else { NO_DETOUR }
    }
}
