"""Collective calls of groups, through deckrun."""

import pytest


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_objects_go_to_the_members(job, transport):
    done = job(
        3,
        """
        with udeck.init() as world:
            group, me = world.all(), world.rank
            setup = {"steps": 50, "grid": numpy.arange(100_000.0)}
            got = group.bcast_object(setup if me == 1 else None, root=1)
            assert got["steps"] == 50 and (got["grid"] == setup["grid"]).all()
            assert (got["grid"] is setup["grid"]) == (me == 1)
            got["grid"][0] = me                      # the members' arrays are their own
            assert group.scatter_object(["a", None, {2}] if me == 0 else None) == ["a", None, {2}][me]
            all = group.gather_object((me, "x" * me), root=2)
            assert all == ([(0, ""), (1, "x"), (2, "xx")] if me == 2 else None)
            assert group.allgather_object({me: numpy.float32(me)}) == [{0: 0}, {1: 1}, {2: 2}]
            assert group.alltoall_object([(me, to) for to in range(3)]) == [(of, me) for of in range(3)]
            part = group.split(me % 2)
            assert part.allgather_object(me) == [[0, 2], [1]][me % 2]
            print("good")
        """,
        DECK_TRANSPORT=transport,
    )
    assert done.code == 0 and done.out.count("good") == 3, done


def test_long_buffers_of_objects_go_beside_the_pickle(job):
    done = job(
        2,
        """
        class Holder:
            def __init__(self, array): self.array = array
            def __reduce_ex__(self, protocol):
                import pickle
                return Holder, (pickle.PickleBuffer(self.array),)
        with udeck.init() as world:
            before = world.stats()["bytes_copied"]
            got = world.all().bcast_object(Holder(numpy.zeros(1 << 20)) if world.rank == 0 else None)
            # A pickle with the array in it would arrive as bytes.
            print(type(got.array).__name__, len(memoryview(got.array).cast("B")))
        """,
    )
    assert done.code == 0 and done.out.count("8388608") == 2 and "bytes" not in done.out, done


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ragged_arrays_bring_their_lengths(job, transport):
    done = job(
        3,
        """
        with udeck.init() as world:
            group, me = world.all(), world.rank
            def part(of, to=0): return numpy.full((of * 40_000 + to, 2), of + 10.0 * to)
            got = group.gatherv(part(me), root=1)
            assert (got is None) == (me != 1)
            for parts in [got] if me == 1 else []:
                assert [one.shape for one in parts] == [(0, 2), (40_000, 2), (80_000, 2)]
                assert all((one == of).all() and not one.flags.writeable for of, one in enumerate(parts))
            whole = numpy.concatenate(group.allgatherv(numpy.arange(me + 1)))
            assert whole.tolist() == [0, 0, 1, 0, 1, 2]
            mine = group.scatterv([part(2, to) for to in range(3)] if me == 2 else None, root=2)
            assert mine.shape == (80_000 + me, 2) and (mine == 2 + 10 * me).all()
            got = group.alltoallv([part(me, to)[:, 0] for to in range(3)])       # strided
            assert all(one.shape == (of * 40_000 + me,) and (one == of + 10 * me).all() for of, one in enumerate(got))
            kinds = group.allgatherv(numpy.zeros(me, dtype=["i2", "f4", "M8[us]"][me]))
            assert [str(one.dtype) for one in kinds] == ["int16", "float32", "datetime64[us]"]
            for call in [
                lambda: group.gatherv({} if me == 0 else part(1)),
                lambda: group.allgatherv(numpy.array([object()]) if me == 0 else part(1)),
                lambda: group.alltoallv([part(1)] * (3 if me else 4)),
            ]:
                try:
                    call()
                except (TypeError, ValueError, udeck.NotSent) as error:
                    print("refused", error)
            print("good")
        """,
        DECK_TRANSPORT=transport,
    )
    assert done.code == 0 and done.out.count("good") == 3 and done.out.count("refused") == 9, done
    assert done.out.count("rank 0 could not send its value: ValueError: arrays has 4 item(s): 3 member(s)") == 2, done


