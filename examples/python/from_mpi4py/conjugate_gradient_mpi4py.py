"""Conjugate gradients: each rank has some rows of the matrix, and collects the whole vector for each product."""

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
n = 240
counts = [n // size + (other < n % size) for other in range(size)]
first = sum(counts[:rank])
own = slice(first, first + counts[rank])
rows = (2.5 * numpy.eye(n) - numpy.eye(n, k=1) - numpy.eye(n, k=-1))[own]
right = numpy.sin(numpy.arange(n))[own]


def dot(one, other):
    return comm.allreduce(one @ other, op=MPI.SUM)


x, residual = numpy.zeros(counts[rank]), right.copy()
direction, whole = residual.copy(), numpy.empty(n)
square = dot(residual, residual)
steps = 0
while square > 1e-16:
    comm.Allgatherv(direction, [whole, counts])
    product = rows @ whole
    length = square / dot(direction, product)
    x += length * direction
    residual -= length * product
    before, square = square, dot(residual, residual)
    direction = residual + square / before * direction
    steps += 1
total, highest = dot(x, x), comm.allreduce(x.max(), op=MPI.MAX)
if rank == 0:
    print(f"{n} unknowns in {steps} steps, norm {total**0.5:.8f}, highest {highest:.8f}")
