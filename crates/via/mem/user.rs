//! User memory: registered memory that the library did not allocate.
//!
//! The program gives the library a buffer of its own and gets it back. In between, the library keeps it as a pointer and an
//! owner that frees it, never as a `Vec`, a `Box` or a `&mut`: those promise the compiler that no one else knows the address,
//! and a network card does.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use bytemuck::Pod;

use super::cache::Identity;
use super::registrar::Registrar;

/// A buffer that can be registered: it is taken apart into its bytes and their owner, and put together again.
///
/// # Safety
/// The bytes of [`StableBuffer::into_parts`] are initialised. Until [`StableBuffer::from_parts`] they are valid for reads and
/// writes through that pointer, on any thread, by the holder of the parts and by no one else. They stay in place, also when
/// the owner is moved. Any values may be written there.
pub unsafe trait StableBuffer: Send + Sized + 'static {
    /// State that is needed beside the bytes to make the buffer again.
    type Owner: Send + 'static;

    /// Takes the buffer apart: its bytes, and their owner from now on.
    fn into_parts(self) -> (NonNull<[u8]>, Self::Owner);

    /// Makes the buffer again, with the bytes as they are now.
    ///
    /// # Safety
    /// Both parts come from one call of [`StableBuffer::into_parts`], and neither is used any more.
    unsafe fn from_parts(bytes: NonNull<[u8]>, owner: Self::Owner) -> Self;
}

// SAFETY: a vector's heap memory is its own, up to its length initialised, and moves only when the vector grows, which
// nobody can make it do while it is in parts. `Pod` takes any bytes.
unsafe impl<T: Pod + Send> StableBuffer for Vec<T> {
    /// Length and capacity, in elements.
    type Owner = (usize, usize);

    fn into_parts(self) -> (NonNull<[u8]>, (usize, usize)) {
        let mut vector = ManuallyDrop::new(self);
        let (len, owner) = (size_of_val(vector.as_slice()), (vector.len(), vector.capacity()));
        // The pointer is not taken from a slice: that pointer would be valid for the length only, and not for the capacity.
        let start = NonNull::new(vector.as_mut_ptr()).expect("a vector's pointer is never null");
        (NonNull::slice_from_raw_parts(start.cast(), len), owner)
    }

    unsafe fn from_parts(bytes: NonNull<[u8]>, (len, capacity): (usize, usize)) -> Self {
        // SAFETY: address, length and capacity of a vector of this type that was not dropped.
        unsafe { Vec::from_raw_parts(bytes.cast().as_ptr(), len, capacity) }
    }
}

// SAFETY: as for vectors; a boxed slice's memory never moves.
unsafe impl<T: Pod + Send> StableBuffer for Box<[T]> {
    /// Length in elements.
    type Owner = usize;

    fn into_parts(self) -> (NonNull<[u8]>, usize) {
        let len = self.len();
        (NonNull::from(bytemuck::cast_slice_mut::<T, u8>(Box::leak(self))), len)
    }

    unsafe fn from_parts(bytes: NonNull<[u8]>, len: usize) -> Self {
        let slice = std::ptr::slice_from_raw_parts_mut(bytes.cast().as_ptr(), len);
        // SAFETY: address and length of a boxed slice of this type that was leaked.
        unsafe { Box::from_raw(slice) }
    }
}

/// A buffer of the program's with an identity: when it is registered again, it is recognised.
///
/// The bytes are read and written as a slice. [`UserMemory::into_inner`] gives the buffer back, and ends its registrations in
/// the caches; so does dropping it.
pub struct UserMemory<B: StableBuffer> {
    memory: Allocation,
    buffer: PhantomData<B>,
}

impl<B: StableBuffer> UserMemory<B> {
    /// Takes the buffer.
    pub fn new(buffer: B) -> Self {
        let (bytes, owner) = buffer.into_parts();
        let kept = OwnedBytes::<B> { bytes, owner: Some(owner) };
        let (identity, keeper) = (Identity::fresh(), Some(Box::new(kept) as Box<dyn Any + Send>));
        let memory = Allocation { caches: Vec::new(), identity, bytes, keeper };
        UserMemory { memory, buffer: PhantomData }
    }

    /// Gives the buffer back, with the bytes as they are now.
    pub fn into_inner(self) -> B {
        let UserMemory { mut memory, .. } = self;
        memory.retire();
        let kept = memory.keeper.take().and_then(|keeper| keeper.downcast::<OwnedBytes<B>>().ok());
        kept.and_then(|mut kept| kept.take()).expect("made with this type, and taken once")
    }

    pub(super) fn into_allocation(self) -> Allocation {
        self.memory
    }

    /// Restores the memory's type, if this is its type.
    pub(super) fn from_allocation(memory: Allocation) -> Result<Self, Allocation> {
        if memory.keeper.as_ref().is_some_and(|keeper| keeper.is::<OwnedBytes<B>>()) {
            Ok(UserMemory { memory, buffer: PhantomData })
        } else {
            Err(memory)
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        self.memory.identity
    }

    /// Address and length of the bytes.
    pub(super) fn place(&self) -> NonNull<[u8]> {
        self.memory.bytes
    }
}

impl<B: StableBuffer> Deref for UserMemory<B> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.bytes()
    }
}

impl<B: StableBuffer> DerefMut for UserMemory<B> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl<B: StableBuffer> fmt::Debug for UserMemory<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

