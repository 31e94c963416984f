//! Parser of the incoming stream, and the places of payload.
//!
//! A frame is a header, then lead bytes (a message's head, or the words of an end), then payload. Payload goes straight to
//! its place: by [`Connection::direct`] and a driver's read, or copied out of the driver's scratch.

use smallvec::SmallVec;
use udeck_via::RemoteBuffer;
use udeck_via::mem::MemHandle;
use udeck_via::transport::Inline;

use super::Connection;
use super::pieces::{Direct, Expected, Shape};
use crate::close::no_memory;
use crate::framed::windows::{Right, WindowAccess};
use crate::framed::wire::{Frame, HEADER, Header, MAX_WORDS, Short, Violation};
use crate::memory::{Place, Store};
use crate::recv_queue::is_posted_for;

/// State of the parser.
#[derive(Default)]
pub(super) struct Incoming {
    pub stage: ParseStage,
    /// A header or lead of which only a part has come.
    pub partial: Vec<u8>,
    pub target: Target,
    /// Expected shape of the next message.
    pub shape: Option<Shape>,
    pub last_shape: Option<Shape>,
    /// A store that holds the body already, if the header that is parsed is the expected one.
    pub expected: Option<Expected>,
    /// Payload bytes of the current frame that have come, out of `len`.
    pub done: usize,
    len: usize,
    /// The program's place for the message that is coming, during a poll ([`Connection::poll_into`]).
    posted: Option<Place>,
    /// Bytes of the message that lie in the program's place, instead of in the store.
    pub landed: usize,
    /// Number of the message or write that is coming.
    pub number: u32,
    /// Whether the current frame is a write that the window's owner does not allow.
    pub refused: bool,
    pub head: Option<Inline>,
    pub words: String,
}

#[derive(Clone, Copy, Default)]
pub(super) enum ParseStage {
    #[default]
    Header,
    Lead(Frame, usize),
    Payload(Frame),
}

/// Destination of payload.
#[derive(Default)]
pub(super) enum Target {
    /// The payload is thrown away.
    #[default]
    Nowhere,
    Store(Store),
    Window(MemHandle, usize),
    /// The segments of our oldest read.
    Read,
}

impl Connection {
    /// Whether the next byte is a header's. In that state, [`Connection::direct`] is empty unless [a body is
    /// expected](Connection::expects_body).
    #[inline]
    pub fn is_between_frames(&self) -> bool {
        matches!(self.incoming.stage, ParseStage::Header)
    }

    /// The same as [`Connection::on_receive`], for bytes that lie in a driver's scratch only.
    pub fn on_receive_beside(&mut self, mut scratch: &[u8]) {
        while !scratch.is_empty() {
            scratch = match self.parse_short(scratch) {
                Some(later) => later,
                None => self.parse_slow(scratch),
            };
        }
        self.try_over();
    }

    /// The same as [`Connection::on_receive_beside`], without the short path for short messages.
    #[cfg(test)]
    pub(crate) fn came_by_stages(&mut self, mut scratch: &[u8]) {
        while !scratch.is_empty() {
            scratch = self.parse_slow(scratch);
        }
        self.try_over();
    }

    /// Places for the next bytes of the stream.
    pub fn direct(&mut self) -> Direct {
        let mut direct = Direct::default();
        if self.broken || self.close.dead {
            return direct;
        }
        if !matches!(self.incoming.stage, ParseStage::Payload(_)) {
            self.expect(&mut direct);
            return direct;
        }
        let (places, access) = self.next_places();
        places.into_iter().for_each(|place| direct.push(place));
        if let Some(access) = access {
            direct.keep_open(access);
        }
        direct
    }

    /// Handles a read: `filled` bytes lie in `direct`'s pieces, and `scratch` has the bytes [before these](Direct::before),
    /// then those behind. If `filled` is less than the pieces hold, usually nothing lies behind, but it may: the missing
    /// bytes are then copied from there.
    ///
    /// After a violation ([`super::Phase::Broken`]) and after a loss, all bytes are thrown away.
    ///
    /// # Panics
    /// When `filled` is more than there was room for.
    pub fn on_receive(&mut self, mut direct: Direct, filled: usize, scratch: &[u8]) {
        assert!(filled <= direct.len(), "{filled} bytes in a place of {}", direct.len());
        if let Some(expected) = direct.expected.take() {
            return self.on_expected(direct.before(), expected, filled, scratch);
        }
        drop(direct);
        if let Err(violation) = self.advance(filled) {
            self.break_protocol(&violation);
        }
        self.on_receive_beside(scratch);
    }

