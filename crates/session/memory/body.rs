//! Memory of a received message's body: a block of the receiver's outbox arena, which is reused and not allocated; when half
//! of the arena is taken in this way, the heap. Memory is taken for the bytes of a body that have come, not for its announced
//! length.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_via::mem::{Filling, Lender, Lent};
use udeck_via::transport::TransferStatus;

use super::fresh::Anonymous;
use super::{Memory, Place};

/// Alignment of bodies in bytes: a cache line, wherever they lie.
const ALIGN: usize = 64;
/// Length in bytes from which a body on the heap is a mapping of its own, which takes memory page by page as it is written.
const MAPPED: usize = 128 << 10;
/// Least room in bytes for the next part of a body, unless its end is nearer. More would be taken for peers that do not go
/// on; less would be system calls for a few bytes.
const AHEAD: usize = 256 << 10;

/// Private memory for a body, 64-byte aligned. While a driver or a device fills it, there is no slice of it.
pub struct Store {
    /// The device's registration of the memory. It is dropped before the memory.
    registration: Option<Box<dyn Send + Sync>>,
    kept: Storage,
    len: usize,
}

/// Place of a [`Store`]'s memory, for a device.
#[derive(Clone, Copy, Debug)]
pub enum ForDevice {
    /// The store has no bytes.
    Nothing,
    /// At this offset of the outbox.
    Outbox(u64),
    /// In memory that no device knows: see [`Store::keep_registration`].
    Private(NonNull<[u8]>),
}

enum Storage {
    Nothing,
    Block(Filling),
    Heap(Heap),
    Mapped(Box<Anonymous>),
}

impl Storage {
    /// Memory outside the arena.
    fn private(len: usize) -> Option<Self> {
        let is_small = len < MAPPED;
        Some(if is_small {
            Storage::Heap(Heap::new(len)?)
        } else {
            Storage::Mapped(Anonymous::new(len).ok()?)
        })
    }
}

struct Heap {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its allocation.
unsafe impl Send for Heap {}
// SAFETY: as above; shared references only read it.
unsafe impl Sync for Heap {}

impl Store {
    /// A store for `len` bytes, which takes memory as they come; `None` when there is none. The caller has checked `len`
    /// against a bound.
    pub fn new(memory: &Memory, len: usize) -> Option<Self> {
        let kept = if len == 0 {
            Storage::Nothing
        } else {
            match memory.outbox.reserve(len) {
                Ok(filling) => Storage::Block(filling),
                Err(_) => Storage::private(len)?,
            }
        };
        Some(Store { registration: None, kept, len })
    }

    /// The same as [`Store::new`], in the arena or not at all.
    pub(crate) fn in_arena(memory: &Memory, len: usize) -> Option<Self> {
        let kept = Storage::Block(memory.outbox.reserve(len).ok()?);
        Some(Store { registration: None, kept, len })
    }

    /// The same as [`Store::new`], with memory for all of it at once: for a device, which fills any part of it.
    pub fn whole(memory: &Memory, len: usize) -> Option<Self> {
        let mut store = Self::new(memory, len)?;
        if let Storage::Block(filling) = &mut store.kept
            && filling.grow(len).is_err()
        {
            store.kept = Storage::private(len)?;
        }
        Some(store)
    }

    /// A store with a copy of `bytes`.
    pub fn copy_of(memory: &Memory, bytes: &[u8]) -> Option<Self> {
        let mut store = Self::whole(memory, bytes.len())?;
        if !store.scatter(0, bytes) {
            return None;
        }
        memory.count_copied(bytes.len());
        Some(store)
    }

    /// The place of the memory for a device, if the store was made [whole](Store::whole). The memory stays there while the
    /// store exists.
    pub fn for_device(&self) -> ForDevice {
        match &self.kept {
            Storage::Nothing => ForDevice::Nothing,
            Storage::Block(filling) => ForDevice::Outbox(filling.offset()),
            Storage::Heap(_) | Storage::Mapped(_) => {
                ForDevice::Private(NonNull::slice_from_raw_parts(self.elsewhere().at(), self.len))
            }
        }
    }

