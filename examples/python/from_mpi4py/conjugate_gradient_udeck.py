"""Conjugate gradients: each rank has some rows of the matrix, and collects the whole vector for each product."""

from typing import Any

import numpy

import udeck

with udeck.init() as world:
    rank, size, everybody = world.rank, world.size, world.all()
    n = 240
    first, last = rank * n // size, (rank + 1) * n // size
    rows = (2.5 * numpy.eye(n) - numpy.eye(n, k=1) - numpy.eye(n, k=-1))[first:last]
    right = numpy.sin(numpy.arange(n))[first:last]

    def dot(one: Any, other: Any) -> float:
        return everybody.allreduce(float(one @ other))

    x, residual = numpy.zeros(last - first), right.copy()
    direction = residual.copy()
    square = dot(residual, residual)
    steps = 0
    while square > 1e-16:
        product = rows @ numpy.concatenate(everybody.allgatherv(direction))
        length = square / dot(direction, product)
        x += length * direction
        residual -= length * product
        before, square = square, dot(residual, residual)
        direction = residual + square / before * direction
        steps += 1
    total, highest = dot(x, x), everybody.allreduce(x.max(), "max")
    if rank == 0:
        print(f"{n} unknowns in {steps} steps, norm {total**0.5:.8f}, highest {highest:.8f}")