    /// Places for the next bytes of the payload, and the guard that keeps their window from being taken back. For a body: all
    /// of its memory so far, at least [this much](Store::room). No places: the rest of the payload is thrown away.
    fn next_places(&mut self) -> (SmallVec<[Place; 2]>, Option<WindowAccess>) {
        let Incoming { done, len, .. } = self.incoming;
        match &mut self.incoming.target {
            Target::Nowhere => (SmallVec::new(), None),
            Target::Store(store) => {
                let place = match self.incoming.posted {
                    Some(posted) => Some(posted.first(len).behind(done)),
                    None => store.room(done),
                };
                if place.is_none() {
                    self.break_off(&no_memory(len));
                }
                (place.into_iter().collect(), None)
            }
            &mut Target::Window(handle, offset) => {
                let rest = RemoteBuffer { handle, offset: offset + done, len: len - done };
                let entered = self.windows.enter(rest, self.writable, Right::Write);
                let found = entered.and_then(|(access, range)| {
                    Some((access, Place::of(&self.memory.landing, range.offset, range.len)?))
                });
                let Some((access, place)) = found else {
                    // The window was taken back: the rest of the write is thrown away.
                    (self.incoming.target, self.incoming.refused) = (Target::Nowhere, true);
                    return (SmallVec::new(), None);
                };
                (SmallVec::from_iter([place]), Some(access))
            }
            Target::Read => {
                let mut skipped = done;
                let mut places = SmallVec::new();
                for place in self.reads.front().into_iter().flat_map(|read| &read.places) {
                    let here = skipped.min(place.len());
                    skipped -= here;
                    if here < place.len() {
                        places.push(place.behind(here));
                    }
                }
                (places, None)
            }
        }
    }

    /// Lets `poll` take in what has come. If a long message is coming that `to` can hold and was posted for, its bytes go to
    /// `to`. The rest goes to the store, and from there to the same place at the next poll, which has to offer that place
    /// again.
    pub(crate) fn poll_into(&mut self, to: &mut [u8], poll: impl FnOnce(&mut Connection)) {
        self.offer(to);
        let scope = PollScope(self);
        poll(scope.0);
    }

    fn offer(&mut self, to: &mut [u8]) {
        let Incoming { stage, target, done, len, landed, .. } = &mut self.incoming;
        let (ParseStage::Payload(Frame::Message { head: 0, .. }), Target::Store(store)) = (*stage, target)
        else {
            return;
        };
        if !is_posted_for(*len, to.len()) {
            return;
        }
        store.copy_part(*landed, &mut to[*landed..*done]);
        self.memory.count_copied(*done - *landed);
        *landed = *done;
        self.incoming.posted = Some(Place::lent(to));
    }

    /// Gives the program's place back to it.
    fn withdraw(&mut self) {
        if self.incoming.posted.take().is_some() {
            self.incoming.landed = self.incoming.done;
        }
    }

