//! Groups of ranks, and their collective calls on arrays.
//!
//! Data that only move are bytes. Reductions work on whole elements, by an operator for their type (`reduction`). Arrays are
//! used where they lie, without the interpreter's lock: as with numpy's own calls, no other thread may touch them meanwhile.
#![allow(unsafe_code, reason = "collective calls on the program's arrays")]

use std::sync::Arc;
use std::time::Instant;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use udeck::op::Named;

use crate::arguments;
use crate::arrays::{
    Bytes, InPlace, Scattered, Target, Which, check_apart, check_whole, exchanged, read, reduced, same_type,
    type_name, whole, written,
};
use crate::errors::OrRaise;
use crate::handle::Handle;
use crate::message::Objects;
use crate::numpy::Array;
use crate::objects::Exchange;
use crate::reduction::{self, Op, operator};
use crate::request::{Elements, Outcome, Pending, Reducing, Request};
use crate::wait::{self, Timeout};

/// Ranks that make collective calls together: each call is made by all members, in the same order. Made by World.all(),
/// World.group() and split().
///
/// Members are numbered from 0 in the group; root and the numbers of neighbours() are member numbers. Arrays are numpy's, what has
/// the buffer protocol, tensors on the CPU, and lists of numbers. An array in C order is used in place: no other thread may touch
/// it meanwhile. Lists and other arrays are copied, and get the result when the call returns. Arrays that are written must be
/// writeable, and must not overlap with one that is read. All members pass arrays of the same dtype and length in bytes
/// (neighbours() compares only the bytes). A reduction of a number returns a number.
///
/// op is "sum", "product" (or "prod"), "min", "max", "and", "or" or "xor": integers and truth values have all of them,
/// floating-point numbers the first four, complex numbers sum and product. Integers wrap around. op may also be a function of two
/// arrays that returns an array of their shape: it is applied in the members' order, after all arrays were collected. Functions
/// that do the same as a named operator (numpy.add, and numpy.maximum of integers) are taken for it.
///
/// Each call waits for the other members, at most the timeout (seconds; None: DECK_DEADLINE). It raises PeerLost,
/// Deadline, CallMismatch if members make different calls, and GroupFailed after a call that failed: the group cannot be used any
/// more. ValueError and TypeError report an unsuitable array or operator before anything is sent; errors of a function operator
/// come after the arrays were collected.
#[pyclass(frozen, module = "udeck")]
pub struct Group {
    group: Arc<udeck::Group>,
    world: Arc<Handle>,
}

impl Group {
    pub fn new(group: udeck::Group, world: Arc<Handle>) -> Self {
        Group { group: Arc::new(group), world }
    }

    /// Runs a call that may wait.
    fn call<R: Send>(
        &self,
        py: Python<'_>,
        timeout: Timeout,
        body: impl FnOnce(&udeck::Group) -> udeck::Result<R> + Send,
    ) -> PyResult<R> {
        wait::for_members(py, &self.group, timeout, body).or_raise(py, None)
    }

    /// Runs a call that moves the elements of arrays as bytes. The members compare the element types.
    fn moving<R: Send>(
        &self,
        array: &Array<'_>,
        timeout: Timeout,
        body: impl FnOnce(&udeck::Group) -> udeck::Result<R> + Send,
    ) -> PyResult<R> {
        let elements = type_name(array)?;
        self.call(array.object().py(), timeout, |group| body(&group.moving(&elements)))
    }

