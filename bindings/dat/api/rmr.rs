//! Remote memory regions: windows that are opened to peers, and closed, in order with other work.
//!
//! A post moves the region, as it moves memory, and its event gives it back. Between the two the region waits in [`POSTED`] by its ticket,
//! with the window that it had before: a peer may reach that window until the bind's turn.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;

use parking_lot::Mutex;

use super::error::{Error, Result};
use super::ia::Pz;
use super::id::{self, RmrId};
use super::memory::{RemoteMemory, Rights, SharedLmr};
use crate::core::code::Code;
use crate::core::ep::Operation;
use crate::core::memory as table;

/// A window onto a part of a [`SharedLmr`], with rights of its own (`DAT_RMR`).
///
/// [`Ep::post_bind`](super::Ep::post_bind) moves it there, and [`Event::Bind`](super::Event::Bind) gives it back. What a peer reaches by it ends
/// when it is bound anew or unbound, when the peer says so ([`Ep::post_send_with_invalidate`](super::Ep::post_send_with_invalidate)),
/// and when it is dropped. Binding costs no registration, so a program may open memory for one request only.
pub struct Rmr {
    id: RmrId,
    pz: Pz,
    window: Option<Window>,
}

/// Binding of a region to memory. Dropping it ends the peers' access.
pub(super) struct Window {
    remote: RemoteMemory,
    /// The memory, which is dropped after the window has ended.
    _memory: SharedLmr,
}

impl Window {
    /// Reserves a window. Its bind opens it, in its turn.
    ///
    /// # Errors
    /// The part is empty or not within the memory, or the table of regions is full.
    fn reserve(memory: &SharedLmr, part: Range<usize>, rights: Rights) -> Result<Window> {
        let piece = memory.piece(BIND, part, rights)?;
        let full = |_| Error::Full { call: BIND, what: "the table of memory regions" };
        let context = table::reserve(piece).map_err(full)?;
        let remote = RemoteMemory { address: piece.named, len: piece.len as u32, context };
        Ok(Window { remote, _memory: memory.clone() })
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        table::remove(self.remote.context); // no effect if it has ended before
    }
}

/// A bind under way.
struct Posted {
    rmr: Rmr,
    before: Option<Window>,
    cookie: u64,
}

/// Binds under way, by their tickets; a ticket is the bind's cookie in `core`.
static POSTED: LazyLock<Mutex<HashMap<u64, Posted>>> = LazyLock::new(Mutex::default);

pub(super) const BIND: &str = "dat_rmr_bind";

impl Rmr {
    /// Creates a region that is bound to nothing (`dat_rmr_create`).
    pub fn new(pz: &Pz) -> Rmr {
        Rmr { id: RmrId(id::next()), pz: pz.clone(), window: None }
    }

    /// The number of this region, unique in this process.
    pub fn id(&self) -> RmrId {
        self.id
    }

    /// Its protection zone.
    pub fn pz(&self) -> &Pz {
        &self.pz
    }

    /// The address by which a peer reaches the bound memory (`dat_rmr_query`). `None`: the region is not bound, or a peer has ended the binding.
    pub fn remote(&self) -> Option<RemoteMemory> {
        let remote = self.window.as_ref()?.remote;
        table::find(remote.context).map(|_| remote)
    }

    /// Binds the region by `post`, which gets the operation and the ticket. Returns the address for peers. Without memory the region is unbound.
    ///
    /// # Errors
    /// The region comes back as it was.
    pub(super) fn bind(
        mut self,
        to: Option<(&SharedLmr, Range<usize>, Rights)>,
        cookie: u64,
        post: impl FnOnce(Operation, u64) -> Result<(), Code>,
        error: impl FnOnce(Code) -> Error,
    ) -> Result<Option<RemoteMemory>, (Error, Rmr)> {
        let window = match to.map(|(memory, part, rights)| {
            if memory.pz().id() != self.pz.id() {
                return Err(Error::Protection { call: BIND });
            }
            Window::reserve(memory, part, rights)
        }) {
            Some(Err(error)) => return Err((error, self)),
            Some(Ok(window)) => Some(window),
            None => None,
        };
        let context = |window: &Option<Window>| window.as_ref().map_or(0, |window| window.remote.context);
        let remote = window.as_ref().map(|window| window.remote);
        let (old, new) = (context(&self.window), context(&window));
        let operation = Operation::Bind { rmr: self.id.0 as usize, old, new };
        let before = std::mem::replace(&mut self.window, window);
        let ticket = id::next();
        // Inserted before the post: another thread may have the event at once.
        POSTED.lock().insert(ticket, Posted { rmr: self, before, cookie });
        post(operation, ticket).map(|()| remote).map_err(|code| {
            let refused = POSTED.lock().remove(&ticket);
            let Some(Posted { mut rmr, before, .. }) = refused else {
                unreachable!("what was refused has no event");
            };
            rmr.window = before;
            (error(code), rmr)
        })
    }
}

/// Returns the region of the bind with this ticket, and the program's cookie. After a failed bind the region is bound to nothing.
pub(super) fn take_bound(ticket: u64, has_succeeded: bool) -> Option<(Rmr, u64)> {
    let posted = POSTED.lock().remove(&ticket);
    let Posted { mut rmr, before, cookie } = posted?;
    drop(before);
    if !has_succeeded {
        rmr.window = None;
    }
    Some((rmr, cookie))
}

impl fmt::Debug for Rmr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rmr({:?}, {:?})", self.id, self.remote())
    }
}
