//! Admission along a route: a connection gets entries at each port of its route, or at none, and its packets' longest
//! delay from end to end is known.
//!
//! The rules are those of Alfaro's thesis (2003): the longest time at a switch by its equations (3.1) to (3.3), and a
//! deadline that all hops share equally, after the time of the links (§3.3). A refusal names the hop; [`Offer`] says
//! what the whole route would take (§3.1). Routes come from the caller.

use crate::{
    analysis::time_of,
    planner::{AdmissionError, ConnectionId, Link, Planner},
    table::{ENTRIES, LIMIT_UNIT, UNIT},
};
use std::{collections::BTreeMap, time::Duration};
use thiserror::Error;

/// Way of a packet through a node: what can go before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crossbar {
    /// A port's lanes share an input of the crossbar: equation (3.1).
    #[default]
    Multiplexed,
    /// Each lane of each port has an input of the crossbar: equation (3.2).
    ByLane,
    /// No crossbar: packets wait at the output only, as in a switch with one buffer, or in a host. Equation (3.3).
    None,
}

/// Properties of a node on which the longest time of a packet depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Way through the node.
    pub crossbar: Crossbar,
    /// Number of its ports.
    pub ports: u32,
    /// Number of data lanes of a port.
    pub lanes: u32,
    /// Size of a lane's buffer in packets of the MTU.
    pub buffer: u32,
}

impl Node {
    /// Returns P of equations (3.1) to (3.3): the largest number of packets that go before one that has just arrived in
    /// a buffer, if its lane's entries are `distance` apart and all packets have the MTU. The equations divide by the
    /// high limit: [`Admission::admit`] refuses 0, which counts as 1 here.
    pub fn packets(&self, link: Link, distance: usize) -> u64 {
        let buffer = u64::from(self.buffer);
        let ports = u64::from(self.ports) * buffer;
        let before = match self.crossbar {
            Crossbar::Multiplexed => ports * u64::from(self.lanes) + 1 + buffer,
            Crossbar::ByLane => ports + 1 + buffer,
            Crossbar::None => buffer,
        };
        let limit = u64::from(link.high_limit.max(1)) * LIMIT_UNIT;
        before * sweep(distance, link.mtu) + 1 + (buffer * u64::from(link.mtu)).div_ceil(limit)
    }

    /// Upper bound of the time from a packet's arrival in a buffer until it begins to leave.
    pub fn longest(&self, link: Link, distance: usize) -> Duration {
        time_of(self.packets(link, distance) * u64::from(link.mtu), link.rate)
    }

    /// Returns the largest distance, a power of two, at which packets leave in a time.
    fn distance(&self, link: Link, time: Duration) -> Option<usize> {
        distances().rev().find(|&distance| self.longest(link, distance) <= time)
    }
}

/// Returns *Barrido* of the equations: the packets of the MTU from a lane's turn to its next one, if the entries between
/// have their largest weight. Packets of other sizes can be more bytes
/// ([`wait_bytes_at`](crate::analysis::wait_bytes_at)), but then a buffer has more of them than the equations count, too.
fn sweep(distance: usize, mtu: u32) -> u64 {
    let of_entry = (u64::from(u8::MAX) * UNIT).div_ceil(u64::from(mtu.max(1)));
    1 + distance.saturating_sub(1) as u64 * of_entry
}

fn distances() -> impl DoubleEndedIterator<Item = usize> {
    (0..=ENTRIES.ilog2()).map(|bits| 1 << bits)
}

/// Identifier of a port: node and port of the node.
pub type Port = (usize, usize);

/// A port that sends the route's packets on, and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The port.
    pub port: Port,
    /// Its node.
    pub node: Node,
}

/// A lane that may take a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Virtual lane.
    pub vl: u8,
    /// Distance of all of its connections, a power of two; `None` if the first one at each port decides.
    pub distance: Option<usize>,
}

/// Demands of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Mean bandwidth in bits a second.
    pub bandwidth: u64,
    /// Upper bound of a packet's delay from its place in the host's buffer to the other host; `None` if the lane's distance is enough.
    pub deadline: Option<Duration>,
}

/// An admitted connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its lane.
    pub vl: u8,
    /// Its identifiers in the planners of the route's ports.
    pub ids: Vec<ConnectionId>,
    /// Distances of its entries at the route's ports.
    pub distances: Vec<usize>,
    /// Upper bound of a packet's delay from its place in the host's buffer on: the longest times at all hops, and the
    /// time of the links.
    pub delay: Duration,
}

/// A refusal: the hop, by its place on the route, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Place of the hop on the route, from 0.
    pub hop: usize,
    /// Reason of the hop.
    pub reason: Reason,
}

