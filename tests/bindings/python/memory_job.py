"""Program of test_memory.py under valgrind in several ranks: arrays of other processes, until one of these is killed."""

import asyncio
import os
import signal
import sys

import numpy

import udeck

world = udeck.init()
me, size = world.rank, world.size
others = [rank for rank in range(size) if rank != me]
inbox = world.mailboxes("job", objects=True)
outs = {rank: world.postbox_of("job", rank) for rank in others}
kept = []
# Messages: short, handed off, and in pieces; copied, moved and pickled.
for shape in [(), (3,), (100, 3), (100, 1000)]:
    for out in outs.values():
        out.post(numpy.full(shape, me))
        array = world.empty(shape)
        array[...] = me
        out.post(array)
        out.post_object({"big": numpy.full(shape, me), "rank": me})
        out.post(numpy.full(shape, me, dtype=">f8"), tag=3)
    for rank in others:
        for _ in range(2):
            got = inbox.retrieve(source=rank)
            assert got.shape == shape and (got == rank).all()
            kept.append((rank, got))
        kept.append((rank, inbox.retrieve(source=rank)["big"]))
        room = numpy.zeros(shape, dtype=">f8")
        assert udeck.select([inbox]) is inbox and inbox.retrieve_into(room, source=rank, tag=3) == room.size
        assert (room == rank).all()
    del kept[: len(kept) // 2]
kept += [(rank, numpy.from_dlpack(got)) for rank, got in kept]


async def in_tasks():
    for out in outs.values():
        await out.post_async(numpy.full(5_000, me))


# (A task that waits for a message sleeps by futex_waitv, which valgrind does not know.)
asyncio.run(in_tasks())
for rank in others:
    assert (inbox.retrieve(source=rank) == rank).all()

group = world.all()
for kind in ["?", "i4", "f8", "c8", "c16"]:
    for n in [1, 5_000, 100_000]:
        array = numpy.ones(n, dtype=kind)
        group.allreduce(array)
        part = numpy.zeros(n, dtype=kind)
        group.reduce_scatter(numpy.ones(size * n, dtype=kind), part)
        assert (array == part).all()
rows = group.allgather(numpy.full(1000, me))
assert all((rows[rank] == rank).all() for rank in range(size))
mine = numpy.zeros(1000)
group.scatter(rows.astype("f8") if me == 0 else None, mine)
assert (mine == me).all() and (group.alltoall(rows) == me).all()
after, before = (me + 1) % size, (me - 1) % size
row = numpy.zeros(5)
group.neighbours([(after, numpy.full(5, 1.0 * me))], [(before, row)])
assert (row == before).all()
part = group.split(me % 2)
part.broadcast(row, root=part.size - 1)

# Messages that a rank posted before its death are read after it.
dying = size - 1
if me == dying:
    for out in outs.values():
        out.post(numpy.full(100_000, 7))
    for _ in others:
        inbox.retrieve()
    os.kill(os.getpid(), signal.SIGKILL)
last = inbox.retrieve(source=dying)
outs[dying].post(numpy.zeros(1))
try:
    inbox.retrieve()
except udeck.PeerLost as error:
    assert error.rank == dying and error.mailbox == "job"
else:
    sys.exit("nobody was lost")
assert (last == 7).all() and all((got == rank).all() for rank, got in kept)
try:
    group.allreduce(numpy.ones(5_000))
except udeck.PeerLost as error:
    assert error.rank == dying
del last, kept
print(f"good {me}", file=sys.stderr, flush=True)
