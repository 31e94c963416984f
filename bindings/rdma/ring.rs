//! A queue in a growing ring: like `VecDeque`, whose `push_back` is a call that costs as much again as the rest of a post.

/// A queue, first in first out. An empty place holds `T::default()`.
pub struct Ring<T> {
    /// A power of two, or none.
    places: Box<[T]>,
    first: usize,
    len: usize,
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Ring { places: Box::default(), first: 0, len: 0 }
    }
}

impl<T: Default> Ring<T> {
    /// Number of items.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the queue has no item.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    fn place(&self, nth: usize) -> usize {
        self.first.wrapping_add(nth) & self.places.len().wrapping_sub(1)
    }

    /// Adds an item behind all others.
    #[inline(always)]
    pub fn push_back(&mut self, item: T) {
        if self.len == self.places.len() {
            self.grow();
        }
        let at = self.place(self.len);
        // Always there: `place` is within the ring.
        if let Some(place) = self.places.get_mut(at) {
            *place = item;
            self.len += 1;
        }
    }

    /// The oldest item.
    #[inline(always)]
    pub fn front(&self) -> Option<&T> {
        self.places.get(self.first).filter(|_| self.len > 0)
    }

    /// Takes the oldest item.
    #[inline(always)]
    pub fn pop_front(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let item = std::mem::take(self.places.get_mut(self.first)?);
        self.first = self.place(1);
        self.len -= 1;
        Some(item)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let room = (2 * self.places.len()).max(16);
        let mut places = Vec::with_capacity(room);
        while let Some(item) = self.pop_front() {
            places.push(item);
        }
        (self.first, self.len) = (0, places.len());
        places.resize_with(room, T::default);
        self.places = places.into_boxed_slice();
    }

    /// All items, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        (0..self.len).map(|nth| &self.places[self.place(nth)])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_queue(steps in prop::collection::vec(any::<Option<u8>>(), 0..300)) {
            let (mut ring, mut queue) = (Ring::default(), VecDeque::new());
            for step in steps {
                match step {
                    Some(item) => {
                        ring.push_back(Box::new(item));
                        queue.push_back(Box::new(item));
                    }
                    None => prop_assert_eq!(ring.pop_front(), queue.pop_front()),
                }
                prop_assert_eq!((ring.len(), ring.is_empty()), (queue.len(), queue.is_empty()));
                prop_assert_eq!(ring.front(), queue.front());
                prop_assert!(ring.iter().eq(queue.iter()));
            }
        }
    }
}
