//! Messages in memory that the program allocated and gets back.
//!
//! A post registers the memory with the NIC, through the NIC's registration cache: a buffer that is posted again and again is
//! registered once. A software NIC cannot show such memory to peers. There a post copies it once into memory of the library,
//! which then travels by the usual protocols. The buffer itself stays at its postbox until the program takes it back.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use udeck_via::mem::UserMemory;

use crate::error::PostError;
use crate::postable::{Postable, sealed};
use crate::postbox::Postbox;
use crate::send::poster::{Poster, Returned};
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;

/// A typed message in memory of the program's own: a `Vec`, or a boxed slice.
///
/// Posting moves it, like every message, and [`Postbox::take_returned`] gives it back: at once if the library
/// copies it (once, on all software NICs), otherwise when nobody reads it any more. For memory that exists
/// already, and for memory that is posted again and again; [`crate::World::buf`] saves the copy.
///
/// Registering the memory costs most at the first post. The registration stays, in a bounded cache
/// ([`crate::Stats::registrations`] counts it), until the buffer is dropped or taken out.
pub struct ExternalBuf<T: Pod + Send> {
    memory: UserMemory<Vec<T>>,
    tag: u32,
}

impl<T: Pod + Send> ExternalBuf<T> {
    /// Takes the buffer. Nothing is registered or copied before the post. (For a boxed slice:
    /// `boxed.into()`.)
    pub fn new(buffer: Vec<T>) -> Self {
        const { assert!(size_of::<T>() != 0, "elements without size are no message") };
        ExternalBuf { memory: UserMemory::new(buffer), tag: 0 }
    }

    /// Returns the buffer, with the elements as they are now. Its registration ends.
    pub fn into_inner(self) -> Vec<T> {
        self.memory.into_inner()
    }

    /// The tag that travels with the message; 0 in a new message.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// Returns the same buffer with this tag.
    #[must_use]
    pub fn with_tag(self, tag: u32) -> Self {
        ExternalBuf { tag, ..self }
    }
}

impl<T: Pod + Send> From<Vec<T>> for ExternalBuf<T> {
    fn from(buffer: Vec<T>) -> Self {
        ExternalBuf::new(buffer)
    }
}

impl<T: Pod + Send> From<Box<[T]>> for ExternalBuf<T> {
    fn from(buffer: Box<[T]>) -> Self {
        ExternalBuf::new(buffer.into_vec())
    }
}

impl<T: Pod + Send> Deref for ExternalBuf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.memory)
    }
}

impl<T: Pod + Send> DerefMut for ExternalBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }
}

impl<T: Pod + Send + fmt::Debug> fmt::Debug for ExternalBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Pod + Send> sealed::Sealed for ExternalBuf<T> {}

impl<T: Pod + Send> Postable<T> for ExternalBuf<T> {
    type Unposted = Self;

    fn unposted(self) -> Self {
        self
    }

    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        if let Err(error) = poster.check_returned() {
            return Err(PostError { error, message: Some(self) });
        }
        let ExternalBuf { memory, tag } = self;
        let region = match poster.register(memory) {
            Ok(region) => region,
            Err((error, memory)) => {
                return Err(PostError { error, message: Some(ExternalBuf { memory, tag }) });
            }
        };
        let posted = poster.post_copy(&region, tag, policy);
        let back = Returned { region, tag };
        match posted {
            Ok(request) => {
                poster.give_back(back);
                Ok(request)
            }
            Err(error) => Err(PostError { error, message: Some(ExternalBuf::of(back)) }),
        }
    }
}

impl<T: Pod + Send> ExternalBuf<T> {
    fn of(Returned { region, tag }: Returned) -> Self {
        let memory = region.into_memory().expect("a postbox registers vectors of its own elements");
        ExternalBuf { memory, tag }
    }
}

impl<T: Pod + Send> Postbox<T> {
    /// Returns an external buffer that was posted here and belongs to the program again. Buffers come back in
    /// the order of posting, unchanged, whether or not the message has been retrieved.
    ///
    /// `None`: none has come back. A postbox keeps at most 64; then it accepts no more of them
    /// ([`crate::Error::ReturnQueueFull`]). Buffers that nobody took are dropped with the postbox.
    pub fn take_returned(&self) -> Option<ExternalBuf<T>> {
        self.poster().take_returned().map(ExternalBuf::of)
    }
}