/// [`UserMemory`] without its type.
pub(super) struct Allocation {
    /// Registrars that may keep a registration of it.
    caches: Vec<Weak<Registrar>>,
    identity: Identity,
    bytes: NonNull<[u8]>,
    /// An [`OwnedBytes`], which frees the bytes when dropped. `None` only while it is taken out.
    keeper: Option<Box<dyn Any + Send>>,
}

// SAFETY: it owns the bytes, which may be used on any thread (`StableBuffer`), and a `Send` keeper.
unsafe impl Send for Allocation {}
// SAFETY: `&Allocation` reads bytes only; nothing is done with the keeper but by `&mut` or by value.
unsafe impl Sync for Allocation {}

impl Allocation {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: valid, initialised and ours while the keeper lives (`StableBuffer`); `&self` only reads.
        unsafe { self.bytes.as_ref() }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it exclusive.
        unsafe { self.bytes.as_mut() }
    }

    /// Notes that `registrar` may keep a registration of this memory.
    pub fn known_to(&mut self, registrar: &Arc<Registrar>) {
        self.caches.retain(|cache| cache.strong_count() > 0);
        if !self.caches.iter().any(|cache| std::ptr::eq(cache.as_ptr(), Arc::as_ptr(registrar))) {
            self.caches.push(Arc::downgrade(registrar));
        }
    }

    /// Ends all registrations that the caches keep of this memory.
    fn retire(&mut self) {
        for cache in self.caches.drain(..) {
            if let Some(registrar) = cache.upgrade() {
                registrar.invalidate(self.identity);
            }
        }
    }
}

impl Drop for Allocation {
    /// Ends the registrations before the memory is freed: the keeper frees it when it is dropped after this.
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.retire();
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserMemory({} bytes)", self.bytes.len())
    }
}

/// A buffer that was taken apart.
struct OwnedBytes<B: StableBuffer> {
    bytes: NonNull<[u8]>,
    owner: Option<B::Owner>,
}

// SAFETY: the two parts of a `Send` buffer.
unsafe impl<B: StableBuffer> Send for OwnedBytes<B> {}

impl<B: StableBuffer> OwnedBytes<B> {
    fn take(&mut self) -> Option<B> {
        // SAFETY: the parts of one buffer; the owner goes, so that they are used once, and whoever drops or takes this
        // has no slice of the bytes left.
        self.owner.take().map(|owner| unsafe { B::from_parts(self.bytes, owner) })
    }
}

impl<B: StableBuffer> Drop for OwnedBytes<B> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_as_they_are_now() {
        let mut vector = Vec::with_capacity(10);
        vector.extend([1u32, 2, 3]);
        let address = vector.as_ptr();
        let mut memory = UserMemory::new(vector);
        assert_eq!(memory.len(), 12);
        memory[4..8].copy_from_slice(&7u32.to_ne_bytes());
        let vector = memory.into_inner();
        assert_eq!((vector.as_ptr(), vector.capacity(), &vector[..]), (address, 10, &[1, 7, 3][..]));

        let mut memory = UserMemory::new(vec![1.5f64; 100].into_boxed_slice());
        memory.fill(0);
        assert_eq!(memory.into_inner()[..], [0.0; 100]);
    }

    #[test]
    fn empty_buffers_are_buffers() {
        assert!(UserMemory::new(Vec::<u64>::new()).into_inner().is_empty());
        assert!(UserMemory::new(Box::<[u8]>::default()).into_inner().is_empty());
        let nothings = UserMemory::new(vec![(); 3]);
        assert!(nothings.is_empty());
        assert_eq!(nothings.into_inner().len(), 3);
    }

    #[test]
    fn every_buffer_is_an_allocation_of_its_own() {
        let first = UserMemory::new(vec![0u8; 8]);
        let identity = first.identity();
        let again = UserMemory::new(first.into_inner());
        assert_ne!(
            again.identity(),
            identity,
            "it was the program's in between, who knows what became of it"
        );
    }

    #[test]
    fn the_type_is_known_again() {
        let memory = UserMemory::new(vec![5u16; 4]);
        let identity = memory.identity();
        let memory = UserMemory::<Vec<u8>>::from_allocation(memory.into_allocation()).unwrap_err();
        let memory = UserMemory::<Vec<u16>>::from_allocation(memory).unwrap();
        assert_eq!((memory.identity(), &memory.into_inner()[..]), (identity, &[5; 4][..]));
    }

    /// A buffer that counts its frees.
    struct CountedBuffer(Arc<()>, Box<[u8]>);

    // SAFETY: the boxed slice's parts, and a count beside them.
    unsafe impl StableBuffer for CountedBuffer {
        type Owner = (Arc<()>, usize);
        fn into_parts(self) -> (NonNull<[u8]>, Self::Owner) {
            let (bytes, len) = self.1.into_parts();
            (bytes, (self.0, len))
        }
        unsafe fn from_parts(bytes: NonNull<[u8]>, (count, len): Self::Owner) -> Self {
            // SAFETY: as the caller promises.
            CountedBuffer(count, unsafe { Box::from_parts(bytes, len) })
        }
    }

    #[test]
    fn what_is_dropped_is_freed_once() {
        let alive = Arc::new(());
        let buffer = || CountedBuffer(alive.clone(), vec![1; 100].into());
        drop(UserMemory::new(buffer()));
        drop(UserMemory::new(buffer()).into_allocation());
        assert_eq!(Arc::strong_count(&alive), 1);
        let back = UserMemory::new(buffer()).into_inner();
        assert_eq!((Arc::strong_count(&alive), back.1.len()), (2, 100));
    }
}
