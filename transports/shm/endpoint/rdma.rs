//! RDMA between processes that share memory: the caller copies, inside the peer's window and with its own gate occupied.

use udeck_sys::fault;
use udeck_sys::window::AccessGuard;
use udeck_via::transport::{PostedBuffer, Refused, TransferStatus};
use udeck_via::{MemHandle, RemoteBuffer};

use super::ShmEndpoint;
use crate::board::{IN_OUTBOX, READABLE, WRITABLE};
use crate::cell;

impl ShmEndpoint {
    /// Runs `access` inside the peer's window `handle`. Our gate names the window meanwhile, so that the peer does
    /// not reuse the memory under us. A peer that has closed the connection examines the gate once more and then
    /// never again, so we check here whether it has closed.
    pub(super) fn inside_window(
        &mut self,
        handle: MemHandle,
        access: impl FnOnce(&mut Self, &AccessGuard<'_>) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let direction = self.connection.outgoing.clone();
        let guard = direction.sender().gate.enter(handle.0);
        fault::point("rdma.entered");
        let result = self.usable().and_then(|()| access(self, &guard));
        fault::point("rdma.copied");
        drop(guard);
        fault::point("rdma.left");
        result
    }

    /// Writes into the peer's window. Returns the number of bytes.
    fn write(&mut self, segments: &[(u64, usize)], to: RemoteBuffer) -> Result<usize, Refused> {
        let total = segments.iter().map(|segment| segment.1).sum();
        self.inside_window(to.handle, |endpoint, guard| endpoint.write_inside(guard, segments, to, total))?;
        Ok(total)
    }

    /// Writes, and sends immediate data to the receiver if there are any. The write is complete when this returns.
    pub(super) fn write_announced(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result<(), Refused> {
        self.room()?;
        let total = self.write(segments, to)?;
        if immediate.is_some() {
            self.push(cell::written(total, immediate, None));
        }
        Ok(())
    }

    /// Writes. The write is complete when the receiver has taken the immediate data.
    pub(super) fn write_awaited(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        if let Err(refused) = self.room() {
            return Err((refused, held));
        }
        // The data are not written unless they can be announced.
        match self.connection.has_token() {
            Ok(true) => {}
            Ok(false) => return Err((Refused::Busy, held)),
            Err(foreign) => return Err((self.corrupt(&foreign), held)),
        }
        let total = match self.write(segments, to) {
            Ok(total) => total,
            Err(refused) => return Err((refused, held)),
        };
        let token = self.hold(held)?;
        self.push(cell::written(total, immediate, Some(token)));
        self.device.note_lender(&self.connection);
        Ok(None)
    }

    /// Returns where `total` bytes of a peer's window begin, if the peer allows us the access. The offset is in its
    /// landing arena, or in its outbox if the flag is `true`. `guard` must be to the window of `at`.
    fn exposed(
        &self,
        guard: &AccessGuard<'_>,
        at: RemoteBuffer,
        total: usize,
        tag: Option<u32>,
        right: u32,
    ) -> Option<(u64, bool)> {
        let exposed = guard.look_up(self.connection.peer_socket.peer_board().window(at.handle))?;
        let end = at.offset.checked_add(total)?;
        let allowed = tag == Some(exposed.tag) && exposed.rights & right != 0;
        if !allowed || end as u64 > exposed.len || total > at.len {
            return None;
        }
        let start = exposed.offset.checked_add(at.offset as u64)?;
        Some((start, exposed.rights & IN_OUTBOX != 0))
    }

    /// Checks the source, and copies from it.
    pub(super) fn read_inside(
        &mut self,
        guard: &AccessGuard<'_>,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
    ) -> Result<(), Refused> {
        let total = segments.iter().map(|segment| segment.1).sum();
        let tag = self.connection.readable_ptag;
        let (mut start, in_outbox) =
            self.exposed(guard, from, total, tag, READABLE).ok_or(Refused::Protection)?;
        let peer_socket = &self.connection.peer_socket;
        for &(offset, len) in segments {
            let target = self.device.outbox_at(offset, len).ok_or(Refused::Protection)?;
            // SAFETY: `target` lies in our outbox, in memory that the caller owns and nobody else reads or writes
            // (`ViEndpoint::rdma_read`), so the slice is exclusive while it lives.
            let to = unsafe { std::slice::from_raw_parts_mut(target.as_ptr(), len) };
            if in_outbox {
                let source = peer_socket.outbox_at(start, len).ok_or(Refused::Protection)?;
                // SAFETY: `source` lies in the peer's outbox, mapped while the peer socket lives and checked for
                // `len` bytes: it is another mapping. `copy_in` allows for a concurrent writer.
                unsafe { udeck_sys::copy_in(to, source) };
            } else {
                peer_socket.read_landing(start, to).ok_or(Refused::Protection)?;
            }
            start += len as u64;
        }
        self.device.count_copied(total);
        Ok(())
    }

    /// Checks the target, and copies into it.
    fn write_inside(
        &mut self,
        guard: &AccessGuard<'_>,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        total: usize,
    ) -> Result<(), Refused> {
        let tag = self.connection.writable_ptag;
        // Outboxes are mapped read-only, whatever the entry says.
        let (start, _) = self
            .exposed(guard, to, total, tag, WRITABLE)
            .filter(|(_, in_outbox)| !in_outbox)
            .ok_or(Refused::Protection)?;
        let mut target = self.connection.peer_socket.landing_at(start, total).ok_or(Refused::Protection)?;
        for &(offset, len) in segments {
            let source = self.device.outbox_at(offset, len).ok_or(Refused::Protection)?;
            // SAFETY: `source` lies in our outbox and belongs to a block that the caller holds; `target` lies in the
            // peer's landing memory, mapped while the peer socket lives, checked for `total` bytes; they are different
            // segments. That other peers write there too would be their program's bug: these are plain bytes that
            // nobody has a slice of (`Window`).
            unsafe {
                std::ptr::copy_nonoverlapping(source.as_ptr(), target.as_ptr(), len);
                target = target.add(len);
            }
        }
        self.device.count_copied(total);
        Ok(())
    }
}
