//! Messages that travel apart: those of an unreliable VI, and its RDMA writes, on a queue pair beside the reliable one (UC), which
//! sends each once, hears of none, and drops what finds no place. The reliable one has the control frames and the reads of
//! what was offered.
//!
//! They are numbered from 0 in the order in which they leave; what takes a receive buffer has a number, so that at most
//! [`MESSAGES`] buffers are ever wanted. There a number is *over* when its message was taken or missed, and `taken` tells how
//! many are, in a row. Such a queue pair keeps the order: what comes says that everything before it came or never will. Of
//! the last that were sent nothing says so; so whoever waits says how many have *left* ([`Frame::Left`]), and what has not
//! come a while after that is missed (RFC 3758 has the same). The end is told behind it, and waits for the same.
//!
//! An RDMA write's immediate data are its pieces' numbers, those of the program follow in a frame: so both sides know which
//! one was lost, and a write of which a piece was lost never completes.

use std::collections::VecDeque;

use smallvec::SmallVec;
use udeck_via::RemoteBuffer;
use udeck_via::transport::{Fate, Inline};

use super::posting::{Post, Posted, Segments, Then};
use super::pumping::{Step, fits};
use super::taking::{Item, Offer, Progress};
use super::{Connection, How, MESSAGES, Span, Work};
use crate::memory::{Segment, Store};
use crate::wire::{Far, Frame, HEADER, Header, MAX_HEAD, Note, Part, Violation};

const _: () = assert!(MESSAGES <= u64::BITS);

/// See the module.
#[derive(Default)]
pub(super) struct Apart {
    // The sender's side.
    /// Requests that the device has, oldest first.
    flying: VecDeque<Leaving>,
    next_token: u32,
    /// Numbers below were given to the device; those below `gone` have left; of those below `told` the peer knows that.
    left: u32,
    gone: u32,
    told: u32,
    /// The peer is to be told when all have left.
    owes_word: bool,
    /// Of the numbers that are not over, from the first on: those of pieces. And how many the write has that is leaving.
    pieces: u64,
    written: u32,

    // The receiver's side.
    /// Numbers below are over; of those from there on, these are.
    base: u32,
    over: u64,
    /// Numbers below have come or never will; of those below `heard` the peer says that they have left.
    next: u32,
    heard: u32,
    /// Pieces that came last, in a row, and their bytes.
    run: (u32, usize),
    /// Of what lies in the inbox.
    numbers: VecDeque<u32>,
    /// The peer's end, which waits for what it sent before.
    held_end: Option<Option<String>>,
    /// Our end was told: nobody takes anything.
    abandoned: bool,
    missed: u64,
}

struct Leaving {
    token: u32,
    then: Then,
    /// Numbers below have left with it.
    upto: u32,
}

/// How far `number` is ahead; `None`: it is not.
fn ahead(number: u32, of: u32) -> Option<u32> {
    Some(number.wrapping_sub(of)).filter(|distance| *distance <= u32::MAX / 2)
}

fn violation<T>(words: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(words.into()))
}

/// The sender's side.
impl Connection {
    /// From now on messages and writes travel apart. Before anything was posted; both sides or none.
    pub fn go_apart(&mut self) {
        self.apart = Some(Box::default());
    }

    /// Numbers that are in use, if messages travel apart.
    fn numbers_out(&self) -> u32 {
        self.apart.as_ref().map_or(0, |apart| apart.left.wrapping_sub(self.peer_taken))
    }

    fn has_number(&self) -> bool {
        self.numbers_out() < MESSAGES
    }

    /// Whether there will be numbers for one more, which takes `wanted`, behind what waits.
    pub(super) fn has_numbers_for(&self, wanted: u32) -> bool {
        let waiting: u32 = self.posts.iter().map(|post| post.what.numbers()).sum();
        self.numbers_out() + waiting + wanted <= MESSAGES
    }

