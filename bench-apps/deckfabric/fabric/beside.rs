//! A trace beside background traffic: the messages of both are in one network, and the traffic ends with the trace.

use crate::{
    traffic::Traffic,
    vef::Replay,
    workload::{Actions, Post, Workload},
};

/// A trace and background traffic as one workload. The trace is the first class.
///
/// The lowest bit of a token says whose it is: 0 for the trace, 1 for the traffic.
pub struct Beside {
    replay: Replay,
    traffic: Traffic,
    /// Number of the trace's timers and messages under way. Without any, a trace that is not done never will be.
    open: usize,
    /// Actions of either, before their tokens are those of both.
    own: Actions,
}

impl Beside {
    /// Puts a trace beside traffic.
    pub fn new(replay: Replay, traffic: Traffic) -> Self {
        Self { replay, traffic, open: 0, own: Actions::default() }
    }

    /// Whether the trace is done. The traffic ends then, or when what is left of the trace waits for itself.
    pub fn is_done(&self) -> bool {
        self.replay.is_done()
    }

    /// Cycle at which the last record of the trace was done.
    pub fn ended(&self) -> u64 {
        self.replay.ended()
    }

    /// Lets one of the two act, and hands its actions on.
    fn act(&mut self, side: u32, actions: &mut Actions, act: impl FnOnce(&mut dyn Workload, &mut Actions)) {
        let workload: &mut dyn Workload = if side == 0 { &mut self.replay } else { &mut self.traffic };
        act(workload, &mut self.own);
        if side == 0 {
            self.open += self.own.timers.len() + self.own.posts.len();
        }
        for (time, token) in self.own.timers.drain(..) {
            actions.at(time, 2 * token + side);
        }
        for post in self.own.posts.drain(..) {
            actions.post(Post { class: post.class + side as u8, token: 2 * post.token + side, ..post });
        }
    }
}

impl Workload for Beside {
    fn classes(&self) -> Vec<String> {
        [self.replay.classes(), self.traffic.classes()].concat()
    }

    fn begin(&mut self, actions: &mut Actions) {
        for side in [0, 1] {
            self.act(side, actions, |workload, own| workload.begin(own));
        }
    }

    fn timer(&mut self, now: u64, token: u32, actions: &mut Actions) {
        let is_of_trace = token.is_multiple_of(2);
        self.open -= usize::from(is_of_trace);
        if is_of_trace || (self.open > 0 && !self.is_done()) {
            self.act(token % 2, actions, |workload, own| workload.timer(now, token / 2, own));
        }
    }

    fn sent(&mut self, left: u64, token: u32, actions: &mut Actions) {
        self.act(token % 2, actions, |workload, own| workload.sent(left, token / 2, own));
    }

    fn delivered(&mut self, now: u64, token: u32, actions: &mut Actions) {
        self.open -= usize::from(token.is_multiple_of(2));
        self.act(token % 2, actions, |workload, own| workload.delivered(now, token / 2, own));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        engine::Engine,
        topology::tree,
        traffic::{Arrivals, Pattern, Stream},
        vef,
    };

    /// Cycle in which a trace of two long messages to a host, and its answer, ends beside a load of short messages of another
    /// host to it, and the number of those that have arrived.
    fn ended(load: f64) -> (u64, u64) {
        let trace = "VEF3 4 3 0 0 0 0 1000\n1 1 3 64000 0 0 -1\n2 2 3 64000 0 0 -1\n3 3 1 64 2 1 1\n";
        let stream = Stream {
            name: "background".into(),
            from: vec![0],
            to: Pattern::Fixed(vec![3]),
            level: 0,
            load,
            flits: (4, 4),
            arrivals: Arrivals::Regular,
            during: (0, u64::MAX),
        };
        let network = tree(4, 1).unwrap();
        let traffic = Traffic::new(4, vec![stream], 1).unwrap();
        let beside = Beside::new(Replay::new(vef::parse(trace).unwrap(), 1000), traffic);
        assert_eq!(beside.classes(), ["trace", "background"]);
        let mut engine = Engine::new(&network, &Config::default(), beside).unwrap();
        assert_eq!(engine.run_dry(u64::MAX / 2), Ok(true));
        assert!(engine.workload().is_done());
        let measures = engine.measures();
        assert_eq!(measures.classes[0].delivered, (3, 2001));
        (engine.workload().ended(), measures.classes[1].delivered.0)
    }

    /// A barrier waits for a task that waits for a message after the barrier. The traffic does not keep such a run going.
    #[test]
    fn the_traffic_ends_with_a_trace_that_waits_for_itself() {
        let trace =
            "VEF3 2 1 1 1 2 0 1000\nC0 0 1\nG1 0 6 0 0 0 0 0 -1\n1 0 1 64 3 0 G1\nG1 0 6 1 0 0 2 0 1\n";
        let trace = vef::parse(trace).unwrap();
        let stream = Stream {
            name: "background".into(),
            from: vec![0],
            to: Pattern::Fixed(vec![1]),
            level: 0,
            load: 0.1,
            flits: (4, 4),
            arrivals: Arrivals::Regular,
            during: (0, u64::MAX),
        };
        let network = tree(2, 1).unwrap();
        let beside = Beside::new(Replay::new(trace, 1000), Traffic::new(2, vec![stream], 1).unwrap());
        let mut engine = Engine::new(&network, &Config::default(), beside).unwrap();
        assert_eq!(engine.run_dry(1_000_000), Ok(true));
        assert!(!engine.workload().is_done());
    }

    #[test]
    fn a_trace_shares_the_links_with_the_traffic_beside_it() {
        let (light, few) = ended(0.001);
        let (heavy, many) = ended(0.25);
        // 2,000 flits have the link, or three quarters of it; four flits of the traffic are a message.
        assert!((2000..2100).contains(&light) && (2600..2800).contains(&heavy), "{light}, {heavy}");
        assert!(few < 10 && many.abs_diff(heavy / 16) < 20, "{few}, {many} in {heavy}");
    }
}
