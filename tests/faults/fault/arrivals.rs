//! Treatment of arrivals before the program gets them.

use std::collections::VecDeque;

use super::Plan;
use crate::random::Dice;
use udeck_via::mem::{Lent, PrivateCopy};
use udeck_via::transport::{Arrival, Body, Inline};

/// An arrival, with the receipt that its sender waits for.
#[derive(Debug)]
pub struct Taken {
    pub arrival: Arrival,
    pub receipt: Option<Lent>,
}

/// Arrivals that were taken from the transport, and not by the program yet: a late one, its successor, and
/// their doubles.
#[derive(Debug)]
pub struct Arrivals {
    dice: Dice,
    repeats: Dice,
    due: VecDeque<Taken>,
    late: Option<Taken>,
    /// The arrival that is repeated for ever, once nothing else is due.
    endless: Option<Taken>,
}

impl Arrivals {
    pub fn new([dice, repeats]: [Dice; 2]) -> Self {
        Arrivals { dice, repeats, due: VecDeque::new(), late: None, endless: None }
    }

    /// Adds an arrival. A dropped message ends for its sender as if it had been received.
    pub fn add(&mut self, taken: Taken, plan: &Plan) {
        let [drop, twice, late, corrupt] =
            self.dice.throw([&plan.drop, &plan.duplicate, &plan.reorder, &plan.corrupt]);
        let [repeat] = self.repeats.throw([&plan.repeat]);
        if drop {
            return;
        }
        if repeat {
            self.endless = Some(taken.twin());
        }
        let taken = if corrupt { taken.corrupted(&mut self.dice) } else { taken };
        let twin = twice.then(|| taken.twin());
        if late && self.late.is_none() {
            self.late = Some(taken);
        } else {
            self.due.push_back(taken);
            self.due.extend(self.late.take());
        }
        self.due.extend(twin);
    }

    /// Whether an arrival waits for the next one to overtake it.
    pub fn hold_one_back(&self) -> bool {
        self.late.is_some()
    }

    /// Releases a late arrival that nothing has overtaken, because its sender may wait for it.
    pub fn release(&mut self) {
        self.due.extend(self.late.take());
    }

    /// Next arrival for the program.
    pub fn next(&mut self) -> Option<Taken> {
        self.due.pop_front().or_else(|| self.endless.as_ref().map(Taken::twin))
    }

    /// Whether there is an arrival for the program.
    pub fn has_next(&self) -> bool {
        !self.due.is_empty() || self.endless.is_some()
    }

    /// Drops all arrivals: they will not be taken.
    pub fn clear(&mut self) {
        self.due.clear();
        (self.late, self.endless) = (None, None);
    }
}

impl Taken {
    /// A double of the arrival. The sender waits for only one of the two.
    fn twin(&self) -> Taken {
        let body = match &self.arrival.body {
            Body::Inline(bytes) => Body::Inline(*bytes),
            Body::Lent(head, lent) => Body::Lent(*head, PrivateCopy::twin(lent).into()),
            Body::Written(len) => Body::Written(*len),
        };
        Taken { arrival: Arrival { immediate: self.arrival.immediate, body }, receipt: None }
    }

    /// Changes one bit of the message, or of its header if it has no other byte.
    fn corrupted(self, dice: &mut Dice) -> Taken {
        let Taken { arrival: Arrival { immediate, body }, receipt } = self;
        let body = match body {
            Body::Inline(bytes) => Body::Inline(flipped(&bytes, dice)),
            Body::Lent(head, lent) if lent.is_empty() => Body::Lent(flipped(&head, dice), lent),
            Body::Lent(head, lent) => {
                Body::Lent(head, PrivateCopy::altered(lent, |bytes| flip_a_bit(bytes, dice)).into())
            }
            // The bytes are in place, and cannot be changed here.
            Body::Written(len) => Body::Written(len),
        };
        Taken { arrival: Arrival { immediate, body }, receipt }
    }
}

fn flipped(bytes: &Inline, dice: &mut Dice) -> Inline {
    let mut copy = [0; Inline::CAPACITY];
    let copy = &mut copy[..bytes.bytes().len()];
    copy.copy_from_slice(bytes.bytes());
    flip_a_bit(copy, dice);
    Inline::gather(copy, &[])
}

fn flip_a_bit(bytes: &mut [u8], dice: &mut Dice) {
    if !bytes.is_empty() {
        let bit = dice.below(8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}