    /// Messages that are not over.
    pub(super) fn untaken_apart(&self) -> Option<u32> {
        let apart = self.apart.as_ref()?;
        let waiting = self.posts.iter().filter(|post| post.what.numbers() > 0).count();
        Some(self.numbers_out() - apart.pieces.count_ones().min(self.numbers_out()) + waiting as u32)
    }

    fn take_number(&mut self, is_piece: bool) -> u32 {
        let at = self.numbers_out();
        let Some(apart) = &mut self.apart else { return 0 };
        apart.pieces |= u64::from(is_piece) << at.min(63);
        apart.written += u32::from(is_piece);
        let number = apart.left;
        apart.left = number.wrapping_add(1);
        number
    }

    /// The peer tells that the numbers below are over.
    pub(super) fn are_over(&mut self, upto: u32) -> Result<(), Violation> {
        let (more, out) = (upto.wrapping_sub(self.peer_taken), self.numbers_out());
        if more > out {
            return violation(format!("{more} messages are over of the {out} that were not"));
        }
        // Of an offer that was taken this is the second word; of one that was lost the only one.
        let is_over = |number: Option<u32>| number.is_some_and(|n| ahead(upto, n).is_some_and(|by| by > 0));
        while let Some(offered) = self.offered.iter().find(|offered| is_over(offered.apart)) {
            let number = offered.number;
            self.end_offered(number, Fate::Arrived);
        }
        // Who has ended it takes nothing any more: what was not taken by then was not taken.
        if let (Some(apart), true, None) = (&mut self.apart, more > 0, &self.peer_end) {
            apart.pieces = apart.pieces.checked_shr(more).unwrap_or(0);
            (self.peer_taken, self.hungry) = (upto, false);
            self.tell_of_room();
        }
        Ok(())
    }

    /// Somebody waits for what the peer knows only when it was told how many have left.
    pub(super) fn owe_word(&mut self) {
        if let Some(apart) = &mut self.apart {
            apart.owes_word = apart.told != apart.left;
        }
    }

    /// What the peer is to be told of that, once they have.
    pub(super) fn word_is_due(&self) -> bool {
        self.apart.as_ref().is_some_and(|apart| apart.owes_word && apart.gone == apart.left)
    }

    pub(super) fn take_word(&mut self) -> Option<u32> {
        let apart = self.apart.as_mut().filter(|apart| apart.owes_word && apart.gone == apart.left)?;
        (apart.owes_word, apart.told) = (false, apart.left);
        Some(apart.told)
    }

    /// Whether all have left, as far as the peer knows.
    pub(super) fn has_told_all(&self) -> bool {
        self.apart.as_ref().is_none_or(|apart| apart.told == apart.left)
    }

    /// The end was told, and with it what was taken: nothing more is.
    pub(super) fn abandon(&mut self) {
        let Some(apart) = &mut self.apart else { return };
        apart.abandoned = true;
        // But for those that are being read.
        let read = apart.numbers.clone();
        let mut number = apart.base;
        while number != apart.next {
            if !read.contains(&number) {
                apart.is_over(number);
            }
            number = number.wrapping_add(1);
        }
        // What the peer had offered and was lost comes back to it by that.
        self.credits.asked |= self.credits.taken != apart.base;
        self.credits.taken = apart.base;
    }

    /// As [`Connection::send_now`], when it travels apart.
    pub(super) fn send_now_apart(
        &mut self,
        work: &mut dyn Work,
        immediate: Option<u32>,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        let Some(device) = work.apart().filter(|device| device.has_room()) else { return false };
        if !self.posts.is_empty() || self.dead || !self.has_number() {
            return false;
        }
        let mut rest = [0; MAX_HEAD];
        let len = head.len() + body.len();
        rest[..head.len()].copy_from_slice(head);
        rest[head.len()..len].copy_from_slice(body);
        let frame = Frame::Short { immediate, len };
        self.wants_room = false;
        if let Err(why) = self.send_apart(device, frame, 0, (&rest[..len], &[]), Then::Nothing) {
            self.fail(&why);
        }
        true
    }

