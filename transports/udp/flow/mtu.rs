//! How long a datagram the path carries (RFC 8899): starts with what every path does, and probes for more while somebody
//! would use it. The largest that could be is tried first, because in a cluster it usually is; then by halves.

use std::time::{Duration, Instant};

/// What every path carries, as UDP payload in bytes (RFC 8899, BASE_PLPMTU).
pub const BASE: usize = 1200;
/// Longest UDP payload there is.
pub const MOST: usize = 65_507;
/// A gain that is not worth a probe.
const STEP: usize = 16;
/// A size that failed so often is too long.
const TRIES: u8 = 3;
/// So many long packets lost in a row, while short ones arrive, mean that the path has become narrow.
const NARROW: u8 = 6;
/// After what carried stopped carrying: no probes for so long.
const REST: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct PathMtu {
    current: usize,
    /// Longer ones do not pass.
    ceiling: usize,
    /// `ceiling` has not been tried.
    untried: bool,
    tries: u8,
    /// Size of the probe under way, and when it is given up.
    probing: Option<(usize, Instant)>,
    /// A packet was as long as it could be.
    wanted: bool,
    /// No probe before.
    rest: Option<Instant>,
    /// Packet number of the last long packet that is known to have arrived.
    passed: u64,
    /// Long packets that were lost since, one after another.
    missed: u8,
}

impl PathMtu {
    /// `ceiling`: what the interface carries.
    pub fn new(ceiling: usize) -> Self {
        let ceiling = ceiling.clamp(BASE, MOST);
        PathMtu {
            current: BASE,
            ceiling,
            untried: true,
            tries: 0,
            probing: None,
            wanted: false,
            rest: None,
            passed: 0,
            missed: 0,
        }
    }

    /// Longest datagram to send, in bytes.
    pub fn current(&self) -> usize {
        self.current
    }

    /// A packet was as long as it could be: a longer one would have been used.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// The probe to send now, if one is due.
    pub fn probe(&self, now: Instant) -> Option<usize> {
        let rested = self.rest.is_none_or(|until| until <= now);
        let due = self.wanted && rested && self.probing.is_none() && self.ceiling >= self.current + STEP;
        due.then(|| if self.untried { self.ceiling } else { (self.current + self.ceiling).div_ceil(2) })
    }

    /// It was sent, and is given up at `until`.
    pub fn sent(&mut self, size: usize, until: Instant) {
        self.probing = Some((size, until));
    }

    /// When [`PathMtu::failed`] has to be called, unless something is heard before.
    pub fn deadline(&self) -> Option<Instant> {
        self.probing.map(|(_, until)| until)
    }

    /// A probe of `size` arrived.
    pub fn arrived(&mut self, size: usize) {
        if size <= self.ceiling {
            self.current = self.current.max(size);
        }
        self.probing = None;
        self.tries = 0;
        self.wanted = false;
    }

    /// The probe under way was lost.
    pub fn failed(&mut self) {
        let Some((size, _)) = self.probing.take() else { return };
        self.tries += 1;
        if self.tries == TRIES {
            self.too_long(size);
        }
    }

    /// The host itself says that it does not send datagrams of `size`.
    pub fn too_long(&mut self, size: usize) {
        if size > self.ceiling || size <= BASE {
            return;
        }
        self.ceiling = size - 1;
        self.current = self.current.min(self.ceiling);
        (self.untried, self.tries, self.probing) = (false, 0, None);
    }

    /// A router says that the path carries `size` (RFC 8899, section 4.6): believed where it is news, and within what paths
    /// carry. That size itself is tried next.
    pub fn carries(&mut self, size: usize) {
        if (BASE..self.ceiling).contains(&size) {
            self.ceiling = size;
            self.current = self.current.min(size);
            (self.untried, self.tries, self.probing) = (true, 0, None);
        }
    }

    /// A packet arrived.
    pub fn passed(&mut self, number: u64, size: usize) {
        if size > BASE && number >= self.passed {
            (self.passed, self.missed) = (number, 0);
        }
    }

