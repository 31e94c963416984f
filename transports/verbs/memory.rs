//! Where the body of a message lies that arrived: a block of the receiver's outbox arena, so that it is used again and not
//! allocated; when that is full, the heap.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_via::Block;
use udeck_via::mem::{Fill, Lender, Lent};
use udeck_via::transport::Fate;
use udeck_wired::Memory;

use crate::hca::objects::Mr;

/// Bytes that the device accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment {
    /// Of the outbox.
    Outbox(u64, usize),
    /// Elsewhere: address, the local key of its region, bytes.
    Elsewhere(u64, u32, usize),
}

impl Segment {
    pub fn len(self) -> usize {
        match self {
            Segment::Outbox(_, len) | Segment::Elsewhere(_, _, len) => len,
        }
    }

    /// `len` bytes of it from `from` on.
    pub fn part(self, from: usize, len: usize) -> Self {
        debug_assert!(from + len <= self.len());
        match self {
            Segment::Outbox(offset, _) => Segment::Outbox(offset + from as u64, len),
            Segment::Elsewhere(address, key, _) => Segment::Elsewhere(address + from as u64, key, len),
        }
    }
}

/// Private memory for a body, 64-byte aligned. While a device fills it nobody has a slice of it.
pub struct Store {
    kept: Kept,
    len: usize,
}

enum Kept {
    Nothing,
    Block(Block),
    /// Registered if the device is to fill it. The region goes before its memory.
    Heap(Option<Mr>, Box<[Line]>),
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "only its address is used")] [u8; 64]);

impl Store {
    /// Room for `len` bytes; `None` when the machine has none. Whoever calls has checked `len` against a bound.
    pub fn new(memory: &Memory, len: usize) -> Option<Self> {
        let kept = if len == 0 {
            Kept::Nothing
        } else {
            match memory.outbox.block(len, Fill::Keep) {
                Ok(block) => Kept::Block(block),
                Err(_) => {
                    let mut lines = Vec::new();
                    lines.try_reserve_exact(len.div_ceil(64)).ok()?;
                    lines.resize(len.div_ceil(64), Line([0; 64]));
                    Kept::Heap(None, lines.into())
                }
            }
        };
        Some(Store { kept, len })
    }

    /// A copy of `bytes`.
    pub fn copy_of(memory: &Memory, bytes: &[u8]) -> Option<Self> {
        let mut store = Self::new(memory, bytes.len())?;
        store.bytes_mut().copy_from_slice(bytes);
        memory.count_copied(bytes.len());
        Some(store)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// What a device is told to fill. Memory on the heap is registered by `register`.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn segment<E>(
        &mut self,
        register: impl FnOnce(NonNull<[u8]>) -> Result<Mr, E>,
    ) -> Result<Segment, E> {
        let len = self.len;
        match &mut self.kept {
            Kept::Nothing => Ok(Segment::Outbox(0, 0)),
            Kept::Block(block) => Ok(Segment::Outbox(block.offset(), len)),
            Kept::Heap(mr, lines) => {
                let base = NonNull::from(&mut lines[..]).cast::<u8>();
                if mr.is_none() {
                    *mr = Some(register(NonNull::slice_from_raw_parts(base, lines.len() * 64))?);
                }
                let key = mr.as_ref().map_or(0, Mr::lkey);
                Ok(Segment::Elsewhere(base.addr().get() as u64, key, len))
            }
        }
    }

    /// Its bytes, when no device fills it any more.
    pub fn bytes(&self) -> &[u8] {
        match &self.kept {
            Kept::Nothing => &[],
            Kept::Block(block) => &block.bytes()[..self.len],
            // SAFETY: plain bytes, at least that many, ours alone.
            Kept::Heap(_, lines) => unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), self.len) },
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.kept {
            Kept::Nothing => &mut [],
            Kept::Block(block) => &mut block.bytes_mut()[..self.len],
            // SAFETY: as above, and we have it exclusively.
            Kept::Heap(_, lines) => unsafe {
                std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), self.len)
            },
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

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.kept {
            Kept::Nothing => "nowhere",
            Kept::Block(_) => "in the outbox",
            Kept::Heap(..) => "on the heap",
        };
        write!(f, "Store({} bytes {place})", self.len)
    }
}

/// Where a receipt goes.
pub trait Acknowledge: Send + Sync {
    /// What became of the peer's message of this number.
    fn acknowledge(&self, number: u32, fate: Fate);
}

/// A receipt for a message that lies elsewhere.
pub fn receipt(whom: Arc<dyn Acknowledge>, number: u32) -> Lent {
    Store { kept: Kept::Nothing, len: 0 }.lend(Some((whom, number)))
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