    /// Sends a numbered frame. `key`: what an offer is noted by.
    fn send_apart(
        &mut self,
        device: &mut dyn Work,
        frame: Frame,
        key: u32,
        (rest, body): (&[u8], &[Segment]),
        then: Then,
    ) -> Result<(), String> {
        let header = Header { taken: self.take_number(false), heard: key, frame };
        let mut lead: SmallVec<[u8; 128]> = SmallVec::from_slice(&header.encode());
        lead.extend_from_slice(rest);
        let how = self.how_apart();
        let sent = device.send(&lead, body, how);
        self.leave(how, then);
        sent
    }

    /// All are told of: no receiver does, and what waits for them is not to wait for others.
    fn how_apart(&mut self) -> How {
        let Some(apart) = &mut self.apart else { return How::default() };
        let token = apart.next_token;
        apart.next_token = token.wrapping_add(1);
        How { fence: false, signalled: true, token }
    }

    fn leave(&mut self, how: How, then: Then) {
        if let Some(apart) = &mut self.apart {
            apart.flying.push_back(Leaving { token: how.token, then, upto: apart.left });
        }
    }

    /// The request of this number, and all before it, have left.
    pub fn left(&mut self, token: u32) {
        let is_over = |first: &Leaving| ahead(token, first.token).is_some();
        while let Some(apart) = &mut self.apart
            && apart.flying.front().is_some_and(is_over)
        {
            let Some(Leaving { then, upto, .. }) = apart.flying.pop_front() else { break };
            apart.gone = upto;
            self.after(then, Fate::Arrived);
        }
        self.tell_of_room();
    }

    pub(super) fn leaving(&self) -> u32 {
        self.apart.as_ref().map_or(0, |apart| apart.flying.len() as u32)
    }

    pub(super) fn held_apart(apart: Option<&mut Box<Apart>>) -> impl Iterator<Item = &mut Then> {
        apart.into_iter().flat_map(|apart| apart.flying.iter_mut().map(|leaving| &mut leaving.then))
    }

    /// What has not left will not.
    pub(super) fn ground_apart(&mut self, fate: Fate) {
        let flying = self.apart.as_mut().map(|apart| std::mem::take(&mut apart.flying));
        flying.into_iter().flatten().for_each(|leaving| self.after(leaving.then, fate));
    }

    /// Gives the device the post that was in front, if it takes it.
    pub(super) fn give_apart(&mut self, work: &mut dyn Work, what: Posted) -> Result<Step, String> {
        let Some(device) = work.apart() else {
            return Err("messages are to travel apart, and the device has nothing for that".into());
        };
        if let Posted::Write { body, to, immediate, done, then } = what {
            return self.write_apart(device, (body, done), to, immediate, then);
        }
        if !device.has_room() || !self.has_number() {
            return Ok(self.wait_apart(what));
        }
        match what {
            Posted::Frame { frame, lead, body, then } => {
                let len = body.iter().map(|segment| segment.len()).sum();
                if len > 0 && device.fitting(&body, 0) < len {
                    return Err(format!("a message of {} segments, more than the device takes", body.len()));
                }
                self.send_apart(device, frame, 0, (&lead, &body), then)?;
            }
            Posted::Offer { immediate, receipt, head, body, number: key } => {
                let (frame, rest) = Self::offer_frame(device, (immediate, receipt), &head, &body)?;
                let number = self.apart.as_ref().map(|apart| apart.left);
                self.offered
                    .iter_mut()
                    .filter(|offered| offered.number == key)
                    .for_each(|o| o.apart = number);
                self.send_apart(device, frame, key, (&rest, &[]), Then::Nothing)?;
                // If it is lost, its memory comes back by that.
                self.owe_word();
            }
            Posted::Write { .. } | Posted::Read { .. } | Posted::End { .. } => {}
        }
        Ok(Step::Gone)
    }

