//! Event dispatchers and consumer notification objects.

use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use udeck::via::Deadline;

use super::ia::adapter;
use super::types::{Agent, CEvent, CnoParam, EvdParam, Handle};
use super::{call, object, put, same, some};
use crate::core::agent;
use crate::core::cno::Cno;
use crate::core::code::{Code, Result, Sub};
use crate::core::evd::{self, Evd, stream};
use crate::core::event::{Event, number};
use crate::core::ia::Ia;
use crate::core::slot::Pool;

/// Kinds are `DAT_HANDLE_TYPE`s + 1.
static EVDS: Pool<Owned<Evd>> = Pool::new(3);
static CNOS: Pool<Owned<Cno>> = Pool::new(10);

/// An object, and its adapter.
pub struct Owned<T> {
    object: Arc<T>,
    ia: Arc<Ia>,
}

impl<T> Clone for Owned<T> {
    fn clone(&self) -> Self {
        Owned { object: self.object.clone(), ia: self.ia.clone() }
    }
}

/// The event dispatcher of a handle. It has to be of the adapter, if one is given, and to have the stream.
///
/// # Safety
/// As `object`.
pub unsafe fn evd_of(ia: Option<&Arc<Ia>>, handle: Handle, stream: u32, sub: Sub) -> Result<Arc<Evd>> {
    // SAFETY: as promised.
    let owned = unsafe { object(&EVDS, handle, sub) }?;
    if let Some(ia) = ia {
        same(ia, &owned.ia, sub)?;
    }
    if owned.object.flags & stream == 0 { Err(Code::INVALID_HANDLE.of(sub)) } else { Ok(owned.object) }
}

/// The event dispatcher of a handle that is the first argument of its call.
///
/// # Safety
/// As `object`.
unsafe fn first(handle: Handle) -> Result<Owned<Evd>> {
    // SAFETY: as promised.
    unsafe { object(&EVDS, handle, Sub::Handle1) }
}

/// # Safety
/// As `object`.
unsafe fn cno_or_null(ia: &Arc<Ia>, handle: Handle) -> Result<Option<Arc<Cno>>> {
    if handle == 0 {
        return Ok(None);
    }
    // SAFETY: as promised.
    let owned = unsafe { object(&CNOS, handle, Sub::HandleCno) }?;
    same(ia, &owned.ia, Sub::HandleCno)?;
    Ok(Some(owned.object))
}

/// Converts a timeout in microseconds; all ones: for ever.
pub fn limit(timeout: u32) -> Duration {
    if timeout == u32::MAX { Duration::MAX } else { Duration::from_micros(timeout.into()) }
}

/// Makes an event dispatcher.
pub fn make(ia: &Arc<Ia>, len: usize, cno: Option<Arc<Cno>>, flags: u32, overflow: Weak<Evd>) -> Arc<Evd> {
    let slot = EVDS.insert(ia.provider, |slot| {
        let object = Arc::new(Evd::new(slot.handle(), flags, len, cno, ia.progress.bell().clone(), overflow));
        Owned { object, ia: ia.clone() }
    });
    ia.objects.lock().insert(slot.handle());
    slot.lock().as_ref().map(|owned| owned.object.clone()).unwrap_or_else(|| unreachable!("it was put there"))
}

/// `dat_evd_create`.
///
/// # Safety
/// NULL or what `udat.h` says, here and below.
pub unsafe extern "C" fn create(ia: Handle, qlen: c_int, cno: Handle, flags: u32, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: NULL or a handle, here and below.
        let ia = unsafe { adapter(ia) }?;
        if qlen < 0 || qlen as usize > evd::MOST {
            return Err(Code::argument(2));
        }
        // SAFETY: as above.
        let cno = unsafe { cno_or_null(&ia, cno) }?;
        if flags == 0 || flags & !stream::ALL != 0 {
            return Err(Code::argument(4));
        }
        some(out, 5)?;
        let evd = make(&ia, qlen as usize, cno, flags, ia.asynchronous());
        // SAFETY: not NULL, so valid.
        unsafe { put(out, evd.handle) };
        Ok(())
    })
}

