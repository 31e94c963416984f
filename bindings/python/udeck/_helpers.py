"""Python functions for the compiled module: rarely called work that is shorter in Python."""

from __future__ import annotations

import ast
import asyncio
import functools
import weakref

import numpy
from numpy.lib import format as _format

from ._errors import NobodyLeft
from ._reductions import combine, equal_operator, function_of_operator  # noqa: F401
from ._udeck import Bell

def dtype(kind):
    """Returns the type of the elements, and the shape that each element adds to that of the array."""
    kind = numpy.dtype(kind)
    return kind.base, kind.shape


def from_buffer(memory):
    return numpy.asarray(memory)


def from_dlpack(tensor):
    try:
        return numpy.from_dlpack(tensor)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"numpy has no view of this {type(tensor).__name__} ({error}): one that it has may be tensor.detach(), tensor.cpu(), or "
            "bfloat16 as 16-bit integers by view(); post_object() posts any object that can be pickled"
        ) from error


def from_list(value, what):
    """Makes an array of a list or of a number."""
    try:
        array = numpy.array(value)
    except ValueError as error:
        raise ValueError(f"{what}: numpy makes no array of this {type(value).__name__}: {error}") from None
    if array.dtype.hasobject:
        raise TypeError(
            f"{what}: numpy makes an array of objects of this {type(value).__name__}: pass numbers of up to 64 bits, or exchange objects "
            "by the calls whose names end in _object"
        )
    return array


def fill_list(target, array):
    target[:] = array.tolist()


def number(array, like):
    """Returns the only element of an array: a scalar of numpy's, if `like` is one, and a number of Python's otherwise."""
    return array[()] if isinstance(like, numpy.generic) else array.item()


@functools.lru_cache(maxsize=256)
def _text(dtype):
    """Describes a type as the file format .npy does. None: the format has no text for it, or only that of another type."""
    try:
        text = repr(dtype.str if dtype.names is None else dtype.descr)
        return text if _read(text) == dtype else None
    except (TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _refuse_elements(dtype):
    """Refuses elements whose bytes are not their value."""
    if dtype.hasobject:
        raise TypeError(
            f"elements of {dtype} are objects of this process: post_object() posts any object that can be pickled"
        )
    if dtype.itemsize == 0:
        raise TypeError(f"elements of {dtype.str} have 0 bytes: give the type a length, such as 'S8'")


def name_of(dtype):
    """Returns the name by which members of a group compare a type without a number."""
    _refuse_elements(dtype)
    return _text(dtype) or str(dtype)


def describe(dtype):
    """Describes a type without a number as text."""
    _refuse_elements(dtype)
    text = _text(dtype)
    if text is None:
        advice = (
            "numpy.lib.recfunctions.repack_fields(array), if its fields overlap or are out of order, or array.view('V%d')" % dtype.itemsize
            if dtype.names is not None
            else "its bits, as array.view('%s%d')" % ("u" if dtype.itemsize in (1, 2, 4, 8) else "V", dtype.itemsize)
        )
        raise TypeError(
            f"elements of {dtype} would come as another type, because numpy has no text for theirs: post {advice}; post_object() posts any "
            "object that can be pickled"
        )
    if len(text) > 60_000:
        raise TypeError("the type's description is longer than 60,000 characters")
    return text


def refuse_masked():
    raise TypeError(
        "a masked array would lose its mask: pass array.filled(), or array.data and numpy.ma.getmaskarray(array) one after the other; "
        "post_object() keeps it"
    )


def _read(text):
    return _format.descr_to_dtype(ast.literal_eval(text))


@functools.lru_cache(maxsize=256)
def dtype_of(text):
    """Parses a description from describe(). The text is data of another rank: it is read as a literal, and never executed."""
    dtype = _read(text)
    _refuse_elements(dtype)
    return dtype


class _Loop:
    """Wakes the tasks of one loop: the library's bell, and the futures of the waiting tasks."""

    def __init__(self, loop):
        self.bell = Bell()
        self.waiting = {}
        # The loop keeps this object until it is closed; nothing else does.
        loop.add_reader(self.bell.fileno(), self._wake)

    def _wake(self):
        for task in self.bell.rung():
            woken = self.waiting.get(task)
            if woken is not None and not woken.done():
                woken.set_result(None)


#: Weak references to the loops' objects, by loop.
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Loop]] = weakref.WeakKeyDictionary()


def _running_loop():
    loop = asyncio.get_running_loop()
    known = _loops.get(loop)
    entry = known and known()
    if entry is None:
        entry = _Loop(loop)
        _loops[loop] = weakref.ref(entry)
    return loop, entry


async def drive(task):
    """Polls a call of the library until it is over."""
    loop, entry = _running_loop()
    try:
        while True:
            done = task.poll(entry.bell)
            if done is None:
                entry.waiting[id(task)] = woken = loop.create_future()
                await woken
            elif isinstance(done, float):
                await asyncio.sleep(done)
            else:
                return done[0]
    finally:
        entry.waiting.pop(id(task), None)
        task.close()


async def drive_iteration(task):
    try:
        return await drive(task)
    except NobodyLeft:
        raise StopAsyncIteration from None