    fn write_apart(
        &mut self,
        device: &mut dyn Work,
        (body, mut done): (Segments, usize),
        to: RemoteBuffer,
        immediate: Option<u32>,
        then: Then,
    ) -> Result<Step, String> {
        let total: usize = body.iter().map(|segment| segment.len()).sum();
        let Some(far) = self.place_of(to, true) else {
            self.seek(to, true);
            let what = Posted::Write { body, to, immediate, done, then };
            self.posts.push_front(Post { fence: false, what });
            return Ok(Step::Waits);
        };
        if !fits(far.len, to.offset, total) {
            self.forbidden(Posted::Write { body, to, immediate, done, then });
            return Ok(Step::Over);
        }
        let mut then = Some(then);
        if let (Some(apart), 0) = (&mut self.apart, done) {
            apart.written = 0;
        }
        while done < total {
            if !device.has_room() || (immediate.is_some() && !self.has_number()) {
                let then = then.take().unwrap_or(Then::Nothing);
                return Ok(self.wait_apart(Posted::Write { body, to, immediate, done, then }));
            }
            let len = device.fitting(&body, done).min(total - done);
            let at = Far { address: far.address.wrapping_add((to.offset + done) as u64), ..far };
            let number = immediate.map(|_| self.take_number(true));
            let (span, how) = (Span { segments: &body, from: done, len }, self.how_apart());
            let written = device.write(span, at, number, how);
            done += len;
            let last = if done == total { then.take() } else { None };
            self.leave(how, last.unwrap_or(Then::Nothing));
            written?;
        }
        if let Some(immediate) = immediate {
            if !device.has_room() || !self.has_number() {
                let then = then.take().unwrap_or(Then::Nothing);
                let immediate = Some(immediate);
                return Ok(self.wait_apart(Posted::Write { body, to, immediate, done, then }));
            }
            let pieces = self.apart.as_ref().map_or(0, |apart| apart.written);
            let frame = Frame::Wrote { immediate, pieces, len: total as u64 };
            self.send_apart(device, frame, 0, (&[], &[]), Then::Nothing)?;
        }
        // Of no bytes, nothing is under way.
        if let Some(then) = then {
            self.after(then, Fate::Arrived);
        }
        Ok(Step::Gone)
    }

    /// There is no room for it now. When nobody takes what was sent before, there never will be: it is lost.
    fn wait_apart(&mut self, what: Posted) -> Step {
        if !self.has_number() {
            if self.closed || self.peer_end.is_some() {
                self.drop_post(what, Fate::Unread);
                return Step::Over;
            }
            self.hunger();
        }
        self.posts.push_front(Post { fence: false, what });
        Step::Waits
    }
}

/// The receiver's side.
impl Connection {
    /// A frame has come on the queue pair for messages.
    pub fn came_apart(&mut self, bytes: &[u8]) {
        if self.dead {
            return;
        }
        match self.take_in_apart(bytes) {
            Ok(()) => self.settle_end(),
            Err(violation) => self.break_protocol(&violation),
        }
    }

