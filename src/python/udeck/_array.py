"""What an array of `World.empty` becomes when it is posted."""

from __future__ import annotations

import numpy

from ._errors import ArrayPosted

_TEXT = (
    "this array was posted: its memory is the message now, and belongs to the receiver; make another one by world.empty(), or post a "
    "copy (array.copy()) to keep it"
)


def _refuse(*_args, **_options):
    raise ArrayPosted(_TEXT)


_KEPT = frozenset({"__class__", "__doc__", "__module__", "__repr__", "__str__", "__sizeof__", "__del__"})


class Array(numpy.ndarray):
    """An array in memory from which messages are sent (`World.empty`): a numpy array like any other, until it is posted."""

    __slots__ = ()


class Posted(numpy.ndarray):
    """An array that was posted. It has no elements, and every use of it is an error that says so."""

    # As of Array, of which the library makes one.
    __slots__ = ()

    def __getattribute__(self, name):
        if name in _KEPT:
            return object.__getattribute__(self, name)
        raise ArrayPosted(_TEXT)

    def __repr__(self):
        return "<array that was posted>"

    __str__ = __repr__
    # Looked up in the class, not in the object.
    __array_ufunc__ = __array_function__ = __array__ = __dlpack__ = __buffer__ = _refuse
    __getitem__ = __setitem__ = __delitem__ = __len__ = __iter__ = __contains__ = _refuse
    __bool__ = __int__ = __float__ = __complex__ = __index__ = _refuse
    __copy__ = __deepcopy__ = __reduce__ = __reduce_ex__ = __format__ = _refuse
    __add__ = __radd__ = __iadd__ = __sub__ = __rsub__ = __isub__ = _refuse
    __mul__ = __rmul__ = __imul__ = __truediv__ = __rtruediv__ = __itruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = None
