//! The two work queues of a connected VI over shared memory. `rdma` has their RDMA.

mod rdma;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use udeck_sys::atomic::fence;
use udeck_sys::ring::{CellCopy, Consumer, Payload, PopResult, Producer};
use udeck_via::mem::{Lent, LentSlice, PrivateCopy};
use udeck_via::transport::{
    Arrival, Body, Found, Inline, Landed, LinkReport, Owner, PostedBuffer, Refused, ShortArrival,
    TransferStatus, ViEndpoint,
};
use udeck_via::{Reliability, RemoteBuffer};

use crate::cell::{self, Content, Encoded, MAX_HEAD, MAX_SEGMENTS};
use crate::connection::{BROKEN_BY_PEER, Connection, LendError, Loss};
use crate::device::ShmDevice;
use crate::layout::{BROKEN, CLOSED, Direction, OPEN};

/// Upper bound of the peer's buffers that we hold. Beyond it, messages are copied out and their buffers returned at
/// once: a receiver that hoards messages must not starve its sender. It is half of what the peer can lend.
const HELD_QUOTA: u32 = udeck_sys::tokens::SLOTS / 2;

/// Bytes of the usual head, which is the message layer's: one word.
const HEAD: usize = 8;

/// Messages written in a row before a sleeping receiver is woken and the connection is checked again.
const RUN: usize = 16;

/// A connected endpoint, owned by its VI.
pub struct ShmEndpoint {
    connection: Arc<Connection>,
    producer: Producer<Direction>,
    consumer: Consumer<Direction>,
    device: Arc<ShmDevice>,
    reliability: Reliability,
    /// Number of the peer's buffers lent to us so far, modulo 2^32, counted like those that we have given back.
    /// Beyond the quota ([`ShmEndpoint::may_hold_more`]), each buffer is given back before the next one is taken.
    borrowed: u32,
    /// Receipt that the sender of the last arrival waits for, if the arrival was not a lent message.
    receipt: Option<Lent>,
    /// Whether our `waiting` flag is set.
    waiting: bool,
    closed: bool,
}

impl ShmEndpoint {
    pub fn new(connection: Arc<Connection>, device: Arc<ShmDevice>, reliability: Reliability) -> Self {
        ShmEndpoint {
            producer: Producer::new(connection.outgoing.clone()),
            consumer: Consumer::new(connection.incoming.clone()),
            connection,
            device,
            reliability,
            borrowed: 0,
            receipt: None,
            waiting: false,
            closed: false,
        }
    }

    /// Fails with the reason if the connection is lost or ended.
    fn usable(&mut self) -> Result<(), Refused> {
        if let Some(why) = self.connection.lost() {
            return Err(Refused::Lost(why.to_owned()));
        }
        match self.connection.peer_state() {
            OPEN => Ok(()),
            BROKEN => Err(self.broken()),
            _ => Err(Refused::Closed),
        }
    }

    /// Whether one more message can be sent.
    #[inline]
    fn room(&mut self) -> Result<(), Refused> {
        // The first test holds nearly always.
        if self.stands() && self.producer.has_known_room() { Ok(()) } else { self.room_if_any() }
    }

    /// Whether `body` can be sent by a few stores: nobody waits, there is room, and the length is whole words.
    #[inline]
    fn is_ready_for(&self, body: &[u8]) -> bool {
        let is_usual = self.stands() && self.producer.has_known_room() && !self.waiting;
        is_usual && body.len().is_multiple_of(8)
    }

