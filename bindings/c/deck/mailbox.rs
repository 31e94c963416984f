//! `deck_mbox_t`: a mailbox that this rank owns, or a clone through which it posts.
#![allow(unsafe_code, reason = "structures of C's")]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_ulong};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use udeck::via::Deadline;
use udeck::{Error, Mailbox, Match, PostError, Postbox, Received, Turns, WithTag, World, in_turn};

use super::error::{AGAIN, CallError, Result, TIMED_OUT, call, failure, invalid};
use super::message::{Checked, Message, checked};
use super::pointer::{self, Number, Structure};
use super::stage::{limit, world};
use super::table::{BUSY, Locked, Table, check};

/// `deck_mbox_t`, as `deck.h` has it.
#[repr(C)]
pub struct MailboxStructure {
    number: Number,
}

impl Structure for MailboxStructure {
    type Object = MailboxOrClone;
    const TABLE: &'static Table<MailboxOrClone> = &MAILBOXES;

    #[inline(always)]
    fn number_in(structure: *mut Self) -> *mut Number {
        structure.cast()
    }
}

/// The object behind a `deck_mbox_t`.
#[expect(clippy::large_enum_variant, reason = "posts are frequent: their postbox lies in the table itself")]
pub enum MailboxOrClone {
    /// This rank retrieves from it.
    Owned(Box<Owned>),
    /// This rank posts through it.
    Clone(Postbox<u8>),
}

/// An owned mailbox.
pub struct Owned {
    mailbox: Mailbox<u8>,
    /// A message that was taken but did not fit: it is the next one.
    kept: Option<Received<u8>>,
}

static MAILBOXES: Table<MailboxOrClone> = Table::new("deck_mbox_t", 0x786f_0000);

/// Turns of each owned mailbox, by its number: threads that wait there hear of other threads by them.
static TURNS: Mutex<BTreeMap<Number, Arc<Turns>>> = Mutex::new(BTreeMap::new());

/// Longest wait of a call.
#[derive(Clone, Copy)]
pub(super) enum Wait {
    /// The world's deadline.
    Usual,
    Until(Duration),
    /// No wait.
    None,
}

impl Wait {
    fn limit(self) -> Result<Duration> {
        Ok(match self {
            Wait::Usual => world()?.config().deadline,
            Wait::Until(limit) => limit,
            Wait::None => Duration::ZERO,
        })
    }
}

/// Whether another thread is in a call with a mailbox or clone.
pub(super) fn is_in_use() -> bool {
    MAILBOXES.is_in_use(|_| false)
}

/// Drops all mailboxes and clones that no other thread uses, at the end of the job.
pub(super) fn clear() {
    MAILBOXES.clear();
    TURNS.lock().clear();
}

/// Locks the structure's end for the caller. Another thread's call is waited for within the program's time limit; the rest of the
/// limit is returned.
///
/// # Safety
/// A pointer that is not NULL points to a structure.
#[inline(always)]
unsafe fn lock<'a>(mailbox: *mut MailboxStructure, wait: Wait) -> Result<(Locked<'a, MailboxOrClone>, Wait)> {
    // SAFETY: our contract.
    let number = unsafe { pointer::number(mailbox) }?;
    match MAILBOXES.lock(number, Some(Duration::ZERO)) {
        Ok(end) => Ok((end, wait)),
        Err(failure) => lock_in_use(number, failure, wait).map(|(end, left)| (end, Wait::Until(left))),
    }
}

/// Handles a failed lock because another thread is in a call: a call that does not wait reports this in its own
/// way.
#[cold]
#[inline(never)]
fn lock_in_use<'a>(
    number: Number,
    failure: CallError,
    wait: Wait,
) -> Result<(Locked<'a, MailboxOrClone>, Duration)> {
    if failure.code() != TIMED_OUT {
        return Err(failure);
    }
    if matches!(wait, Wait::None) {
        return Err(failure.with_code(AGAIN));
    }
    let deadline = Deadline::after(wait.limit()?);
    let end = MAILBOXES.lock(number, Some(deadline.remaining()))?;
    Ok((end, deadline.remaining()))
}

