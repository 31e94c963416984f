"""What the compiled module has Python do: what is quicker said here, and seldom called."""

from __future__ import annotations

import ast
import asyncio
import functools

import numpy
from numpy.lib import format as _format

from ._array import _refuse as refuse_posted  # noqa: F401
from ._errors import NobodyLeft

dtype = numpy.dtype


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


def describe(dtype):
    """A type that has no number, as text: what the file format .npy has in its head."""
    if dtype.hasobject:
        raise TypeError(
            f"elements of {dtype} are objects of this process: post_object() posts any object that can be pickled"
        )
    text = repr(_format.dtype_to_descr(dtype))
    if len(text) > 60_000:
        raise TypeError("the type's description is longer than 60,000 characters")
    return text


@functools.lru_cache(maxsize=256)
def dtype_of(text):
    """The other way. The text is data of another rank: it is read as a literal, and nothing of it is run."""
    dtype = _format.descr_to_dtype(ast.literal_eval(text))
    if dtype.hasobject:
        raise TypeError("elements of another rank's cannot be objects")
    return dtype


def _set(future):
    if not future.done():
        future.set_result(None)


async def drive(task):
    """Polls a task of the library's until it is over."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            woken = loop.create_future()
            done = task.poll(lambda woken=woken: loop.call_soon_threadsafe(_set, woken))
            if done is not None:
                return done[0]
            await woken
    finally:
        task.close()


async def drive_iteration(task):
    try:
        return await drive(task)
    except NobodyLeft:
        raise StopAsyncIteration from None
