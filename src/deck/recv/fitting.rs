//! Retrieving into a buffer: the oldest message that fits, and what is set aside for it.

use std::collections::BTreeSet;

use udeck_via::Deadline;

use super::Inbox;
use crate::error::Result;
use crate::parcel::{Parcel, TooLong};

/// Messages too long for the program's buffer, and such as came behind them, that are taken out of their rings for one that
/// fits. So many are enough to say that the buffer is too small.
const MOST_SET_ASIDE: usize = 256;

impl Inbox {
    /// The oldest message of at most `buffer_len` bytes; one that is longer stays at the head of its postbox, and only that
    /// waits.
    ///
    /// `Err` in the result: nothing fits, and this is the oldest message.
    pub fn next_fitting(&mut self, deadline: Deadline, buffer_len: usize) -> Result<Result<Parcel, TooLong>> {
        self.buffer_len = Some(buffer_len);
        let found = self.find_fitting(deadline, buffer_len);
        (self.buffer_len, self.too_long) = (None, None);
        found
    }

    fn find_fitting(&mut self, deadline: Deadline, buffer_len: usize) -> Result<Result<Parcel, TooLong>> {
        let fits = |parcel: &Parcel| parcel.bytes().len() <= buffer_len;
        let mut blocked = BTreeSet::new();
        let set_aside = self.set_aside.parcels();
        for at in 0..set_aside.len() {
            let parcel = &set_aside[at];
            let postbox = (parcel.rank, parcel.postbox);
            if !blocked.contains(&postbox) && fits(parcel) {
                return Ok(Ok(set_aside.remove(at).expect("in range")));
            }
            blocked.insert(postbox);
        }
        loop {
            if let Some(too_long) = self.too_long.take() {
                return Ok(Err(too_long));
            }
            if self.set_aside.parcels().len() >= MOST_SET_ASIDE
                && let Some(too_long) = self.longest_waiting()
            {
                return Ok(Err(too_long));
            }
            let parcel = match self.poll_all()? {
                Some(parcel) => parcel,
                None => match self.longest_waiting() {
                    Some(too_long) => return Ok(Err(too_long)),
                    None => {
                        let mut parcel = Parcel::NONE;
                        if !self.wait_for_any(&mut parcel, deadline)? {
                            continue;
                        }
                        parcel
                    }
                },
            };
            let postbox = (parcel.rank, parcel.postbox);
            if !blocked.contains(&postbox) && fits(&parcel) {
                return Ok(Ok(parcel));
            }
            blocked.insert(postbox);
            self.burst.end();
            self.set_aside.parcels().push_back(parcel);
        }
    }

    /// A message that does not fit: the one that was just refused, or the oldest.
    fn longest_waiting(&mut self) -> Option<TooLong> {
        let set_aside = &mut self.set_aside;
        let oldest = || set_aside.parcels().front().map(|oldest| (oldest.bytes().len(), oldest.rank));
        self.too_long.take().or_else(oldest)
    }
}
