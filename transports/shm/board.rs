//! The board: the shared memory that a process shows to all its peers. It has the process's doorbells and the table
//! of its windows.
//!
//! ```text
//! 0          2048 doorbells of 640 bytes
//! 1310720    512 window entries of 64 bytes
//! 1343488    end
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use udeck_sys::closer::PassedFd;
use udeck_sys::doorbell::Doorbell;
use udeck_sys::segment::{self, Mapping, PeerAccess, SharedRef};
use udeck_sys::window::{Entry, Exposed};
use udeck_via::{Error, MemHandle, Ptag, Result, Rights};

/// Number of doorbells, one per completion queue of the process.
pub const DOORBELLS: u32 = 2048;
/// Upper bound of the windows of a process.
pub const WINDOWS: u32 = 512;

/// Rights bit of a window entry: peers may write.
pub const WRITABLE: u32 = 1;
pub const READABLE: u32 = 2;
/// Rights bit of a window entry: the window lies in the outbox instead of the landing arena.
pub const IN_OUTBOX: u32 = 4;

const WINDOWS_AT: usize = DOORBELLS as usize * size_of::<Doorbell>();
/// Bytes of a board.
pub const BOARD_BYTES: usize = (WINDOWS_AT + WINDOWS as usize * size_of::<Entry>()).next_multiple_of(4096);

/// A board, mapped by a peer or by its owner.
#[derive(Clone, Debug)]
pub struct BoardView(Arc<Mapping>);

impl BoardView {
    /// A peer's board, checked.
    ///
    /// # Errors
    /// When it is not sealed, or of another size.
    pub fn adopt(fd: PassedFd) -> std::io::Result<Self> {
        let (_, mapping) = fd.adopt(BOARD_BYTES..=BOARD_BYTES, PeerAccess::Write)?;
        Ok(BoardView(Arc::new(mapping)))
    }

    /// Doorbell `number`, modulo the number of doorbells (a peer may have named it).
    pub fn doorbell(&self, number: u32) -> &Doorbell {
        self.0.structure((number % DOORBELLS) as usize * size_of::<Doorbell>())
    }

    /// Returns [`BoardView::doorbell`] as a reference that keeps the mapping, so that `number` is checked only once.
    pub fn keep_doorbell(&self, number: u32) -> SharedRef<Doorbell> {
        SharedRef::new(self.0.clone(), (number % DOORBELLS) as usize * size_of::<Doorbell>())
    }

    /// Returns the table entry that `handle` names.
    pub fn window(&self, handle: MemHandle) -> &Entry {
        self.0.structure(WINDOWS_AT + (handle.0 % WINDOWS) as usize * size_of::<Entry>())
    }
}

/// Our own board.
#[derive(Debug)]
pub struct Board {
    fd: OwnedFd,
    view: BoardView,
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    doorbells: Vec<u32>,
    windows: Vec<u32>,
    /// Number of windows that were exposed so far. Fresh handles are made from it.
    drawn: u32,
}

