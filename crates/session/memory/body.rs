//! Where the body of a message lies that arrived: a block of the receiver's outbox arena, so that it is used again and
//! not allocated; when half of that is taken so, the heap. Memory is taken for what has come of a body, not for what was announced.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_via::mem::{Filling, Lender, Lent};
use udeck_via::transport::TransferStatus;

use super::fresh::Anonymous;
use super::{Memory, Place};

/// Bodies are aligned to a cache line, wherever they lie.
const ALIGN: usize = 64;
/// From so many bytes on, a body on the heap is a mapping of its own, which takes memory page by page as it is written.
const MAPPED: usize = 128 << 10;
/// The least room that a body has for what comes next, if it is not at its end. More of it would be taken for peers that do
/// not go on; less would be system calls for a few bytes.
const AHEAD: usize = 256 << 10;

/// Private memory for a body, 64-byte aligned. While a driver or a device fills it nobody has a slice of it.
pub struct Store {
    /// By what a device knows the memory: it goes before that.
    registration: Option<Box<dyn Send + Sync>>,
    kept: Kept,
    len: usize,
}

/// Where a device finds the memory of a [`Store`].
#[derive(Clone, Copy, Debug)]
pub enum ForDevice {
    /// There is none.
    Nothing,
    /// At this offset of the outbox.
    Outbox(u64),
    /// In memory that no device knows: see [`Store::keep_registration`].
    Private(NonNull<[u8]>),
}

enum Kept {
    Nothing,
    Block(Filling),
    Heap(Heap),
    Mapped(Box<Anonymous>),
}

impl Kept {
    /// Not in the arena.
    fn private(len: usize) -> Option<Self> {
        let is_small = len < MAPPED;
        Some(if is_small { Kept::Heap(Heap::new(len)?) } else { Kept::Mapped(Anonymous::new(len).ok()?) })
    }
}

struct Heap {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: an allocation of its own.
unsafe impl Send for Heap {}
// SAFETY: as above; what is shared of it is only read.
unsafe impl Sync for Heap {}

impl Store {
    /// Room for `len` bytes, which takes memory as they come; `None` when there is none. Whoever calls has checked `len`
    /// against a bound.
    pub fn new(memory: &Memory, len: usize) -> Option<Self> {
        let kept = if len == 0 {
            Kept::Nothing
        } else {
            match memory.outbox.reserve(len) {
                Ok(filling) => Kept::Block(filling),
                Err(_) => Kept::private(len)?,
            }
        };
        Some(Store { registration: None, kept, len })
    }

    /// As [`Store::new`], in the arena or not at all.
    pub(crate) fn in_arena(memory: &Memory, len: usize) -> Option<Self> {
        let kept = Kept::Block(memory.outbox.reserve(len).ok()?);
        Some(Store { registration: None, kept, len })
    }

    /// As [`Store::new`], with memory for all of it at once: for a device, which fills any part of it.
    pub fn whole(memory: &Memory, len: usize) -> Option<Self> {
        let mut store = Self::new(memory, len)?;
        if let Kept::Block(filling) = &mut store.kept
            && filling.grow(len).is_err()
        {
            store.kept = Kept::private(len)?;
        }
        Some(store)
    }

    /// A copy of `bytes`.
    pub fn copy_of(memory: &Memory, bytes: &[u8]) -> Option<Self> {
        let mut store = Self::whole(memory, bytes.len())?;
        if !store.scatter(0, bytes) {
            return None;
        }
        memory.count_copied(bytes.len());
        Some(store)
    }

    /// Where a device finds it, if it was made [whole](Store::whole). It lies there while the store does.
    pub fn for_device(&self) -> ForDevice {
        match &self.kept {
            Kept::Nothing => ForDevice::Nothing,
            Kept::Block(filling) => ForDevice::Outbox(filling.offset()),
            Kept::Heap(_) | Kept::Mapped(_) => {
                ForDevice::Private(NonNull::slice_from_raw_parts(self.elsewhere().at(), self.len))
            }
        }
    }

