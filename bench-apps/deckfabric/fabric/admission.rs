//! Admission of connections over a network: each gets entries in the tables of all ports of its route, or is refused
//! by one of them. [`read`] has the file that says which network and which connections.

mod file;
#[cfg(test)]
mod tests;

pub use file::{Connection, Crossbar, File, Fill, Level, Link, Switches, read};

use crate::topology::Network;
use rand::{RngExt, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use std::time::Duration;
use udeck_qos::route::{Admission, Admitted, Demand, Hop, Lane, Node, Offer, Refused};

/// File of Alfaro's chapter 6: an irregular network, the ten levels of table 6.2, and as many connections as there is
/// room for.
pub const CHAPTER_6: &str = include_str!("admission/chapter-6.toml");

/// A network, and the connections that ask for admission.
#[derive(Debug)]
pub struct Plan {
    /// The file, as it was read.
    pub file: File,
    /// The network.
    pub network: Network,
    /// The file's connections, in its order.
    pub requests: Vec<Request>,
    /// Line of the file's `[network]`.
    pub line_of_switches: usize,
}

/// A connection that asks for admission.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Number of the sending host.
    pub from: usize,
    /// Number of the receiving host.
    pub to: usize,
    /// Lanes that it may have, the cheapest first.
    pub lanes: Vec<Lane>,
    /// Bandwidth and deadline.
    pub demand: Demand,
}

/// Answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The request.
    pub request: Request,
    /// Ports of its route.
    pub route: Vec<Hop>,
    /// Entries and delay, or the hop that refuses and what the route would take.
    pub result: Result<Admitted, (Refused, Offer)>,
}

/// Answers to all requests, and the tables after the last one.
#[derive(Debug)]
pub struct Answers {
    /// Tables of all ports.
    pub admission: Admission,
    /// Answers in the order of the requests; then those to the connections of `[fill]`, of which refused ones are left out.
    pub answers: Vec<Answer>,
}

impl Answers {
    /// The admitted connections.
    pub fn admitted(&self) -> impl Iterator<Item = (&Answer, &Admitted)> {
        self.answers.iter().filter_map(|answer| Some((answer, answer.result.as_ref().ok()?)))
    }
}

impl Plan {
    /// Ports of a route, with their nodes' properties.
    pub fn route(&self, from: usize, to: usize) -> Vec<Hop> {
        let Switches { crossbar, buffer, .. } = *self.file.network.get_ref();
        let lanes = u32::from(*self.file.link.vls.get_ref());
        let hop = |port: (usize, usize)| {
            let ports = self.network.peers(port.0).iter().flatten().count() as u32;
            let is_host = port.0 >= self.network.switches();
            let crossbar = if is_host { Crossbar::None } else { crossbar };
            Hop { port, node: Node { crossbar: crossbar.into(), ports, lanes, buffer } }
        };
        self.network.ports(from, to).into_iter().map(hop).collect()
    }

    /// Admits the connections one after another, and then random ones if the file says so.
    pub fn admit(&self) -> Answers {
        let Switches { flight, .. } = *self.file.network.get_ref();
        let mut admission = Admission::new(self.file.link.port(), flight);
        let mut answers = Vec::new();
        for request in &self.requests {
            let route = self.route(request.from, request.to);
            let result = admission.admit(&route, &request.lanes, request.demand);
            let result =
                result.map_err(|refused| (refused, admission.offer(&route, &request.lanes, request.demand)));
            answers.push(Answer { request: request.clone(), route, result });
        }
        if let Some(fill) = &self.file.fill {
            self.fill(*fill.get_ref(), &mut admission, &mut answers);
        }
        Answers { admission, answers }
    }

    /// Admits a random connection of each level in turn, until no level finds a pair of hosts that has room.
    fn fill(&self, Fill { tries, seed }: Fill, admission: &mut Admission, answers: &mut Vec<Answer>) {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut open: Vec<_> = self.file.level.iter().collect();
        while !open.is_empty() {
            open.retain(|level| {
                (0..tries).any(|_| {
                    let hosts = self.network.hosts();
                    let from = random.random_range(0..hosts);
                    let to = (from + random.random_range(1..hosts)) % hosts;
                    let (least, most) = level.mbps.unwrap_or((0.0, 0.0));
                    let bandwidth = (1e6 * random.random_range(least..=most)) as u64;
                    let demand = Demand { bandwidth: bandwidth.max(1), deadline: None };
                    let request = Request { from, to, lanes: vec![level.lane()], demand };
                    let route = self.route(from, to);
                    let result = admission.admit(&route, &request.lanes, demand);
                    let is_admitted = result.is_ok();
                    answers.extend(result.ok().map(|admitted| Answer {
                        request,
                        route,
                        result: Ok(admitted),
                    }));
                    is_admitted
                })
            });
        }
    }

    /// Writes a file with the admitted connections alone. Each has the lane that it got, so reading the file and
    /// admitting its connections gives the same tables.
    pub fn admitted_file(&self, answers: &Answers) -> String {
        let connection = answers.admitted().map(|(Answer { request, .. }, admitted)| Connection {
            from: toml::Spanned::new(0..0, self.host_name(request.from)),
            to: self.host_name(request.to),
            sl: Some(admitted.vl),
            bandwidth: Some(request.demand.bandwidth),
            deadline: request.demand.deadline,
        });
        let file = File { fill: None, connection: connection.collect(), ..self.file.clone() };
        file.to_toml()
    }

    /// Name of a host.
    pub fn host_name(&self, host: usize) -> String {
        self.network.node_name(self.network.host_node(host))
    }

    /// Deadline of an admitted connection: its own, or else the delay that its entries guarantee.
    pub fn deadline(request: &Request, admitted: &Admitted) -> Duration {
        request.demand.deadline.unwrap_or(admitted.delay)
    }
}