/// Waits as [`Table::lock`] does. `None`: another thread holds the end for longer.
fn lock_within<'a>(number: Number, limit: Duration) -> Result<Option<Locked<'a, MailboxOrClone>>> {
    match MAILBOXES.lock(number, Some(limit)) {
        Err(failure) if failure.code() == TIMED_OUT => Ok(None),
        end => end.map(Some),
    }
}

/// The end as a mailbox to retrieve from.
#[inline(always)]
fn owned<'a>(end: &'a mut Locked<'_, MailboxOrClone>) -> Result<&'a mut Owned> {
    match end.get() {
        Some(MailboxOrClone::Owned(owned)) => Ok(owned),
        other => Err(wrong_kind(other)),
    }
}

/// The end as a clone to post through.
#[inline(always)]
fn postbox<'a>(end: &'a mut Locked<'_, MailboxOrClone>) -> Result<&'a Postbox<u8>> {
    match end.get() {
        Some(MailboxOrClone::Clone(postbox)) => Ok(postbox),
        other => Err(wrong_kind(other)),
    }
}

#[cold]
#[inline(never)]
fn wrong_kind(end: Option<&mut MailboxOrClone>) -> CallError {
    match end {
        Some(MailboxOrClone::Owned(owned)) => not_cloned(owned.mailbox.name()),
        Some(MailboxOrClone::Clone(postbox)) => not_owned(postbox.name()),
        None => MAILBOXES.missing(),
    }
}

fn not_owned(name: &str) -> CallError {
    invalid(format!(
        "only the owner of mailbox {name:?} retrieves from it, and this deck_mbox_t is a clone: use the one of deck_mbox_create"
    ))
}

fn not_cloned(name: &str) -> CallError {
    invalid(format!("mailbox {name:?} is posted to through a clone of it: make one by deck_mbox_clone"))
}

/// Makes an end, and the structure refer to it.
///
/// # Safety
/// `structure` is NULL or points to a structure; `name` is NULL or a string.
unsafe fn make(
    structure: *mut MailboxStructure,
    name: *const c_char,
    make: impl FnOnce(&World, &str) -> udeck::Result<MailboxOrClone>,
) -> Result {
    let world = world()?;
    // SAFETY: our contract, for both.
    let name = unsafe {
        pointer::check_not_created(structure)?;
        pointer::name("name", name)?
    };
    let end = make(&world, name)?;
    let turns = if let MailboxOrClone::Owned(owned) = &end { Some(owned.mailbox.turns()) } else { None };
    let number = pointer::insert(end, structure)?;
    TURNS.lock().extend(turns.map(|turns| (number, turns)));
    // SAFETY: our contract; it may be uninitialised.
    unsafe { structure.write(MailboxStructure { number }) };
    Ok(())
}

/// `int deck_mbox_create(deck_mbox_t *mbox, const char *name)`
///
/// # Safety
/// `mailbox` is NULL or points to a structure; `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_create(mailbox: *mut MailboxStructure, name: *const c_char) -> c_int {
    let create = |world: &World, name: &str| {
        Ok(MailboxOrClone::Owned(Box::new(Owned { mailbox: world.mailbox::<u8>(name)?, kept: None })))
    };
    // SAFETY: our contract.
    call("deck_mbox_create", || unsafe { make(mailbox, name, create) })
}

/// `int deck_mbox_clone(deck_mbox_t *mbox, const char *name)`
///
/// # Safety
/// Same as for [`deck_mbox_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_clone(mailbox: *mut MailboxStructure, name: *const c_char) -> c_int {
    let clone = |world: &World, name: &str| world.postbox(name).map(MailboxOrClone::Clone);
    // SAFETY: our contract.
    call("deck_mbox_clone", || unsafe { make(mailbox, name, clone) })
}

/// `int deck_mbox_clone_timeout(deck_mbox_t *mbox, const char *name, unsigned long microseconds)`
///
/// # Safety
/// Same as for [`deck_mbox_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_clone_timeout(
    mailbox: *mut MailboxStructure,
    name: *const c_char,
    microseconds: c_ulong,
) -> c_int {
    let clone = |world: &World, name: &str| {
        world.postbox_timeout(name, limit(microseconds)).map(MailboxOrClone::Clone)
    };
    // SAFETY: our contract.
    call("deck_mbox_clone_timeout", || unsafe { make(mailbox, name, clone) })
}

