//! The job: start and end, ranks, the barrier, and the naming service.
#![allow(unsafe_code, reason = "calls of C's")]

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::time::Instant;

use udeck::{Error, World};
use udeck_boot::{BootError, Maker};

use super::error::{
    CallError, INVALID, NO_ENTRY, Result, STATE, call, ended_by, failure, invalid, of_barrier,
};
use super::stage::{ask, begin, is_ending, limit, take, world};
use super::{buffer, group, mailbox, pointer, service};

/// `int deck_init(int *argc, char ***argv)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_init(_argc: *mut c_int, _argv: *mut *mut *mut c_char) -> c_int {
    call("deck_init", begin)
}

/// `int deck_done(void)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_done() -> c_int {
    call("deck_done", || {
        let world = take(|| mailbox::is_in_use() || group::is_in_use() || service::is_in_use())?;
        let finished = world.finish();
        group::clear();
        mailbox::clear();
        buffer::clear();
        service::clear();
        Ok(finished?)
    })
}

/// `unsigned long deck_node(void)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_node() -> c_ulong {
    number("deck_node", c_ulong::MAX, World::rank)
}

/// `unsigned long deck_numnodes(void)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_numnodes() -> c_ulong {
    number("deck_numnodes", 0, World::size)
}

/// Makes a call that returns a number instead of a code.
fn number(name: &str, without: c_ulong, of: fn(&World) -> usize) -> c_ulong {
    ask(of).map_or_else(
        || {
            ended_by(name, failure(STATE, "deck_init has not been called, or deck_done was"));
            without
        },
        |number| number as c_ulong,
    )
}

/// `int deck_barrier(void)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_barrier() -> c_int {
    call("deck_barrier", || world()?.barrier().map_err(of_barrier))
}

/// `int deck_barrier_timeout(unsigned long microseconds)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_barrier_timeout(microseconds: c_ulong) -> c_int {
    call("deck_barrier_timeout", || world()?.barrier_timeout(limit(microseconds)).map_err(of_barrier))
}

/// `int deck_abort(int code, const char *why)`
///
/// # Safety
/// `why` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_abort(code: c_int, why: *const c_char) -> c_int {
    call("deck_abort", || {
        let why = match why.is_null() {
            true => "deck_abort".into(),
            // SAFETY: a string, by our contract. In whatever encoding: words for people are no reason to go on.
            false => unsafe { CStr::from_ptr(why) }.to_string_lossy(),
        };
        world()?.abort(u8::try_from(code).unwrap_or(1), &why)
    })
}

/// Largest value in the naming service, in bytes. The launcher would refuse more, too, but the bytes are copied on the way
/// to it.
const MOST: c_ulong = 64 << 10;

/// Key of this name at the launcher, apart from other users' keys.
///
/// # Safety
/// `name` is NULL or a string.
unsafe fn key(name: *const c_char) -> Result<String> {
    // SAFETY: our contract.
    match unsafe { pointer::name("name", name) }? {
        "" => Err(invalid("name is empty")),
        name => Ok(format!("deck/{name}")),
    }
}

/// `int deck_naming_bind(const char *name, const void *value, unsigned long len)`
///
/// # Safety
/// `name` is NULL or a string; `value` has `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_naming_bind(name: *const c_char, value: *const c_void, len: c_ulong) -> c_int {
    call("deck_naming_bind", || {
        if len > MOST {
            return Err(invalid(format!("the value has {len} bytes: at most {MOST} are possible")));
        }
        // SAFETY: our contract, for both.
        let (key, value) =
            unsafe { (key(name)?, pointer::slice("value", value.cast::<u8>(), len as usize)?) };
        let world = world()?;
        Ok(world.client().put(&key, value, Instant::now() + world.config().setup)?)
    })
}

/// `int deck_naming_fetch(const char *name, void *value, unsigned long *len)`
///
/// # Safety
/// `name` is NULL or a string; `len` points to a number, and `value` has that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_naming_fetch(
    name: *const c_char,
    value: *mut c_void,
    len: *mut c_ulong,
) -> c_int {
    // SAFETY: our contract.
    call("deck_naming_fetch", || unsafe { fetch(name, value, len, true) })
}

/// `int deck_naming_tryfetch(const char *name, void *value, unsigned long *len)`
///
/// # Safety
/// Same as for [`deck_naming_fetch`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_naming_tryfetch(
    name: *const c_char,
    value: *mut c_void,
    len: *mut c_ulong,
) -> c_int {
    // SAFETY: our contract.
    call("deck_naming_tryfetch", || unsafe { fetch(name, value, len, false) })
}

/// # Safety
/// Same as for [`deck_naming_fetch`].
unsafe fn fetch(name: *const c_char, value: *mut c_void, len: *mut c_ulong, wait: bool) -> Result {
    // SAFETY: our contract.
    let key = unsafe { key(name) }?;
    // SAFETY: our contract: it points to a number.
    let room = *unsafe { pointer::slice("len", len, 1) }?.first().expect("one");
    // SAFETY: our contract: so many bytes.
    let to = unsafe { pointer::slice_mut("value", value.cast::<u8>(), room as usize) }?;
    let world = world()?;
    let (client, deadline) = (world.client(), Instant::now() + world.config().setup);
    let found = match wait {
        true => match client.get_of(&key, Maker::Anyone, deadline, Some(&is_ending)) {
            Err(BootError::Interrupted { .. }) => return Err(Error::WorldFinished.into()),
            found => found,
        },
        false => client.get(&key, false, deadline),
    };
    let found = found.map_err(CallError::from).map_err(|failure| nothing_of(failure, &key))?;
    // SAFETY: our contract.
    unsafe { pointer::store("len", len, found.len() as c_ulong) }?;
    let Some(to) = to.get_mut(..found.len()) else {
        return Err(failure(
            INVALID,
            format!("the value has {} bytes, there is room for {room}", found.len()),
        ));
    };
    to.copy_from_slice(&found);
    Ok(())
}

/// Rewrites a failure of the launcher, which names the key, so that it names the program's name.
fn nothing_of(failure: CallError, key: &str) -> CallError {
    let name = key.strip_prefix("deck/").unwrap_or(key);
    match failure.code() {
        NO_ENTRY => failure.with_words(|_| format!("no rank has bound the name {name:?}")),
        _ => failure,
    }
}
