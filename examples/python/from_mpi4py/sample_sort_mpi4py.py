"""Sample sort: the ranks agree on keys that split the whole, and exchange parts of any length."""

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
keys = numpy.sort(numpy.random.default_rng(rank).integers(0, 1 << 40, 50_000))
samples = numpy.empty((size, 64), dtype=keys.dtype)
comm.Allgather(keys[:: keys.size // 64][:64].copy(), samples)
splitters = numpy.sort(samples, axis=None)[64::64]

parts = numpy.split(keys, numpy.searchsorted(keys, splitters))
counts = numpy.array([part.size for part in parts])
incoming = numpy.empty(size, dtype=counts.dtype)
comm.Alltoall(counts, incoming)
mine = numpy.empty(incoming.sum(), dtype=keys.dtype)
comm.Alltoallv([keys, counts], [mine, incoming])
mine.sort()

lengths = comm.allgather(mine.size)
whole = numpy.empty(sum(lengths), dtype=keys.dtype) if rank == 0 else None
comm.Gatherv(mine, [whole, lengths] if rank == 0 else None, root=0)
if rank == 0:
    print(f"{whole.size} keys, in order: {(whole[:-1] <= whole[1:]).all()}, sum {whole.sum()}, parts {lengths}")
