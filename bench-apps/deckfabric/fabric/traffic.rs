//! Random messages: streams with a load, a pattern of destinations, and a distribution of arrivals.
//!
//! Each sender of a stream has a random generator of its own. So the posted messages depend only on the seed, and
//! not on what the network does with them: schemes are compared by the same messages.

use crate::workload::{Actions, Post, Workload};
use rand::{RngExt, SeedableRng, seq::SliceRandom};
use rand_xoshiro::Xoshiro256PlusPlus;
use thiserror::Error;

/// Destinations of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Any other host.
    Uniform,
    /// Fixed destination of each sender; as many as there are senders.
    Fixed(Vec<u32>),
    /// Any of these hosts, but not the sender itself.
    Among(Vec<u32>),
}

/// Times of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrivals {
    /// A Poisson process.
    Random,
    /// Equal distances, beginning at a random time.
    Regular,
    /// Bursts of this many messages at once, to one destination.
    Bursts(u32),
}

/// A stream of messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Class under which it is counted; streams of the same name share one.
    pub name: String,
    /// Hosts that send.
    pub from: Vec<u32>,
    /// Destinations.
    pub to: Pattern,
    /// Service level.
    pub level: u8,
    /// Flits a cycle that each sender posts on average.
    pub load: f64,
    /// Shortest and longest message in flits; all lengths between these have the same probability.
    pub flits: (u32, u32),
    /// Times of the messages.
    pub arrivals: Arrivals,
    /// First and last cycle: none are posted outside of these.
    pub during: (u64, u64),
}

/// Why a stream is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("stream {stream:?}: {reason}")]
pub struct BadStream {
    /// Name of the stream.
    pub stream: String,
    /// Reason as text.
    pub reason: String,
}

struct Sender {
    stream: usize,
    nth: usize,
    random: Xoshiro256PlusPlus,
    /// Time at which the next message is due.
    next: f64,
}

/// Streams as a workload.
pub struct Traffic {
    hosts: u32,
    streams: Vec<Stream>,
    classes: Vec<String>,
    /// Class of each stream.
    class_of: Vec<u8>,
    senders: Vec<Sender>,
}

impl Traffic {
    /// Makes a workload of streams in a network of `hosts` hosts.
    pub fn new(hosts: usize, streams: Vec<Stream>, seed: u64) -> Result<Self, BadStream> {
        let mut classes: Vec<String> = Vec::new();
        let mut class_of = Vec::new();
        let mut senders = Vec::new();
        for (number, stream) in streams.iter().enumerate() {
            stream.check(hosts).map_err(|reason| BadStream { stream: stream.name.clone(), reason })?;
            let known = classes.iter().position(|name| *name == stream.name);
            class_of.push(known.unwrap_or(classes.len()) as u8);
            if known.is_none() {
                classes.push(stream.name.clone());
            }
            senders.extend((0..stream.from.len()).map(|nth| {
                let own = seed
                    .wrapping_add((number as u64) << 40)
                    .wrapping_add((u64::from(stream.from[nth]) + 1) << 8);
                Sender { stream: number, nth, random: Xoshiro256PlusPlus::seed_from_u64(own), next: 0.0 }
            }));
        }
        if classes.len() > usize::from(u8::MAX) {
            let reason = format!("{} classes are too many: there can be 255", classes.len());
            return Err(BadStream { stream: classes.swap_remove(255), reason });
        }
        Ok(Self { hosts: hosts as u32, streams, classes, class_of, senders })
    }
}