/// `dat_evd_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn query(handle: Handle, _mask: u32, out: *mut EvdParam) -> Code {
    call(|| {
        // SAFETY: as above.
        let Owned { object: evd, ia } = unsafe { first(handle) }?;
        some(out, 3)?;
        let enabled = if evd.is_enabled() { 0x01 } else { 0x02 };
        let waitable = if evd.unwaitable.load(Ordering::Relaxed) { 0x08 } else { 0x04 };
        let param = EvdParam {
            ia: ia.handle(),
            qlen: evd.room() as c_int,
            // `DAT_EVD_STATE_CONFIG_NOTIFY`.
            state: enabled | waitable | 0x10,
            cno: evd.cno().map_or(0, |cno| cno.handle),
            flags: evd.flags,
        };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, param) };
        Ok(())
    })
}

/// `dat_evd_modify_cno`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn modify_cno(handle: Handle, cno: Handle) -> Code {
    call(|| {
        // SAFETY: as above.
        let evd = unsafe { first(handle) }?;
        // SAFETY: as above.
        let cno = unsafe { cno_or_null(&evd.ia, cno) }?;
        evd.object.set_cno(cno);
        Ok(())
    })
}

/// `dat_evd_enable`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn enable(handle: Handle) -> Code {
    // SAFETY: as above.
    call(|| unsafe { first(handle) }.map(|evd| evd.object.set_enabled(true)))
}

/// `dat_evd_disable`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn disable(handle: Handle) -> Code {
    // SAFETY: as above.
    call(|| unsafe { first(handle) }.map(|evd| evd.object.set_enabled(false)))
}

/// `dat_evd_set_unwaitable`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn set_unwaitable(handle: Handle) -> Code {
    // SAFETY: as above.
    call(|| unsafe { first(handle) }.map(|evd| evd.object.set_unwaitable(true)))
}

/// `dat_evd_clear_unwaitable`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn clear_unwaitable(handle: Handle) -> Code {
    // SAFETY: as above.
    call(|| unsafe { first(handle) }.map(|evd| evd.object.set_unwaitable(false)))
}

/// `dat_evd_wait`: until there are `threshold` events, or the time is over.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn wait(
    handle: Handle,
    timeout: u32,
    threshold: c_int,
    out: *mut CEvent,
    more: *mut c_int,
) -> Code {
    call(|| {
        // SAFETY: as above.
        let Owned { object: evd, ia } = unsafe { first(handle) }?;
        some(out, 4)?;
        some(more, 5)?;
        if threshold <= 0 || threshold as usize > evd.room() {
            return Err(Code::argument(3));
        }
        if evd.unwaitable.load(Ordering::Relaxed) {
            return Err(Code::INVALID_STATE.of(Sub::EvdUnwaitable));
        }
        let found = match ia.wait_for(&evd, threshold as usize, Deadline::after(limit(timeout))) {
            Ok(Some(event)) => Ok(event),
            Ok(None) if ia.progress.is_closed() => Err(Code::ABORT),
            Ok(None) => Err(Code::TIMEOUT_EXPIRED),
            Err(Code::ABORT) => Err(Code::ABORT),
            Err(other) => return Err(other),
        };
        // SAFETY: not NULL, so valid, here and below.
        unsafe { put(more, evd.len() as c_int) };
        // SAFETY: as above.
        unsafe { put(out, CEvent::of(found?, handle)) };
        Ok(())
    })
}

/// `dat_evd_dequeue`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn dequeue(handle: Handle, out: *mut CEvent) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::Handle1);
        // SAFETY: as above.
        let held = unsafe { EVDS.find(handle) }.ok_or(gone)?.lock();
        let owned = held.as_ref().ok_or(gone)?;
        some(out, 2)?;
        // Takes an event under the slot's lock: that costs less than to count a reference to the dispatcher.
        let event = match owned.object.take() {
            Some(event) => event,
            None => {
                let Owned { object: evd, ia } = owned.clone();
                drop(held);
                ia.progress.poll_until(|| evd.len() > 0);
                evd.take().ok_or(Code::NO_EVENT)?
            }
        };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, CEvent::of(event, handle)) };
        Ok(())
    })
}