    /// A call that exchanges pickled objects.
    fn objects(&self, call: &'static str, root: usize, timeout: Timeout) -> Exchange<'_> {
        let until = Instant::now() + timeout.or(self.group.limit()).min(wait::FOR_EVER);
        Exchange { group: &self.group, world: &self.world, call, root, until, objects: Objects::Copy }
    }

    /// A call that exchanges arrays of any length.
    fn ragged(&self, call: &'static str, root: usize, timeout: Timeout) -> Exchange<'_> {
        Exchange { objects: Objects::Refuse, ..self.objects(call, root, timeout) }
    }

    fn check_root(&self, py: Python<'_>, root: usize) -> PyResult<()> {
        match root < self.group.size() {
            true => Ok(()),
            false => Err(arguments::no_such_root(py, root, self.group.size())),
        }
    }

    /// Starts a call without waiting.
    fn start(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&udeck::Group) -> udeck::Result<Box<dyn Pending>> + Send,
    ) -> PyResult<Box<dyn Pending>> {
        py.detach(|| body(&self.group)).or_raise(py, None)
    }

    fn start_reduction<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        op: &Op<'py>,
        which: Which,
    ) -> PyResult<Request> {
        let target = reduced(value, "array")?;
        let named = match op {
            Op::Named(named) => *named,
            Op::Function(function) => reduction::equal(function, &target.array)?.ok_or_else(|| {
                arguments::refuse(function, "op", "a request takes the name of an operator")
            })?,
        };
        let op = operator(named, target.array.type_number(), &target.array.dtype())?;
        let data = target.bytes;
        let is_mine = self.has_result(&which);
        let pending = self.start(value.py(), |group| op.for_elements(Reducing { group, data, which }))?;
        let kept = target.keep();
        Ok(match is_mine {
            true => Request::new(pending, Outcome::Array(kept), None),
            false => Request::new(pending, Outcome::Nothing, Some(kept.into_array())),
        })
    }

    /// Whether this member gets the result.
    fn has_result(&self, which: &Which) -> bool {
        !matches!(which, Which::Reduce(root) if *root != self.group.rank())
    }

    /// Reduces in place. A member that gets no result returns `None`.
    fn in_place<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        op: &Op<'py>,
        timeout: Timeout,
        which: Which,
    ) -> PyResult<Bound<'py, PyAny>> {
        let target = reduced(value, "array")?;
        let named = match op {
            Op::Named(named) => *named,
            Op::Function(function) => match reduction::equal(function, &target.array)? {
                Some(named) => named,
                None => return self.by_function(target, function, timeout, &which),
            },
        };
        let op = operator(named, target.array.type_number(), &target.array.dtype())?;
        let data = target.bytes;
        let is_mine = self.has_result(&which);
        self.call(value.py(), timeout, |group| op.for_elements(InPlace { group, data, which }))?;
        if is_mine { target.finish() } else { Ok(value.py().None().into_bound(value.py())) }
    }

    /// A reduction by a function of the program's: collects the arrays, and combines them in the members' order.
    #[cold]
    fn by_function<'py>(
        &self,
        target: Target<'py>,
        function: &Bound<'py, PyAny>,
        timeout: Timeout,
        which: &Which,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, array) = (function.py(), target.array.object());
        let rows = match which {
            Which::Reduce(root) => self.gather(array, *root, None, timeout)?,
            Which::AllReduce | Which::Scan | Which::ExScan => Some(self.allgather(array, None, timeout)?),
        };
        let Some(rows) = rows else { return Ok(py.None().into_bound(py)) };
        let count = match which {
            Which::Scan => self.group.rank() + 1,
            Which::ExScan => self.group.rank(),
            Which::Reduce(_) | Which::AllReduce => self.group.size(),
        };
        target.combine(function, &rows, count)
    }
}

#[pymethods]
impl Group {
    /// This rank's number in the group.
    #[getter]
    fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Number of members.
    #[getter]
    fn size(&self) -> usize {
        self.group.size()
    }

    /// The members' ranks in the world.
    #[getter]
    fn ranks(&self) -> Vec<usize> {
        self.group.ranks().to_vec()
    }

    /// Returns the same group with another default timeout (seconds), for calls that give none. Does not wait.
    fn within(&self, timeout: Timeout) -> Group {
        match timeout.0 {
            Some(limit) => Group::new(self.group.within(limit), self.world.clone()),
            None => Group { group: self.group.clone(), world: self.world.clone() },
        }
    }