    fn take_in_apart(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return violation(format!("a frame of {} bytes", bytes.len()));
        };
        let Header { taken: number, heard: key, frame } = Header::decode(header)?;
        if rest.len() != frame.rest() {
            return violation(format!("{frame:?} with {} bytes behind it", rest.len()));
        }
        let run = self.apart.as_ref().map_or((0, 0), |apart| apart.run);
        let Some(in_row) = self.number_came(number)? else { return Ok(()) };
        match frame {
            Frame::Short { immediate, .. } => {
                self.arrive_apart(number, Item::Short { immediate, bytes: Inline::gather(rest, &[]) });
            }
            Frame::Body { immediate, receipt: false, head, .. } if !self.closed => {
                let (head, body) = rest.split_at(head);
                // Where there is no memory for it, it is lost as others are.
                let Some(store) = Store::copy_of(&self.memory, body) else {
                    self.apart.iter_mut().for_each(|apart| apart.missed += 1);
                    self.over_at_once(number);
                    return Ok(());
                };
                let head = Inline::gather(head, &[]);
                self.arrive_apart(number, Item::Body { immediate, head, store, receipt: None });
            }
            Frame::Body { receipt: false, .. } => self.arrive_closed(number),
            Frame::Offer { immediate, receipt: false, head, len, .. } => {
                let (head, parts) = rest.split_at(head);
                let parts: Vec<Part> =
                    parts.as_chunks::<{ Part::LEN }>().0.iter().map(Part::decode).collect();
                let len = self.check_offer(&parts, len)?;
                if self.inbox.iter().any(|item| matches!(item, Item::Offer(offer) if offer.number == key)) {
                    return violation(format!("offer {key} twice"));
                }
                if self.closed {
                    self.notes.push(Note::Read(key));
                    self.arrive_closed(number);
                    return Ok(());
                }
                let (head, progress) = (Inline::gather(head, &[]), Progress::Waits);
                let offer = Offer { immediate, head, len, parts, number: key, receipt: false, progress };
                self.offers += 1;
                self.arrive_apart(number, Item::Offer(Box::new(offer)));
            }
            Frame::Wrote { immediate, pieces, len } => {
                let came = if in_row { run } else { (0, 0) };
                if came.0 != pieces || came.1 as u64 != len {
                    // Some of it did not come, which is counted already.
                    self.over_at_once(number);
                    return Ok(());
                }
                self.arrive_apart(number, Item::Written { immediate, len: came.1, receipt: None });
            }
            other => return violation(format!("{other:?} where messages may be lost")),
        }
        Ok(())
    }

    /// A piece of an RDMA write has come, of this number.
    pub fn written_apart(&mut self, number: u32, len: usize) {
        if self.dead {
            return;
        }
        let run = self.apart.as_ref().map_or((0, 0), |apart| apart.run);
        match self.number_came(number) {
            Ok(Some(in_row)) => {
                let before = if in_row { run } else { (0, 0) };
                if let Some(apart) = &mut self.apart {
                    apart.run = (before.0 + 1, before.1.saturating_add(len));
                }
                self.over_at_once(number);
                self.settle_end();
            }
            Ok(None) => {}
            Err(violation) => self.break_protocol(&violation),
        }
    }

    /// Whether it comes right behind the last; `None`: it comes too late.
    fn number_came(&mut self, number: u32) -> Result<Option<bool>, Violation> {
        let Some(apart) = &mut self.apart else {
            return violation("a message on a queue pair that is not there");
        };
        let Some(gap) = ahead(number, apart.next) else { return Ok(None) };
        if number.wrapping_sub(apart.base) >= MESSAGES {
            return violation(format!("message {number}, and all from {} on are not over", apart.base));
        }
        apart.miss_below(number);
        (apart.next, apart.run) = (number.wrapping_add(1), (0, 0));
        self.credits.taken = apart.base;
        Ok(Some(gap == 0))
    }

    fn arrive_apart(&mut self, number: u32, item: Item) {
        if self.closed {
            return self.arrive_closed(number);
        }
        if let Some(apart) = &mut self.apart {
            apart.numbers.push_back(number);
            self.deliver(item);
        }
    }

    /// Nobody takes it.
    fn arrive_closed(&mut self, number: u32) {
        if self.apart.as_ref().is_some_and(|apart| apart.abandoned) {
            self.over_at_once(number);
        }
    }

    fn over_at_once(&mut self, number: u32) {
        if let Some(apart) = &mut self.apart {
            apart.is_over(number);
            self.credits.taken = apart.base;
        }
    }

    /// What lay at `at` in the inbox does not any more: it was taken, or nobody ever takes it.
    pub(super) fn is_gone(&mut self, at: usize, taken: bool) {
        let Some(apart) = &mut self.apart else { return };
        let Some(number) = apart.numbers.remove(at) else { return };
        if taken || apart.abandoned {
            self.over_at_once(number);
        }
    }

    /// So many messages of the peer have left.
    pub(super) fn heard_left(&mut self, upto: u32) -> Result<(), Violation> {
        let Some(apart) = &mut self.apart else { return violation("word of messages that travel apart") };
        // What came since may have been taken, too.
        match ahead(upto, apart.base) {
            Some(by) if by > MESSAGES => violation(format!(
                "word that message {upto} has left, and all from {} on are not over",
                apart.base
            )),
            Some(_) if ahead(upto, apart.heard).is_some() => {
                apart.heard = upto;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The first message that has left the peer and has not come. A driver waits for it as long as it likes, and then
    /// [misses](Connection::miss) all that have not.
    pub fn awaited(&self) -> Option<u32> {
        let apart = self.apart.as_ref().filter(|_| !self.dead)?;
        ahead(apart.heard, apart.next).filter(|by| *by > 0).map(|_| apart.next)
    }

    /// What has left the peer and has not come never will.
    pub fn miss(&mut self) {
        let (Some(_), Some(apart)) = (self.awaited(), &mut self.apart) else { return };
        apart.miss_below(apart.heard);
        (apart.next, apart.run) = (apart.heard, (0, 0));
        self.credits.taken = apart.base;
        // Somebody may wait to hear it.
        self.credits.asked = true;
        self.settle_end();
    }

    /// Messages that did not come, told once.
    pub fn take_missed(&mut self) -> u64 {
        self.apart.as_mut().map_or(0, |apart| std::mem::take(&mut apart.missed))
    }

    /// The peer ends it: now, or when what it sent before has come.
    pub(super) fn end_came_behind(&mut self, words: Option<String>) {
        match &mut self.apart {
            Some(apart) => {
                apart.held_end.get_or_insert(words);
                self.settle_end();
            }
            None => self.end_came(words),
        }
    }

    fn settle_end(&mut self) {
        if self.awaited().is_none() {
            self.release_end();
        }
    }

    /// The peer's end waits for nothing more.
    pub(super) fn release_end(&mut self) {
        if let Some(words) = self.apart.as_mut().and_then(|apart| apart.held_end.take()) {
            self.end_came(words);
        }
    }
}

impl std::fmt::Debug for Apart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Apart")
            .field("sent", &(self.left, self.gone, self.told, self.flying.len()))
            .field("came", &(self.base, self.next, self.heard, self.numbers.len()))
            .field("held_end", &self.held_end)
            .finish_non_exhaustive()
    }
}

impl Apart {
    /// Told in a row: so the peer knows which.
    fn is_over(&mut self, number: u32) {
        let Some(at) = ahead(number, self.base).filter(|at| *at < MESSAGES) else { return };
        self.over |= 1 << at;
        let row = self.over.trailing_ones();
        self.over = self.over.checked_shr(row).unwrap_or(0);
        self.base = self.base.wrapping_add(row);
    }

    /// What has not come of those below never will.
    fn miss_below(&mut self, number: u32) {
        while self.next != number {
            self.is_over(self.next);
            self.next = self.next.wrapping_add(1);
            self.missed += 1;
        }
    }
}

impl Posted {
    /// Numbers that it takes at least, where messages travel apart.
    fn numbers(&self) -> u32 {
        match self {
            Posted::Frame { .. } | Posted::Offer { .. } => 1,
            Posted::Write { immediate: Some(_), .. } => WRITE_NUMBERS,
            Posted::Write { immediate: None, .. } | Posted::Read { .. } | Posted::End { .. } => 0,
        }
    }
}

/// A piece, and what says that it was all.
pub(super) const WRITE_NUMBERS: u32 = 2;
