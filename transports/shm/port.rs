//! The two work queues of a connected VI.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use udeck_sys::atomic::fence;
use udeck_sys::fault;
use udeck_sys::ring::{Consumer, Producer};
use udeck_via::RemoteBuffer;
use udeck_via::mem::{Lent, PrivateCopy};
use udeck_via::transport::{Arrival, Body, Held, Inline, Owner, Port, Refused, Returned};

use crate::cell::{self, Content, Encoded, MAX_HEAD, MAX_SEGMENTS};
use crate::connection::{Connection, LendError};
use crate::device::ShmDevice;
use crate::layout::{BROKEN, CLOSED, Direction};

/// Buffers of one peer that we hold before further ones are copied out and returned at once: a receiver that
/// hoards messages must not starve its sender of buffers. Half of what the peer can lend.
const HELD_QUOTA: u32 = udeck_sys::tokens::SLOTS / 2;

/// A connected port. Belongs to its VI.
pub struct ShmPort {
    connection: Arc<Connection>,
    producer: Producer<Direction>,
    consumer: Consumer<Direction>,
    device: Arc<ShmDevice>,
    /// Whether our `waiting` flag is up.
    waiting: bool,
    /// The peer was asked for credit and nothing was sent since.
    flush_asked: bool,
    closed: bool,
}

impl ShmPort {
    pub fn new(connection: Arc<Connection>, device: Arc<ShmDevice>) -> Self {
        ShmPort {
            producer: Producer::new(connection.outgoing.clone()),
            consumer: Consumer::new(connection.incoming.clone()),
            connection,
            device,
            waiting: false,
            flush_asked: false,
            closed: false,
        }
    }

