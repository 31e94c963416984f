"""Heat on a plate: each rank has some rows, and exchanges its outermost ones with its neighbours."""

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
above = rank - 1 if rank > 0 else MPI.PROC_NULL
below = rank + 1 if rank < size - 1 else MPI.PROC_NULL

rows, columns = 24, 64
plate = numpy.zeros((rows + 2, columns))  # with a row of each neighbour
if rank == 0:
    plate[0] = 100.0
for step in range(100):
    comm.Sendrecv(plate[1], above, 1, plate[-1], below, 1)
    comm.Sendrecv(plate[-2], below, 2, plate[0], above, 2)
    inner = plate[1:-1, 1:-1]
    new = (plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]) / 4
    change = comm.allreduce(numpy.abs(new - inner).max(), op=MPI.MAX)
    inner[:] = new

whole = numpy.empty((size, rows, columns)) if rank == 0 else None
comm.Gather(plate[1:-1], whole, root=0)
if rank == 0:
    print(f"{whole.reshape(-1, columns).shape} cells, mean {whole.mean():.6f}, last change {change:.6f}")