/// `int deck_mbox_destroy(deck_mbox_t *mbox)`
///
/// # Safety
/// `mailbox` is NULL or points to a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_destroy(mailbox: *mut MailboxStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_mbox_destroy", || unsafe { destroy(mailbox) })
}

/// # Safety
/// Same as for [`deck_mbox_destroy`].
unsafe fn destroy(mailbox: *mut MailboxStructure) -> Result {
    // SAFETY: our contract.
    let number = unsafe { pointer::number(mailbox) }?;
    check()?;
    let turns = TURNS.lock().get(&number).cloned();
    let turns: Option<&Turns> = turns.as_deref();
    let end =
        udeck::lock_within(turns.as_slice(), &"a deck_mbox_t", BUSY, |limit| lock_within(number, limit))?;
    // SAFETY: our contract.
    let end = unsafe { pointer::take_out(mailbox, end) }?;
    TURNS.lock().remove(&number);
    if let Some(turns) = turns {
        turns.ring_all();
    }
    drop(end);
    Ok(())
}

/// # Safety
/// `mailbox` and `message` are NULL or point to structures; no other thread uses the message during the call.
#[inline(always)]
unsafe fn post(mailbox: *mut MailboxStructure, message: *mut Message, wait: Wait) -> Result {
    // SAFETY: our contract, for all three.
    unsafe {
        let message = checked(message)?;
        let used = message.used()?;
        let (mut end, wait) = lock(mailbox, wait)?;
        let postbox = postbox(&mut end)?;
        let (data, tag) = message.contents(used);
        posted(post_by(postbox, data.with_tag(tag), wait))
    }
}

#[inline(always)]
fn post_by<M: udeck::Postable<u8>>(
    postbox: &Postbox<u8>,
    message: M,
    wait: Wait,
) -> std::result::Result<(), PostError<M::Unposted>> {
    match wait {
        Wait::Usual => postbox.post(message),
        Wait::Until(limit) => postbox.post_timeout(message, limit),
        Wait::None => postbox.try_post(message),
    }
}

#[inline(always)]
fn posted(posted: std::result::Result<(), PostError<()>>) -> Result {
    posted.map_err(|error| Error::from(error).into())
}

/// `int deck_mbox_post(deck_mbox_t *mbox, deck_msg_t *msg)`
///
/// # Safety
/// As of the other posts: `mailbox` and `message` are NULL or point to structures, and no other thread uses the message meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_post(mailbox: *mut MailboxStructure, message: *mut Message) -> c_int {
    // SAFETY: our contract.
    call("deck_mbox_post", || unsafe { post(mailbox, message, Wait::Usual) })
}

/// `int deck_mbox_trypost(deck_mbox_t *mbox, deck_msg_t *msg)`
///
/// # Safety
/// Same as for [`deck_mbox_post`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_trypost(mailbox: *mut MailboxStructure, message: *mut Message) -> c_int {
    // SAFETY: our contract.
    call("deck_mbox_trypost", || unsafe { post(mailbox, message, Wait::None) })
}

/// `int deck_mbox_post_timeout(deck_mbox_t *mbox, deck_msg_t *msg, unsigned long microseconds)`
///
/// # Safety
/// Same as for [`deck_mbox_post`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_post_timeout(
    mailbox: *mut MailboxStructure,
    message: *mut Message,
    microseconds: c_ulong,
) -> c_int {
    let wait = Wait::Until(limit(microseconds));
    // SAFETY: our contract.
    call("deck_mbox_post_timeout", || unsafe { post(mailbox, message, wait) })
}

/// `int deck_mbox_flush(deck_mbox_t *mbox)`
///
/// # Safety
/// Same as for [`deck_mbox_destroy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_flush(mailbox: *mut MailboxStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_mbox_flush", || Ok(postbox(&mut unsafe { lock(mailbox, Wait::Usual) }?.0)?.flush()?))
}

impl Owned {
    /// The next message. A message that did not fit before comes first.
    fn next(&mut self, wait: Wait) -> udeck::Result<Option<Received<u8>>> {
        if let Some(kept) = self.kept.take() {
            return Ok(Some(kept));
        }
        match wait {
            Wait::Usual => self.mailbox.retrieve().map(Some),
            Wait::Until(limit) => self.mailbox.retrieve_timeout(limit).map(Some),
            Wait::None => self.mailbox.try_retrieve(),
        }
    }