impl Stream {
    fn check(&self, hosts: usize) -> Result<(), String> {
        let (least, most) = self.flits;
        let is_host = |host: &u32| (*host as usize) < hosts;
        if !(self.load > 0.0 && self.load <= 100.0) {
            return Err(format!("the load is {}: take more than 0 and at most 100 flits a cycle", self.load));
        }
        if least == 0 || least > most || most > 1 << 20 {
            return Err(format!(
                "messages of {least} to {most} flits: take 1 to {}, the shorter first",
                1 << 20
            ));
        }
        if self.arrivals == Arrivals::Bursts(0) {
            return Err("bursts of no message".into());
        }
        if let Some(host) = self.from.iter().find(|host| !is_host(host)) {
            return Err(format!("host {host} is to send, and there are {hosts}, from 0"));
        }
        let to = match &self.to {
            Pattern::Uniform => return Ok(()),
            Pattern::Fixed(to) if to.len() != self.from.len() => {
                return Err(format!("{} senders have {} destinations", self.from.len(), to.len()));
            }
            Pattern::Fixed(to) => {
                if let Some((from, _)) = self.from.iter().zip(to).find(|(from, to)| from == to) {
                    return Err(format!("host {from} is to send to itself"));
                }
                to
            }
            Pattern::Among(to) => {
                let is_alone = |from: &&u32| to.iter().all(|to| to == *from);
                if let Some(from) = self.from.iter().find(is_alone) {
                    return Err(format!("host {from} has nobody to send to but itself"));
                }
                to
            }
        };
        match to.iter().find(|host| !is_host(host)) {
            Some(host) => Err(format!("host {host} is to receive, and there are {hosts}, from 0")),
            None => Ok(()),
        }
    }

    fn gap(&self, random: &mut Xoshiro256PlusPlus) -> f64 {
        let mean = f64::from(self.flits.0 + self.flits.1) / 2.0 / self.load;
        match self.arrivals {
            Arrivals::Random => exponential(random) * mean,
            Arrivals::Regular => mean,
            Arrivals::Bursts(count) => exponential(random) * mean * f64::from(count),
        }
    }

    fn destination(&self, nth: usize, hosts: u32, random: &mut Xoshiro256PlusPlus) -> u32 {
        let from = self.from[nth];
        match &self.to {
            Pattern::Fixed(to) => to[nth],
            Pattern::Uniform => {
                let to = random.random_range(0..hosts - 1);
                to + u32::from(to >= from)
            }
            Pattern::Among(to) => loop {
                let to = to[random.random_range(0..to.len())];
                if to != from {
                    return to;
                }
            },
        }
    }
}

fn exponential(random: &mut Xoshiro256PlusPlus) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

impl Workload for Traffic {
    fn classes(&self) -> Vec<String> {
        self.classes.clone()
    }

    fn begin(&mut self, actions: &mut Actions) {
        for (token, sender) in (0..).zip(&mut self.senders) {
            let stream = &self.streams[sender.stream];
            let first = match stream.arrivals {
                Arrivals::Regular => stream.gap(&mut sender.random) * sender.random.random::<f64>(),
                _ => stream.gap(&mut sender.random),
            };
            sender.next = stream.during.0 as f64 + first;
            actions.at(sender.next as u64 + 1, token);
        }
    }

    fn timer(&mut self, now: u64, token: u32, actions: &mut Actions) {
        let sender = &mut self.senders[token as usize];
        let stream = &self.streams[sender.stream];
        if now >= stream.during.1 {
            return;
        }
        let count = if let Arrivals::Bursts(count) = stream.arrivals { count } else { 1 };
        let to = stream.destination(sender.nth, self.hosts, &mut sender.random);
        for _ in 0..count {
            let (least, most) = stream.flits;
            let flits = if least == most { least } else { sender.random.random_range(least..=most) };
            let (from, class) = (stream.from[sender.nth], self.class_of[sender.stream]);
            actions.post(Post { from, to, flits, level: stream.level, class, token });
        }
        sender.next += stream.gap(&mut sender.random);
        actions.at((sender.next as u64 + 1).max(now + 1), token);
    }
}

