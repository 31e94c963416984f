"""Pi by an integral: each rank adds up its part of the steps. `deckrun -n 4 -- python examples/python/pi.py [STEPS]`."""

import sys

import numpy

import udeck

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000

with udeck.init() as world:
    middles = (numpy.arange(world.rank, steps, world.size) + 0.5) / steps
    part = numpy.array([(4 / (1 + middles**2)).sum() / steps])
    if world.size > 1:
        world.all().allreduce(part)  # in place: every rank has the sum
    if world.rank == 0:
        print(f"pi is {part[0]:.12f}, {abs(part[0] - numpy.pi):.1e} off, by {steps} steps on {world.size} ranks")
