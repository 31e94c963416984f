"""Reductions by functions: of arrays, of numbers, and of objects."""

from __future__ import annotations

import functools
import operator

import numpy

#: Functions that do the same as an operator of the library, and the kinds of numpy's types for which they do. (numpy.maximum of
#: floating-point numbers keeps NaN, and "max" may not.)
_EQUAL = {
    numpy.add: ("sum", "biufc"),
    operator.add: ("sum", "iufc"),
    numpy.multiply: ("product", "biufc"),
    operator.mul: ("product", "iufc"),
    numpy.minimum: ("min", "biu"),
    numpy.maximum: ("max", "biu"),
    min: ("min", "biu"),
    max: ("max", "biu"),
    numpy.bitwise_and: ("and", "biu"),
    operator.and_: ("and", "biu"),
    numpy.logical_and: ("and", "b"),
    numpy.bitwise_or: ("or", "biu"),
    operator.or_: ("or", "biu"),
    numpy.logical_or: ("or", "b"),
    numpy.bitwise_xor: ("xor", "biu"),
    operator.xor: ("xor", "biu"),
    numpy.logical_xor: ("xor", "b"),
}

_FUNCTIONS = {
    "sum": operator.add,
    "product": operator.mul,
    "prod": operator.mul,
    "min": min,
    "max": max,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


def equal_operator(function, dtype):
    """Returns the name of the operator that does the same as the function, or None."""
    try:
        name, kinds = _EQUAL[function]
    except (KeyError, TypeError):
        return None
    return name if dtype.kind in kinds else None


def function_of_operator(name):
    return _FUNCTIONS[name]


def combine(op, rows, count, into, given):
    """Combines the first `count` rows in their order: writes an array into `into`, and returns a number if one was given."""
    is_scalar = isinstance(given, numpy.generic)
    if is_scalar or isinstance(given, (int, float, complex)):
        numbers = list(rows[:count]) if is_scalar else rows[:count].tolist()
        return functools.reduce(op, numbers) if numbers else given
    if count == 0 or into.size == 0:
        return None
    result = numpy.asarray(functools.reduce(op, rows.reshape(-1, *into.shape)[:count]))
    if result.shape != into.shape:
        raise ValueError(
            f"op={op!r} made an array of shape {result.shape} of arrays of shape {into.shape}: an array of their shape is wanted"
        )
    numpy.copyto(into, result, casting="same_kind")
    return None