impl Board {
    pub fn new() -> Result<Self> {
        let (fd, mapping) = segment::create("udeck-board", BOARD_BYTES, PeerAccess::Write)
            .map_err(|e| Error::os("creating the board segment", e))?;
        let mut seed = [0; 4];
        getrandom::fill(&mut seed)
            .map_err(|e| Error::os("drawing random window handles", std::io::Error::other(e)))?;
        let free = Free {
            doorbells: (0..DOORBELLS).rev().collect(),
            windows: (0..WINDOWS).rev().collect(),
            drawn: u32::from_ne_bytes(seed),
        };
        let board = Board { fd, view: BoardView(Arc::new(mapping)), free: Mutex::new(free) };
        board.commit(WINDOWS_AT, BOARD_BYTES - WINDOWS_AT)?;
        Ok(board)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn view(&self) -> &BoardView {
        &self.view
    }

    fn commit(&self, offset: usize, len: usize) -> Result {
        self.view
            .0
            .commit(self.fd.as_fd(), offset, len)
            .map_err(|e| Error::os("taking memory for the board", e))
    }

    /// Takes a free doorbell of this process. A fresh one is silent. A recycled one may still be rung by former
    /// peers, which wakes its owner for nothing.
    pub fn take_doorbell(&self) -> Result<u32> {
        let Some(number) = self.free.lock().doorbells.pop() else {
            return Err(Error::Full {
                what: "the table of completion queues",
                bound: format!("{DOORBELLS} per process").into(),
            });
        };
        if let Err(error) = self.commit(number as usize * size_of::<Doorbell>(), size_of::<Doorbell>()) {
            self.release_doorbell(number);
            return Err(error);
        }
        Ok(number)
    }

    pub fn release_doorbell(&self, number: u32) {
        self.free.lock().doorbells.push(number);
    }

    /// Publishes landing memory under a fresh handle: the low bits name the entry, the others differ each time an
    /// entry is reused. (Peers can read the table: here a handle stops bugs, not attackers.)
    pub fn expose(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        let right = |given: bool, bit: u32| if given { bit } else { 0 };
        let rights = right(rights.write, WRITABLE) | right(rights.read, READABLE);
        self.publish(Exposed { tag: ptag.0, offset, len: len as u64, rights })
    }

    /// Publishes outbox memory for reading, otherwise as [`Board::expose`].
    pub fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.publish(Exposed { tag: ptag.0, offset, len: len as u64, rights: READABLE | IN_OUTBOX })
    }

    fn publish(&self, exposed: Exposed) -> Result<MemHandle> {
        let mut free = self.free.lock();
        let Some(index) = free.windows.pop() else {
            return Err(Error::Full {
                what: "the table of windows",
                bound: format!("{WINDOWS} per process").into(),
            });
        };
        free.drawn = free.drawn.wrapping_mul(0x9E37_79B1).wrapping_add(0x7F4A_7C15);
        let handle = MemHandle((free.drawn & !(WINDOWS - 1) | index).max(WINDOWS + index));
        drop(free);
        self.view.window(handle).expose(handle.0, exposed);
        Ok(handle)
    }

    /// Withdraws a window; its entry is free again after [`Board::forget_window`].
    pub fn withdraw(&self, handle: MemHandle) {
        self.view.window(handle).withdraw();
    }

    /// Frees the entry of a window. No writer is inside any more.
    pub fn forget_window(&self, handle: MemHandle) {
        self.free.lock().windows.push(handle.0 % WINDOWS);
    }
}

const _: () = assert!(WINDOWS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;
    use udeck_sys::window::Gate;

    #[test]
    fn windows_are_bounded_and_handles_fresh() {
        let board = Board::new().unwrap();
        let first = board.expose(0, 64, Ptag(1), Rights::WRITE).unwrap();
        let finds = |handle: MemHandle| {
            Gate::default().enter(handle.0).look_up(board.view().window(handle)).is_some()
        };
        assert!(finds(first));
        board.withdraw(first);
        board.forget_window(first);
        let second = board.expose(64, 64, Ptag(1), Rights::WRITE).unwrap();
        assert_ne!(first, second, "the entry is reused under another handle");
        assert!(!finds(first));
        let rest: Vec<_> = std::iter::from_fn(|| board.expose(0, 1, Ptag(1), Rights::WRITE).ok()).collect();
        assert_eq!(rest.len(), WINDOWS as usize - 1);
        assert!(
            board.expose(0, 1, Ptag(1), Rights::WRITE).unwrap_err().to_string().contains("512 per process")
        );
    }

    #[test]
    fn bells_are_bounded() {
        let board = Board::new().unwrap();
        let doorbells: Vec<_> = std::iter::from_fn(|| board.take_doorbell().ok()).collect();
        assert_eq!(doorbells.len(), DOORBELLS as usize);
        board.release_doorbell(doorbells[0]);
        assert_eq!(board.take_doorbell().unwrap(), doorbells[0]);
    }
}
