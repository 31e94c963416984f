"""Ping-pong and all-reduce of numpy arrays between two ranks, by udeck, mpi4py, or multiprocessing.

    deckrun -n 2 -- python pingpong.py udeck
    mpiexec -bind-to core -n 2 python pingpong.py mpi4py
    python pingpong.py queue
    python pingpong.py shared_memory
    python pingpong.py copy                       (in one process: what numpy.copyto takes)

`compare.py` beside this file runs all of them. Each line: the loop, bytes, and microseconds one way (of an all-reduce, for the call), the
median of rounds. In all of them the sender has its data in an array of its own, and the receiver has a view of what it got (mpi4py: in its
buffer; udeck: where they lie; shared memory: in there). Each process has a processor of its own.
"""

import os
import statistics
import sys
import time

import numpy

SIZES = {8: 20_000, 64 << 10: 3_000, 1 << 20: 300, 64 << 20: 6}
ROUNDS = 9


def measure(which, size, loops, once, meet):
    """`once(n)` does n loops."""
    once(max(loops // 10, 2))
    times = []
    for _ in range(ROUNDS):
        meet()
        start = time.perf_counter()
        once(max(loops // ROUNDS, 2))
        times.append((time.perf_counter() - start) / max(loops // ROUNDS, 2))
    return f"{which},{size},{statistics.median(times) * 1e6:.3f}"


def udeck_rank():
    import udeck

    with udeck.init() as world:
        me = world.rank
        inbox, out, group = world.mailboxes("pp"), world.postbox_of("pp", 1 - me), world.all()
        for size, loops in SIZES.items():
            data = numpy.ones(size // 8)

            def pingpong(n):
                for _ in range(n):
                    if me == 0:
                        out.post(data)
                        inbox.retrieve()
                    else:
                        inbox.retrieve()
                        out.post(data)

            def moved(n):
                for _ in range(n):
                    if me == 0:
                        out.post(world.empty(size // 8))
                        inbox.retrieve()
                    else:
                        inbox.retrieve()
                        out.post(world.empty(size // 8))

            def allreduce(n):
                for _ in range(n):
                    group.allreduce(data)

            report(me, "pingpong", size, loops, pingpong, world.barrier, 2)
            report(me, "pingpong (world.empty, moved)", size, loops, moved, world.barrier, 2)
            data[:] = 0
            report(me, "allreduce", size, loops, allreduce, world.barrier, 1)


def report(me, which, size, loops, once, meet, ways):
    kind, bytes_, time_ = measure(which, size, loops, once, meet).rsplit(",", 2)
    if me == 0:
        print(f"{kind},{bytes_},{float(time_) / ways:.3f}", flush=True)


def mpi_rank():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    me = world.rank
    for size, loops in SIZES.items():
        data, room = numpy.ones(size // 8), numpy.empty(size // 8)

        def pingpong(n):
            for _ in range(n):
                if me == 0:
                    world.Send(data, 1)
                    world.Recv(room, 1)
                else:
                    world.Recv(room, 0)
                    world.Send(data, 0)

        def allreduce(n):
            for _ in range(n):
                world.Allreduce(MPI.IN_PLACE, data)

        report(me, "pingpong", size, loops, pingpong, world.Barrier, 2)
        data[:] = 0
        report(me, "allreduce", size, loops, allreduce, world.Barrier, 1)


def pin(nth):
    """As deckrun and mpiexec do for theirs."""
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[nth % len(processors)]})


def plan(loops, part):
    """How many loops the warm-up and each round have, where a loop takes longer."""
    loops = max(loops // part, 6)
    return loops, [max(loops // 10, 2)] + [max(loops // ROUNDS, 2)] * ROUNDS


def queue_echo(inbox, out, counts):
    pin(1)
    for count in counts:
        for _ in range(count):
            out.put(inbox.get())


def queues():
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    for size, loops in SIZES.items():
        loops, counts = plan(loops, 20)
        to, back = context.Queue(), context.Queue()
        other = context.Process(target=queue_echo, args=(to, back, counts))
        other.start()
        data = numpy.ones(size // 8)

        def pingpong(n):
            for _ in range(n):
                to.put(data)
                back.get()

        # Its first message waits for the process.
        pin(0)
        report(0, "pingpong", size, loops, pingpong, lambda: None, 2)
        other.join()


def shared_echo(names, size, mine, theirs, counts):
    from multiprocessing import shared_memory

    pin(1)
    there, here = (shared_memory.SharedMemory(name) for name in names)
    back, data = numpy.ndarray(size // 8, buffer=here.buf), numpy.ones(size // 8)
    for count in counts:
        for _ in range(count):
            mine.acquire()
            numpy.ndarray(size // 8, buffer=there.buf)
            back[:] = data
            theirs.release()
    del back
    there.close()
    here.close()


def shared_memory_and_semaphores():
    """What a program does by hand: one block for each direction, and a semaphore that says that it was filled."""
    import multiprocessing
    from multiprocessing import shared_memory

    context = multiprocessing.get_context("spawn")
    pin(0)
    for size, loops in SIZES.items():
        loops, counts = plan(loops, 1)
        there, here = (shared_memory.SharedMemory(create=True, size=size) for _ in range(2))
        theirs, mine = context.Semaphore(0), context.Semaphore(0)
        other = context.Process(target=shared_echo, args=([there.name, here.name], size, theirs, mine, counts))
        other.start()
        out, data = numpy.ndarray(size // 8, buffer=there.buf), numpy.ones(size // 8)

        def pingpong(n):
            for _ in range(n):
                out[:] = data
                theirs.release()
                mine.acquire()
                numpy.ndarray(size // 8, buffer=here.buf)

        report(0, "pingpong", size, loops, pingpong, lambda: None, 2)
        other.join()
        del out
        for block in (there, here):
            block.close()
            block.unlink()


def copies():
    """What one copy takes, in one process: who copies needs at least that."""
    pin(0)
    for size, loops in SIZES.items():
        data, room = numpy.ones(size // 8), numpy.ones(size // 8)

        def copy(n):
            for _ in range(n):
                numpy.copyto(room, data)

        report(0, "pingpong", size, loops, copy, lambda: None, 1)


WAYS = {"udeck": udeck_rank, "mpi4py": mpi_rank, "queue": queues, "shared_memory": shared_memory_and_semaphores, "copy": copies}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
