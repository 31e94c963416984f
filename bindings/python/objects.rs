//! Collective calls whose parts are messages, as mailboxes have them: objects, and arrays of any length.
//!
//! A receiver learns the type and the shape with the data, and reads a long part where it lies. Before the parts travel, the
//! members agree by a small reduction: all make the same call, and each has made its part. Otherwise all of them raise, and the
//! group stays usable.

use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use udeck::Group;
use udeck::op::{Min, Operator, OperatorCode};

use crate::arguments;
use crate::arrays;
use crate::content::{self, Buffer};
use crate::errors::{OrRaise, raise};
use crate::handle::Handle;
use crate::message::{self, Arrived, Objects, Origin};
use crate::wait::{self, Timeout};
use crate::wire::{self, PythonValues, bytes_mut};

/// Longest text in bytes by which a member reports why it cannot make its part.
const MAX_REPORT: usize = 1000;

/// Calls by their numbers in an agreement.
const CALLS: [&str; 11] = [
    "reduce_object",
    "allreduce_object",
    "bcast_object",
    "scatter_object",
    "gather_object",
    "allgather_object",
    "alltoall_object",
    "scatterv",
    "gatherv",
    "allgatherv",
    "alltoallv",
];

/// One collective call of messages.
pub struct Exchange<'a> {
    pub group: &'a Group,
    pub world: &'a Handle,
    /// Name of the method: one of [`CALLS`].
    pub call: &'static str,
    /// The root, or 0 in a call without one.
    pub root: usize,
    /// End of the whole call: of the agreement, and of the exchange.
    pub until: Instant,
    /// [`Objects::Refuse`]: the parts are arrays.
    pub objects: Objects,
}

