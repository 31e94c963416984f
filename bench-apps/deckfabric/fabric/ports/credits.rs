//! Credits: the room in the buffer behind each port, by lane.
//!
//! A lane has a number of flits for itself. Where lanes share a buffer, a lane that has used its own flits takes from the
//! rest, which is for all lanes.

/// Credits for a host, which takes everything that arrives.
const UNLIMITED: u32 = u32::MAX;

pub struct Credits {
    lanes: usize,
    /// Flits that each lane has for itself.
    least: u32,
    /// Flits that a lane can still have, by port and lane.
    of_lanes: Vec<u32>,
    /// Flits that are left for all lanes, by port; empty if lanes share nothing.
    shared: Vec<u32>,
    /// Sizes of what a lane can have at most, by port.
    sizes: Vec<u32>,
}

impl Credits {
    /// Makes credits for private buffers of one size, for `ports` ports.
    pub fn private(ports: usize, lanes: usize, size: u32) -> Self {
        Self {
            lanes,
            least: size,
            of_lanes: vec![size; ports * lanes],
            shared: Vec::new(),
            sizes: vec![size; ports],
        }
    }

    /// Makes credits for buffers of these sizes, which lanes share. A size is at least `lanes` × `least`.
    pub fn shared(sizes: Vec<u32>, lanes: usize, least: u32) -> Self {
        let all = lanes as u32 * least;
        let shared: Vec<_> = sizes.iter().map(|size| size - all).collect();
        let sizes: Vec<_> = shared.iter().map(|shared| shared + least).collect();
        let of_lanes = sizes.iter().flat_map(|&size| vec![size; lanes]).collect();
        Self { lanes, least, of_lanes, shared, sizes }
    }

    /// Makes a port's credits unlimited: it leads to a host.
    pub fn set_unlimited(&mut self, port: usize) {
        self.of_lanes[port * self.lanes..][..self.lanes].fill(UNLIMITED);
    }

    /// Whether the buffer has room for a packet of `flits`.
    #[inline]
    pub fn has_room(&self, port: u32, lane: u8, flits: u32) -> bool {
        let left = self.of_lanes[port as usize * self.lanes + usize::from(lane)];
        flits <= left && (self.shared.is_empty() || self.fits(port, left, flits))
    }

    fn fits(&self, port: u32, left: u32, flits: u32) -> bool {
        left == UNLIMITED
            || self.over(port, left - flits) - self.over(port, left) <= self.shared[port as usize]
    }

    /// Flits that a lane has of those for all lanes.
    fn over(&self, port: u32, left: u32) -> u32 {
        (self.sizes[port as usize] - left).saturating_sub(self.least)
    }

    /// Takes credits for a packet that leaves.
    #[inline]
    pub fn spend(&mut self, port: u32, lane: u8, flits: u16) {
        let at = port as usize * self.lanes + usize::from(lane);
        let before = self.of_lanes[at];
        if before == UNLIMITED {
            return;
        }
        let after =
            before.checked_sub(u32::from(flits)).expect("a packet leaves only if there are credits for it");
        self.of_lanes[at] = after;
        if !self.shared.is_empty() {
            let more = self.over(port, after) - self.over(port, before);
            let shared = &mut self.shared[port as usize];
            *shared = shared.checked_sub(more).expect("a packet leaves only if there is room for it");
        }
    }

    /// Gives credits back.
    #[inline]
    pub fn refund(&mut self, port: u32, lane: u8, flits: u16) {
        let at = port as usize * self.lanes + usize::from(lane);
        let before = self.of_lanes[at];
        if before == UNLIMITED {
            return;
        }
        let after = before + u32::from(flits);
        assert!(
            after <= self.sizes[port as usize],
            "port {port} lane {lane} got back more credits than it had"
        );
        self.of_lanes[at] = after;
        if !self.shared.is_empty() {
            self.shared[port as usize] += self.over(port, before) - self.over(port, after);
        }
    }

    /// Checks that all credits of a port are back.
    pub fn idle(&self, port: usize) -> Result<(), String> {
        let size = self.sizes[port];
        let lanes = &self.of_lanes[port * self.lanes..][..self.lanes];
        match lanes.iter().enumerate().find(|(_, left)| **left != UNLIMITED && **left != size) {
            Some((lane, left)) => Err(format!("port {port} lane {lane} has {left} of {size} credits")),
            None => Ok(()),
        }
    }
}