    /// Parses the bytes that belong together. Returns the rest. After a violation and after a loss, all bytes are thrown away.
    #[inline(never)]
    fn parse_slow<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        if self.broken || self.close.dead {
            return &[];
        }
        self.parse_stage(bytes).unwrap_or_else(|violation| {
            self.break_protocol(&violation);
            &[]
        })
    }

    fn parse_stage<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Violation> {
        match self.incoming.stage {
            ParseStage::Header => self.parse_header(bytes),
            ParseStage::Lead(frame, len) => self.parse_lead(frame, len, bytes),
            ParseStage::Payload(_) => {
                let now = &bytes[..bytes.len().min(self.incoming.len - self.incoming.done)];
                let copied = self.copy_in(now);
                self.advance(copied)?;
                Ok(&bytes[copied..])
            }
        }
    }

    /// Parses a short message that lies there as a whole, which most frames are: the work of all stages in one step. `None`:
    /// it is another frame, or a violation, which the stages report.
    #[inline(always)]
    fn parse_short<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (header, behind) = bytes.split_first_chunk::<HEADER>()?;
        let Short { taken, immediate, len } = Short::decode(header)?;
        let (message, later) = behind.split_at_checked(len)?;
        if !self.is_between_frames() || !self.incoming.partial.is_empty() || !self.admits_short() {
            return None;
        }
        if taken != self.window.taken().narrow() {
            self.on_taken(taken).ok()?;
        }
        self.incoming.number = self.credits.arrive(len as u64).ok()?;
        if !self.close.closed {
            self.deliver_short(immediate, message);
        }
        Some(later)
    }

    fn parse_header<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Violation> {
        if let (true, Some((header, later))) =
            (self.incoming.partial.is_empty(), bytes.split_first_chunk::<HEADER>())
        {
            self.begin(Header::decode(header)?)?;
            return Ok(later);
        }
        let (whole, later) = self.incoming.fill(HEADER, bytes);
        if whole {
            let mut header = [0; HEADER];
            header.copy_from_slice(&self.incoming.partial);
            self.incoming.partial.clear();
            self.begin(Header::decode(&header)?)?;
        }
        Ok(later)
    }

    fn parse_lead<'a>(&mut self, frame: Frame, len: usize, bytes: &'a [u8]) -> Result<&'a [u8], Violation> {
        if self.incoming.partial.is_empty() && bytes.len() >= len {
            let (lead, later) = bytes.split_at(len);
            self.incoming.keep_lead(frame, lead);
            self.begin_payload(frame)?;
            return Ok(later);
        }
        let (whole, later) = self.incoming.fill(len, bytes);
        if whole {
            let lead = std::mem::take(&mut self.incoming.partial);
            self.incoming.keep_lead(frame, &lead);
            self.incoming.partial = lead;
            self.incoming.partial.clear();
            self.begin_payload(frame)?;
        }
        Ok(later)
    }

    /// Handles a header.
    fn begin(&mut self, header: Header) -> Result<(), Violation> {
        self.incoming.forget();
        let (lead, len) = self.admit(header)?;
        self.incoming.len = len;
        if lead > 0 {
            self.incoming.stage = ParseStage::Lead(header.frame, lead);
            return Ok(());
        }
        self.begin_payload(header.frame)
    }

    fn begin_payload(&mut self, frame: Frame) -> Result<(), Violation> {
        self.incoming.stage = ParseStage::Payload(frame);
        self.advance(0)
    }

    /// Counts payload bytes that have come.
    pub(super) fn advance(&mut self, bytes: usize) -> Result<(), Violation> {
        let ParseStage::Payload(frame) = self.incoming.stage else { return Ok(()) };
        self.incoming.done += bytes;
        if self.incoming.done < self.incoming.len {
            return Ok(());
        }
        self.incoming.stage = ParseStage::Header;
        self.withdraw();
        self.complete(frame)
    }

    /// Copies payload out of a driver's scratch. Returns the number of bytes that are done: those that had a place, or all if
    /// they are thrown away.
    fn copy_in(&mut self, bytes: &[u8]) -> usize {
        let (places, access) = self.next_places();
        if places.is_empty() {
            return bytes.len();
        }
        let mut rest = bytes;
        for place in places {
            let (now, later) = rest.split_at(rest.len().min(place.len()));
            place.fill(now);
            rest = later;
        }
        drop(access);
        let copied = bytes.len() - rest.len();
        self.memory.count_copied(copied);
        copied
    }
}

/// Ends a poll's use of the program's place, also on a panic.
struct PollScope<'a>(&'a mut Connection);

impl Drop for PollScope<'_> {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}

impl Incoming {
    /// Adds bytes to a part of `len` bytes. Returns whether the part is whole, and the bytes behind it.
    fn fill<'a>(&mut self, len: usize, bytes: &'a [u8]) -> (bool, &'a [u8]) {
        debug_assert!(len <= MAX_WORDS);
        let (now, later) = bytes.split_at(bytes.len().min(len - self.partial.len()));
        self.partial.extend_from_slice(now);
        (self.partial.len() == len, later)
    }

    fn keep_lead(&mut self, frame: Frame, lead: &[u8]) {
        match frame {
            Frame::End { .. } => self.words = String::from_utf8_lossy(lead).into_owned(),
            _ => self.head = Some(Inline::gather(lead, &[])),
        }
    }

    /// Forgets the frame before.
    fn forget(&mut self) {
        (self.target, self.refused, self.done, self.len) = (Target::Nowhere, false, 0, 0);
        self.landed = 0;
        self.head = None;
        self.words.clear();
    }
}
