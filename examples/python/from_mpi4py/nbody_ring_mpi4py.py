"""Bodies that attract each other: blocks of bodies go around a ring, and each rank adds up their forces on its own."""

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
after, before = (rank + 1) % size, (rank - 1) % size
places = numpy.random.default_rng(rank).random((60, 3))
speeds = numpy.zeros_like(places)
for step in range(10):
    forces, block = numpy.zeros_like(places), places.copy()
    for _ in range(size):
        ways = block[None, :, :] - places[:, None, :]
        forces += (ways / ((ways**2).sum(axis=2, keepdims=True) + 0.01) ** 1.5).sum(axis=1)
        comm.Sendrecv_replace(block, dest=after, source=before)
    speeds += 1e-4 * forces
    places += 1e-3 * speeds
energy = comm.reduce((speeds**2).sum() / 2, op=MPI.SUM, root=0)
centres = numpy.empty((size, 3)) if rank == 0 else None
comm.Gather(places.mean(axis=0), centres, root=0)
if rank == 0:
    print(f"{60 * size} bodies, energy {energy:.8f}, centre {numpy.round(centres.mean(axis=0), 8)}")
