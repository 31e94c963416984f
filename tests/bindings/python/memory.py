"""Program of test_memory.py under valgrind: everything in the binding that accesses memory by address, in one rank."""

import asyncio
import sys

import numpy

import udeck


async def first_of(inbox):
    return await inbox.retrieve_async()


world = udeck.init()
kept = []
with world.mailbox("memory", objects=True) as inbox, world.postbox("memory") as out:
    # Values: short and long ones, of each kind of type, strided, of another byte order, and empty.
    for kind in ["?", "i4", "f8", "c16", ">f8", "S5", "M8[ns]", "i4,f8"]:
        for shape in [(), (0,), (3,), (2, 3), (40, 50)]:
            array = numpy.zeros(shape, dtype=kind)
            array.reshape(-1).view(numpy.uint8)[:] = 1
            out.post(array, tag=7)
            got = inbox.retrieve()
            assert got.dtype == array.dtype and got.tobytes() == array.tobytes()
    out.post(numpy.arange(600.0).reshape(20, 30).T)
    assert inbox.retrieve()[1, 1] == 31

    # Arrays longer than caches are copied past them.
    out.post(numpy.full(5_000_001, 3.0))
    assert (inbox.retrieve() == 3).all()

    # Retrieves into an array, and messages that do not fit.
    room = numpy.zeros(5)
    out.post(numpy.ones(5))
    assert inbox.retrieve_into(room) == 5
    out.post(numpy.ones(6))
    try:
        inbox.retrieve_into(room)
    except udeck.TooSmall:
        kept.append(inbox.retrieve())

    # Memory that moves, and the remainder of its array.
    for shape in [3, (30, 40)]:
        array = world.zeros(shape)
        view = array[1:]
        try:
            out.post(array)
        except udeck.ArrayInUse:
            del view
        out.post(array)
        try:
            array.sum()
        except udeck.ArrayPosted:
            kept.append(inbox.retrieve())
    unposted = world.zeros(100)

    # Objects with buffers, and DLPack.
    out.post_object({"big": numpy.arange(10_000), "small": [numpy.ones(3)] * 2})
    kept.append(inbox.retrieve()["big"])
    out.post(bytes(1000))
    kept.append(numpy.from_dlpack(inbox.retrieve()))
    out.post(numpy.full(1000, 3.0))
    kept.append(inbox.retrieve()[10:20].T)
    out.post(numpy.zeros(1))
    assert udeck.select([inbox], timeout=0) is inbox
    kept.append(asyncio.run(first_of(inbox)))
    out.post(numpy.full(3_000, 5.0))
    kept.append(inbox.retrieve_message().value)

group = world.all()
for kind in ["?", "i1", "u2", "f4", "f8", "c16"]:
    array = numpy.ones(1000, dtype=kind)
    group.allreduce(array)
    group.broadcast(array)
    group.scan(array)
    part = numpy.zeros(1000, dtype=kind)
    group.reduce_scatter(array, part)
    assert (group.allgather(array)[0] == array).all() and (group.alltoall(array) == array).all()
# Memory aligned as its elements need it, and no more.
array = numpy.ones(9, dtype="f4")[1:].view("c8")
group.allreduce(array)

# Views outlive their mailbox and their world.
world.finish()
assert [one.sum() for one in kept[:3]] == [6, 0, 0] and kept[3].sum() == 49_995_000
unposted[:] = 1
del kept[::2], unposted
kept = [one.copy() for one in kept]
print("good", len(kept), file=sys.stderr)
