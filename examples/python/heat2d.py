"""Heat on a plate whose rows are divided among the ranks: `deckrun -n 4 -- python examples/python/heat2d.py [FILE.png]`.

At each step a rank needs the rows next to its own, which its neighbours post. With a file's name (and matplotlib) rank 0 draws the
plate at the end. How the waves of the beginning decay is known exactly, so every cell is checked.
"""

import sys

import numpy
from numpy.typing import NDArray

import udeck

SIZE, STEPS, ALPHA = 240, 300, 0.2

with udeck.init() as world:
    first, last = (SIZE * rank // world.size for rank in (world.rank, world.rank + 1))
    x = numpy.arange(SIZE) + 0.5

    def wave(rows: NDArray[numpy.floating]) -> NDArray[numpy.floating]:
        return numpy.cos(numpy.pi * 2 * rows / SIZE)[:, None] * numpy.cos(numpy.pi * 3 * x / SIZE)[None, :]

    plate = numpy.zeros((last - first + 2, SIZE))  # a row of each neighbour's, and ours between
    plate[1:-1] = wave(numpy.arange(first, last) + 0.5)
    inbox = world.mailboxes("rows")
    above, below = (
        world.postbox_of("rows", rank) if 0 <= rank < world.size else None for rank in (world.rank - 1, world.rank + 1)
    )
    for _ in range(STEPS):
        # The tag says on which side of its receiver a row lies.
        if above:
            above.post(plate[1], tag=1)
        if below:
            below.post(plate[-2], tag=0)
        # At the plate's edges nothing flows.
        plate[0] = inbox.retrieve(source=world.rank - 1, tag=0) if above else plate[1]
        plate[-1] = inbox.retrieve(source=world.rank + 1, tag=1) if below else plate[-2]
        wide = numpy.pad(plate, ((0, 0), (1, 1)), mode="edge")
        middle = wide[1:-1, 1:-1]
        plate[1:-1] = middle + ALPHA * (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * middle)
    decay = 1 + 2 * ALPHA * (numpy.cos(2 * numpy.pi / SIZE) + numpy.cos(3 * numpy.pi / SIZE) - 2)
    wrong = numpy.array([(abs(plate[1:-1] - decay**STEPS * wave(numpy.arange(first, last) + 0.5)) > 1e-9).sum()])
    if world.size > 1:
        world.all().allreduce(wrong)
    if world.rank > 0:
        world.postbox("plate").post(plate[1:-1])
    else:
        rows = world.mailbox("plate")
        parts = [plate[1:-1]] + [rows.retrieve(source=rank) for rank in range(1, world.size)]
        whole = numpy.concatenate(parts)
        print(f"{STEPS} steps of {SIZE} x {SIZE} cells on {world.size} ranks: {whole.size - wrong[0]} of {whole.size} cells are right")
        if len(sys.argv) > 1:
            from matplotlib import pyplot

            pyplot.imsave(sys.argv[1], whole, cmap="inferno")
            print(f"the picture is {sys.argv[1]}")
    world.barrier()