def test_lists_and_strided_arrays(job):
    done = job(
        3,
        """
        with udeck.init() as world:
            group, me = world.all(), world.rank
            table = numpy.zeros((4, 6))
            table[:, 1] = me
            column = table[:, 1]
            assert group.allreduce(column) is column and (table[:, 1] == 3).all() and table.sum() == 12
            table[::2, ::3] = me
            assert (group.broadcast(table[::2, ::3], root=2) == 2).all() and (table[::2, ::3] == 2).all()
            values = [me, 1]
            assert group.allreduce(values, "max") is values and values == [2, 1]
            nested = [[me, me], [me, 1]]
            group.scan(nested)
            assert nested == [[[0, 0], [0, 1]], [[1, 1], [1, 2]], [[3, 3], [3, 3]]][me]
            wide = numpy.zeros((3, 4))
            assert group.allgather([float(me), 7.0], out=wide[:, ::2]) is not None and wide.tolist() == [[k, 0, 7, 0] for k in range(3)]
            assert group.gather(numpy.arange(6.0).reshape(2, 3).T, root=1) is None or me == 1
            assert group.gather((me, me)) is None or me == 0
            out = [0, 0]
            group.scatter(list(range(6)) if me == 0 else None, out)
            assert out == [2 * me, 2 * me + 1]
            assert group.alltoall([10 * me + to for to in range(3)]).tolist() == [me, 10 + me, 20 + me]
            out = numpy.zeros(4)[::2]
            assert group.reduce_scatter([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], out) is out and out.tolist() == [6 * me + 3, 6 * me + 6]
            edge = numpy.zeros((3, 3))
            group.neighbours([((me + 1) % 3, [float(me)] * 3)], [((me - 1) % 3, edge[:, 2])])
            assert (edge[:, 2] == (me - 1) % 3).all() and (edge[:, :2] == 0).all()
            unaligned = numpy.frombuffer(bytearray(17), "u1")[1:].view("i8")
            unaligned[:] = me
            assert group.allreduce(unaligned).tolist() == [3, 3]
            mixed = [me, 1.5]
            assert (group.reduce(mixed, root=2) is mixed) if me == 2 else (type(mixed[0]) is int and group.reduce(mixed, root=2) is None)
            assert mixed == ([3, 4.5] if me == 2 else [me, 1.5]) and type(mixed[0]) is (float if me == 2 else int)
            print("good")
        """,
    )
    assert done.code == 0 and done.out.count("good") == 3, done


def test_arrays_without_elements(job):
    done = job(
        3,
        """
        with udeck.init() as world:
            group, me = world.all(), world.rank
            unaligned = numpy.frombuffer(bytearray(17), "u1")[1:1].view("f8")
            assert group.allreduce(unaligned) is unaligned and group.iallreduce(unaligned).wait() is unaligned
            assert group.reduce_scatter(unaligned, numpy.zeros(0)).shape == (0,)
            for call in [group.allreduce, group.scan, group.exscan]:
                assert call(numpy.zeros((2, 0)), op=lambda a, b: a + b).shape == (2, 0)
            assert group.reduce_scatter(numpy.zeros(0), numpy.zeros(0), op=lambda a, b: a + b).shape == (0,)
            # They overlap with nothing.
            whole, before, after = numpy.zeros(4), (me - 1) % 3, (me + 1) % 3
            group.neighbours([(after, whole[1:1]), (before, numpy.full(4, float(me)))], [(before, numpy.zeros(0)), (after, whole)])
            assert (whole == after).all()
            print("good")
        """,
    )
    assert done.code == 0 and done.out.count("good") == 3, done


def test_numbers_are_reduced_to_numbers(job):
    done = job(
        3,
        """
        with udeck.init() as world:
            group, me = world.all(), world.rank
            total = group.allreduce(me + 0.5)
            assert total == 4.5 and type(total) is float
            assert group.allreduce(me, "max") == 2 and type(group.allreduce(me)) is int
            assert group.allreduce(me == 1, "or") is True
            assert group.allreduce(1j * me) == 3j
            half = group.allreduce(numpy.float32(me))
            assert half == 3 and type(half) is numpy.float32
            assert group.reduce(me + 1, "product", root=2) == (6 if me == 2 else None)
            assert group.scan(me) == [0, 1, 3][me] and group.exscan(me + 1) == [1, 1, 3][me]
            try:
                group.allreduce(me if me else 0.5)
            except (udeck.CallMismatch, udeck.GroupFailed) as error:
                print("mismatch", error)
        """,
    )
    assert done.code == 0 and done.out.count("mismatch") == 3 and "of f64" in done.out and "of i64" in done.out, done