    /// Splits the group: members of one colour form a new group. A member without a colour (None) gets None.
    ///
    /// Members of the new group are ordered by key, and by their numbers in this group where keys are equal.
    /// Waits for all members.
    #[pyo3(signature = (colour, key=0))]
    fn split(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::colour)] colour: Option<usize>,
        #[pyo3(from_py_with = arguments::key)] key: i64,
    ) -> PyResult<Option<Group>> {
        let part = self.call(py, Timeout::USUAL, |group| group.split(colour, key))?;
        Ok(part.map(|part| Group::new(part, self.world.clone())))
    }

    /// Waits until all members have entered this barrier.
    #[pyo3(signature = (timeout=Timeout::USUAL), text_signature = "($self, timeout=None)")]
    fn barrier(&self, py: Python<'_>, timeout: Timeout) -> PyResult<()> {
        self.call(py, timeout, udeck::Group::barrier)
    }

    /// Copies the root's elements to all members, in place, and returns the array. All arrays have the same number of bytes.
    #[pyo3(signature = (array, root=0, timeout=Timeout::USUAL), text_signature = "($self, array, root=0, timeout=None)")]
    fn broadcast<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_root(array.py(), root)?;
        let target = written(array, "array")?;
        let bytes = target.bytes;
        // SAFETY: the array is kept here, and the program leaves it alone meanwhile.
        self.moving(&target.array, timeout, |group| group.broadcast(root, unsafe { bytes.write::<u8>() }))?;
        target.finish()
    }

    /// Combines the elements of all members into the root's array, in place, and returns it; the other arrays stay as they are,
    /// and the others get None. The arrays have the same dtype and size.
    #[pyo3(signature = (array, op=Op::Named(Named::Sum), root=0, timeout=Timeout::USUAL), text_signature = "($self, array, op='sum', root=0, timeout=None)")]
    fn reduce<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = reduction::op)] op: Op<'py>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_root(array.py(), root)?;
        self.in_place(array, &op, timeout, Which::Reduce(root))
    }

    /// Combines the elements of all members into every member's array, in place, with results equal to the last bit, and returns
    /// it. The arrays have the same dtype and size.
    #[pyo3(signature = (array, op=Op::Named(Named::Sum), timeout=Timeout::USUAL), text_signature = "($self, array, op='sum', timeout=None)")]
    fn allreduce<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = reduction::op)] op: Op<'py>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.in_place(array, &op, timeout, Which::AllReduce)
    }

    /// Replaces member k's elements by the combination of members 0 to k, in place, and returns the array.
    #[pyo3(signature = (array, op=Op::Named(Named::Sum), timeout=Timeout::USUAL), text_signature = "($self, array, op='sum', timeout=None)")]
    fn scan<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = reduction::op)] op: Op<'py>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.in_place(array, &op, timeout, Which::Scan)
    }

    /// Replaces member k's elements by the combination of members 0 to k - 1, in place, and returns the array. Member 0 keeps its
    /// own.
    #[pyo3(signature = (array, op=Op::Named(Named::Sum), timeout=Timeout::USUAL), text_signature = "($self, array, op='sum', timeout=None)")]
    fn exscan<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = reduction::op)] op: Op<'py>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.in_place(array, &op, timeout, Which::ExScan)
    }

    /// Combines all members' arrays, and gives member k the k-th part of the result in `out`: array has as many elements
    /// as all outs together. Returns out.
    #[pyo3(signature = (array, out, op=Op::Named(Named::Sum), timeout=Timeout::USUAL), text_signature = "($self, array, out, op='sum', timeout=None)")]
    fn reduce_scatter<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        out: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = reduction::op)] op: Op<'py>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (array, from) = read(array, "array")?;
        let out = written(out, "out")?;
        same_type(("array", &array), ("out", &out.array))?;
        check_whole(("array", &array), ("out", &out.array), self.group.size())?;
        check_apart(("array", from), ("out", out.bytes))?;
        let named = match op {
            Op::Named(named) => named,
            Op::Function(function) => match reduction::equal(&function, &array)? {
                Some(named) => named,
                None => {
                    let parts = self.alltoall(array.object(), None, timeout)?;
                    return out.combine(&function, &parts, self.group.size());
                }
            },
        };
        let op = operator(named, array.type_number(), &array.dtype())?;
        let to = out.bytes;
        self.call(array.object().py(), timeout, |group| op.for_elements(Scattered { group, from, to }))?;
        out.finish()
    }

    /// Collects the arrays of all members at the root: an array of shape (size, *array.shape), with a row for each member.
    /// The others get None.
    ///
    /// out: an array for the result, of the same dtype and as many bytes; None: a new array.
    #[pyo3(signature = (array, root=0, out=None, timeout=Timeout::USUAL), text_signature = "($self, array, root=0, out=None, timeout=None)")]
    fn gather<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Timeout,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.check_root(array.py(), root)?;
        let (array, from) = read(array, "array")?;
        if self.group.rank() != root {
            // SAFETY: the array is kept here.
            self.moving(&array, timeout, |group| group.gather(root, unsafe { from.read::<u8>() }, &mut []))?;
            return Ok(None);
        }
        let out = whole(self.group.size(), out, &array, from)?;
        let to = out.bytes;
        // SAFETY: both arrays are kept here, and lie apart.
        self.moving(&array, timeout, |group| unsafe {
            group.gather(root, from.read::<u8>(), to.write::<u8>())
        })?;
        out.finish().map(Some)
    }

    /// Collects the arrays of all members at every member: an array of shape (size, *array.shape), with a row
    /// for each member.
    ///
    /// out: an array for the result, of the same dtype and as many bytes; None: a new array.
    #[pyo3(signature = (array, out=None, timeout=Timeout::USUAL), text_signature = "($self, array, out=None, timeout=None)")]
    fn allgather<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (array, from) = read(array, "array")?;
        let out = whole(self.group.size(), out, &array, from)?;
        let to = out.bytes;
        // SAFETY: both arrays are kept here, and lie apart.
        self.moving(&array, timeout, |group| unsafe {
            group.all_gather(from.read::<u8>(), to.write::<u8>())
        })?;
        out.finish()
    }

    /// Gives each member its part of the root's array, in `out`, and returns out. The root's array has size times as many
    /// elements; the others pass None for it.
    #[pyo3(signature = (array, out, root=0, timeout=Timeout::USUAL), text_signature = "($self, array, out, root=0, timeout=None)")]
    fn scatter<'py>(
        &self,
        array: Option<&Bound<'py, PyAny>>,
        out: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.check_root(out.py(), root)?;
        let out = written(out, "out")?;
        let to = out.bytes;
        if self.group.rank() != root {
            // SAFETY: the array is kept here.
            self.moving(&out.array, timeout, |group| group.scatter(root, &[], unsafe { to.write::<u8>() }))?;
            return out.finish();
        }
        let array = array.ok_or_else(|| {
            PyTypeError::new_err("array=None: the root passes the array that is to be given out in parts")
        })?;
        let (array, from) = read(array, "array")?;
        same_type(("array", &array), ("out", &out.array))?;
        check_whole(("array", &array), ("out", &out.array), self.group.size())?;
        check_apart(("array", from), ("out", to))?;
        // SAFETY: both arrays are kept here, and lie apart.
        self.moving(&out.array, timeout, |group| unsafe {
            group.scatter(root, from.read::<u8>(), to.write::<u8>())
        })?;
        out.finish()
    }

    /// Exchanges parts among all members: part k of the array goes to member k, and part k of the result comes from
    /// member k. The result has the array's shape.
    ///
    /// out: an array for the result, of the same dtype and as many bytes; None: a new array.
    #[pyo3(signature = (array, out=None, timeout=Timeout::USUAL), text_signature = "($self, array, out=None, timeout=None)")]
    fn alltoall<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (array, from) = read(array, "array")?;
        let out = exchanged(self.group.size(), out, &array, from)?;
        let to = out.bytes;
        // SAFETY: both arrays are kept here, and lie apart.
        self.moving(&array, timeout, |group| unsafe {
            group.all_to_all(from.read::<u8>(), to.write::<u8>())
        })?;
        out.finish()
    }

    /// A halo exchange: sends arrays to some members, and receives into arrays from some.
    ///
    /// to and from_ are lists of pairs of a member and an array. Each array has as many bytes as its counterpart at
    /// the other member. Several parts for one member match in the order of the lists.
    #[pyo3(signature = (to, from_, timeout=Timeout::USUAL), text_signature = "($self, to, from_, timeout=None)")]
    fn neighbours(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::to)] to: Vec<(usize, Bound<'_, PyAny>)>,
        #[pyo3(from_py_with = arguments::from)] from_: Vec<(usize, Bound<'_, PyAny>)>,
        timeout: Timeout,
    ) -> PyResult<()> {
        let sent = to.iter().map(|(member, array)| Ok((*member, read(array, "to")?)));
        let sent: Vec<_> = sent.collect::<PyResult<_>>()?;
        let room = from_.iter().map(|(member, array)| Ok((*member, written(array, "from_")?)));
        let room: Vec<_> = room.collect::<PyResult<_>>()?;
        for (nth, (_, one)) in room.iter().enumerate() {
            for (_, (_, other)) in &sent {
                check_apart(("from_", one.bytes), ("to", *other))?;
            }
            for (_, other) in &room[..nth] {
                check_apart(("from_", one.bytes), ("another array of from_", other.bytes))?;
            }
        }
        let parts: Vec<(usize, Bytes)> = sent.iter().map(|(member, (_, bytes))| (*member, *bytes)).collect();
        let places: Vec<(usize, Bytes)> = room.iter().map(|(member, to)| (*member, to.bytes)).collect();
        self.call(py, timeout, |group| {
            // SAFETY: the lists keep the arrays, and what is written lies apart from all the others.
            let sent: Vec<_> =
                parts.iter().map(|(member, bytes)| (*member, unsafe { bytes.read::<u8>() })).collect();
            // SAFETY: as above.
            let mut room: Vec<_> =
                places.iter().map(|(member, bytes)| (*member, unsafe { bytes.write::<u8>() })).collect();
            group.neighbours(&sent, &mut room)
        })?;
        room.into_iter().try_for_each(|(_, to)| to.finish().map(drop))
    }

    /// Collects arrays of any length at the root: a list with an array of each member. The others get None.
    ///
    /// Each array comes with its own dtype and shape, and is read only, as an array from Mailbox.retrieve(): a view of the message,
    /// on one host in the memory of the member that sent it. A member whose array cannot be sent raises TypeError, and all others NotSent,
    /// which names its rank; CallMismatch, if one calls another method whose name ends in v, or gives another root. The group
    /// stays usable after both.
    #[pyo3(signature = (array, root=0, timeout=Timeout::USUAL), text_signature = "($self, array, root=0, timeout=None)")]
    fn gatherv<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        self.ragged("gatherv", root, timeout).gather(array)
    }

    /// Collects arrays of any length at every member: a list with an array of each member. As gatherv() otherwise.
    #[pyo3(signature = (array, timeout=Timeout::USUAL), text_signature = "($self, array, timeout=None)")]
    fn allgatherv<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        timeout: Timeout,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.ragged("allgatherv", 0, timeout).all_gather(array)
    }

    /// Gives each member its array of the root's list, and returns it. The list has an array for each member; the others pass
    /// None. As gatherv() otherwise.
    #[pyo3(signature = (arrays, root=0, timeout=Timeout::USUAL), text_signature = "($self, arrays, root=0, timeout=None)")]
    fn scatterv<'py>(
        &self,
        arrays: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.ragged("scatterv", root, timeout).scatter(arrays)
    }

    /// Gives array k of each member's list to member k, and returns a list with an array of each member. As gatherv()
    /// otherwise.
    #[pyo3(signature = (arrays, timeout=Timeout::USUAL), text_signature = "($self, arrays, timeout=None)")]
    fn alltoallv<'py>(
        &self,
        arrays: &Bound<'py, PyAny>,
        timeout: Timeout,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.ragged("alltoallv", 0, timeout).all_to_all(arrays)
    }

    /// Starts a barrier without waiting, and returns its request.
    ///
    /// Raises WouldBlock, as all that return a Request, while 64 requests of the group or another thread's call are under way.
    fn ibarrier(&self, py: Python<'_>) -> PyResult<Request> {
        let pending = self.start(py, |group| Ok(Box::new(group.barrier_nonblocking()?)))?;
        Ok(Request::new(pending, Outcome::Nothing, None))
    }

    /// Starts broadcast() without waiting, and returns its request.
    #[pyo3(signature = (array, root=0))]
    fn ibroadcast(
        &self,
        array: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
    ) -> PyResult<Request> {
        let py = array.py();
        self.check_root(py, root)?;
        let target = written(array, "array")?;
        // SAFETY: the request keeps the array, and the program leaves it alone meanwhile.
        let data = unsafe { Elements::<u8>::new(target.bytes) };
        let name = type_name(&target.array)?;
        let pending =
            self.start(py, |group| Ok(Box::new(group.moving(&name).broadcast_nonblocking(root, data)?)))?;
        Ok(Request::new(pending, Outcome::Array(target.keep()), None))
    }

    /// Starts reduce() without waiting, and returns its request. op is the name of an operator, or a function that equals one.
    #[pyo3(signature = (array, op=Op::Named(Named::Sum), root=0), text_signature = "($self, array, op='sum', root=0)")]
    fn ireduce<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = reduction::op)] op: Op<'py>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
    ) -> PyResult<Request> {
        self.check_root(array.py(), root)?;
        self.start_reduction(array, &op, Which::Reduce(root))
    }

    /// Starts allreduce() without waiting, and returns its request. op is the name of an operator, or a function that equals
    /// one.
    #[pyo3(signature = (array, op=Op::Named(Named::Sum)), text_signature = "($self, array, op='sum')")]
    fn iallreduce<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = reduction::op)] op: Op<'py>,
    ) -> PyResult<Request> {
        self.start_reduction(array, &op, Which::AllReduce)
    }

    /// Starts allgather() without waiting, and returns its request.
    #[pyo3(signature = (array, out=None))]
    fn iallgather<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Request> {
        let (array, from) = read(array, "array")?;
        let out = whole(self.group.size(), out, &array, from)?;
        let name = type_name(&array)?;
        // SAFETY: the request keeps both arrays, which lie apart.
        let (from, to) = unsafe { (Elements::<u8>::new(from), Elements::<u8>::new(out.bytes)) };
        let pending = self.start(array.object().py(), |group| {
            Ok(Box::new(group.moving(&name).all_gather_nonblocking(from, to)?))
        })?;
        Ok(Request::new(pending, Outcome::Array(out.keep()), Some(array.into_object().unbind())))
    }

    /// Starts alltoall() without waiting, and returns its request.
    #[pyo3(signature = (array, out=None))]
    fn ialltoall<'py>(
        &self,
        array: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Request> {
        let (array, from) = read(array, "array")?;
        let out = exchanged(self.group.size(), out, &array, from)?;
        let name = type_name(&array)?;
        // SAFETY: the request keeps both arrays, which lie apart.
        let (from, to) = unsafe { (Elements::<u8>::new(from), Elements::<u8>::new(out.bytes)) };
        let pending = self.start(array.object().py(), |group| {
            Ok(Box::new(group.moving(&name).all_to_all_nonblocking(from, to)?))
        })?;
        Ok(Request::new(pending, Outcome::Array(out.keep()), Some(array.into_object().unbind())))
    }

    /// Gives the root's object to all members, and returns it. What the others pass is not used.
    ///
    /// Objects are pickled; long buffers in them, such as those of arrays, are not copied into the pickle. A pickle can run
    /// any code at the members that receive it. A member whose object cannot be pickled raises what pickling raises, and all
    /// others NotSent, which names its rank; CallMismatch, if one calls another method whose name ends in _object, or gives another root.
    /// The group stays usable after both.
    #[pyo3(signature = (value, root=0, timeout=Timeout::USUAL), text_signature = "($self, value, root=0, timeout=None)")]
    fn bcast_object<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.objects("bcast_object", root, timeout).broadcast(value)
    }

    /// Gives each member its item of the root's list, and returns it. The list has an item for each member; the others pass
    /// None.
    ///
    /// Pickles and raises as bcast_object().
    #[pyo3(signature = (values, root=0, timeout=Timeout::USUAL), text_signature = "($self, values, root=0, timeout=None)")]
    fn scatter_object<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.objects("scatter_object", root, timeout).scatter(values)
    }

    /// Collects the objects of all members at the root: a list with an item for each member. The others get None.
    ///
    /// Pickles and raises as bcast_object().
    #[pyo3(signature = (value, root=0, timeout=Timeout::USUAL), text_signature = "($self, value, root=0, timeout=None)")]
    fn gather_object<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        self.objects("gather_object", root, timeout).gather(value)
    }

    /// Collects the objects of all members at every member: a list with an item for each member.
    ///
    /// Pickles and raises as bcast_object().
    #[pyo3(signature = (value, timeout=Timeout::USUAL), text_signature = "($self, value, timeout=None)")]
    fn allgather_object<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        timeout: Timeout,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.objects("allgather_object", 0, timeout).all_gather(value)
    }

    /// Combines the objects of all members at the root, in the members' order; the others get None.
    ///
    /// op: a function of two objects, or the name of an operator. Pickles and raises as bcast_object().
    #[pyo3(signature = (value, op=None, root=0, timeout=Timeout::USUAL), text_signature = "($self, value, op='sum', root=0, timeout=None)")]
    fn reduce_object<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        op: Option<&Bound<'py, PyAny>>,
        #[pyo3(from_py_with = arguments::root)] root: usize,
        timeout: Timeout,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let op = reduction::of_objects(value.py(), op)?;
        let values = self.objects("reduce_object", root, timeout).gather(value)?;
        values.map(|values| reduction::fold(&op, values)).transpose()
    }

    /// Combines the objects of all members at every member, in the members' order.
    ///
    /// op: a function of two objects, or the name of an operator. Pickles and raises as bcast_object().
    #[pyo3(signature = (value, op=None, timeout=Timeout::USUAL), text_signature = "($self, value, op='sum', timeout=None)")]
    fn allreduce_object<'py>(
        &self,
        value: &Bound<'py, PyAny>,
        op: Option<&Bound<'py, PyAny>>,
        timeout: Timeout,
    ) -> PyResult<Bound<'py, PyAny>> {
        let op = reduction::of_objects(value.py(), op)?;
        reduction::fold(&op, self.objects("allreduce_object", 0, timeout).all_gather(value)?)
    }

    /// Gives item k of each member's list to member k, and returns a list with an item of each member.
    ///
    /// Pickles and raises as bcast_object().
    #[pyo3(signature = (values, timeout=Timeout::USUAL), text_signature = "($self, values, timeout=None)")]
    fn alltoall_object<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        timeout: Timeout,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.objects("alltoall_object", 0, timeout).all_to_all(values)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.group)
    }
}