/// Why a hop refuses a connection.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Reason {
    /// The links' high limit is 0, by which the equations divide.
    #[error("the high limit is 0, by which equations (3.1) to (3.3) divide: take 1 to 255")]
    HighLimit,
    /// The connection may have no lane.
    #[error("there is no lane that it may have")]
    NoLane,
    /// The port's table has no place.
    #[error("{}", .0.reason())]
    Table(AdmissionError),
    /// The hop's share of the deadline is shorter than its longest time.
    #[error(
        "its share of the deadline is {share:?}, and a packet may take {longest:?} at the distance {distance}"
    )]
    Deadline {
        /// The deadline, less the time of the links, divided by the hops.
        share: Duration,
        /// Longest time at the hop.
        longest: Duration,
        /// Distance of the lane, or 1.
        distance: usize,
    },
}

/// Demands that the whole route would take in place of refused ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Largest bandwidth with the same deadline, in bits a second.
    pub bandwidth: Option<u64>,
    /// Smallest deadline with the same bandwidth.
    pub deadline: Option<Duration>,
}

/// Tables of all ports of a network whose links are alike.
#[derive(Clone, Debug)]
pub struct Admission {
    link: Link,
    /// Time of flight over a link.
    flight: Duration,
    planners: BTreeMap<Port, Planner>,
}

impl Admission {
    /// Makes empty tables.
    pub fn new(link: Link, flight: Duration) -> Self {
        Self { link, flight, planners: BTreeMap::new() }
    }

    /// Properties of the links.
    pub fn link(&self) -> Link {
        self.link
    }

    /// Ports that have connections, with their tables.
    pub fn planners(&self) -> impl Iterator<Item = (Port, &Planner)> {
        let used = self.planners.iter().filter(|(_, planner)| planner.promised() > 0);
        used.map(|(port, planner)| (*port, planner))
    }

    /// Returns the table of a port that has connections.
    pub fn planner(&self, port: Port) -> Option<&Planner> {
        self.planners.get(&port)
    }

    /// Admits a connection at all hops, in the first of the lanes that has room, or at none.
    ///
    /// # Errors
    /// No lane has room: the refusal of the first one that keeps the deadline, or of the last one. The high limit is 0.
    pub fn admit(&mut self, route: &[Hop], lanes: &[Lane], demand: Demand) -> Result<Admitted, Refused> {
        if self.link.high_limit == 0 {
            return Err(Refused { hop: 0, reason: Reason::HighLimit });
        }
        let mut kept = Refused { hop: 0, reason: Reason::NoLane };
        for &lane in lanes {
            match self.admit_in(route, lane, demand) {
                Err(refused) if !matches!(kept.reason, Reason::Table(_)) => kept = refused,
                Err(_) => {}
                admitted => return admitted,
            }
        }
        Err(kept)
    }

    fn admit_in(&mut self, route: &[Hop], lane: Lane, demand: Demand) -> Result<Admitted, Refused> {
        let mut wanted = Vec::with_capacity(route.len());
        for (at, hop) in route.iter().enumerate() {
            let distance = self.wanted(route, *hop, lane, demand.deadline);
            wanted.push(distance.map_err(|reason| Refused { hop: at, reason })?);
        }
        let mut ids = Vec::with_capacity(route.len());
        for (hop, distance) in route.iter().zip(wanted) {
            let planner = self.planners.entry(hop.port).or_insert_with(|| Planner::new(self.link));
            match planner.admit_at(lane.vl, demand.bandwidth, distance) {
                Ok(id) => ids.push(id),
                Err(reason) => {
                    let refused = Refused { hop: ids.len(), reason: Reason::Table(reason) };
                    self.release(route, &ids);
                    return Err(refused);
                }
            }
        }
        let of_lane = |hop: &Hop| self.planners.get(&hop.port).and_then(|port| port.lane_distance(lane.vl));
        let distances: Vec<_> = route.iter().map(|hop| of_lane(hop).unwrap_or(ENTRIES)).collect();
        let at_hops =
            route.iter().zip(&distances).map(|(hop, distance)| hop.node.longest(self.link, *distance));
        let delay = at_hops.sum::<Duration>() + self.time_of_links(route);
        Ok(Admitted { vl: lane.vl, ids, distances, delay })
    }

    /// Releases a connection at the first hops of its route, as many as there are identifiers.
    pub fn release(&mut self, route: &[Hop], ids: &[ConnectionId]) {
        for (hop, &id) in route.iter().zip(ids) {
            self.planners.get_mut(&hop.port).map(|planner| planner.release(id));
        }
    }