/// Chooses different hosts at random. Returns two lists: senders and receivers.
pub fn hot_spot(hosts: usize, senders: usize, receivers: usize, seed: u64) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut all: Vec<_> = (0..hosts as u32).collect();
    all.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
    let senders = all.get(..senders)?.to_vec();
    let receivers = all.get(senders.len()..senders.len() + receivers)?.to_vec();
    Some((senders, receivers))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Stream {
        Stream {
            name: "all".into(),
            from: vec![0, 1, 2],
            to: Pattern::Uniform,
            level: 0,
            load: 0.5,
            flits: (2, 6),
            arrivals: Arrivals::Random,
            during: (100, 100_100),
        }
    }

    /// Runs the timers without a network.
    fn posts(streams: Vec<Stream>, seed: u64) -> Vec<(u64, Post)> {
        let mut traffic = Traffic::new(4, streams, seed).unwrap();
        let mut actions = Actions::default();
        traffic.begin(&mut actions);
        let mut found = Vec::new();
        while let Some(first) = actions.timers.iter().copied().min() {
            actions.timers.retain(|timer| *timer != first);
            traffic.timer(first.0, first.1, &mut actions);
            found.extend(actions.posts.drain(..).map(|post| (first.0, post)));
        }
        found
    }

    #[test]
    fn a_load_is_what_is_posted_on_average() {
        for arrivals in [Arrivals::Random, Arrivals::Regular, Arrivals::Bursts(10)] {
            let posts = posts(vec![Stream { arrivals, ..stream() }], 1);
            let flits: u32 = posts.iter().map(|(_, post)| post.flits).sum();
            let load = f64::from(flits) / 3.0 / 100_000.0;
            assert!((load - 0.5).abs() < 0.02, "{arrivals:?}: {load}");
            assert!(
                posts
                    .iter()
                    .all(|(at, post)| post.from != post.to && post.to < 4 && (100..100_100).contains(at))
            );
            assert!((0..4).all(|to| posts.iter().any(|(_, post)| post.to == to)));
        }
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(posts(vec![stream()], 1), posts(vec![stream()], 1));
        assert_ne!(posts(vec![stream()], 1), posts(vec![stream()], 2));
        let other = Stream { name: "more".into(), ..stream() };
        let both = posts(vec![stream(), other], 1);
        let first: Vec<_> = both.into_iter().filter(|(_, post)| post.class == 0).collect();
        let alone = posts(vec![stream()], 1);
        assert_eq!(
            first.iter().map(|(at, post)| (at, post.to)).collect::<Vec<_>>(),
            alone.iter().map(|(at, post)| (at, post.to)).collect::<Vec<_>>(),
            "another stream changes nothing"
        );
    }

    #[test]
    fn what_cannot_be_sent_is_refused() {
        let reason = |change: fn(&mut Stream)| {
            let mut bad = stream();
            change(&mut bad);
            Traffic::new(4, vec![bad], 1).map(|_| ()).unwrap_err().to_string()
        };
        assert_eq!(
            reason(|s| s.load = f64::NAN),
            "stream \"all\": the load is NaN: take more than 0 and at most 100 flits a cycle"
        );
        assert!(reason(|s| s.flits = (0, 1)).contains("messages of 0 to 1 flits"));
        assert!(reason(|s| s.from = vec![4]).contains("host 4 is to send, and there are 4, from 0"));
        assert!(reason(|s| s.to = Pattern::Fixed(vec![1])).contains("3 senders have 1 destinations"));
        assert!(reason(|s| s.to = Pattern::Fixed(vec![1, 1, 1])).contains("host 1 is to send to itself"));
        assert!(
            reason(|s| s.to = Pattern::Among(vec![2, 2])).contains("host 2 has nobody to send to but itself")
        );
        assert!(reason(|s| s.to = Pattern::Among(vec![2, 9])).contains("host 9 is to receive"));
        assert!(reason(|s| s.arrivals = Arrivals::Bursts(0)).contains("bursts of no message"));
        assert_eq!(hot_spot(10, 8, 3, 1), None);
        let (from, to) = hot_spot(10, 6, 4, 1).unwrap();
        assert!(from.iter().all(|host| !to.contains(host)));
    }
}