impl Exchange<'_> {
    /// Gives the root's value to all members.
    pub fn broadcast<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, root) = (value.py(), self.root);
        let message = self.agree(py, || self.is_root().then(|| self.make(value)).transpose())?;
        let is_root = message.is_some();
        let arrived = self.run(py, |group| group.broadcast_buf::<PythonValues>(root, message))?;
        if is_root { Ok(value.clone()) } else { self.value(py, arrived) }
    }

    /// Collects the values of all members at the root; elsewhere the result is `None`.
    pub fn gather<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let (py, root) = (value.py(), self.root);
        let message = self.agree(py, || self.make(value))?;
        let arrived = self.run(py, |group| group.gather_buf::<PythonValues>(root, message))?;
        self.is_root().then(|| self.values(py, arrived)).transpose()
    }

    /// Collects the values of all members at all members.
    pub fn all_gather<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let message = self.agree(value.py(), || self.make(value))?;
        let arrived = self.run(value.py(), |group| group.all_gather_buf::<PythonValues>(message))?;
        self.values(value.py(), arrived)
    }

    /// Gives each member its item of the root's sequence.
    pub fn scatter<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, root) = (values.py(), self.root);
        let messages = self.agree(py, || self.is_root().then(|| self.make_all(values)).transpose())?;
        let arrived = self.run(py, |group| group.scatter_buf::<PythonValues>(root, messages))?;
        self.value(py, arrived)
    }

    /// Gives item k of each member's sequence to member k.
    pub fn all_to_all<'py>(&self, values: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let messages = self.agree(values.py(), || self.make_all(values))?;
        let arrived = self.run(values.py(), |group| group.all_to_all_buf::<PythonValues>(messages))?;
        self.values(values.py(), arrived)
    }

    /// Time that is left to the call.
    fn left(&self) -> Timeout {
        Timeout(Some(self.until.saturating_duration_since(Instant::now())))
    }

    fn is_root(&self) -> bool {
        self.group.rank() == self.root
    }

    /// Name of the argument that has an item for each member.
    fn list(&self) -> &'static str {
        if self.objects == Objects::Refuse { "arrays" } else { "values" }
    }

    /// Name of the argument that an array comes from.
    fn argument(&self) -> &'static str {
        if matches!(self.call, "gatherv" | "allgatherv") { "array" } else { "arrays" }
    }

    fn kind(&self) -> &'static str {
        match self.objects {
            Objects::Refuse => "arrays of Python",
            Objects::Copy | Objects::View => "objects of Python",
        }
    }

    /// Runs the call. The members compare whether they exchange objects or arrays.
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&Group) -> udeck::Result<R> + Send,
    ) -> PyResult<R> {
        let group = self.group.moving(self.kind());
        wait::for_members(py, &group, self.left(), body).or_raise(py, None)
    }

    // ---- this member's part ----

    fn make(&self, value: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        let allocate = |len| self.world.buffer(value.py(), len, self.left());
        match self.objects {
            Objects::Refuse => content::array_message(&arrays::given(value, self.argument())?, allocate),
            Objects::Copy | Objects::View => content::object_message(value, allocate),
        }
    }

    fn make_all(&self, values: &Bound<'_, PyAny>) -> PyResult<Vec<Buffer>> {
        let size = self.group.size();
        let items = arguments::items(values, self.list(), "a list with an item for each member is wanted")?;
        if items.len() != size {
            let text = format!("{} has {} item(s): {size} member(s) need one each", self.list(), items.len());
            return Err(PyValueError::new_err(text));
        }
        items.iter().map(|value| self.make(value)).collect()
    }

    // ---- the agreement ----

    /// Makes this member's part, and returns it if all members make this call and have made theirs.
    fn agree<M>(&self, py: Python<'_>, make: impl FnOnce() -> PyResult<M>) -> PyResult<M> {
        let size = self.group.size();
        let made = if self.root < size { make() } else { Err(arguments::no_such_root(py, self.root, size)) };
        let me = self.group.rank() as u64;
        let mine = self.code() | me;
        let mut words = [mine, !mine, if made.is_ok() { u64::MAX } else { me }];
        self.run(py, |group| group.all_reduce(&mut words, Least(self.kind())))?;
        let (least, most, failed) = (words[0], !words[1], words[2]);
        if least & CALL != most & CALL {
            return made.and_then(|_| Err(self.mismatch(py, least, most)));
        }
        if failed != u64::MAX {
            return Err(self.report(py, failed as usize, made.err()));
        }
        made
    }

    /// Number of the call, and its root, in the upper half of a word.
    fn code(&self) -> u64 {
        let call = CALLS.iter().position(|call| *call == self.call).expect("each call is in the table");
        ((call as u64) << 56) | ((self.root.min(MAX_ROOT) as u64) << 32)
    }

    /// Error for two calls that differ, with the members that make them. One of them may be this member's.
    #[cold]
    fn mismatch(&self, py: Python<'_>, one: u64, other: u64) -> PyErr {
        let rank = |code: u64| self.group.ranks().get((code & !CALL) as usize).copied();
        let describe = |code: u64| {
            let call = CALLS.get((code >> 56) as usize).unwrap_or(&"another method");
            let rank = rank(code).unwrap_or_default();
            format!("rank {rank} calls {call} with root {}", (code >> 32) as usize & MAX_ROOT)
        };
        let text = format!(
            "{}, and {}: all members make the same calls in the same order (nothing was exchanged, and the group can be used \
             further)",
            describe(one),
            describe(other)
        );
        let theirs = if one & CALL == self.code() { other } else { one };
        raise(py, "CallMismatch", text, rank(theirs), None)
    }

    /// Tells all members why one of them has no part, and returns the error. `own`: this member's error.
    #[cold]
    fn report(&self, py: Python<'_>, member: usize, own: Option<PyErr>) -> PyErr {
        let is_mine = member == self.group.rank();
        let mut text = own.as_ref().filter(|_| is_mine).map(|error| error.to_string().into_bytes());
        if let Some(text) = &mut text {
            text.truncate(MAX_REPORT);
        }
        let send = || -> PyResult<Arrived> {
            let message = text.map(|text| {
                let mut buffer = self.world.buffer(py, text.len().max(1), self.left())?;
                bytes_mut(&mut buffer)[..text.len()].copy_from_slice(&text);
                Ok::<_, PyErr>(buffer)
            });
            let message = message.transpose()?;
            self.run(py, |group| group.broadcast_buf::<PythonValues>(member, message))
        };
        let sent = send();
        match (own, sent) {
            (Some(own), _) => own,
            (None, Err(error)) => error,
            (None, Ok(why)) => {
                let (rank, why) = (why.source(), String::from_utf8_lossy(wire::bytes(&why)).into_owned());
                let text = format!("{}: rank {rank} could not send its value: {why}", self.call);
                raise(py, "NotSent", text, Some(rank), None)
            }
        }
    }

    // ---- the parts of others ----

    fn value<'py>(&self, py: Python<'py>, arrived: Arrived) -> PyResult<Bound<'py, PyAny>> {
        message::value(py, arrived, &Origin::Call { name: self.call, objects: self.objects })
    }

    fn values<'py>(&self, py: Python<'py>, arrived: Vec<Arrived>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        arrived.into_iter().map(|one| self.value(py, one)).collect()
    }
}

/// Bits of a word in an agreement that hold the call and its root. The others hold the member.
const CALL: u64 = !0 << 32;
const MAX_ROOT: usize = (1 << 24) - 1;

/// The least of the members' words, under the name of what they exchange.
struct Least(&'static str);

impl Operator<u64> for Least {
    fn code(&self) -> OperatorCode {
        Operator::<u64>::code(&Min)
    }

    fn element(&self) -> &'static str {
        self.0
    }

    fn combine(&self, left: &mut [u64], right: &[u64]) {
        Min.combine(left, right);
    }
}