    /// Returns the distance that a hop's share of the deadline needs, or the lane's own if that is not larger.
    fn wanted(
        &self,
        route: &[Hop],
        hop: Hop,
        lane: Lane,
        deadline: Option<Duration>,
    ) -> Result<usize, Reason> {
        let Some(deadline) = deadline else { return Ok(lane.distance.unwrap_or(ENTRIES)) };
        let share = deadline.saturating_sub(self.time_of_links(route)) / route.len().max(1) as u32;
        let most = hop.node.distance(self.link, share);
        match (most, lane.distance) {
            (Some(most), None) => Ok(most),
            (Some(most), Some(own)) if own <= most => Ok(own),
            (_, own) => {
                let distance = own.unwrap_or(1);
                Err(Reason::Deadline { share, longest: hop.node.longest(self.link, distance), distance })
            }
        }
    }

    /// Time of the links: each carries a whole packet, and its flight.
    fn time_of_links(&self, route: &[Hop]) -> Duration {
        (self.flight + time_of(u64::from(self.link.mtu), self.link.rate)) * route.len() as u32
    }

    /// Returns what the route would take in place of a refused demand.
    pub fn offer(&self, route: &[Hop], lanes: &[Lane], demand: Demand) -> Offer {
        let own = route.iter().filter_map(|hop| self.planners.get_key_value(&hop.port));
        let planners = own.map(|(port, planner)| (*port, planner.clone())).collect();
        let mut trial = Self { planners, ..Self::new(self.link, self.flight) };
        let mut fits = |demand| match trial.admit(route, lanes, demand) {
            Ok(admitted) => {
                trial.release(route, &admitted.ids);
                true
            }
            Err(_) => false,
        };
        let (mut most, mut too_much) = (0, demand.bandwidth);
        while most + 1 < too_much {
            let bandwidth = most + (too_much - most) / 2;
            match fits(Demand { bandwidth, ..demand }) {
                true => most = bandwidth,
                false => too_much = bandwidth,
            }
        }
        // Only deadlines at which a hop's distance changes need a trial.
        let hops = route.len() as u32;
        let shares = route.iter().flat_map(|hop| distances().map(|at| hop.node.longest(self.link, at)));
        let mut deadlines: Vec<_> = shares.map(|share| share * hops + self.time_of_links(route)).collect();
        deadlines.sort_unstable();
        deadlines.dedup();
        let keeps = |deadline: &Duration| fits(Demand { deadline: Some(*deadline), ..demand });
        let deadline = demand.deadline.and_then(|_| deadlines.into_iter().find(keeps));
        Offer { bandwidth: Some(most).filter(|most| *most > 0), deadline }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, option, prelude::*};

    const LINK: Link = Link { rate: 2_500_000_000, mtu: 256, high_limit: 10, cap: 80 };

    fn node(crossbar: Crossbar) -> Node {
        Node { crossbar, ports: 8, lanes: 15, buffer: 4 }
    }

    fn route(ports: &[usize]) -> Vec<Hop> {
        let host = Hop { port: (ports[0], 0), node: node(Crossbar::None) };
        let switches = ports[1..].iter().map(|&at| Hop { port: (at, 1), node: node(Crossbar::ByLane) });
        [host].into_iter().chain(switches).collect()
    }

    const ANY: Lane = Lane { vl: 0, distance: None };

    fn demand(bandwidth: u64, deadline: Duration) -> Demand {
        Demand { bandwidth, deadline: Some(deadline) }
    }

    #[test]
    fn the_equations_count_as_published() {
        // A sweep at the distance 4 is a packet and three entries of 64 packets, and 1,024 bytes of buffer let two low
        // packets through.
        assert_eq!(sweep(4, 256), 193);
        let packets = |crossbar| node(crossbar).packets(LINK, 4);
        assert_eq!(packets(Crossbar::Multiplexed), (8 * 15 * 4 + 1 + 4) * 193 + 2);
        assert_eq!(packets(Crossbar::ByLane), (8 * 4 + 1 + 4) * 193 + 2);
        assert_eq!(packets(Crossbar::None), 4 * 193 + 2);
        // 774 packets of 256 bytes at 2.5 Gb/s.
        assert_eq!(node(Crossbar::None).longest(LINK, 4), Duration::from_nanos(634_061));
    }

