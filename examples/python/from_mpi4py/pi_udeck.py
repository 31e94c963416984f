"""Pi by an integral: each rank adds up its part of the steps."""

import numpy

import udeck

with udeck.init() as world:
    rank, size, everybody = world.rank, world.size, world.all()
    steps = everybody.bcast_object(1_000_000 if rank == 0 else None, root=0)
    middles = (numpy.arange(rank, steps, size) + 0.5) / steps
    pi = everybody.reduce((4 / (1 + middles**2)).sum() / steps, "sum", root=0)
    if rank == 0:
        print(f"pi is {pi:.10f}")
