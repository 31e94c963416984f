//! Messages in memory that the program allocated, and gets back.
//!
//! The memory is registered with the NIC when it is posted, through the NIC's registration cache: a buffer that goes
//! round and round is registered once. A software NIC cannot show it to peers, so there it is copied once, into memory
//! of the library's, which then travels by the usual protocols; the buffer itself waits at its postbox until the program
//! takes it back.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use udeck_via::Region;
use udeck_via::mem::UserMemory;

use crate::channel::{Patience, Ticket};
use crate::error::{Error, PostError};
use crate::postable::Postable;
use crate::postbox::Postbox;

/// Buffers that a postbox keeps for the program to take back.
const MAX_RETURNED: usize = 64;

/// A typed message in memory of the program's own: a `Vec`, or a boxed slice.
///
/// Posting moves it, as every message, and [`Postbox::returned`] gives it back: at once where the library copies it
/// (on all software NICs, once), otherwise when nobody reads it any more. For memory that exists already, and for
/// memory that is posted again and again; [`crate::World::buf`] saves the copy.
///
/// Where memory has to be registered, this costs most the first time: the registration stays, in a bounded cache that
/// [`crate::Stats::registrations`] tells of, until the buffer is dropped or taken out.
pub struct Adopted<T: Pod + Send> {
    memory: UserMemory<Vec<T>>,
    tag: u32,
}

impl<T: Pod + Send> Adopted<T> {
    /// Takes the buffer. Nothing is registered or copied before it is posted. (A boxed slice: `boxed.into()`.)
    pub fn new(buffer: Vec<T>) -> Self {
        const { assert!(size_of::<T>() != 0, "elements without size are no message") };
        Adopted { memory: UserMemory::new(buffer), tag: 0 }
    }

    /// The buffer, with the elements as they are now. Its registration ends.
    pub fn into_inner(self) -> Vec<T> {
        self.memory.into_inner()
    }

    /// The tag that travels with it; 0 in a new one.
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// Sets the tag.
    pub fn set_tag(&mut self, tag: u32) {
        self.tag = tag;
    }
}

impl<T: Pod + Send> From<Vec<T>> for Adopted<T> {
    fn from(buffer: Vec<T>) -> Self {
        Adopted::new(buffer)
    }
}

impl<T: Pod + Send> From<Box<[T]>> for Adopted<T> {
    fn from(buffer: Box<[T]>) -> Self {
        Adopted::new(buffer.into_vec())
    }
}

impl<T: Pod + Send> Deref for Adopted<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.memory)
    }
}

impl<T: Pod + Send> DerefMut for Adopted<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.memory)
    }
}

impl<T: Pod + Send + fmt::Debug> fmt::Debug for Adopted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Pod + Send> Postable<T> for Adopted<T> {
    fn post_to(self, postbox: &Postbox<T>, patience: Patience) -> Result<Ticket, PostError<Self>> {
        if let Err(error) = postbox.returns().borrow().check_room(postbox.name()) {
            return Err(PostError { error, message: Some(self) });
        }
        let Adopted { memory, tag } = self;
        let region = match postbox.register(memory) {
            Ok(region) => region,
            Err((error, memory)) => {
                return Err(PostError { error, message: Some(Adopted { memory, tag }) });
            }
        };
        let posted = postbox.post_copy(&region, tag, patience);
        let back = Returned { region, tag };
        match posted {
            Ok(ticket) => {
                postbox.returns().borrow_mut().0.push_back(back);
                Ok(ticket)
            }
            Err(error) => Err(PostError { error, message: Some(back.into_adopted()) }),
        }
    }
}

impl<T: Pod + Send> Postbox<T> {
    /// An adopted buffer that was posted here and is the program's again. They come back in the order of posting, as
    /// they were posted, whether or not the message has been retrieved.
    ///
    /// `None`: none is back. A postbox keeps at most 64; while it does, it takes no more of them
    /// ([`Error::Unclaimed`]). Those that nobody took are dropped with it.
    pub fn returned(&self) -> Option<Adopted<T>> {
        self.returns().borrow_mut().0.pop_front().map(Returned::into_adopted)
    }
}

/// The adopted buffers that have come back to a postbox, oldest first.
#[derive(Default)]
pub(crate) struct Returns(VecDeque<Returned>);

struct Returned {
    region: Region,
    tag: u32,
}

impl Returns {
    fn check_room(&self, name: &str) -> Result<(), Error> {
        if self.0.len() < MAX_RETURNED {
            return Ok(());
        }
        Err(Error::Unclaimed { name: name.to_owned(), count: MAX_RETURNED })
    }
}

impl Returned {
    fn into_adopted<T: Pod + Send>(self) -> Adopted<T> {
        let memory = self.region.into_memory().expect("a postbox registers vectors of its own elements");
        Adopted { memory, tag: self.tag }
    }
}