    /// Keeps what a device knows the memory by, for as long as there is that.
    pub fn keep_registration(&mut self, registration: Box<dyn Send + Sync>) {
        self.registration = Some(registration);
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where what comes next lies, from byte `from` on, as much of it as has memory: some, if it is not the end. All before
    /// has come. It lies there while the store does. `None` when there is no memory.
    pub(crate) fn room(&mut self, from: usize) -> Option<Place> {
        if let Kept::Block(filling) = &mut self.kept {
            filling.grow(from.saturating_add(AHEAD).min(self.len)).ok()?;
            return Some(Place::new(filling.base(), filling.ready()).behind(from));
        }
        Some(self.elsewhere().behind(from))
    }

    /// Puts bytes there, from byte `at`, in any order. `false`: there is no memory for them.
    pub fn scatter(&mut self, at: usize, bytes: &[u8]) -> bool {
        let place = match &mut self.kept {
            Kept::Block(filling) => {
                let end = at + bytes.len();
                let taken = if at <= filling.ready() { filling.grow(end) } else { filling.take(at, end) };
                if taken.is_err() {
                    return false;
                }
                Place::new(filling.base(), self.len)
            }
            _ => self.elsewhere(),
        };
        place.behind(at).fill(bytes);
        true
    }

    /// All of it was scattered: it can be read. `false`: there is no memory after all.
    pub fn is_whole(&mut self) -> bool {
        match &mut self.kept {
            Kept::Block(filling) => filling.grow(self.len).is_ok(),
            _ => true,
        }
    }

    /// The place of one that is not in the arena.
    fn elsewhere(&self) -> Place {
        let at = match &self.kept {
            Kept::Nothing | Kept::Block(_) => return Place::new(NonNull::dangling(), 0),
            Kept::Heap(heap) => heap.at,
            Kept::Mapped(mapped) => mapped.start(),
        };
        Place::new(at, self.len)
    }

    /// Its bytes, when no place of it is used any more: those that have come, at least.
    pub fn bytes(&self) -> &[u8] {
        match &self.kept {
            Kept::Nothing => &[],
            Kept::Block(filling) => filling.bytes(),
            // SAFETY: allocated or mapped, and zeroed, with that length; ours alone.
            Kept::Heap(_) | Kept::Mapped(_) => unsafe {
                std::slice::from_raw_parts(self.elsewhere().at().as_ptr(), self.len)
            },
        }
    }

    /// Copies what has arrived there, `to.len()` bytes from offset `from`.
    pub fn copy_part(&self, from: usize, to: &mut [u8]) {
        // Of what was posted for, nothing need have come here.
        if !to.is_empty() {
            to.copy_from_slice(&self.bytes()[from..from + to.len()]);
        }
    }

    /// For the program to read. `receipt`: whom to tell when it is done, and the message's number.
    pub fn lend(self, receipt: Option<(Arc<dyn Acknowledge>, u32)>) -> Lent {
        let bytes = self.bytes();
        let part = (NonNull::from(bytes).cast(), bytes.len());
        let body = Body { _store: self, receipt: Mutex::new(receipt) };
        // SAFETY: the part lies in the store, at a stable address (a block's memory or the heap), which the lender owns;
        // nobody writes there any more.
        unsafe { Lent::new(&[part], Arc::new(body), 0) }
    }
}

/// A receipt for a message that lies elsewhere.
pub fn receipt(whom: Arc<dyn Acknowledge>, number: u32) -> Lent {
    let body = Body {
        _store: Store { registration: None, kept: Kept::Nothing, len: 0 },
        receipt: Mutex::new(Some((whom, number))),
    };
    // SAFETY: no parts.
    unsafe { Lent::new(&[], Arc::new(body), 0) }
}

/// Where a receipt goes.
pub trait Acknowledge: Send + Sync {
    /// What became of the peer's message of this number.
    fn acknowledge(&self, number: u32, status: TransferStatus);
}

struct Body {
    _store: Store,
    receipt: Mutex<Option<(Arc<dyn Acknowledge>, u32)>>,
}

impl Body {
    fn ends_as(&self, status: TransferStatus) {
        let receipt = self.receipt.lock().take();
        if let Some((whom, number)) = receipt {
            whom.acknowledge(number, status);
        }
    }
}

impl Lender for Body {
    fn give_back(&self, _: u16) {
        self.ends_as(TransferStatus::Arrived);
    }

    fn refuse(&self, _: u16) {
        self.ends_as(TransferStatus::Refused);
    }
}

impl Heap {
    fn new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len, ALIGN).ok()?;
        // SAFETY: `Store::new` asks for more than nothing.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Heap { at, layout })
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout, and freed here only.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let where_it_lies = match self.kept {
            Kept::Nothing => "nowhere",
            Kept::Block(_) => "in the outbox",
            Kept::Heap(_) | Kept::Mapped(_) => "on the heap",
        };
        write!(f, "Store({} bytes {where_it_lies})", self.len)
    }
}
