//! Possible contents of a window: every accepted write, and the step from which its bytes must be visible.

use crate::image::payload;

/// Bytes of each window.
pub const LENGTH: usize = 256;

/// The writes to one window, in the order of their posts. Their arrival keeps the order only within one connection whose
/// level keeps order, and after writes that were known to be in place when they were posted.
#[derive(Default)]
pub struct History(Vec<Write>);

struct Write {
    /// Seed of its bytes.
    tag: u32,
    direction: (usize, usize),
    offset: usize,
    bytes: Vec<u8>,
    posted: u64,
    /// Whether writes of its direction arrive in the order of their posts.
    ordered: bool,
    /// Step from which its bytes, or those of a later write, must be visible.
    visible: Option<u64>,
}

/// Contents of a window before the first write.
pub fn blank() -> Vec<u8> {
    (0..LENGTH).map(|at| 0x5a ^ at as u8).collect()
}

impl History {
    /// Records that a write of side `direction.1` of connection `direction.0` was accepted at step `posted`.
    pub fn accepted(
        &mut self,
        tag: u32,
        direction: (usize, usize, bool),
        offset: usize,
        len: usize,
        posted: u64,
    ) {
        let (direction, ordered) = ((direction.0, direction.1), direction.2);
        self.0.push(Write {
            tag,
            direction,
            offset,
            bytes: payload(tag, len),
            posted,
            ordered,
            visible: None,
        });
    }

    /// Records that a message of this direction, posted at step `posted`, was reported at step `now`. With it all earlier
    /// writes of its sender are visible; without order (unreliable delivery) only the write that carried it.
    pub fn seen(&mut self, direction: (usize, usize), tag: u32, posted: u64, ordered: bool, now: u64) {
        let before = |write: &&mut Write| {
            write.direction == direction && (write.tag == tag || (ordered && write.posted <= posted))
        };
        self.0.iter_mut().filter(before).for_each(|write| {
            write.visible.get_or_insert(now);
        });
    }

    /// Whether the window may have contained `bytes` at `offset` at step `now`.
    pub fn check(&self, offset: usize, bytes: &[u8], now: u64) -> Result<(), String> {
        for (at, &byte) in (offset..).zip(bytes) {
            if !self.allows(at, byte, now) {
                return Err(format!("byte {at} of the window is {byte:#04x}, which nobody wrote there last"));
            }
        }
        Ok(())
    }

    fn allows(&self, at: usize, byte: u8, now: u64) -> bool {
        let covers = |write: &&Write| (write.offset..write.offset + write.bytes.len()).contains(&at);
        let there = || self.0.iter().filter(covers).filter(|write| write.is_there(now));
        let may_be_last = |write: &Write| !there().any(|other| other.is_after(write));
        let wrote_it = |write: &Write| write.bytes[at - write.offset] == byte;
        let blank_byte = there().next().is_none() && blank()[at] == byte;
        blank_byte || self.0.iter().filter(covers).any(|write| wrote_it(write) && may_be_last(write))
    }
}

impl Write {
    /// Whether it has certainly arrived by step `now`.
    fn is_there(&self, now: u64) -> bool {
        self.visible.is_some_and(|visible| visible <= now)
    }

    /// Whether it has certainly arrived after `other`.
    fn is_after(&self, other: &Write) -> bool {
        let in_order = self.ordered && self.direction == other.direction && self.posted > other.posted;
        in_order || other.is_there(self.posted)
    }
}
