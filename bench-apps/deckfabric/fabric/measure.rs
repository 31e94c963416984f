//! Measures, counted from the end of the warm-up to the end of the run.

use crate::packet::KINDS;

pub use crate::packet::Kind;

use hdrhistogram::Histogram;

/// Counts of a class of messages.
#[derive(Clone, Debug)]
pub struct Class {
    /// Name that the workload gives the class.
    pub name: String,
    /// Numbers of messages and flits that were posted.
    pub posted: (u64, u64),
    /// Numbers of messages and flits that have arrived.
    pub delivered: (u64, u64),
    /// Cycles from a message's post to its last flit's arrival.
    pub latency: Histogram<u64>,
    /// Cycles from a packet's first flit on the host's link to its last flit's arrival.
    pub network: Histogram<u64>,
    /// Numbers of flits that have arrived, by the host that sent them.
    pub by_sender: Vec<u64>,
    /// Number of speculative packets that switches have dropped.
    pub dropped: u64,
}

/// Counts of a run.
#[derive(Clone, Debug)]
pub struct Measures {
    /// Number of measured cycles.
    pub cycles: u64,
    /// Counts by class.
    pub classes: Vec<Class>,
    /// Numbers of flits that hosts have taken, by host and kind.
    pub taken: Vec<[u64; KINDS]>,
    /// Number of packets that switches have marked.
    pub marked: u64,
    /// Numbers of flits over each link, by the port that sends: those of node 0 first, in their order.
    pub carried: Vec<u64>,
    /// Number of events, in the whole run.
    pub events: u64,
    /// Cycle at which measuring began.
    pub from: u64,
}

impl Measures {
    pub(crate) fn new(classes: Vec<String>, hosts: usize, ports: usize) -> Self {
        let histogram = || Histogram::new(3).expect("three digits are possible");
        let class = |name| {
            let (latency, network) = (histogram(), histogram());
            let by_sender = vec![0; hosts];
            Class { name, posted: (0, 0), delivered: (0, 0), latency, network, by_sender, dropped: 0 }
        };
        Self {
            cycles: 0,
            classes: classes.into_iter().map(class).collect(),
            taken: vec![[0; KINDS]; hosts],
            marked: 0,
            carried: vec![0; ports],
            events: 0,
            from: 0,
        }
    }

    /// Restarts the counts, except that of events.
    pub(crate) fn restart(&mut self, now: u64) {
        let names = self.classes.iter().map(|class| class.name.clone()).collect();
        let fresh = Self::new(names, self.taken.len(), self.carried.len());
        *self = Self { events: self.events, from: now, ..fresh };
    }

    /// Number of speculative packets of all classes that switches have dropped.
    pub fn dropped(&self) -> u64 {
        self.classes.iter().map(|class| class.dropped).sum()
    }

    /// Flits of messages that hosts have taken, per host and cycle.
    pub fn throughput(&self) -> f64 {
        let flits: u64 = self.taken.iter().map(payload).sum();
        flits as f64 / (self.taken.len() as f64 * self.cycles.max(1) as f64)
    }

    /// Flits of one class that hosts have taken, per host and cycle.
    pub fn class_throughput(&self, class: usize) -> f64 {
        self.classes[class].delivered.1 as f64 / (self.taken.len() as f64 * self.cycles.max(1) as f64)
    }

    /// Each class's part of all flits that have arrived.
    pub fn shares(&self) -> Vec<f64> {
        let all: u64 = self.classes.iter().map(|class| class.delivered.1).sum();
        self.classes.iter().map(|class| class.delivered.1 as f64 / all.max(1) as f64).collect()
    }

    /// Flits of one kind that these hosts have taken, per host and cycle.
    pub fn taken_by(&self, hosts: &[u32], kind: Kind) -> f64 {
        let flits: u64 = hosts.iter().map(|host| self.taken[*host as usize][kind as usize]).sum();
        flits as f64 / (hosts.len().max(1) as f64 * self.cycles.max(1) as f64)
    }
}

fn payload(kinds: &[u64; KINDS]) -> u64 {
    kinds[Kind::Data as usize] + kinds[Kind::Speculative as usize]
}
