//! One message to many mailboxes, without a copy for each.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Deref, RangeBounds};
use std::time::Duration;

use bytemuck::Pod;
use udeck_via::Deadline;
use udeck_via::mem::SharedBytes;

use crate::error::{Error, PostError, Result};
use crate::memory::buffer::Buf;
use crate::postable::{Postable, sealed};
use crate::postbox::Postbox;
use crate::send::poster::Poster;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;
use crate::world::World;

/// A typed message that was sealed for posting several times: read-only. Cloning it costs one increment of a
/// reference count.
///
/// [`Buf::share`] makes it. By hand-off and `rdma-read`, all receivers read the same memory; by `rdma-write`
/// and `copy`, each receiver gets its data from there. The memory is free when the last receiver and the last
/// clone are done. Only by `handshake` does each receiver cost one more copy
/// ([`crate::Stats::bytes_copied`]).
///
/// [`World::unshare`] turns it into a [`Buf`] again.
pub struct SharedBuf<T: Pod> {
    /// The message's memory; the notes hold the tag.
    bytes: SharedBytes,
    elements: PhantomData<T>,
}

impl<T: Pod> Buf<T> {
    /// Seals the message, with its tag, so that it, or parts of it, can be posted several times.
    pub fn share(self) -> SharedBuf<T> {
        SharedBuf::new(self.into_block().into())
    }
}

impl<T: Pod> SharedBuf<T> {
    fn new(bytes: SharedBytes) -> Self {
        SharedBuf { bytes, elements: PhantomData }
    }

    /// Returns a part of the message, in the same memory: `whole.part(..100)`. The part is a message of its
    /// own, of these elements and with the same tag. It is posted like the whole, without a copy: for a
    /// scatter, or an all-to-all. It keeps the whole memory in use.
    ///
    /// # Panics
    /// If the range is not within the message.
    #[must_use]
    pub fn part(&self, range: impl RangeBounds<usize>) -> SharedBuf<T> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => *before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => *last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len(),
        };
        let bytes = bytemuck::cast_slice::<T, u8>(&self[start..end]).len();
        let from = start * size_of::<T>();
        SharedBuf::new(self.bytes.part(from..from + bytes))
    }

    /// The tag that travels with the message.
    pub fn tag(&self) -> u32 {
        self.bytes.notes()[0]
    }

    /// Returns the same message with another tag. Other clones and parts keep theirs.
    #[must_use]
    pub fn with_tag(&self, tag: u32) -> SharedBuf<T> {
        SharedBuf::new(self.bytes.with_notes([tag, 0]))
    }
}

impl World {
    /// Makes a shared message writable again, if this is its last clone and no receiver reads it any more.
    ///
    /// # Errors
    /// The message comes back unchanged while anybody else has it or a part of it, or while it waits at a
    /// postbox. That changes when receivers drop their messages; no call reports it. A part always comes
    /// back: there is no [`Buf`] of a part.
    pub fn unshare<T: Pod>(&self, message: SharedBuf<T>) -> Result<Buf<T>, SharedBuf<T>> {
        // Receivers may have given the memory back, or reported that they have read it, since the last poll.
        self.state.progress_other_postboxes();
        self.state.nics().reclaim();
        let notes = message.bytes.notes();
        match message.bytes.into_block() {
            Ok(mut block) => {
                block.set_notes(notes);
                Ok(Buf::new(block))
            }
            Err(bytes) => Err(SharedBuf::new(bytes)),
        }
    }
}

impl<T: Pod> Clone for SharedBuf<T> {
    fn clone(&self) -> Self {
        SharedBuf::new(self.bytes.clone())
    }
}

impl<T: Pod> Deref for SharedBuf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.bytes.bytes())
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for SharedBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Pod> sealed::Sealed for SharedBuf<T> {}

impl<T: Pod> Postable<T> for SharedBuf<T> {
    type Unposted = Self;

    fn unposted(self) -> Self {
        self
    }

    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        let posted = poster.post_shared(&self.bytes, policy);
        posted.map_err(|error| PostError { error, message: Some(self) })
    }
}

/// Posts `message` to all `postboxes`: `post_all(&outs, &message)` for a list,
/// `post_all([&left, &right], &message)`, `post_all(outs.iter().skip(1), &message)`. Posts that must wait for
/// room do so after all others, together at most the world's deadline (`DECK_DEADLINE`, of the first one's
/// world).
///
/// # Errors
/// [`PostAllError`] says which posts failed, and why; the others are done.
pub fn post_all<'a, T: Pod>(
    postboxes: impl IntoIterator<Item = &'a Postbox<T>>,
    message: &SharedBuf<T>,
) -> Result<(), PostAllError> {
    post_to_each(postboxes, message, Postbox::usual_limit)
}

/// Like [`post_all`], but waits at most `limit` in all.
///
/// # Errors
/// The errors of [`post_all`].
pub fn post_all_timeout<'a, T: Pod>(
    postboxes: impl IntoIterator<Item = &'a Postbox<T>>,
    message: &SharedBuf<T>,
    limit: Duration,
) -> Result<(), PostAllError> {
    post_to_each(postboxes, message, |_| limit)
}

/// Implements [`post_all`]. `limit` returns how long the posts may wait, given the first postbox.
fn post_to_each<'a, T: Pod>(
    postboxes: impl IntoIterator<Item = &'a Postbox<T>>,
    message: &SharedBuf<T>,
    limit: impl Fn(&Postbox<T>) -> Duration,
) -> Result<(), PostAllError> {
    let (mut failed, mut full) = (Vec::new(), Vec::new());
    let (mut deadline, mut of) = (None, 0);
    for postbox in postboxes {
        deadline.get_or_insert_with(|| Deadline::after(limit(postbox)));
        match postbox.poster().post_shared(&message.bytes, WaitPolicy::None) {
            Ok(_) => {}
            Err(Error::WouldBlock { .. }) => full.push((of, postbox)),
            Err(error) => failed.push((of, error)),
        }
        of += 1;
    }
    for (at, postbox) in full {
        let policy = deadline.map_or(WaitPolicy::None, WaitPolicy::Until);
        if let Err(error) = postbox.poster().post_shared(&message.bytes, policy) {
            failed.push((at, error));
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    failed.sort_by_key(|(at, _)| *at);
    Err(PostAllError { failed, of })
}

/// Failure of some posts of [`post_all`].
pub struct PostAllError {
    /// The failed posts by their indices in the list, in its order, each with its error.
    pub failed: Vec<(usize, Error)>,
    /// Number of posts in all.
    pub of: usize,
}

impl fmt::Display for PostAllError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} posts failed", self.failed.len(), self.of)?;
        self.failed.iter().try_for_each(|(at, error)| write!(f, "; no. {at}: {error}"))
    }
}

impl fmt::Debug for PostAllError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for PostAllError {}

impl From<PostAllError> for Error {
    fn from(failed: PostAllError) -> Self {
        Error::Multiple(failed.failed.into_iter().map(|(_, error)| error).collect())
    }
}
