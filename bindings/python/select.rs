//! Waiting at several mailboxes at once.

use std::time::Duration;

use pyo3::CastIntoError;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use udeck::{Error, Match, Selectable, Turns, in_turn};

use crate::arguments;
use crate::errors::OrRaise;
use crate::mailbox::{Inner, Mailbox};
use crate::slot::{Guard, Unusable};
use crate::wait::{self, Timeout};

/// Waits until one of these mailboxes has a message, and returns that mailbox, whose try_retrieve() and retrieve() then do not
/// wait.
///
/// If several have one, select() returns the mailbox that was not returned for the longest time. timeout: seconds for the whole
/// call; None: DECK_DEADLINE; 0 only polls. Another thread may wait at the same mailboxes, or retrieve from them, and may take
/// the message first.
/// Raises Deadline, PeerLost once for each rank that died, NobodyLeft when nobody is left who could post to any, ValueError without a mailbox,
/// Closed, and Busy when a task has one of them.
#[pyfunction]
#[pyo3(signature = (mailboxes, timeout=Timeout::USUAL), text_signature = "(mailboxes, timeout=None)")]
pub fn select<'py>(
    py: Python<'py>,
    #[pyo3(from_py_with = mailboxes)] mailboxes: Vec<Bound<'py, Mailbox>>,
    timeout: Timeout,
) -> PyResult<Bound<'py, Mailbox>> {
    let mut all: Vec<&Mailbox> = mailboxes.iter().map(Bound::get).collect();
    // Another thread may select among the same mailboxes, in another order. A mailbox that is listed twice is
    // locked once.
    all.sort_by_key(|mailbox| mailbox.slot.order());
    all.dedup_by_key(|mailbox| mailbox.slot.order());
    let first = all.first().ok_or_else(|| PyValueError::new_err("select() has no mailbox to wait at"))?;
    let limit = timeout.or(first.slot.limit);
    let found = match at_once(&all) {
        Ok(Some(at)) => Ok(at),
        Ok(None) => wait::detached(py, || among(&all, limit)),
        // Another thread may soon release the mailbox.
        Err(Failed::Unusable(_, Unusable::Busy)) => wait::detached(py, || among(&all, limit)),
        Err(failed) => Err(failed),
    };
    let at = match found {
        Ok(at) => at,
        Err(Failed::Unusable(at, why)) => return Err(all[at].slot.raise(py, why)),
        Err(Failed::Failed(error)) => return Err(error).or_raise(py, None),
    };
    let order = all[at].slot.order();
    let found = mailboxes.iter().find(|mailbox| mailbox.get().slot.order() == order);
    Ok(found.expect("one of the list").clone())
}

fn mailboxes<'py>(value: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, Mailbox>>> {
    const WANTED: &str = "a list of mailboxes is wanted";
    let mailbox = |item: Bound<'py, PyAny>| {
        let refused = |item: CastIntoError<'py>| {
            PyTypeError::new_err(format!("mailboxes: {WANTED}, and {} is none", item.into_inner().get_type()))
        };
        item.cast_into().map_err(refused)
    };
    arguments::items(value, "mailboxes", WANTED)?.into_iter().map(mailbox).collect()
}

enum Failed {
    /// The mailbox at this index.
    Unusable(usize, Unusable),
    Failed(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Failed(error)
    }
}

type Locked<'a> = Vec<Guard<'a, Inner>>;

/// Locks all mailboxes. `None`: other threads use some of them.
fn lock<'a>(
    all: &[&'a Mailbox],
    how: impl Fn(&'a Mailbox) -> Result<Option<Guard<'a, Inner>>, Unusable>,
) -> Result<Option<Locked<'a>>, Failed> {
    let locked =
        all.iter().enumerate().map(|(at, mailbox)| how(mailbox).map_err(|why| Failed::Unusable(at, why)));
    locked.collect()
}

fn selectable<'a>(locked: &'a Locked<'_>) -> Vec<&'a dyn Selectable> {
    locked.iter().map(|inner| &**inner as &dyn Selectable).collect()
}

fn at_once(all: &[&Mailbox]) -> Result<Option<usize>, Failed> {
    match lock(all, |mailbox| mailbox.slot.try_use().map(Some))? {
        Some(locked) => Ok(udeck::try_select(&selectable(&locked))?),
        None => Ok(None),
    }
}

fn among(all: &[&Mailbox], limit: Duration) -> Result<usize, Failed> {
    let turns: Vec<&Turns> = all.iter().filter_map(|mailbox| mailbox.slot.turns()).collect();
    in_turn(
        &turns,
        Match::ANY,
        limit,
        |limit| lock(all, |mailbox| mailbox.slot.use_within(limit)),
        |locked, limit| udeck::select_timeout(&selectable(locked), limit),
    )
}
