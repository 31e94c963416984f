"""Sample sort: the ranks agree on keys that split the whole, and exchange parts of any length."""

import numpy

import udeck

with udeck.init() as world:
    rank, everybody = world.rank, world.all()
    keys = numpy.sort(numpy.random.default_rng(rank).integers(0, 1 << 40, 50_000))
    samples = everybody.allgather(keys[:: keys.size // 64][:64])
    splitters = numpy.sort(samples, axis=None)[64::64]

    parts = numpy.split(keys, numpy.searchsorted(keys, splitters))
    mine = numpy.concatenate(everybody.alltoallv(parts))
    mine.sort()

    sorted_parts = everybody.gatherv(mine, root=0)
    if sorted_parts is not None:
        whole, lengths = numpy.concatenate(sorted_parts), [part.size for part in sorted_parts]
        print(f"{whole.size} keys, in order: {(whole[:-1] <= whole[1:]).all()}, sum {whole.sum()}, parts {lengths}")