    #[test]
    fn a_connection_is_admitted_at_all_hops_or_at_none() {
        let mut network = Admission::new(LINK, Duration::from_nanos(20));
        let (long, short) = (route(&[0, 10, 11]), route(&[1, 11]));
        let admitted = network.admit(&long, &[ANY], demand(64_000, Duration::from_millis(30))).unwrap();
        assert_eq!(admitted.distances, [32, 4, 4]);
        let parts = [(Crossbar::None, 32), (Crossbar::ByLane, 4), (Crossbar::ByLane, 4)];
        let hops = parts.map(|(crossbar, distance)| node(crossbar).longest(LINK, distance));
        assert_eq!(admitted.delay, hops.iter().sum::<Duration>() + 3 * Duration::from_nanos(20 + 820));
        network
            .admit(&short, &[Lane { vl: 1, distance: Some(2) }], Demand { bandwidth: 1, deadline: None })
            .unwrap();
        let free = |network: &Admission, port| network.planner(port).map(Planner::free);
        assert_eq!([free(&network, (10, 1)), free(&network, (11, 1))], [Some(48), Some(16)]);
        let wants = demand(64_000, Duration::from_millis(15));
        let refused = network.admit(&long, &[Lane { vl: 2, ..ANY }], wants).unwrap_err();
        assert_eq!(
            (refused.hop, refused.reason.to_string().as_str()),
            (2, "it needs 32 entries, and 16 are free")
        );
        assert_eq!(
            [free(&network, (10, 1)), free(&network, (0, 0))],
            [Some(48), Some(62)],
            "nothing is left"
        );
    }

    #[test]
    fn a_deadline_that_no_table_keeps_is_refused_by_its_hop() {
        let mut network = Admission::new(LINK, Duration::ZERO);
        let refused =
            network.admit(&route(&[0, 1]), &[ANY], demand(1, Duration::from_micros(20))).unwrap_err();
        assert_eq!(refused.hop, 1);
        assert!(refused.reason.to_string().contains("a packet may take"), "{refused:?}");
    }

    #[test]
    fn the_strictest_lane_is_the_last_one_that_is_taken() {
        let mut network = Admission::new(LINK, Duration::ZERO);
        let lanes = [64, 8, 2].map(|distance| Lane { vl: distance as u8 % 15, distance: Some(distance) });
        let mut vl = |millis| {
            let admitted = network.admit(&route(&[0, 1]), &lanes, demand(1, Duration::from_millis(millis)));
            admitted.map(|admitted| admitted.vl).ok()
        };
        assert_eq!([vl(1000), vl(50), vl(6), vl(1)], [Some(4), Some(8), Some(2), None]);
    }

    #[test]
    fn a_high_limit_of_0_is_refused() {
        let mut network = Admission::new(Link { high_limit: 0, ..LINK }, Duration::ZERO);
        let wants = demand(1, Duration::from_secs(1));
        let refused = network.admit(&route(&[0, 1]), &[ANY], wants).unwrap_err();
        assert_eq!((refused.hop, refused.reason), (0, Reason::HighLimit));
        let nothing = Offer { bandwidth: None, deadline: None };
        assert_eq!(network.offer(&route(&[0, 1]), &[ANY], wants), nothing);
    }

    proptest! {
        /// An offer is admitted, and anything more demanding is refused.
        #[test]
        fn proptest_an_offer_is_the_most_that_is_admitted(
            others in vec((1usize..4, 0u8..6, 0u32..=6, 1u64..400_000_000), 0..60),
            (bandwidth, millis) in (1u64..2_500_000_000, option::of(1u64..200)),
        ) {
            let mut network = Admission::new(LINK, Duration::ZERO);
            for (last, vl, bits, bandwidth) in others {
                let lane = Lane { vl, distance: Some(1 << bits) };
                let _ = network.admit(&route(&[0, 10, 10 + last]), &[lane], Demand { bandwidth, deadline: None });
            }
            let (long, lanes) = (route(&[0, 10, 11]), [7, 3].map(|vl| Lane { vl, distance: None }));
            let demand = Demand { bandwidth, deadline: millis.map(Duration::from_millis) };
            let takes = |demand| network.clone().admit(&long, &lanes, demand).is_ok();
            prop_assume!(!takes(demand));
            let Offer { bandwidth, deadline } = network.offer(&long, &lanes, demand);
            let at = |bandwidth| takes(Demand { bandwidth, ..demand });
            prop_assert!(bandwidth.is_none_or(at) && !at(bandwidth.unwrap_or(0) + 1));
            prop_assert!(deadline.is_none() || demand.deadline.is_some());
            if let Some(deadline) = deadline {
                let within = |deadline| takes(Demand { deadline: Some(deadline), ..demand });
                prop_assert!(within(deadline) && !within(deadline - Duration::from_nanos(1)));
            }
        }
    }
}
