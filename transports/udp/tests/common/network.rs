//! What becomes of a datagram on its way.

use std::time::{Duration, Instant};

use super::Random;

/// One direction of a path.
#[derive(Clone, Debug)]
pub struct Path {
    /// Chances, for each datagram: that it is lost, comes twice, comes later than those behind it, has a bit turned over.
    pub lose: f64,
    pub double: f64,
    pub reorder: f64,
    pub spoil: f64,
    /// How long it takes.
    pub latency: Duration,
    /// How much longer a doubled or disordered one may.
    pub late: Duration,
    /// Longer datagrams are lost.
    pub carries: usize,
    /// Bytes per second, and how many wait at most when they come faster.
    pub rate: Option<(u64, usize)>,
    /// Everything is lost from then on.
    pub cut: Option<Instant>,
    /// When the wire is free again.
    pub free: Option<Instant>,
}

impl Path {
    pub fn new(latency: Duration) -> Self {
        Path {
            lose: 0.0,
            double: 0.0,
            reorder: 0.0,
            spoil: 0.0,
            latency,
            late: 4 * latency,
            carries: usize::MAX,
            rate: None,
            cut: None,
            free: None,
        }
    }

    /// Loses, doubles, disorders and spoils up to a fifth of the datagrams each.
    pub fn wild(random: &mut Random) -> Self {
        let latency = Duration::from_micros(random.pick(&[5, 50, 500, 5000]));
        Path {
            lose: random.unit() * 0.2,
            double: random.unit() * 0.2,
            reorder: random.unit() * 0.2,
            spoil: random.unit() * 0.1,
            late: latency.mul_f64(random.unit() * 8.0),
            carries: random.pick(&[1200, 1472, 4000, 8972, 65_507]),
            ..Path::new(latency)
        }
    }

    /// When the copies of a datagram arrive that is sent `now`, which may have been spoilt on its way.
    pub fn carry(&mut self, random: &mut Random, now: Instant, datagram: &mut [u8]) -> Vec<Instant> {
        let lost = random.chance(self.lose) || datagram.len() > self.carries;
        if lost || self.cut.is_some_and(|cut| cut <= now) {
            return Vec::new();
        }
        let Some(sent) = self.queue(now, datagram.len()) else { return Vec::new() };
        if random.chance(self.spoil) {
            let at = random.below(datagram.len() as u64) as usize;
            datagram[at] ^= 1u8 << random.below(8);
        }
        let due = sent + self.latency;
        let late = if random.chance(self.reorder) { random.time(self.late) } else { Duration::ZERO };
        let mut times = vec![due + late];
        if random.chance(self.double) {
            times.push(due + random.time(self.late));
        }
        times
    }

    fn queue(&mut self, now: Instant, len: usize) -> Option<Instant> {
        let Some((rate, room)) = self.rate else { return Some(now) };
        let free = self.free.unwrap_or(now).max(now);
        let waiting = (free - now).as_secs_f64() * rate as f64;
        if waiting > room as f64 {
            return None;
        }
        let done = free + Duration::from_secs_f64(len as f64 / rate as f64);
        self.free = Some(done);
        Some(done)
    }
}