/// `dat_evd_resize`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn resize(handle: Handle, qlen: c_int) -> Code {
    call(|| {
        // SAFETY: as above.
        let evd = unsafe { first(handle) }?;
        if qlen <= 0 || qlen as usize > evd::MOST {
            return Err(Code::argument(2));
        }
        evd.object.resize(qlen as usize)
    })
}

/// `dat_evd_post_se`: adds an event of the program's.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn post_se(handle: Handle, event: *const CEvent) -> Code {
    call(|| {
        // SAFETY: as above.
        let evd = unsafe { first(handle) }?;
        some(event.cast_mut(), 2)?;
        if evd.object.flags & stream::SOFTWARE == 0 {
            return Err(Code::INVALID_HANDLE.of(Sub::Handle1));
        }
        // SAFETY: not NULL, so valid; only fields of an event of this kind are read.
        let (kind, pointer) = unsafe { ((*event).number, (*event).data[0]) };
        if kind != number::SOFTWARE {
            return Err(Code::argument(2));
        }
        evd.object.put(Event::software(pointer as usize))
    })
}

/// `dat_evd_free`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn free(handle: Handle) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::Handle1);
        // SAFETY: as above.
        let slot = unsafe { EVDS.find(handle) }.ok_or(gone)?;
        let owned = EVDS.remove(slot, gone, |owned| {
            // References of the adapter and of end points mean that it is in use. A waiting thread's does not: that thread is told to stop.
            let waits = usize::from(owned.object.waiting.load(Ordering::Relaxed));
            let used = Arc::strong_count(&owned.object) > 1 + waits;
            if used {
                return Err(Code::INVALID_STATE.of(Sub::EvdInUse));
            }
            owned.ia.forget(handle);
            Ok(())
        })?;
        owned.object.end();
        Ok(())
    })
}

/// Frees the asynchronous dispatcher that the adapter has made itself.
pub fn free_own(handle: Handle) {
    // SAFETY: a handle of ours.
    if let Some(slot) = unsafe { EVDS.find(handle) }
        && let Ok(owned) = EVDS.remove(slot, (), |_| Ok(()))
    {
        owned.object.end();
    }
}

// ---- consumer notification objects ----

fn agent_of(agent: Agent) -> Option<agent::Agent> {
    let function = agent.function?;
    let data = agent.data as usize;
    Some(Box::new(move |evd| function(data as *mut _, evd)))
}

fn set_agent(cno: &Cno, agent: Option<agent::Agent>) -> Result {
    match cno.set_agent(agent) {
        Ok(true) => Ok(()),
        Ok(false) => {
            udeck::via::say!(
                "uDAPL: a call of a CNO's agent has not returned for ten seconds: it has to, before its CNO can go"
            );
            Err(Code::INVALID_STATE.of(Sub::CnoInUse))
        }
        Err(_) => Err(Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemory)),
    }
}

/// `dat_cno_create`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cno_create(ia: Handle, agent: Agent, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: as above.
        let ia = unsafe { adapter(ia) }?;
        some(out, 3)?;
        let slot = CNOS.insert(ia.provider, |slot| Owned {
            object: Arc::new(Cno::new(slot.handle(), ia.progress.bell().clone())),
            ia: ia.clone(),
        });
        if let Some(owned) = slot.get()
            && let Err(why) = set_agent(&owned.object, agent_of(agent))
        {
            drop(CNOS.remove(slot, (), |_| Ok(())));
            return Err(why);
        }
        ia.objects.lock().insert(slot.handle());
        // SAFETY: not NULL, so valid.
        unsafe { put(out, slot.handle()) };
        Ok(())
    })
}

/// `dat_cno_fd_create`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cno_fd_create(ia: Handle, fd: *mut c_int, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: as above.
        let ia = unsafe { adapter(ia) }?;
        some(fd, 2)?;
        some(out, 3)?;
        // The CNO needs its handle, so it is made with its slot. If the system has no descriptor, the slot is freed again.
        let mut failed = None;
        let slot = CNOS.insert(ia.provider, |slot| {
            let made = Cno::with_fd(slot.handle(), ia.progress.bell().clone());
            let object = made.unwrap_or_else(|why| {
                failed = Some(why);
                Cno::new(slot.handle(), ia.progress.bell().clone())
            });
            Owned { object: Arc::new(object), ia: ia.clone() }
        });
        if failed.is_some() {
            drop(CNOS.remove(slot, (), |_| Ok(())));
            return Err(Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemory));
        }
        ia.objects.lock().insert(slot.handle());
        let number = slot.get().and_then(|owned| owned.object.fd()).unwrap_or(-1);
        // SAFETY: not NULL, so valid, both.
        unsafe { (put(fd, number), put(out, slot.handle())) };
        Ok(())
    })
}