def test_operators_of_the_program(job):
    done = job(
        3,
        """
        import operator
        with udeck.init() as world:
            group, me = world.all(), world.rank
            array = numpy.array([me, 5.0, 2 - me])
            assert group.allreduce(array, op=numpy.maximum) is array and array.tolist() == [2, 5, 2]
            nan = numpy.array([numpy.nan if me == 1 else float(me)])
            assert numpy.isnan(group.allreduce(nan, op=numpy.maximum)).all()
            assert group.allreduce(numpy.full(2, me), op=numpy.add).tolist() == [3, 3]
            for kind in ["e", "g", "G", ">f8"]:                         # types without named operators
                assert group.allreduce(numpy.full(2, me, kind), op=numpy.add).tolist() == [3, 3]
            # not commutative: the members' order
            assert group.allreduce(numpy.array([[1, me], [0, 1]]), op=lambda a, b: a @ b).tolist() == [[1, 3], [0, 1]]
            digits = numpy.array([me + 1])
            assert group.scan(digits.copy(), op=lambda a, b: 10 * a + b).tolist() == [[1], [12], [123]][me]
            assert group.exscan(digits.copy(), op=lambda a, b: 10 * a + b).tolist() == [[1], [1], [12]][me]
            kept = digits.copy()
            got = group.reduce(kept, op=lambda a, b: 10 * a + b, root=1)
            assert (got is kept and kept[0] == 123) if me == 1 else (got is None and kept[0] == me + 1)
            out = numpy.zeros(1, int)
            group.reduce_scatter(numpy.arange(3) + me + 1, out, op=lambda a, b: 10 * a + b)
            assert out[0] == [123, 234, 345][me]
            assert group.allreduce(me + 0.5, op=lambda a, b: max(a, b)) == 2.5
            assert group.allreduce_object({me}, operator.or_) == {0, 1, 2} and group.allreduce_object(str(me)) == "012"
            assert group.allreduce_object((7 - me, me), "min") == (5, 2)
            assert group.reduce_object([me], root=1) == ([0, 1, 2] if me == 1 else None)
            for wrong in [lambda a, b: a[:1], lambda a, b: a / 0.5]:
                try:
                    group.allreduce(numpy.arange(2), op=wrong)
                except (ValueError, TypeError) as error:
                    print("wrong", error)
        """,
    )
    assert done.code == 0 and done.out.count("wrong") == 6 and "made an array of shape (1,) of arrays of shape (2,)" in done.out, done


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_requests_are_waited_for_and_tested(job, transport):
    done = job(
        3,
        """
        with udeck.init() as world:
            group, me = world.all(), world.rank
            array = numpy.full(100_000, me + 1.0)
            table = numpy.zeros((3, 2))
            table[:, 1] = me
            values = [me, 1]
            requests = [
                group.iallreduce(array),
                group.ibarrier(),
                group.ibroadcast(table[:, 1], root=2),
                group.ireduce(values, "max", root=1),
                group.iallreduce(me + 0.5, op=numpy.add),
                group.iallgather([me, me]),
                group.ialltoall(numpy.arange(3) + 10 * me),
            ]
            while not all([request.test() for request in requests]):
                pass
            got = [request.wait() for request in requests]
            assert got[0] is array and (array == 6).all() and got[1] is None
            assert (table[:, 1] == 2).all() and (table[:, 0] == 0).all()
            assert (got[3] is values and values == [2, 1]) if me == 1 else (got[3] is None and values == [me, 1])
            assert got[4] == 4.5 and type(got[4]) is float
            assert got[5].tolist() == [[0, 0], [1, 1], [2, 2]] and got[6].tolist() == [me, 10 + me, 20 + me]
            assert requests[0].wait() is array and "over" in repr(requests[0])      # the result stays
            request = group.iallreduce(numpy.ones(2))
            assert request.wait(timeout=60).tolist() == [3, 3]
            for wrong in [lambda: group.iallreduce(array, op=lambda a, b: a), lambda: group.iallreduce({}), lambda: group.ibroadcast(array, 3)]:
                try:
                    wrong()
                except (TypeError, ValueError) as error:
                    print("wrong", error)
        """,
        DECK_TRANSPORT=transport,
    )
    assert done.code == 0 and done.out.count("wrong") == 9, done
    assert done.out.count("a request takes the name of an operator") == 3, done


