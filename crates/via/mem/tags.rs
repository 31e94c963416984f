//! Protection tags of a NIC, from creation to end (VIA: `VipCreatePtag`, `VipDestroyPtag`).
//!
//! A [`Ptag`] is a number and may be copied anywhere; its state is kept here, per NIC. Each object that carries a tag holds a
//! [`TagUse`], so that the tag cannot end before it. Numbers are drawn once per process, for all NICs. Equal tags thus mean
//! that VI and memory are of one NIC, and an offset in one NIC's arena is never taken for another's.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck_sys::process::ForkMark;

use super::Ptag;
use crate::error::{Error, Result};

/// The number of the next tag of this process; 0 is no tag.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The tags of one NIC.
#[derive(Debug, Default)]
pub(crate) struct Tags(Mutex<HashMap<Ptag, Arc<Tag>>>, ForkMark);

/// Kind of object that carries a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Vi,
    Region,
    Window,
}

const CARRIERS: [(Carrier, &str); 3] =
    [(Carrier::Vi, "VIs"), (Carrier::Region, "regions"), (Carrier::Window, "windows")];

#[derive(Debug)]
struct Tag {
    table: Weak<Tags>,
    /// Number of uses by [`Carrier`]. Raised under the table's lock only.
    uses: [AtomicU32; CARRIERS.len()],
}

/// One use of a tag, until it is dropped.
pub(crate) struct TagUse {
    ptag: Ptag,
    carrier: Carrier,
    tag: Arc<Tag>,
}

impl Tags {
    /// Creates a tag.
    ///
    /// # Panics
    /// When this process has drawn all 4 billion: a number that is used twice would open memory to the wrong VIs.
    pub fn create(self: &Arc<Self>) -> Ptag {
        let drawn = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1));
        let ptag = Ptag(drawn.expect("a process draws fewer than 2^32 protection tags"));
        let tag = Tag { table: Arc::downgrade(self), uses: Default::default() };
        self.0.lock().insert(ptag, Arc::new(tag));
        ptag
    }

    pub fn destroy(&self, ptag: Ptag) -> Result {
        let mut tags = self.0.lock();
        let tag = tags.get(&ptag).ok_or(Error::InvalidPtag)?;
        let by = tag.used_by();
        if !by.is_empty() {
            return Err(Error::InUse { what: format!("protection tag {}", ptag.0), by });
        }
        tags.remove(&ptag);
        Ok(())
    }

    /// Counts one more use. The tag lives at least as long.
    pub fn take(&self, ptag: Ptag, carrier: Carrier) -> Result<TagUse> {
        let tags = self.0.lock();
        let tag = tags.get(&ptag).ok_or(Error::InvalidPtag)?.clone();
        tag.uses[carrier as usize].fetch_add(1, Ordering::Relaxed);
        Ok(TagUse { ptag, carrier, tag })
    }
}

impl Tag {
    /// The uses as text, such as `2 VIs, 1 regions`; empty without uses.
    fn used_by(&self) -> String {
        let counts =
            CARRIERS.iter().zip(&self.uses).map(|((_, name), uses)| (uses.load(Ordering::Relaxed), name));
        let used: Vec<_> =
            counts.filter(|(count, _)| *count > 0).map(|(count, name)| format!("{count} {name}")).collect();
        used.join(", ")
    }
}

impl TagUse {
    #[inline]
    pub fn ptag(&self) -> Ptag {
        self.ptag
    }

    /// A use of another tag of the same NIC, by the same kind of object.
    pub fn other(&self, ptag: Ptag) -> Result<TagUse> {
        self.tag.table.upgrade().ok_or(Error::InvalidPtag)?.take(ptag, self.carrier)
    }
}

impl Drop for TagUse {
    fn drop(&mut self) {
        self.tag.uses[self.carrier as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for TagUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.ptag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_ends_when_nothing_carries_it() {
        let tags = Arc::new(Tags::default());
        let ptag = tags.create();
        let (vi, region) = (tags.take(ptag, Carrier::Vi).unwrap(), tags.take(ptag, Carrier::Region).unwrap());
        let window = tags.take(ptag, Carrier::Window).unwrap();
        let text = tags.destroy(ptag).unwrap_err().to_string();
        assert!(text.contains(&format!("tag {}", ptag.0)), "{text}");
        assert!(text.contains("1 VIs, 1 regions, 1 windows"), "{text}");
        drop((vi, window));
        let text = tags.destroy(ptag).unwrap_err().to_string();
        assert!(text.contains("1 regions") && !text.contains("VIs"), "{text}");
        drop(region);
        tags.destroy(ptag).unwrap();
        assert!(matches!(tags.take(ptag, Carrier::Vi), Err(Error::InvalidPtag)));
        assert!(matches!(tags.destroy(ptag), Err(Error::InvalidPtag)));
    }

    #[test]
    fn tags_of_another_nic_are_unknown() {
        let (ours, theirs) = (Arc::new(Tags::default()), Arc::new(Tags::default()));
        let (ptag, foreign) = (ours.create(), theirs.create());
        assert_ne!(ptag, foreign);
        assert!(matches!(ours.take(foreign, Carrier::Region), Err(Error::InvalidPtag)));
        let region = ours.take(ptag, Carrier::Region).unwrap();
        assert!(matches!(region.other(foreign), Err(Error::InvalidPtag)));
    }

    #[test]
    fn a_use_moves_to_another_tag() {
        let tags = Arc::new(Tags::default());
        let (old, new) = (tags.create(), tags.create());
        let mut region = tags.take(old, Carrier::Region).unwrap();
        region = region.other(new).unwrap();
        tags.destroy(old).unwrap();
        assert!(tags.destroy(new).is_err());
        assert_eq!(region.ptag(), new);
    }
}