    #[cold]
    fn room_if_any(&mut self) -> Result<(), Refused> {
        self.usable()?;
        match self.producer.has_room() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refused::Busy),
            Err(corrupt) => Err(self.corrupt(&corrupt)),
        }
    }

    #[inline]
    fn push(&mut self, (meta, aux, words, used): Encoded) {
        self.push_with(meta, aux, |payload| payload.words(&words[..used]));
    }

    #[inline]
    fn push_with(&mut self, meta: u32, aux: u64, write: impl FnOnce(Payload<'_>)) {
        if self.waiting {
            self.wait_no_more();
        }
        if self.publish(meta, aux, write) {
            self.connection.ring_receiver();
        }
    }

    /// Publishes a message by [`Producer::push_with`] and counts it.
    #[inline]
    fn publish(&mut self, meta: u32, aux: u64, write: impl FnOnce(Payload<'_>)) -> bool {
        self.connection.count_sent(self.producer.position().plus(1));
        self.producer.push_with(meta, aux, write)
    }

    /// Sends any message that travels inside its cell.
    #[inline(never)]
    fn send_otherwise(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        self.room()?;
        let (meta, aux) = cell::inline(head.len() + body.len(), immediate);
        match <&[u8; HEAD]>::try_from(head) {
            Ok(head) => self.push_with(meta, aux, |payload| {
                payload.words(&[u64::from_ne_bytes(*head)]);
                payload.bytes(1, body);
            }),
            Err(_) => self.push_with(meta, aux, |payload| payload.words(Inline::gather(head, body).words())),
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn send_short_slow(&mut self, immediate: u32, head: [u8; HEAD], body: &[u8]) -> bool {
        self.send_otherwise(Some(immediate), &head, body).is_ok()
    }

    /// Sends as many of these bodies as there is room for.
    fn send_whole_words(&mut self, immediate: u32, head: [u8; HEAD], bodies: &[u8], each: usize) -> usize {
        let (meta, aux) = cell::inline(HEAD + each, Some(immediate));
        let (head, mut sent) = (u64::from_ne_bytes(head), 0);
        for some in bodies.chunks(each * RUN) {
            if !self.stands() {
                break;
            }
            let wanted = (some.len() / each) as u32;
            // An error is left to the next single message, which reports it.
            let Ok(room) = self.producer.room_for(wanted) else { break };
            if self.waiting && room > 0 {
                self.wait_no_more();
            }
            let mut batch = self.producer.batch();
            for body in some.chunks_exact(each).take(room as usize) {
                self.connection.count_sent(batch.position().plus(1));
                batch.push_with(meta, aux, |payload| {
                    payload.words(&[head]);
                    payload.whole_words(1, body);
                });
                batch.fetch_ahead();
            }
            if batch.must_ring() {
                self.connection.ring_receiver();
            }
            sent += room as usize;
            if room < wanted {
                break;
            }
        }
        sent
    }

    #[cold]
    fn wait_no_more(&mut self) {
        self.waiting = false;
        self.connection.outgoing.sender().waiting.store(0, Ordering::Relaxed);
    }

    /// Ends the connection on both sides: the peer broke the protocol. The peer is told how far we have read. It
    /// takes back only the later messages, because we may be holding earlier ones.
    #[cold]
    fn corrupt(&mut self, what: &dyn std::fmt::Display) -> Refused {
        let why = format!("the peer broke the protocol: {what}");
        self.connection.mark_lost(&why, Loss::ProtocolError);
        self.close(Some(&why));
        Refused::Lost(why)
    }

    #[cold]
    fn broken(&mut self) -> Refused {
        Refused::Lost(BROKEN_BY_PEER.into())
    }

    /// Whether more messages may come. (Results that hold an arrival are large: a caller that polls an empty ring
    /// does not move one.)
    #[inline]
    fn stands(&self) -> bool {
        self.connection.peer_state() == OPEN && self.connection.lost().is_none()
    }

    /// Returns the connection's end, if it has ended. The ring is empty.
    #[cold]
    fn end(&mut self) -> Result<Option<Arrival>, Refused> {
        let peer_state = self.connection.peer_state();
        if peer_state != OPEN {
            // The messages sent before the state was set are in the ring by now.
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

    /// Takes the next message out of the ring. `None` once we have closed: then the peer takes back the messages
    /// that we had not read.
    #[inline]
    fn next(&mut self) -> Result<Option<Arrival>, Refused> {
        if self.closed {
            return Ok(None);
        }
        match self.consumer.pop() {
            Some(taken) => self.arrival(&taken).map(Some),
            None => Ok(None),
        }
    }

    /// Notes that a message has been taken out of the ring. Waiters read a word of this process: the one in shared
    /// memory is for the peer, which could write any value there.
    #[inline]
    fn popped(&mut self) {
        self.connection.position.store(self.consumer.position(), Ordering::Relaxed);
        if self.consumer.owes_credit() {
            self.consumer.publish_credit();
            self.connection.notify_sender();
        }
    }

    /// Turns a taken cell into an arrival.
    #[inline]
    fn arrival(&mut self, taken: &CellCopy) -> Result<Arrival, Refused> {
        self.popped();
        let (immediate, content) = match cell::decode(taken) {
            Ok(decoded) => decoded,
            Err(malformed) => return Err(self.corrupt(&malformed)),
        };
        let body = match content {
            Content::Inline(bytes) => Body::Inline(bytes),
            Content::Written(len, token) => {
                self.receipt = match token {
                    Some(token) => Some(self.borrow(&[], token)?),
                    None => None,
                };
                Body::Written(len)
            }
            Content::Lent { segments, count, head, token, .. } => {
                Body::Lent(head, self.borrow(&segments[..count], token)?)
            }
        };
        Ok(Arrival { immediate, body })
    }

    /// Gives back a receipt that nobody asked for: the message is in place.
    #[cold]
    fn forget_receipt(&mut self) {
        self.receipt = None;
    }

    /// Turns a taken cell into a landed message.
    #[inline(never)]
    fn landed(&mut self, taken: &CellCopy) -> Result<Option<Landed>, Refused> {
        self.arrival(taken).map(|arrival| Some(Landed::Arrival(arrival)))
    }

    /// Whether we hold less than our quota of the peer's buffers.
    #[inline]
    fn may_hold_more(&self) -> bool {
        self.borrowed.wrapping_sub(self.connection.returned()) < HELD_QUOTA
    }

    /// Returns the peer's memory that a cell names, after checking it. It is copied if we hold too many buffers, or
    /// do not trust the peer.
    fn borrow(&mut self, segments: &[(u64, usize)], token: u16) -> Result<Lent, Refused> {
        let mut parts = [(std::ptr::NonNull::dangling(), 0); MAX_SEGMENTS];
        for (part, &(offset, len)) in parts.iter_mut().zip(segments) {
            match self.connection.peer_memory(offset, len) {
                Some(at) => *part = (at, len),
                None => {
                    let what = format!(
                        "it lent {len} bytes at {offset}, outside its outbox, or where it has no memory"
                    );
                    return Err(self.corrupt(&what));
                }
            }
        }
        let parts = &parts[..segments.len()];
        let may_keep = self.may_hold_more();
        self.borrowed = self.borrowed.wrapping_add(1);
        // SAFETY: each part lies in the peer's outbox, mapped while the connection lives; an admitted peer does not
        // write what it lent until the token comes back (SAFETY.md).
        let lent = unsafe { Lent::new(parts, self.connection.clone(), token) };
        if may_keep && self.device.is_trusting() {
            return Ok(lent);
        }
        // Several segments may name the same memory, again and again.
        let most = self.device.max_transfer();
        if lent.len() > most {
            return Err(
                self.corrupt(&format!("it lent {} bytes, at most {most} are copied here", lent.len()))
            );
        }
        self.device.count_copied(lent.len());
        if may_keep && self.reliability == Reliability::Reception {
            // The sender waits for word that the message is in place, and a copy alone does not mean that yet.
            return Ok(PrivateCopy::keeping(lent).into());
        }
        // SAFETY: mapped and readable, as above; `copy_in` allows for a concurrent writer. Then `lent` is given back.
        Ok(unsafe { PrivateCopy::take(parts) }.into())
    }

    /// Keeps `held` under a token for the next message.
    fn hold(&mut self, held: PostedBuffer) -> Result<u16, (Refused, PostedBuffer)> {
        match self.connection.lend(held, self.producer.position()) {
            Ok(token) => Ok(token),
            Err(LendError::Busy(held)) => Err((Refused::Busy, held)),
            Err(LendError::Foreign(token, held)) => Err((self.corrupt(&token), held)),
        }
    }
}

// SAFETY: each lent buffer is noted in private memory before its descriptor is published, and the loan ends when the
// peer gives the buffer back or is gone (`connection`). RDMA copies before it returns, and nobody accesses the
// memory that it keeps for a receipt.
unsafe impl ViEndpoint for ShmEndpoint {
    fn send(&mut self, immediate: Option<u32>, head: &[u8], body: &[u8]) -> Result<(), Refused> {
        // Unusual messages take another function, with all arguments still in registers, so nothing has to be saved here.
        if !head.is_empty() || !self.is_ready_for(body) {
            return self.send_otherwise(immediate, head, body);
        }
        let (meta, aux) = cell::inline(body.len(), immediate);
        if self.publish(meta, aux, |payload| payload.whole_words(0, body)) {
            self.connection.ring_receiver();
        }
        Ok(())
    }

    fn send_short(&mut self, immediate: u32, head: [u8; HEAD], body: &[u8]) -> bool {
        if !self.is_ready_for(body) {
            return self.send_short_slow(immediate, head, body);
        }
        let (meta, aux) = cell::inline(HEAD + body.len(), Some(immediate));
        let has_to_ring = self.publish(meta, aux, |payload| {
            payload.words(&[u64::from_ne_bytes(head)]);
            payload.whole_words(1, body);
        });
        if has_to_ring {
            self.connection.ring_receiver();
        }
        true
    }

    fn send_short_run(&mut self, immediate: u32, head: [u8; HEAD], bodies: &[u8], each: usize) -> usize {
        if each.is_multiple_of(8) {
            self.send_whole_words(immediate, head, bodies, each)
        } else {
            let send = |body: &&[u8]| self.send_otherwise(Some(immediate), &head, body).is_ok();
            bodies.chunks_exact(each).take_while(send).count()
        }
    }

    fn lend(
        &mut self,
        immediate: Option<u32>,
        head: &[u8],
        segments: &[(u64, usize)],
        held: PostedBuffer,
    ) -> Result<(), (Refused, PostedBuffer)> {
        if let Err(refused) = self.room() {
            return Err((refused, held));
        }
        match *segments {
            [(offset, len)] => {
                assert!(head.len() <= MAX_HEAD);
                let token = self.hold(held)?;
                let (meta, aux) = cell::lent_one(head.len(), token, immediate);
                self.push_with(meta, aux, |payload| {
                    payload.words(&[offset, len as u64]);
                    payload.bytes(2, head);
                });
            }
            _ => {
                assert!(segments.len() <= MAX_SEGMENTS && 16 * segments.len() + head.len() <= MAX_HEAD + 16);
                let token = self.hold(held)?;
                self.push(cell::lent(segments, head, token, immediate));
            }
        }
        self.device.note_lender(&self.connection);
        Ok(())
    }

    fn rdma_write(
        &mut self,
        segments: &[(u64, usize)],
        to: RemoteBuffer,
        immediate: Option<u32>,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        let is_awaited =
            matches!(held, PostedBuffer::Caller(_)) && self.reliability == Reliability::Reception;
        if is_awaited && immediate.is_some() {
            return self.write_awaited(segments, to, immediate, held);
        }
        match self.write_announced(segments, to, immediate) {
            Ok(()) => Ok(Some(TransferStatus::Arrived)),
            Err(refused) => Err((refused, held)),
        }
    }

    fn rdma_read(
        &mut self,
        segments: &[(u64, usize)],
        from: RemoteBuffer,
        held: PostedBuffer,
    ) -> Result<Option<TransferStatus>, (Refused, PostedBuffer)> {
        match self.inside_window(from.handle, |endpoint, guard| endpoint.read_inside(guard, segments, from)) {
            Ok(()) => Ok(Some(TransferStatus::Arrived)),
            Err(refused) => Err((refused, held)),
        }
    }

    #[inline]
    fn receive(&mut self) -> Result<Option<Arrival>, Refused> {
        if self.receipt.is_some() {
            self.forget_receipt();
        }
        match self.next() {
            Ok(None) if !self.stands() => self.end(),
            other => other,
        }
    }

    #[inline]
    fn receive_into(&mut self, to: &mut [u8]) -> Result<Option<Landed>, Refused> {
        if self.receipt.is_some() {
            self.forget_receipt();
        }
        if self.closed {
            // The peer has taken back the messages that we had not read.
            return self.end().map(|last| last.map(Landed::Arrival));
        }
        let popped = self.consumer.pop_with(|message| match cell::as_inline(message) {
            Some((immediate, len)) => {
                let fits = len.min(to.len());
                cell::unpack(message, &mut to[..fits]);
                Ok((immediate, len))
            }
            None => Err(message.take()),
        });
        match popped {
            Some(Ok((immediate, len))) => {
                self.popped();
                Ok(Some(Landed::Copied { immediate, len }))
            }
            Some(Err(taken)) => self.landed(&taken),
            None if self.stands() => Ok(None),
            None => self.end().map(|last| last.map(Landed::Arrival)),
        }
    }

    #[inline]
    fn receive_short(&mut self, to: &mut Inline) -> Found {
        if self.receipt.is_some() || self.closed {
            return Found::Other;
        }
        let look = self.consumer.pop_if(|message| {
            let (immediate, len) = cell::as_inline(message)?;
            // All words are copied, which is quicker than copying only those in use.
            to.set(message.all_words(), len);
            Some(immediate)
        });
        match look {
            PopResult::Taken(immediate) => {
                self.popped();
                Found::Short(immediate)
            }
            PopResult::Empty if self.stands() => Found::Nothing,
            PopResult::Empty | PopResult::Kept => Found::Other,
        }
    }

    fn receive_short_run(&mut self, first: u8, to: &mut [ShortArrival]) -> usize {
        if self.receipt.is_some() || self.closed {
            return 0;
        }
        let taken = self.consumer.pop_run(to.len(), |number, message| {
            let (immediate, len) = cell::as_inline(message)?;
            let place = to.get_mut(number)?;
            let words = message.all_words();
            if words[0].to_ne_bytes()[0] != first || len < HEAD {
                return None;
            }
            place.message.set(words, len);
            place.immediate = immediate;
            Some(())
        });
        if taken > 0 {
            self.popped();
        }
        taken
    }

    #[inline]
    fn receive_lent(&mut self, head: &mut Inline) -> Option<(Option<u32>, LentSlice)> {
        // A message that must be copied, or is wrong, takes the slow path.
        if self.receipt.is_some() || self.closed || !self.may_hold_more() || !self.device.is_trusting() {
            return None;
        }
        let connection = &self.connection;
        let look = self.consumer.pop_if(|message| {
            let lent = cell::as_lent_one(message)?;
            let [offset, len, words @ ..] = message.all_words();
            let len = usize::try_from(len).ok()?;
            let at = connection.peer_memory(offset, len)?;
            let [first, second, third, fourth] = words;
            head.set([first, second, third, fourth, 0, 0], lent.head_len);
            Some((lent, (at, len)))
        });
        let PopResult::Taken((lent, part)) = look else { return None };
        self.popped();
        self.borrowed = self.borrowed.wrapping_add(1);
        // SAFETY: as in `borrow`.
        let message = unsafe { LentSlice::new(part, self.connection.clone(), lent.token) };
        Some((lent.immediate, message))
    }

    fn receipt(&mut self) -> Option<Lent> {
        self.receipt.take()
    }

    fn poll_completion(&mut self) -> Option<(u64, TransferStatus)> {
        match self.connection.poll_completion() {
            Ok(ended) => ended,
            Err(token) => {
                self.corrupt(&token);
                None
            }
        }
    }

    fn keep(&mut self, number: u64, owner: Owner) -> Result<(), Owner> {
        self.connection.keep(number, owner)
    }

    fn request_send_notify(&mut self) {
        self.waiting = true;
        self.connection.outgoing.sender().waiting.store(1, Ordering::Relaxed);
        // The fence pairs with the one in `Connection::notify_sender`: the flag is set before the caller's last poll.
        fence(Ordering::SeqCst);
    }

    fn link_report(&self) -> Option<Weak<dyn LinkReport>> {
        let lent: Arc<dyn LinkReport> = self.connection.clone();
        Some(Arc::downgrade(&lent))
    }

    fn unread(&mut self) -> Result<u32, Refused> {
        // The state is read first: a peer that has closed reads no more, so its count is final then.
        let usable = self.usable();
        match self.producer.unread() {
            Ok(0) => Ok(0),
            Ok(unread) => usable.map(|()| unread),
            Err(corrupt) => Err(self.corrupt(&corrupt)),
        }
    }

    fn close(&mut self, broken: Option<&str>) {
        if self.closed {
            return;
        }
        self.closed = true;
        // The final read position: the peer takes back the messages behind it.
        self.consumer.publish_credit();
        self.connection.close(if broken.is_some() { BROKEN } else { CLOSED });
    }

    fn leave(&mut self) {
        self.close(None);
        self.connection.detach_receive();
        self.request_send_notify();
    }
}

impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.close(None);
        self.connection.outgoing.sender().waiting.store(0, Ordering::Relaxed);
        self.connection.detach();
        self.device.retire(&self.connection);
    }
}

impl std::fmt::Debug for ShmEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShmEndpoint({:?})", self.connection)
    }
}
