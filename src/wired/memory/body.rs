//! Where the body of a message lies that arrived: a block of the receiver's outbox arena, so that it is used again and
//! not allocated; when that is full, the heap.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_via::Block;
use udeck_via::mem::{Fill, Lender, Lent};
use udeck_via::transport::Fate;

use super::{Memory, Place};
use crate::link::Acknowledge;

/// Bodies are aligned to a cache line, wherever they lie.
const ALIGN: usize = 64;

/// Private memory for a body, 64-byte aligned. While a driver fills it nobody has a slice of it.
pub(crate) struct Store {
    kept: Kept,
    len: usize,
}

enum Kept {
    Nothing,
    Block(Block),
    Heap(Heap),
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
    /// Room for `len` bytes; `None` when the machine has none. Whoever calls has checked `len` against a bound.
    pub fn new(memory: &Memory, len: usize) -> Option<Self> {
        let kept = if len == 0 {
            Kept::Nothing
        } else {
            match memory.outbox.block(len, Fill::Keep) {
                Ok(block) => Kept::Block(block),
                Err(_) => Kept::Heap(Heap::new(len)?),
            }
        };
        Some(Store { kept, len })
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Where it lies, while the store does.
    pub fn place(&mut self) -> Place {
        let at = match &mut self.kept {
            Kept::Nothing => NonNull::dangling(),
            Kept::Block(block) => NonNull::from(block.bytes_mut()).cast(),
            Kept::Heap(heap) => heap.at,
        };
        Place::new(at, self.len)
    }

    /// Its bytes, when no place of it is used any more.
    pub fn bytes(&self) -> &[u8] {
        match &self.kept {
            Kept::Nothing => &[],
            Kept::Block(block) => &block.bytes()[..self.len],
            // SAFETY: allocated and zeroed with that length; ours alone.
            Kept::Heap(heap) => unsafe { std::slice::from_raw_parts(heap.at.as_ptr(), self.len) },
        }
    }

    /// Copies what has arrived there, `to.len()` bytes from offset `from`.
    pub fn copy_part(&self, from: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.bytes()[from..from + to.len()]);
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
pub(crate) fn receipt(whom: Arc<dyn Acknowledge>, number: u32) -> Lent {
    let body =
        Body { _store: Store { kept: Kept::Nothing, len: 0 }, receipt: Mutex::new(Some((whom, number))) };
    // SAFETY: no parts.
    unsafe { Lent::new(&[], Arc::new(body), 0) }
}

struct Body {
    _store: Store,
    receipt: Mutex<Option<(Arc<dyn Acknowledge>, u32)>>,
}

impl Body {
    fn ends_as(&self, fate: Fate) {
        let receipt = self.receipt.lock().take();
        if let Some((whom, number)) = receipt {
            whom.acknowledge(number, fate);
        }
    }
}

impl Lender for Body {
    fn give_back(&self, _: u16) {
        self.ends_as(Fate::Arrived);
    }

    fn refuse(&self, _: u16) {
        self.ends_as(Fate::Refused);
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
            Kept::Heap(_) => "on the heap",
        };
        write!(f, "Store({} bytes {where_it_lies})", self.len)
    }
}