    /// Why the program does not get the next message.
    #[cold]
    #[inline(never)]
    fn not_taken(&mut self, retrieved: udeck::Result<Received<u8>>, room: usize) -> CallError {
        match retrieved {
            Ok(received) => self.keep(received, room),
            Err(error) => error.into(),
        }
    }

    /// Keeps a message that does not fit as the next one.
    #[cold]
    #[inline(never)]
    fn keep(&mut self, received: Received<u8>, room: usize) -> CallError {
        let (len, source) = (received.len(), received.source());
        self.kept = Some(received);
        invalid(format!(
            "the message from rank {source} has {len} bytes, and the deck_msg_t {room}: it is kept for the next retrieve"
        ))
    }
}

/// Gives the next message to `take`. While the call waits, other threads may use the mailbox. `end`: result of [`Table::lock`].
#[inline(never)]
fn next<R>(
    number: Number,
    end: Result<Locked<'_, MailboxOrClone>>,
    wait: Wait,
    take: impl Fn(&mut Owned, Received<u8>) -> Result<R>,
) -> Result<R> {
    let mut end = match end {
        Ok(end) => end,
        Err(failure) if failure.code() != TIMED_OUT => return Err(failure),
        Err(failure) if matches!(wait, Wait::None) => return Err(failure.with_code(AGAIN)),
        Err(_) => return next_in_turn(number, wait.limit()?, take),
    };
    let owned = owned(&mut end)?;
    match owned.next(wait) {
        Ok(Some(received)) => take(owned, received),
        Ok(None) => Err(nothing(owned.mailbox.name())),
        Err(Error::TurnOver { waited, .. }) => {
            drop(end);
            next_in_turn(number, wait.limit()?.saturating_sub(waited), take)
        }
        Err(error) => Err(error.into()),
    }
}

/// Same as [`next`], while other threads use the mailbox, too.
#[cold]
#[inline(never)]
fn next_in_turn<R>(
    number: Number,
    limit: Duration,
    take: impl Fn(&mut Owned, Received<u8>) -> Result<R>,
) -> Result<R> {
    check()?;
    let turns = TURNS.lock().get(&number).cloned();
    let turns: Option<&Turns> = turns.as_deref();
    let lock = |limit| {
        world()?;
        lock_within(number, limit)
    };
    let attempt = |end: &mut Locked<'_, MailboxOrClone>, limit| match owned(end) {
        Ok(owned) => match owned.next(Wait::Until(limit))? {
            Some(received) => Ok(take(owned, received)),
            None => Ok(Err(nothing(owned.mailbox.name()))),
        },
        Err(failure) => Ok(Err(failure)),
    };
    in_turn::<_, _, CallError>(turns.as_slice(), Match::ANY, limit, lock, attempt)?
}

#[cold]
fn nothing(name: &str) -> CallError {
    failure(AGAIN, format!("no message is in mailbox {name:?} now"))
}

/// # Safety
/// Same as for [`post`].
#[inline(always)]
unsafe fn retrieve(mailbox: *mut MailboxStructure, message: *mut Message, wait: Wait) -> Result {
    // SAFETY: our contract, for both.
    let (to, number) = unsafe { (checked(message)?, pointer::number(mailbox)?) };
    let mut end = match MAILBOXES.lock(number, Some(Duration::ZERO)) {
        Ok(end) => end,
        // SAFETY: our contract.
        Err(failure) => return unsafe { retrieve_into(number, Err(failure), to, wait) },
    };
    let owned = owned(&mut end)?;
    if owned.kept.is_some() || !matches!(wait, Wait::Usual) {
        // SAFETY: our contract.
        return unsafe { retrieve_into(number, Ok(end), to, wait) };
    }
    // The message is read in the place where the retrieve left it: moving it would take longer than all the
    // rest.
    let retrieved = owned.mailbox.retrieve();
    if let Ok(received) = &retrieved {
        let bytes: &[u8] = received;
        if bytes.len() <= to.size {
            // SAFETY: our contract; it has room.
            unsafe { to.fill(bytes, received.source(), received.tag()) };
            return Ok(());
        }
    }
    if let Err(Error::TurnOver { waited, .. }) = retrieved {
        let wait = Wait::Until(wait.limit()?.saturating_sub(waited));
        // SAFETY: our contract. Whoever asks for it has it first.
        return unsafe { retrieve_into(number, Ok(end), to, wait) };
    }
    Err(owned.not_taken(retrieved, to.size))
}

