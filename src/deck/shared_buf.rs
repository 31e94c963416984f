//! One message to many mailboxes, without a copy for each.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use udeck_via::{Block, Deadline};

use crate::buffer::Buf;
use crate::error::{Error, PostError, Result};
use crate::postable::{Postable, sealed};
use crate::postbox::Postbox;
use crate::send::poster::Poster;
use crate::send::requests::RequestId;
use crate::wait_policy::WaitPolicy;
use crate::world::World;

/// A typed message that has been sealed for posting several times: read-only, and cloned for the price of a count.
///
/// Made by [`Buf::share`]. By hand-off and `rdma-read`, all receivers read the same memory, and by `rdma-write` and `copy`
/// each gets what it needs from there; it is free when the last of them and the last clone are done. Only by `handshake`
/// does each receiver cost one more copy ([`crate::Stats::bytes_copied`]).
///
/// [`World::unshare`] makes it a [`Buf`] again.
pub struct SharedBuf<T: Pod> {
    block: Arc<Block>,
    elements: PhantomData<T>,
}

impl<T: Pod> Buf<T> {
    /// Seals the message, with its tag, for posting it several times.
    pub fn share(self) -> SharedBuf<T> {
        SharedBuf::new(Arc::new(self.into_block()))
    }
}

impl<T: Pod> SharedBuf<T> {
    fn new(block: Arc<Block>) -> Self {
        SharedBuf { block, elements: PhantomData }
    }

    /// The tag that travels with it.
    pub fn tag(&self) -> u32 {
        self.block.notes()[0]
    }
}

impl World {
    /// Makes a shared message writable again, if this is its last clone and no receiver reads it any more.
    ///
    /// # Errors
    /// It comes back as it is while somebody else has it, or it waits at a postbox. That changes when receivers drop their messages, which nobody
    /// is told of.
    pub fn unshare<T: Pod>(&self, message: SharedBuf<T>) -> Result<Buf<T>, SharedBuf<T>> {
        // Receivers may have given it back, or said that they have read it, and nobody may have looked.
        self.state.progress_other_postboxes();
        self.state.nics().reclaim();
        Arc::try_unwrap(message.block).map(Buf::new).map_err(SharedBuf::new)
    }
}

impl<T: Pod> Clone for SharedBuf<T> {
    fn clone(&self) -> Self {
        SharedBuf::new(self.block.clone())
    }
}

impl<T: Pod> Deref for SharedBuf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(self.block.bytes())
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for SharedBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Pod> sealed::Sealed for SharedBuf<T> {}

impl<T: Pod> Postable<T> for SharedBuf<T> {
    fn post_to(self, poster: &Poster, policy: WaitPolicy) -> Result<Option<RequestId>, PostError<Self>> {
        let posted = poster.post_shared_block(&self.block, policy);
        posted.map_err(|error| PostError { error, message: Some(self) })
    }
}

/// Posts `message` to all `postboxes`. Those that must wait for room do so after all others have been served, together
/// at most the world's deadline (`DECK_DEADLINE`, of the first one's world).
///
/// # Errors
/// [`PostAllError`] says which posts failed, and why; the others are done.
pub fn post_all<T: Pod>(postboxes: &[&Postbox<T>], message: &SharedBuf<T>) -> Result<(), PostAllError> {
    let limit = postboxes.first().map_or(Duration::ZERO, |first| first.usual_limit());
    post_all_timeout(postboxes, message, limit)
}

/// As [`post_all`], waiting at most `limit` in all.
///
/// # Errors
/// As [`post_all`].
pub fn post_all_timeout<T: Pod>(
    postboxes: &[&Postbox<T>],
    message: &SharedBuf<T>,
    limit: Duration,
) -> Result<(), PostAllError> {
    let deadline = Deadline::after(limit);
    let (mut failed, mut full) = (Vec::new(), Vec::new());
    for (at, postbox) in postboxes.iter().enumerate() {
        match postbox.poster().post_shared_block(&message.block, WaitPolicy::None) {
            Ok(_) => {}
            Err(Error::WouldBlock { .. }) => full.push(at),
            Err(error) => failed.push((at, error)),
        }
    }
    for at in full {
        if let Err(error) =
            postboxes[at].poster().post_shared_block(&message.block, WaitPolicy::Until(deadline))
        {
            failed.push((at, error));
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    failed.sort_by_key(|(at, _)| *at);
    Err(PostAllError { failed, of: postboxes.len() })
}

/// Some posts of [`post_all`] failed.
pub struct PostAllError {
    /// Which, by their places in the list, in its order, and why.
    pub failed: Vec<(usize, Error)>,
    /// How many there were in all.
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
