//! Remote memory regions: windows that are opened to peers, and closed, in order with other work.
//!
//! A post moves the region, as it moves memory, and its event gives it back. Meanwhile it waits here, by its ticket, with what it was
//! bound to before: a peer may reach that until the bind's turn.

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

/// What it is bound to. Dropped, peers reach it no more.
pub(super) struct Window {
    remote: RemoteMemory,
    /// Goes after the window.
    _memory: SharedLmr,
}

impl Window {
    /// One that opens when its bind has its turn.
    ///
    /// # Errors
    /// The part is none of the memory's, or no region is left.
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
        table::remove(self.remote.context); // or it has ended before
    }
}

/// A bind under way.
struct Posted {
    rmr: Rmr,
    before: Option<Window>,
    cookie: u64,
}

/// By their tickets, which are the cookies below.
static POSTED: LazyLock<Mutex<HashMap<u64, Posted>>> = LazyLock::new(Mutex::default);

pub(super) const BIND: &str = "dat_rmr_bind";

impl Rmr {
    /// One that is bound to nothing (`dat_rmr_create`).
    pub fn new(pz: &Pz) -> Rmr {
        Rmr { id: RmrId(id::next()), pz: pz.clone(), window: None }
    }

    /// Which one it is.
    pub fn id(&self) -> RmrId {
        self.id
    }

    /// Its protection zone.
    pub fn pz(&self) -> &Pz {
        &self.pz
    }

    /// What a peer reaches by it (`dat_rmr_query`). `None`: nothing, because it is not bound, or a peer has ended that.
    pub fn remote(&self) -> Option<RemoteMemory> {
        let remote = self.window.as_ref()?.remote;
        table::find(remote.context).map(|_| remote)
    }

    /// Binds it by `post`, which gets the operation and the ticket, and what peers then name. Without memory it is unbound.
    ///
    /// # Errors
    /// It comes back as it was.
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
        // Before the post: another thread may have the event at once.
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

/// What was bound with that ticket, and the program's cookie. If the bind has failed, it is bound to nothing.
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