def test_a_request_outlasts_a_deadline(job):
    done = job(
        2,
        """
        with udeck.init() as world:
            group, inbox = world.all(), world.mailboxes("go")
            other = world.postbox_of("go", 1 - world.rank)
            if world.rank == 0:
                request = group.iallreduce(4)
                try:
                    request.wait(timeout=0)
                except udeck.Deadline as error:
                    print("late", error)
                assert not request.test() and "under way" in repr(request)
                other.post(numpy.zeros(1))
                print("got", request.wait())
            else:
                inbox.retrieve()
                print("got", group.iallreduce(5).wait())
            world.barrier()
        """,
    )
    assert done.code == 0 and done.out.count("got 9") == 2 and "late" in done.out and "all_reduce" in done.out, done


def test_a_request_outlasts_a_signal(job):
    done = job(
        2,
        """
        with udeck.init() as world:
            group, inbox = world.all(), world.mailboxes("go")
            other = world.postbox_of("go", 1 - world.rank)
            if world.rank == 0:
                request = group.iallreduce(4)
                threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                try:
                    request.wait()
                except KeyboardInterrupt:
                    print("interrupted")
                assert not request.test()
                other.post(numpy.zeros(1))
                print("got", request.wait())
            else:
                inbox.retrieve()
                print("got", group.iallreduce(5).wait())
            world.barrier()
        """,
    )
    assert done.code == 0 and done.out.count("got 9") == 2 and "interrupted" in done.out, done


def test_one_task_at_a_time_awaits_a_request(job):
    done = job(
        2,
        """
        import asyncio
        async def result(request):
            return await request
        async def main(group):
            request = group.iallreduce(4)
            tasks = [asyncio.ensure_future(result(request)) for _ in range(2)]
            (refused,), (waiting,) = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert isinstance(refused.exception(), udeck.Busy)
            for call in [request.test, request.wait]:
                try:
                    call()
                except udeck.Busy as error:
                    print("busy", error)
            waiting.cancel()
            await asyncio.wait([waiting])
            assert not request.test()                               # it is free again
            waiting = asyncio.ensure_future(result(request))
            await asyncio.sleep(0)
            out.post(numpy.zeros(1))
            assert await waiting == 9 and request.test() and request.wait() == 9
        with udeck.init() as world:
            inbox = world.mailboxes("go")
            out = world.postbox_of("go", 1 - world.rank)
            if world.rank == 0:
                asyncio.run(main(world.all()))
            else:
                inbox.retrieve()
                assert world.all().iallreduce(5).wait() == 9
            world.barrier()
            print("good")
        """,
    )
    assert done.code == 0 and done.out.count("good") == 2 and done.out.count("busy") == 2, done


def test_requests_are_awaited(job):
    done = job(
        3,
        """
        import asyncio
        async def main(group, me):
            array = numpy.full(3, me)
            first, second = group.iallreduce(array), group.iallgather(numpy.array([me]))
            ticks = asyncio.create_task(asyncio.sleep(0))
            one, other = await asyncio.gather(first, second)
            await ticks
            assert one is array and array.tolist() == [3, 3, 3] and other.tolist() == [[0], [1], [2]]
            assert (await first) is array                       # again
            if me == 0:
                late = group.ibarrier()
                try:
                    await asyncio.wait_for(late, 0.01)
                except asyncio.TimeoutError:
                    print("cancelled")
                out.post(numpy.zeros(1))
                await late                                      # it is still under way
            elif me == 1:
                await inbox.retrieve_async()
                await group.ibarrier()
            else:
                await group.ibarrier()
        with udeck.init() as world:
            inbox = world.mailboxes("go")
            out = world.postbox_of("go", 1)
            asyncio.run(main(world.all(), world.rank))
            world.barrier()
            print("good")
        """,
    )
    assert done.code == 0 and done.out.count("good") == 3 and "cancelled" in done.out, done