    /// Keeps the device's registration of the memory for as long as the memory exists.
    pub fn keep_registration(&mut self, registration: Box<dyn Send + Sync>) {
        self.registration = Some(registration);
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the store has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Place of the bytes from `from` on, as far as they have memory: at least one, if `from` is not the end. All bytes
    /// before have come. The memory stays there while the store exists. `None` when there is no memory.
    pub(crate) fn room(&mut self, from: usize) -> Option<Place> {
        if let Storage::Block(filling) = &mut self.kept {
            filling.grow(from.saturating_add(AHEAD).min(self.len)).ok()?;
            return Some(Place::new(filling.base(), filling.ready()).behind(from));
        }
        Some(self.elsewhere().behind(from))
    }

    /// Puts bytes into the store from byte `at`, in any order. Returns `false` if there is no memory for them.
    pub fn scatter(&mut self, at: usize, bytes: &[u8]) -> bool {
        let place = match &mut self.kept {
            Storage::Block(filling) => {
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

    /// Whether the store can be read, once all of it was scattered. `false`: there is no memory after all.
    pub fn is_whole(&mut self) -> bool {
        match &mut self.kept {
            Storage::Block(filling) => filling.grow(self.len).is_ok(),
            _ => true,
        }
    }

    /// Place of a store that is not in the arena.
    fn elsewhere(&self) -> Place {
        let at = match &self.kept {
            Storage::Nothing | Storage::Block(_) => return Place::new(NonNull::dangling(), 0),
            Storage::Heap(heap) => heap.at,
            Storage::Mapped(mapped) => mapped.start(),
        };
        Place::new(at, self.len)
    }

    /// The store's bytes, when no place of it is used any more: at least those that have come.
    pub fn bytes(&self) -> &[u8] {
        match &self.kept {
            Storage::Nothing => &[],
            Storage::Block(filling) => filling.bytes(),
            // SAFETY: allocated or mapped, and zeroed, with that length; ours alone.
            Storage::Heap(_) | Storage::Mapped(_) => unsafe {
                std::slice::from_raw_parts(self.elsewhere().at().as_ptr(), self.len)
            },
        }
    }

    /// Copies `to.len()` bytes that have come, from offset `from`.
    pub fn copy_part(&self, from: usize, to: &mut [u8]) {
        // The bytes may all have gone to the program's place, and none to the store.
        if !to.is_empty() {
            to.copy_from_slice(&self.bytes()[from..from + to.len()]);
        }
    }

    /// Lends the bytes to the program. `receipt`: the receiver of the receipt when the program is done, and the message's number.
    pub fn lend(self, receipt: Option<(Arc<dyn Acknowledge>, u32)>) -> Lent {
        let bytes = self.bytes();
        let part = (NonNull::from(bytes).cast(), bytes.len());
        let body = Body { _store: self, receipt: Mutex::new(receipt) };
        // SAFETY: the part lies in the store, at a stable address (a block's memory or the heap), which the lender owns;
        // nobody writes there any more.
        unsafe { Lent::new(&[part], Arc::new(body), 0) }
    }
}

/// A receipt for a message without a store.
pub fn receipt(whom: Arc<dyn Acknowledge>, number: u32) -> Lent {
    let body = Body {
        _store: Store { registration: None, kept: Storage::Nothing, len: 0 },
        receipt: Mutex::new(Some((whom, number))),
    };
    // SAFETY: no parts.
    unsafe { Lent::new(&[], Arc::new(body), 0) }
}

/// Receiver of receipts.
pub trait Acknowledge: Send + Sync {
    /// Reports what became of the peer's message of this number.
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
            Storage::Nothing => "nowhere",
            Storage::Block(_) => "in the outbox",
            Storage::Heap(_) | Storage::Mapped(_) => "on the heap",
        };
        write!(f, "Store({} bytes {where_it_lies})", self.len)
    }
}
