"""Ping-pong and all-reduce of numpy arrays between two ranks, by udeck, mpi4py, or multiprocessing.

    deckrun -n 2 -- python pingpong.py udeck
    mpiexec -n 2 python pingpong.py mpi4py
    python pingpong.py multiprocessing

Each line: the loop, bytes, and microseconds one way (of an all-reduce, for the call), the median of rounds. In all of them the sender
has its data in an array of its own, and the receiver reads where it got them (mpi4py: in its buffer; udeck: where they lie).
"""

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


def echo(inbox, out, counts):
    for count in counts:
        for _ in range(count):
            out.put(inbox.get())


def queues():
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    for size, loops in SIZES.items():
        loops = max(loops // 10, 6)
        counts = [max(loops // 10, 2)] + [max(loops // ROUNDS, 2)] * ROUNDS
        to, back = context.Queue(), context.Queue()
        other = context.Process(target=echo, args=(to, back, counts))
        other.start()
        data = numpy.ones(size // 8)

        def pingpong(n):
            for _ in range(n):
                to.put(data)
                back.get()

        report(0, "pingpong", size, loops, pingpong, lambda: None, 2)
        other.join()


if __name__ == "__main__":
    {"udeck": udeck_rank, "mpi4py": mpi_rank, "multiprocessing": queues}[sys.argv[1]]()
