//! The slot of a mailbox or postbox: the library's object, shared by threads and tasks through an object of
//! Python.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use pyo3::prelude::*;

use udeck::via::is_forked;
use udeck::{Error, Turns, lock_within};

use crate::errors::{exception, forked, raise};
use crate::wait;

enum Place<T> {
    Here(Box<T>),
    /// A task holds the object, and brings it back.
    Lent,
    Closed,
}

/// Why a slot cannot be used.
#[derive(Debug)]
pub enum Unusable {
    Closed,
    /// Another thread or task uses the object.
    Busy,
    /// A thread of the process that forked this one uses the object.
    Forked,
    /// Waiting for the object failed.
    Failed(Error),
}

impl From<Error> for Unusable {
    fn from(error: Error) -> Self {
        Unusable::Failed(error)
    }
}

pub type Guard<'a, T> = MappedMutexGuard<'a, T>;

/// A mailbox or postbox, unless a task holds it or it was closed.
pub struct Slot<T> {
    place: Arc<Mutex<Place<T>>>,
    /// Kind of the object, in words: "mailbox".
    what: &'static str,
    /// The mailbox's name.
    pub name: String,
    /// The world's deadline: upper bound of a wait for one's turn, if the call gives no timeout.
    pub limit: Duration,
    /// Only for a mailbox: tells the threads that wait at it that others want it.
    turns: Option<Arc<Turns>>,
}

impl<T: Send> Slot<T> {
    pub fn new(
        object: T,
        what: &'static str,
        name: String,
        limit: Duration,
        turns: Option<Arc<Turns>>,
    ) -> Self {
        Slot { place: Arc::new(Mutex::new(Place::Here(Box::new(object)))), what, name, limit, turns }
    }

    /// Takes the object without waiting, for a caller that holds the interpreter's lock.
    #[inline]
    pub fn try_use(&self) -> Result<Guard<'_, T>, Unusable> {
        object_in(self.place.try_lock().ok_or_else(in_use)?)
    }

    /// Waits for other threads, without the interpreter's lock. Threads that wait at a mailbox release it
    /// meanwhile.
    pub fn wait_for_use(&self, limit: Duration) -> Result<Guard<'_, T>, Unusable> {
        object_in(self.wait_for_place(limit)?)
    }

    /// Waits until other threads' calls end. `None`: they have not ended in time.
    pub fn use_within(&self, limit: Duration) -> Result<Option<Guard<'_, T>>, Unusable> {
        self.lock_for(limit)?.map(object_in).transpose()
    }

    pub fn turns(&self) -> Option<&Turns> {
        self.turns.as_deref()
    }

    fn wait_for_place(&self, limit: Duration) -> Result<MutexGuard<'_, Place<T>>, Unusable> {
        let turns: Option<&Turns> = self.turns();
        let what = format_args!("{} {:?}", self.what, self.name);
        lock_within(turns.as_slice(), &what, limit, |limit| self.lock_for(limit))
    }

    /// Locks the place. In a forked child the lock stays as it was at the fork, so the child does not wait for
    /// it.
    fn lock_for(&self, limit: Duration) -> Result<Option<MutexGuard<'_, Place<T>>>, Unusable> {
        match self.place.try_lock() {
            None if is_forked() => Err(Unusable::Forked),
            None => Ok(self.place.try_lock_for(limit)),
            place => Ok(place),
        }
    }

    /// Lends the object to a task, which holds it until it drops it.
    pub fn lend(&self) -> Result<Lent<T>, Unusable> {
        let mut place = self.place.try_lock().ok_or_else(in_use)?;
        match std::mem::replace(&mut *place, Place::Lent) {
            Place::Here(object) => Ok(Lent { place: self.place.clone(), object: Some(object) }),
            other => {
                let why = unusable(&other);
                *place = other;
                Err(why)
            }
        }
    }

    /// Drops the object when other threads have finished with it. Threads that wait at a mailbox find it
    /// closed.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = wait::detached(py, || {
            let mut place = self.wait_for_place(self.limit)?;
            if matches!(*place, Place::Lent) {
                return Err(Unusable::Busy);
            }
            *place = Place::Closed;
            drop(place);
            if let Some(turns) = self.turns() {
                turns.ring_all();
            }
            Ok(())
        });
        closed.map_err(|why| self.raise(py, why))
    }

    #[cold]
    pub fn raise(&self, py: Python<'_>, why: Unusable) -> PyErr {
        let Slot { what, name, .. } = self;
        let (class, text) = match why {
            Unusable::Forked => return forked(py),
            Unusable::Failed(error) => return exception(py, &error, Some(name)),
            Unusable::Closed => ("Closed", format!("{what} {name:?} was closed")),
            Unusable::Busy => ("Busy", format!("another thread or task of this rank uses {what} {name:?}")),
        };
        raise(py, class, text, None, Some(name))
    }

    /// Key of the order in which several slots are locked. It is the same for the same slot.
    pub fn order(&self) -> usize {
        Arc::as_ptr(&self.place).addr()
    }
}

fn object_in<T>(place: MutexGuard<'_, Place<T>>) -> Result<Guard<'_, T>, Unusable> {
    MutexGuard::try_map(place, |place| match place {
        Place::Here(object) => Some(&mut **object),
        Place::Lent | Place::Closed => None,
    })
    .map_err(|place| unusable(&place))
}

/// Why the object is not free now.
#[cold]
fn in_use() -> Unusable {
    if is_forked() { Unusable::Forked } else { Unusable::Busy }
}

fn unusable<T>(place: &Place<T>) -> Unusable {
    if matches!(place, Place::Closed) { Unusable::Closed } else { in_use() }
}

/// An object that a slot has lent. Dropping this brings the object back.
pub struct Lent<T> {
    place: Arc<Mutex<Place<T>>>,
    object: Option<Box<T>>,
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            // Any thread that holds the lock finds the object lent, and releases the lock.
            *self.place.lock() = Place::Here(object);
        }
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.object.as_ref().expect("lent until it is dropped")
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.object.as_mut().expect("lent until it is dropped")
    }
}
