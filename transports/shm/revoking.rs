//! Windows that are revoked and not quiet yet: a peer was in the middle of an access when their owner dropped them.
//!
//! Each keeps its memory and its entry on the board until every peer that was inside *that window* has left or is
//! gone. No thread waits for that: the device checks again when a peer socket goes down, at the next window, and
//! when memory is short. The number of such windows is bounded by the entries of the board, and by one window per
//! connection, because a gate names one at a time.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_sys::window::AccessEpoch;
use udeck_via::MemHandle;
use udeck_via::transport::Owner;

use crate::board::Board;
use crate::connection::Connection;

/// A peer that was inside a window, and the access that it was making.
pub struct Visitor {
    pub connection: Arc<Connection>,
    epoch: AccessEpoch,
}

impl Visitor {
    /// Returns the peers inside `window` at this moment. The window was withdrawn before, so later peers do not find it.
    pub fn all_of(window: MemHandle, connections: impl IntoIterator<Item = Arc<Connection>>) -> Vec<Visitor> {
        let visitor = |connection: Arc<Connection>| {
            let epoch = connection.incoming.sender().gate.access_in(window.0)?;
            Some(Visitor { connection, epoch })
        };
        connections.into_iter().filter_map(visitor).filter(Visitor::is_inside).collect()
    }

    /// Whether the peer may still be making the same access.
    pub fn is_inside(&self) -> bool {
        !self.connection.incoming.sender().gate.is_over(self.epoch) && !self.connection.has_left()
    }
}

/// Windows that are not quiet yet.
#[derive(Default)]
pub struct Revoking {
    abandoned: Mutex<Vec<Window>>,
    /// Visitors of the windows whose owner waited in vain and will come back: the peers that were inside when it
    /// first asked. Later peers do not find the window, and are not waited for, however many they are.
    awaited: Mutex<HashMap<u32, Vec<Visitor>>>,
}

struct Window {
    handle: MemHandle,
    visitors: Vec<Visitor>,
    memory: Owner,
}

impl Revoking {
    /// Takes the visitors for which the owner of a window waited in vain.
    pub fn resume(&self, handle: MemHandle) -> Option<Vec<Visitor>> {
        self.awaited.lock().remove(&handle.0)
    }

    /// Stores the visitors for which the owner of a window has waited in vain.
    pub fn interrupt(&self, handle: MemHandle, visitors: Vec<Visitor>) {
        self.awaited.lock().insert(handle.0, visitors);
    }

    /// Keeps `memory` until the visitors have left.
    pub fn keep(&self, handle: MemHandle, visitors: Vec<Visitor>, memory: Owner) {
        self.abandoned.lock().push(Window { handle, visitors, memory });
    }

    /// Releases the windows that are quiet now.
    pub fn sweep(&self, board: &Board) {
        let mut quiet = Vec::new();
        self.abandoned.lock().retain_mut(|window| {
            window.visitors.retain(Visitor::is_inside);
            if window.visitors.is_empty() {
                board.forget_window(window.handle);
                quiet.push(std::mem::replace(&mut window.memory, Box::new(())));
            }
            !window.visitors.is_empty()
        });
        drop(quiet); // dropping returns memory to its arena, so it happens outside the lock
    }
}