    /// Whether one more message can be sent.
    #[inline]
    fn room(&mut self) -> Result<(), Refused> {
        if let Some(why) = self.connection.lost() {
            return Err(Refused::Lost(why.to_owned()));
        }
        match self.connection.peer_state() {
            0 => {}
            BROKEN => return Err(self.broken()),
            _ => return Err(Refused::Closed),
        }
        match self.producer.has_room() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refused::Busy),
            Err(corrupt) => Err(self.corrupt(&corrupt)),
        }
    }

    #[inline]
    fn push(&mut self, (meta, aux, words, used): Encoded) {
        self.push_words(meta, aux, &words[..used]);
    }

    #[inline]
    fn push_words(&mut self, meta: u32, aux: u64, words: &[u64]) {
        self.flush_asked = false;
        if self.waiting {
            self.waiting = false;
            self.connection.outgoing.sender().waiting.store(0, Ordering::Relaxed);
        }
        if self.producer.push(meta, aux, words) {
            self.connection.ring_receiver();
        }
    }

    /// The peer broke the protocol: the connection is over, here and there.
    #[cold]
    fn corrupt(&mut self, what: &dyn std::fmt::Display) -> Refused {
        let why = format!("the peer broke the protocol: {what}");
        self.connection.lose(&why, false);
        self.connection.close(BROKEN);
        Refused::Lost(why)
    }

    #[cold]
    fn broken(&mut self) -> Refused {
        Refused::Lost("the peer found no receive descriptor for a message, or one too short".into())
    }

    /// The ring is empty: is there an end?
    fn end(&mut self) -> Result<Option<Arrival>, Refused> {
        let peer_state = self.connection.peer_state();
        if peer_state != 0 {
            // What was sent before the state was set is in the ring now.
            return match self.next()? {
                Some(arrival) => Ok(Some(arrival)),
                None if peer_state == BROKEN => Err(self.broken()),
                None => Err(Refused::Closed),
            };
        }
        if let Some(why) = self.connection.lost() {
            let why = why.to_owned();
            return match self.next()? {
                Some(arrival) => Ok(Some(arrival)),
                None => Err(Refused::Lost(why)),
            };
        }
        Ok(None)
    }

    /// The next message in the ring.
    #[inline]
    fn next(&mut self) -> Result<Option<Arrival>, Refused> {
        while let Some(taken) = self.consumer.pop() {
            self.connection.position.store(self.consumer.position(), Ordering::Relaxed);
            let (immediate, content) = match cell::decode(&taken) {
                Ok(decoded) => decoded,
                Err(malformed) => return Err(self.corrupt(&malformed)),
            };
            if self.consumer.owes_credit() || matches!(content, Content::Flush) {
                self.consumer.publish_credit();
                self.connection.tell_sender();
            }
            let body = match content {
                Content::Inline(bytes) => Body::Inline(bytes),
                Content::Written(len) => Body::Written(len),
                Content::Flush => continue,
                Content::Lent { segments, count, head, token, .. } => {
                    Body::Lent(head, self.borrow(&segments[..count], token)?)
                }
            };
            return Ok(Some(Arrival { immediate, body }));
        }
        Ok(None)
    }

    /// The peer's memory that a cell names, checked; copied if we hold too much of it, or do not trust it.
    fn borrow(&mut self, segments: &[(u64, usize)], token: u16) -> Result<Lent, Refused> {
        let mut parts = [(std::ptr::NonNull::dangling(), 0); MAX_SEGMENTS];
        for (part, &(offset, len)) in parts.iter_mut().zip(segments) {
            match self.connection.peer_memory(offset, len) {
                Some(at) => *part = (at, len),
                None => {
                    let what = format!("it lent {len} bytes at {offset}, outside its outbox");
                    return Err(self.corrupt(&what));
                }
            }
        }
        let parts = &parts[..segments.len()];
        let held = self.connection.borrow();
        // SAFETY: each part lies in the peer's outbox, mapped while the connection lives; an admitted peer does not
        // write what it lent until the token comes back (SAFETY.md).
        let lent = unsafe { Lent::new(parts, self.connection.clone(), token) };
        if held <= HELD_QUOTA && self.device.is_trusting() {
            return Ok(lent);
        }
        self.device.count_copied(lent.len());
        // SAFETY: mapped and readable, as above; `copy_in` allows for a writer. Then `lent` goes home.
        Ok(unsafe { PrivateCopy::take(parts) })
    }

    /// Checks the target, and copies. Inside the gate, so that the peer does not reuse the memory under us.
    fn write_inside(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        total: usize,
    ) -> Result<(), Refused> {
        let link = self.connection.link.clone();
        let exposed = link.peer_board().window(to.handle).look_up(to.handle.0).ok_or(Refused::Protection)?;
        let end = to.offset.checked_add(total).ok_or(Refused::Protection)?;
        if self.connection.peer_ptag != Some(exposed.tag) || end as u64 > exposed.len || total > to.len {
            return Err(Refused::Protection);
        }
        let at = exposed.offset.checked_add(to.offset as u64).ok_or(Refused::Protection)?;
        let mut target = link.landing_at(at, total).ok_or(Refused::Protection)?;
        for &(offset, len) in segments {
            let source = self.device.outbox_at(offset, len).ok_or(Refused::Protection)?;
            // SAFETY: `source` lies in our outbox and belongs to a block that the caller holds; `target` lies in the
            // peer's landing memory, mapped while the link lives, checked for `total` bytes; they are different
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

impl Port for ShmPort {
    #[inline]
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        self.room()?;
        let bytes = Inline::gather(head, body);
        let (meta, aux) = cell::inline(bytes.bytes().len(), immediate);
        self.push_words(meta, aux, bytes.words());
        Ok(())
    }

    fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: Held,
    ) -> Result<(), (Refused, Held)> {
        if let Err(refused) = self.room() {
            return Err((refused, held));
        }
        assert!(segments.len() <= MAX_SEGMENTS && 16 * segments.len() + head.len() <= MAX_HEAD + 16);
        let token = match self.connection.lend(held, self.producer.position()) {
            Ok(token) => token,
            Err(LendError::Busy(held)) => return Err((Refused::Busy, held)),
            Err(LendError::Foreign(token, held)) => return Err((self.corrupt(&token), held)),
        };
        self.push(cell::lent(segments, head, token, immediate));
        self.device.note_lender(&self.connection);
        Ok(())
    }

    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result<(), Refused> {
        self.room()?;
        let total = segments.iter().map(|segment| segment.1).sum();
        let direction = self.connection.outgoing.clone();
        let gate = &direction.sender().gate;
        gate.enter();
        fault::point("rdma.entered");
        let result = self.write_inside(segments, to, total);
        fault::point("rdma.copied");
        gate.leave();
        fault::point("rdma.left");
        result?;
        if immediate.is_some() {
            self.push(cell::written(total, immediate));
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        match self.next()? {
            Some(arrival) => Ok(Some(arrival)),
            None => self.end(),
        }
    }

    fn returned(&mut self) -> Option<Returned> {
        match self.connection.returned() {
            Ok(number) => number,
            Err(token) => {
                self.corrupt(&token);
                None
            }
        }
    }

    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        self.connection.keep(number, owner)
    }

    fn want_room(&mut self) {
        self.waiting = true;
        self.connection.outgoing.sender().waiting.store(1, Ordering::Relaxed);
        // Pairs with the fence in `Connection::tell_sender`: the flag is up before the caller's last look.
        fence(Ordering::SeqCst);
    }

    fn unread(&mut self) -> Result<u32, Refused> {
        let unread = match self.producer.unread() {
            // The request for credit is no message.
            Ok(unread) => unread.saturating_sub(self.flush_asked.into()),
            Err(corrupt) => return Err(self.corrupt(&corrupt)),
        };
        if unread > 0 {
            match self.room() {
                Ok(()) if !self.flush_asked => {
                    // Sent while we wait for the answer: the flag of `want_room` stays up.
                    let waiting = std::mem::take(&mut self.waiting);
                    self.push(cell::flush());
                    self.waiting = waiting;
                    self.flush_asked = true;
                }
                Ok(()) | Err(Refused::Busy) => {}
                Err(refused) => return Err(refused),
            }
        }
        Ok(unread)
    }

    fn close(&mut self, broken: Option<&str>) {
        if self.closed {
            return;
        }
        self.closed = true;
        // The last word on what was read here: a peer that flushes asks, and takes back what was not read.
        self.consumer.publish_credit();
        self.connection.close(if broken.is_some() { BROKEN } else { CLOSED });
    }

    fn leave(&mut self) {
        self.close(None);
        self.connection.detach();
    }
}

impl Drop for ShmPort {
    fn drop(&mut self) {
        self.leave();
        self.device.retire(&self.connection);
    }
}

impl std::fmt::Debug for ShmPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShmPort({:?})", self.connection)
    }
}
