"""Pi by an integral: each rank adds up its part of the steps."""

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
steps = comm.bcast(1_000_000 if rank == 0 else None, root=0)
middles = (numpy.arange(rank, steps, size) + 0.5) / steps
pi = comm.reduce((4 / (1 + middles**2)).sum() / steps, op=MPI.SUM, root=0)
if rank == 0:
    print(f"pi is {pi:.10f}")