/// `dat_cno_modify_agent`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cno_modify_agent(handle: Handle, agent: Agent) -> Code {
    call(|| {
        // SAFETY: as above.
        let cno = unsafe { object(&CNOS, handle, Sub::HandleCno) }?;
        set_agent(&cno.object, agent_of(agent))
    })
}

/// `dat_cno_query`. (The agent is not reported.)
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cno_query(handle: Handle, _mask: u32, out: *mut CnoParam) -> Code {
    call(|| {
        // SAFETY: as above.
        let cno = unsafe { object(&CNOS, handle, Sub::HandleCno) }?;
        some(out, 3)?;
        let fd = cno.object.fd();
        let proxy = Agent { data: fd.map_or(0, |fd| fd as usize) as *mut _, function: None };
        // SAFETY: not NULL, so valid.
        unsafe {
            put(out, CnoParam { ia: cno.ia.handle(), proxy_type: if fd.is_some() { 2 } else { 0 }, proxy })
        };
        Ok(())
    })
}

/// `dat_cno_wait`: waits until an event dispatcher notifies, or the time is over.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cno_wait(handle: Handle, timeout: u32, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: as above.
        let Owned { object: cno, ia } = unsafe { object(&CNOS, handle, Sub::HandleCno) }?;
        some(out, 3)?;
        cno.waiters.fetch_add(1, Ordering::Relaxed);
        let found = ia.wait(&cno.spin_history, Deadline::after(limit(timeout)), |_| match cno.take() {
            Some(evd) => Some(Ok(evd)),
            None => cno.dead.load(Ordering::Relaxed).then_some(Err(Code::INVALID_STATE.of(Sub::CnoDead))),
        });
        cno.waiters.fetch_sub(1, Ordering::Relaxed);
        let closed = || if ia.progress.is_closed() { Code::ABORT } else { Code::TIMEOUT_EXPIRED };
        let evd = found.unwrap_or_else(|| Err(closed()))?;
        // SAFETY: not NULL, so valid.
        unsafe { put(out, evd) };
        Ok(())
    })
}

/// `dat_cno_trigger`: takes the next event dispatcher that has notified, without waiting.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cno_trigger(handle: Handle, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: as above.
        let Owned { object: cno, ia } = unsafe { object(&CNOS, handle, Sub::HandleCno) }?;
        some(out, 2)?;
        ia.progress.poll();
        // SAFETY: not NULL, so valid.
        unsafe { put(out, cno.take().ok_or(Code::QUEUE_EMPTY)?) };
        Ok(())
    })
}

/// `dat_cno_free`. Waiting threads give up. Blocks until a call of the agent that has begun returns, unless it is made in that call.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cno_free(handle: Handle) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::HandleCno);
        // SAFETY: as above.
        let slot = unsafe { CNOS.find(handle) }.ok_or(gone)?;
        let in_use = |owned: &Owned<Cno>, ours: usize| {
            let waiters = owned.object.waiters.load(Ordering::Relaxed);
            let used = Arc::strong_count(&owned.object) > 1 + ours + waiters;
            if used { Err(Code::INVALID_STATE.of(Sub::CnoInUse)) } else { Ok(()) }
        };
        // Removes the agent without the slot's lock: the agent may use its CNO.
        let owned = slot.get().ok_or(gone)?;
        in_use(&owned, 1)?;
        set_agent(&owned.object, None)?;
        drop(owned);
        let owned = CNOS.remove(slot, gone, |owned| {
            in_use(owned, 0)?;
            owned.ia.forget(handle);
            Ok(())
        })?;
        owned.object.end();
        Ok(())
    })
}