#: Calls in which rank 1 has an object that cannot be pickled.
UNPICKLED = [
    "bcast_object(mine, root=1)",
    "gather_object(mine, root=0)",
    "allgather_object(mine)",
    "scatter_object([7, 8, mine], root=1)",
    "alltoall_object([7, mine, 9])",
]


@pytest.mark.parametrize("call", UNPICKLED)
def test_an_object_that_cannot_be_pickled_is_named_everywhere(job, call):
    done = job(
        3,
        f"""
        with udeck.init() as world:
            group = world.all()
            mine = threading.Lock() if world.rank == 1 else world.rank
            try:
                group.{call}
            except TypeError as error:
                assert world.rank == 1
                print("own", error)
            except udeck.NotSent as error:
                assert error.rank == 1
                print("other", world.rank, error)
            assert group.allgather_object(world.rank) == [0, 1, 2]      # the group stays usable
        """,
    )
    assert done.code == 0 and done.out.count("own cannot pickle") == 1, done
    where = call.split("(")[0]
    for rank in [0, 2]:
        assert f"other {rank} {where}: rank 1 could not send its value: TypeError: cannot pickle" in done.out, done


def test_a_list_of_another_length_is_named_everywhere(job):
    done = job(
        2,
        """
        with udeck.init() as world:
            group = world.all()
            for call in [lambda: group.scatter_object([1, 2, 3]), lambda: group.alltoall_object([1] * (3 - world.rank))]:
                try:
                    call()
                except ValueError as error:
                    print(world.rank, error)
                except udeck.NotSent as error:
                    print(world.rank, error)
            assert group.allgather_object(world.rank) == [0, 1]
        """,
    )
    assert done.code == 0 and done.out.count("values has 3 item(s): 2 member(s) need one each") == 4, done


#: Calls of rank 0 and of the others that do not match, and words of the error.
DIFFERENT = {
    ("gather_object(me, root=0)", "allgather_object(me)"): ["gather_object with root 0", "allgather_object with root 0"],
    ("gather_object(me, root=0)", "gather_object(me, root=1)"): ["gather_object with root 0", "gather_object with root 1"],
    ("bcast_object(me, root=1)", "bcast_object(me)"): ["bcast_object with root 1", "bcast_object with root 0"],
    ("scatter_object([1, 2, 3], root=7)", "scatter_object([1, 2, 3], root=7)"): ["root=7: the group has 3 member(s), numbered from 0"],
}


@pytest.mark.parametrize("calls", DIFFERENT, ids=" and ".join)
def test_different_calls_are_named_everywhere(job, calls):
    one, other = calls
    done = job(
        3,
        f"""
        with udeck.init() as world:
            group, me = world.all(), world.rank
            try:
                group.{one} if me == 0 else group.{other}
            except (udeck.CallMismatch, ValueError) as error:
                print(f"rank {{me}} got {{error}}")
            assert group.allgather_object(me) == [0, 1, 2]      # the group stays usable
        """,
    )
    lines = [line for line in done.out.splitlines() if " got " in line]
    assert done.code == 0 and len(lines) == 3, done
    assert all(word in line for line in lines for word in DIFFERENT[calls]), done


def test_objects_and_another_call_do_not_match(job):
    done = job(
        3,
        """
        world = udeck.init()
        group, me = world.all(), world.rank
        try:
            group.gather_object(me) if me else group.allreduce(numpy.zeros(3))
            group.barrier()
        except (udeck.CallMismatch, udeck.GroupFailed) as error:
            print(f"rank {me} got {error}")
        world.finish()
        """,
    )
    assert done.code == 0 and done.out.count(" got ") == 3 and "all_reduce (min) of objects of Python" in done.out, done
