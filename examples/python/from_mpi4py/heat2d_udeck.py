"""Heat on a plate: each rank has some rows, and exchanges its outermost ones with its neighbours."""

import numpy

import udeck

with udeck.init() as world:
    rank, size, everybody = world.rank, world.size, world.all()

    rows, columns = 24, 64
    plate = numpy.zeros((rows + 2, columns))  # with a row of each neighbour
    if rank == 0:
        plate[0] = 100.0
    sides = [(rank - 1, 1, 0)] * (rank > 0) + [(rank + 1, -2, -1)] * (rank < size - 1)
    edges = [(other, plate[mine]) for other, mine, _ in sides]
    halos = [(other, plate[theirs]) for other, _, theirs in sides]
    for _ in range(100):
        everybody.neighbours(edges, halos)
        inner = plate[1:-1, 1:-1]
        new = (plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]) / 4
        change = everybody.allreduce(numpy.abs(new - inner).max(), "max")
        inner[:] = new

    whole = everybody.gather(plate[1:-1], root=0)
    if whole is not None:
        print(f"{whole.reshape(-1, columns).shape} cells, mean {whole.mean():.6f}, last change {change:.6f}")
