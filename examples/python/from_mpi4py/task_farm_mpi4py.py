"""A task farm: rank 0 gives a worker its next task when the result of the last one has come."""

from mpi4py import MPI


def collatz(start):
    steps = 0
    while start != 1:
        start, steps = (start // 2 if start % 2 == 0 else 3 * start + 1), steps + 1
    return steps


comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
if rank == 0:
    tasks, results = iter(range(1, 301)), {}
    for worker in range(1, size):
        comm.send(next(tasks, None), dest=worker)
    status = MPI.Status()
    while len(results) < 300:
        task, result = comm.recv(source=MPI.ANY_SOURCE, status=status)
        results[task] = result
        comm.send(next(tasks, None), dest=status.Get_source())
    longest = max(results, key=lambda task: (results[task], -task))
    print(f"{len(results)} tasks, the longest from {longest}: {results[longest]} steps")
else:
    while (task := comm.recv(source=0)) is not None:
        comm.send((task, collatz(task)), dest=0)