    /// A packet was lost, and one sent later arrived. If only short ones arrive, the path has become narrow (RFC 8899,
    /// section 4.3): back to what every path carries.
    pub fn missed(&mut self, now: Instant, number: u64, size: usize) {
        if size <= BASE || number < self.passed {
            return;
        }
        self.missed += 1;
        if self.missed == NARROW {
            (self.current, self.untried, self.tries, self.probing, self.missed) = (BASE, false, 0, None, 0);
            self.rest = Some(now + REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Probes a path that carries `carries`; the sizes that were tried.
    fn search(mtu: &mut PathMtu, carries: usize) -> Vec<usize> {
        let now = Instant::now() + 2 * REST;
        let mut tried = Vec::new();
        loop {
            mtu.want();
            let Some(size) = mtu.probe(now) else { return tried };
            tried.push(size);
            mtu.sent(size, now);
            assert_eq!(mtu.probe(now), None, "one at a time");
            if size <= carries { mtu.arrived(size) } else { mtu.failed() }
        }
    }

    #[test]
    fn a_path_as_wide_as_the_interface_takes_one_probe() {
        let mut mtu = PathMtu::new(8972);
        assert_eq!(mtu.probe(Instant::now()), None, "nobody wants it");
        assert_eq!(search(&mut mtu, 9000), [8972]);
        assert_eq!(mtu.current(), 8972);
    }

    #[test]
    fn a_narrow_path_is_found_by_halves() {
        for carries in [1200, 1201, 1472, 4000, 8971] {
            let mut mtu = PathMtu::new(8972);
            let tried = search(&mut mtu, carries);
            assert!(tried.len() <= 3 * 10, "{tried:?}");
            assert!(
                mtu.current() <= carries && mtu.current() + STEP > carries,
                "{} of {carries}",
                mtu.current()
            );
        }
    }

    #[test]
    fn what_the_host_refuses_is_believed_at_once() {
        let mut mtu = PathMtu::new(60_000);
        mtu.want();
        let size = mtu.probe(Instant::now()).unwrap();
        mtu.sent(size, Instant::now());
        mtu.too_long(size);
        assert!(mtu.deadline().is_none());
        assert!(mtu.probe(Instant::now()).unwrap() < size);
        mtu.too_long(1000);
        assert_eq!(mtu.current(), BASE, "never less than that");
    }

    #[test]
    fn what_a_router_says_is_tried_next_and_bounds_the_search() {
        let mut mtu = PathMtu::new(8952);
        mtu.want();
        let size = mtu.probe(Instant::now()).unwrap();
        mtu.sent(size, Instant::now());
        mtu.carries(1472);
        assert_eq!((mtu.current(), mtu.deadline()), (BASE, None));
        assert_eq!(search(&mut mtu, 1472), [1472]);
        for none in [0, BASE - 1, 1472, 9000] {
            mtu.carries(none);
            assert_eq!(mtu.current(), 1472, "less than every path carries, or no news");
        }
        mtu.carries(1400);
        assert_eq!(mtu.current(), 1400, "a path that became narrower");
    }

    #[test]
    fn a_path_that_becomes_narrow_is_noticed_and_the_search_rests() {
        let now = Instant::now();
        let mut mtu = PathMtu::new(8972);
        search(&mut mtu, 8972);
        mtu.passed(10, 8000);
        (0..10).for_each(|number| mtu.missed(now, number, 8000));
        (11..16).for_each(|number| mtu.missed(now, number, 8000));
        mtu.missed(now, 16, 900);
        assert_eq!(mtu.current(), 8972, "sent before one that passed, too few, or short");
        mtu.missed(now, 17, 8000);
        mtu.want();
        assert_eq!((mtu.current(), mtu.probe(now)), (BASE, None));
        assert!(!search(&mut mtu, 1472).is_empty());
        assert!(mtu.current() > 1400);
    }
}
