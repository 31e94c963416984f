"""Arrays of `World.empty`, and the class that one gets when it is posted."""

from __future__ import annotations

import numpy

from . import _udeck
from ._errors import ArrayPosted

_TEXT = (
    "this array was posted: its memory is the message now, and belongs to the receiver; make another one by world.empty(), or post a "
    "copy (array.copy()) to keep it"
)


def refuse(*_args, **_options):
    raise ArrayPosted(_TEXT)


_KEPT = frozenset({"__class__", "__doc__", "__module__", "__repr__", "__str__", "__sizeof__", "__del__"})


def _exposes(name):
    """An attribute that gives the address out as a number, without a reference: from then on the array is copied, never moved."""
    attribute = getattr(numpy.ndarray, name)

    def get(array):
        _udeck.expose(array)
        return attribute.__get__(array)

    return property(get, doc=attribute.__doc__)


class Array(numpy.ndarray):
    """An array in memory from which messages are sent (`World.empty`): a numpy array like any other, until it is posted."""

    __slots__ = ()
    __array_interface__ = _exposes("__array_interface__")
    __array_struct__ = _exposes("__array_struct__")
    ctypes = _exposes("ctypes")


class Posted(_udeck.ArrayLayout):
    """An array that was posted. It is no numpy array any more, and every use of it raises an error that says so."""

    # The slots are those of Array, because the library changes an Array into a Posted.
    __slots__ = ()

    def __getattribute__(self, name):
        if name in _KEPT:
            return object.__getattribute__(self, name)
        raise ArrayPosted(_TEXT)

    def __repr__(self):
        return "<array that was posted>"

    __str__ = __repr__


# Names that Python looks up in the class, not in the object: all of numpy's arrays, and `__buffer__` from version 3.12 on.
_OF_CLASSES = {"__new__", "__init__", "__init_subclass__", "__subclasshook__", "__class_getitem__", "__dir__"}
for _name in dir(numpy.ndarray):
    if _name.startswith("__") and _name not in _KEPT | _OF_CLASSES | vars(Posted).keys():
        if callable(getattr(numpy.ndarray, _name)) or _name == "__hash__":
            setattr(Posted, _name, refuse)

_udeck.set_classes(Array, Posted)