/// Retrieves as [`retrieve`] does, also while other threads use the mailbox, and if a kept message comes next. `end`:
/// result of [`Table::lock`].
///
/// # Safety
/// Same as for [`Checked::fill`].
#[inline(never)]
unsafe fn retrieve_into(
    number: Number,
    end: Result<Locked<'_, MailboxOrClone>>,
    to: Checked,
    wait: Wait,
) -> Result {
    let take = |owned: &mut Owned, received: Received<u8>| {
        if received.len() > to.size {
            return Err(owned.keep(received, to.size));
        }
        // SAFETY: our contract; it has room.
        unsafe { to.fill(&received, received.source(), received.tag()) };
        Ok(())
    };
    next(number, end, wait, take)
}

/// `int deck_mbox_retrv(deck_mbox_t *mbox, deck_msg_t *msg)`
///
/// # Safety
/// Same as for [`deck_mbox_post`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_retrv(mailbox: *mut MailboxStructure, message: *mut Message) -> c_int {
    // SAFETY: our contract.
    call("deck_mbox_retrv", || unsafe { retrieve(mailbox, message, Wait::Usual) })
}

/// `int deck_mbox_tryretrv(deck_mbox_t *mbox, deck_msg_t *msg)`
///
/// # Safety
/// Same as for [`deck_mbox_post`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_tryretrv(mailbox: *mut MailboxStructure, message: *mut Message) -> c_int {
    // SAFETY: our contract.
    call("deck_mbox_tryretrv", || unsafe { retrieve(mailbox, message, Wait::None) })
}

/// `int deck_mbox_retrv_timeout(deck_mbox_t *mbox, deck_msg_t *msg, unsigned long microseconds)`
///
/// # Safety
/// Same as for [`deck_mbox_post`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_retrv_timeout(
    mailbox: *mut MailboxStructure,
    message: *mut Message,
    microseconds: c_ulong,
) -> c_int {
    let wait = Wait::Until(limit(microseconds));
    // SAFETY: our contract.
    call("deck_mbox_retrv_timeout", || unsafe { retrieve(mailbox, message, wait) })
}

/// `int deck_mbox_length(deck_mbox_t *mbox, unsigned long *len)`
///
/// # Safety
/// `mailbox` is NULL or points to a structure; `len` is NULL or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_length(mailbox: *mut MailboxStructure, len: *mut c_ulong) -> c_int {
    call("deck_mbox_length", || {
        pointer::check("len", len, 1)?;
        // SAFETY: our contract.
        let (mut end, _) = unsafe { lock(mailbox, Wait::None) }?;
        let owned = owned(&mut end)?;
        let next = owned.next(Wait::None)?.ok_or_else(|| nothing(owned.mailbox.name()))?;
        let bytes = owned.kept.insert(next).len() as c_ulong;
        // SAFETY: our contract.
        unsafe { pointer::store("len", len, bytes) }
    })
}

/// Posts a message in the library's memory, and returns it if it cannot be posted.
///
/// # Safety
/// `mailbox` is NULL or points to a structure.
pub(super) unsafe fn post_buf(
    mailbox: *mut MailboxStructure,
    buf: udeck::Buf<u8>,
    wait: Wait,
) -> std::result::Result<(), (CallError, Option<udeck::Buf<u8>>)> {
    // SAFETY: our contract.
    let (mut end, wait) = match unsafe { lock(mailbox, wait) } {
        Ok(end) => end,
        Err(failure) => return Err((failure, Some(buf))),
    };
    match postbox(&mut end) {
        Ok(postbox) => post_by(postbox, buf, wait).map_err(|failed| (failed.error.into(), failed.message)),
        Err(failure) => Err((failure, Some(buf))),
    }
}

/// Retrieves the next message in place.
///
/// # Safety
/// Same as for [`post_buf`].
pub(super) unsafe fn retrieve_view(mailbox: *mut MailboxStructure, wait: Wait) -> Result<Received<u8>> {
    // SAFETY: our contract.
    let number = unsafe { pointer::number(mailbox) }?;
    next(number, MAILBOXES.lock(number, Some(Duration::ZERO)), wait, |_, received| Ok(received))
}
