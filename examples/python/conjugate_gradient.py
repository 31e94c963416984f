"""Conjugate gradients that survive deaths:
`deckrun -n 4 --on-failure survive -- python examples/python/conjugate_gradient.py [RANK [SECONDS]]`.

Each rank has some rows of a grid, and keeps a copy of its neighbour's. Rank RANK is killed after SECONDS. The others agree on who is
left, divide the rows anew, restore them from the copies, and go on. The solution is known, and so every cell is checked.
"""

import os
import signal
import sys
import threading

import numpy
from numpy.typing import NDArray

import udeck

SIZE, INTERVAL, RESIDUAL, TOLERANCE = 120, 20, 1e-10, 1e-6

Cells = NDArray[numpy.float64]

place = numpy.arange(SIZE + 2) / (SIZE + 1)
x, y = place[None, :], place[:, None]
exact = x * (1 - x) * y * (1 - y) * (1 + x + 3 * y * y)  # 0 beyond the grid's edges
sources = 4 * exact[1:-1, 1:-1] - exact[:-2, 1:-1] - exact[2:, 1:-1] - exact[1:-1, :-2] - exact[1:-1, 2:]

checkpoint: dict[int, tuple[int, Cells]] = {}  # by rank: the first row, and the cells


def rows(group: udeck.Group, member: int) -> slice:
    return slice(member * SIZE // group.size, (member + 1) * SIZE // group.size)


def dot(group: udeck.Group, a: Cells, b: Cells) -> float:
    total = numpy.array([(a * b).sum()])
    group.allreduce(total)
    return float(total[0])


def multiply(group: udeck.Group, cells: Cells) -> Cells:
    """From four times each cell its four neighbours are subtracted. The rows next to this rank's come from other ranks."""
    wide = numpy.zeros((len(cells) + 2, SIZE + 2))
    wide[1:-1, 1:-1] = cells
    above, below = numpy.zeros(SIZE), numpy.zeros(SIZE)
    sides = [(group.rank - 1, cells[0].copy(), above), (group.rank + 1, cells[-1].copy(), below)]
    sides = [side for side in sides if 0 <= side[0] < group.size]
    group.neighbours([(member, row) for member, row, _ in sides], [(member, room) for member, _, room in sides])
    wide[0, 1:-1], wide[-1, 1:-1] = above, below
    return 4 * cells - wide[:-2, 1:-1] - wide[2:, 1:-1] - wide[1:-1, :-2] - wide[1:-1, 2:]


def save(group: udeck.Group, cells: Cells) -> None:
    """Keeps this rank's cells, and those of its left neighbour."""
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    copy = numpy.zeros(sources[rows(group, left)].shape)
    group.neighbours([(right, cells)], [(left, copy)])
    checkpoint.clear()
    checkpoint[group.ranks[left]] = rows(group, left).start, copy
    checkpoint[group.ranks[group.rank]] = rows(group, group.rank).start, cells.copy()


def restore(group: udeck.Group) -> Cells:
    """Returns the cells of this rank's rows. Those of a dead rank come from its neighbour; if that is dead, too, they are 0."""
    whole = numpy.zeros((2, SIZE, SIZE))  # sums of the cells, and how many ranks have them
    for rank, (first, cells) in checkpoint.items():
        if rank == group.ranks[group.rank] or rank not in group.ranks:
            whole[0, first : first + len(cells)] = cells
            whole[1, first : first + len(cells)] = 1
    group.allreduce(whole)
    mine: Cells = (whole[0] / whole[1].clip(1))[rows(group, group.rank)]
    return mine


def solve(group: udeck.Group) -> Cells:
    cells = restore(group)  # the method may begin anywhere
    b = sources[rows(group, group.rank)]
    r = b - multiply(group, cells)
    p, rho, iteration = r.copy(), dot(group, r, r), 0
    enough = RESIDUAL**2 * dot(group, b, b)
    while rho > enough:
        q = multiply(group, p)
        step = rho / dot(group, p, q)
        cells += step * p
        r -= step * q
        before, rho = rho, dot(group, r, r)
        p = r + rho / before * p
        iteration += 1
        if iteration % INTERVAL == 0:
            save(group, cells)
    return cells


with udeck.init() as world:
    if sys.argv[1:2] == [str(world.rank)]:
        seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
        threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    group = world.survivors()
    while True:
        try:
            cells = solve(group)
        except (udeck.PeerLost, udeck.GroupFailed):
            solved = False
        else:
            solved = True
        # The last call may have failed at some members only. All of them have the solution, or all go on.
        if world.agree(solved) == (1, group.ranks):
            break
        group = world.survivors()
    assert abs(cells - exact[1:-1, 1:-1][rows(group, group.rank)]).max() < TOLERANCE
    if group.rank == 0:
        print(f"{SIZE} x {SIZE} cells are right, on ranks {group.ranks}")
