"""Bodies that attract each other: blocks of bodies go around a ring, and each rank adds up their forces on its own."""

import numpy

import udeck

with udeck.init() as world:
    rank, size, everybody = world.rank, world.size, world.all()
    after, before = (rank + 1) % size, (rank - 1) % size
    places = numpy.random.default_rng(rank).random((60, 3))
    speeds, incoming = numpy.zeros_like(places), numpy.empty_like(places)
    for _ in range(10):
        forces, block = numpy.zeros_like(places), places.copy()
        for _ in range(size):
            ways = block[None, :, :] - places[:, None, :]
            forces += (ways / ((ways**2).sum(axis=2, keepdims=True) + 0.01) ** 1.5).sum(axis=1)
            everybody.neighbours([(after, block)], [(before, incoming)])
            block, incoming = incoming, block
        speeds += 1e-4 * forces
        places += 1e-3 * speeds
    energy = everybody.reduce((speeds**2).sum() / 2, "sum", root=0)
    centres = everybody.gather(places.mean(axis=0), root=0)
    if centres is not None:
        print(f"{60 * size} bodies, energy {energy:.8f}, centre {numpy.round(centres.mean(axis=0), 8)}")
