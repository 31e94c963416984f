"""Posted and retrieved values, in one rank."""

import array
import asyncio
import concurrent.futures
import ctypes
import functools
import gc
import importlib.util
import operator
import os
import pickle
import sys
import threading
import time

import numpy
import pytest
from numpy.ma import mrecords

import udeck


@pytest.fixture(scope="module")
def world():
    # The process ends with the tests: a rank joins its job only once.
    return udeck.init()


@pytest.fixture
def ends(world, request):
    name = request.node.name
    with world.mailbox(name) as inbox, world.postbox(name) as out:
        yield inbox, out


TYPES = ["?", "b", "B", "h", "H", "i", "I", "l", "L", "f", "d", "F", "D", "e", "g", ">f8", "S5", "U3", "M8[ns]", "i4,f8"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (4, 0, 2), (40, 50)])
def test_arrays_come_as_they_went(world, kind, shape):
    name = f"{kind} {shape}"
    array = numpy.zeros(shape, dtype=kind)
    array.reshape(-1).view(numpy.uint8)[:] = 1
    with world.mailbox(name) as inbox, world.postbox(name) as out:
        out.post(array, tag=7)
        message = inbox.retrieve_message()
        got = message.value
        assert (message.source, message.tag) == (0, 7)
        assert got.dtype == array.dtype and got.shape == array.shape
        assert got.tobytes() == array.tobytes()
        assert not got.flags.writeable


def padded(**layout):
    return numpy.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], **layout})


#: Structures, times and texts that arrive unchanged.
SURVIVORS = [
    "M8[25s]", "m8", ">M8[us]", "V3", ">U2", [("a", ">i4")], [(("title", "a"), "i4")], [("é", "i4")],
    [("a", [("x", "f4", (2, 2))]), ("b", "S3")], numpy.dtype([("a", "u1"), ("b", "f8")], align=True),
    numpy.dtype((numpy.record, [("a", "i4")])), padded(offsets=[8, 20], itemsize=32), numpy.dtype("f8", metadata={"of": "h5py"}),
]  # fmt: skip


@pytest.mark.parametrize("kind", SURVIVORS, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (20, 30)])
def test_types_without_a_number_survive(world, kind, shape):
    name = f"{kind} {shape}"
    array, moved = numpy.zeros(shape, dtype=kind), world.zeros(shape, dtype=kind)
    assert moved.dtype == array.dtype and moved.shape == shape
    with world.mailbox(name) as inbox, world.postbox(name) as out:
        for posted in [array, moved]:
            out.post(posted)
            got = inbox.retrieve()
            assert got.dtype == array.dtype and got.shape == shape


def others():
    """Types without a text in numpy, or whose text is that of another type."""
    yield "V0", "0 bytes"
    yield "S0", "0 bytes"
    yield [], "0 bytes"
    yield [("a", "V0")], "0 bytes"
    yield padded(offsets=[2, 0]), "repack_fields"
    yield padded(offsets=[0, 2]), "repack_fields"
    if hasattr(getattr(numpy, "dtypes", None), "StringDType"):
        yield numpy.dtypes.StringDType(), "post_object"
    if importlib.util.find_spec("ml_dtypes"):
        import ml_dtypes as types

        yield types.bfloat16, "view.*u2"
        yield types.float8_e5m2, "view.*u1"
        yield types.int4, "view.*u1"
        yield [("a", types.bfloat16)], "view.*V2"


@pytest.mark.parametrize(("kind", "advice"), [pytest.param(*one, id=str(one[0])) for one in others()])
def test_types_that_would_come_as_others_are_refused(world, ends, kind, advice):
    inbox, out = ends
    for shape in [(), (3,), (2, 3)]:
        # (`zeros` gives elements of S0 a length.)
        array = numpy.zeros(shape, kind) if numpy.dtype(kind).hasobject else numpy.ndarray(shape, kind, bytes(1000))
        with pytest.raises(TypeError, match=advice):
            out.post(array)
        with pytest.raises(TypeError, match=advice):
            world.empty(shape, dtype=kind)
    assert inbox.try_retrieve() is None
    room = numpy.zeros(3, dtype=kind)
    if room.dtype.itemsize and not room.dtype.hasobject:
        # Members of a group have arrays of their own, so the bytes suffice.
        world.all().broadcast(room)


def test_elements_of_a_shape_of_their_own_are_more_dimensions(world, ends):
    inbox, out = ends
    array = world.zeros(3, dtype=("f4", (2, 5)))
    assert array.shape == (3, 2, 5) and array.dtype == numpy.float32
    out.post(array)
    assert inbox.retrieve().shape == (3, 2, 5)


def test_a_mask_is_not_lost(world, ends):
    inbox, out = ends
    group = world.all()
    masked = numpy.ma.masked_array([1.0, 2.0, 3.0], mask=[True, False, False])
    record = numpy.ma.array([(1, 2.0)], mask=[(0, 1)], dtype="i4,f8").view(mrecords.MaskedRecords)
    for array in [masked, masked[1:], numpy.ma.masked, record]:
        for use in [out.post, inbox.retrieve_into, group.allreduce, group.broadcast, group.allgather]:
            with pytest.raises(TypeError, match="filled"):
                use(array)
        with pytest.raises(TypeError, match="filled"):
            asyncio.run(out.post_async(array))
    assert inbox.try_retrieve() is None
    out.post(masked.filled(0))
    assert list(inbox.retrieve()) == [0, 2, 3]


def test_strided_arrays_are_posted_in_c_order(ends):
    inbox, out = ends
    for array in [numpy.arange(60000.0).reshape(200, 300).T, numpy.arange(20)[::-2], numpy.arange(6).reshape(2, 3).T]:
        out.post(array)
        assert (inbox.retrieve() == array).all()


@pytest.mark.parametrize("value", [b"bytes", bytearray(b"more"), memoryview(b"view"), numpy.float32(3)])
def test_anything_with_the_buffer_protocol(ends, value):
    inbox, out = ends
    out.post(value)
    assert inbox.retrieve().tobytes() == bytes(value)


def test_copies_are_counted(world, ends):
    def copied(post, value=None):
        before = world.stats()["bytes_copied"]
        post(world.zeros(1000) if value is None else value)
        return world.stats()["bytes_copied"] - before

    assert copied(ends[1].post) == 0 and 8000 <= copied(ends[1].post, numpy.zeros(1000)) < 8100
    assert 8000 <= copied(ends[1].post_object, numpy.zeros(1000)) < 8500 and 8 <= copied(ends[1].post, numpy.zeros(1)) < 100


def test_what_numpy_has_no_view_of_is_refused_with_words(ends):
    class Tensor:
        def __dlpack__(self, **options):
            raise BufferError("on another device")

        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(TypeError, match="Tensor.*cpu"):
        ends[1].post(Tensor())


def test_dlpack_in_and_out(ends):
    class Tensor:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    inbox, out = ends
    out.post(Tensor(numpy.arange(1000.0)))
    got = inbox.retrieve()
    again = numpy.from_dlpack(got)
    assert numpy.shares_memory(got, again) and again[999] == 999


def test_what_is_no_array_is_refused_with_words(ends):
    with pytest.raises(TypeError, match="post_object"):
        ends[1].post({"a": 1})
    with pytest.raises(TypeError, match="post_object"):
        ends[1].post(numpy.array([object()]))


def test_received_arrays_keep_their_message(ends):
    inbox, out = ends
    arrays = []
    for n in range(20):
        out.post(numpy.full(10_000, n))
        arrays.append(inbox.retrieve()[5:])
    assert [int(array[0]) for array in arrays] == list(range(20))
    with pytest.raises(ValueError, match="read-only"):
        arrays[0][0] = 1


def test_memory_of_the_world_moves(world, ends):
    inbox, out = ends
    array = world.empty((300, 400), dtype="f4")
    array[:] = 3
    copied = world.stats()["bytes_copied"]
    out.post(array)
    assert world.stats()["bytes_copied"] == copied
    got = inbox.retrieve()
    assert got.shape == (300, 400) and got.dtype == numpy.float32 and (got == 3).all()
    for use in [lambda: array[0], lambda: array + 1, lambda: array.sum(), lambda: len(array), lambda: numpy.sum(array),
                lambda: 1 // array, lambda: setattr(array, "shape", 1), lambda: hash(array),
                lambda: array.fill(1), lambda: out.post(array), lambda: array == 1, lambda: array.base,
                lambda: numpy.asarray(array).sum(), lambda: numpy.array(array), lambda: memoryview(array), lambda: bytes(array),
                lambda: numpy.frombuffer(array), lambda: numpy.nditer(array), lambda: numpy.from_dlpack(array),
                lambda: numpy.concatenate([array, array]), lambda: numpy.copyto(array, 1), lambda: numpy.add(1, 1, out=array),
                lambda: numpy.lib.stride_tricks.as_strided(array, (3,)), lambda: numpy.ndarray(3, buffer=array),
                lambda: pickle.dumps(array), lambda: inbox.retrieve_into(array), lambda: world.all().allreduce(array)]:
        with pytest.raises(udeck.ArrayPosted, match="was posted"):
            use()
    for use in [lambda: numpy.ndarray.fill(array, 1), lambda: numpy.ndarray.base.__get__(array), lambda: type(array)(),
                lambda: object.__setattr__(array, "__class__", numpy.ndarray)]:
        with pytest.raises(TypeError):
            use()
    assert repr(array) == "<array that was posted>" and not isinstance(array, numpy.ndarray)


def test_posted_arrays_leave_nothing(world, ends):
    inbox, out = ends
    array = world.zeros(10)
    kinds = [type(array), numpy.dtype("f8")]
    out.post(array)
    kinds.append(type(array))
    root = [one for one in gc.get_objects() if type(one) is kinds[0] and one.shape == (10,)]
    assert not root, "the array that lies below can write the message"
    del array
    inbox.retrieve()

    def references():
        gc.collect()
        return [sys.getrefcount(kind) for kind in kinds]

    before = references()
    for shape in [1, (2, 3), ()] * 50:
        moved = world.zeros(shape)
        copied = world.zeros(shape)
        kept = memoryview(copied)
        out.post(moved)
        out.post(copied)
        del moved, copied, kept
        inbox.retrieve()
        inbox.retrieve()
    assert references() == before


class Interface:
    """Takes an array's address without a reference to the array."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def set_first(array):
    array[0] = 666


def set_first_of_iterator(iterator):
    for element in iterator:
        element[...] = 666
        break


def set_first_of_frame(frame):
    frame.iloc[0, 0] = 666


def pandas_frame(array):
    return pytest.importorskip("pandas").DataFrame(array.reshape(-1, 1), copy=False)


#: Other holders of an array's memory, with the way in which each writes there.
HOLDERS = {
    "asarray": (numpy.asarray, set_first),
    "view of asarray": (lambda array: numpy.asarray(array)[:500], set_first),
    "of another class": (lambda array: array.view(numpy.recarray), set_first),
    "memoryview": (memoryview, set_first),
    "data": (lambda array: array.data, set_first),
    "asarray of memoryview": (lambda array: numpy.asarray(memoryview(array)), set_first),
    "frombuffer": (numpy.frombuffer, set_first),
    "from_dlpack": (lambda array: numpy.from_dlpack(array), set_first),
    "flat": (lambda array: array.flat, set_first),
    "nditer": (lambda array: numpy.nditer(array, op_flags=[["readwrite"]]), set_first_of_iterator),
    "as_strided": (lambda array: numpy.lib.stride_tricks.as_strided(array, (5,), (8,)), set_first),
    "pandas": (pandas_frame, set_first_of_frame),
    "ctypes pointer": (lambda array: array.ctypes.data_as(ctypes.POINTER(ctypes.c_double)), set_first),
    "ctypes cast": (lambda array: ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_double)), set_first),
    "ctypes from_buffer": (lambda array: (ctypes.c_double * 9).from_buffer(array), set_first),
    "as_ctypes": (numpy.ctypeslib.as_ctypes, set_first),
    "__array_interface__": (
        lambda array: numpy.asarray(Interface(__array_interface__=array.__array_interface__)), set_first
    ),
    "__array_interface__ later": (
        lambda array: Interface(__array_interface__=array[3:].__array_interface__), lambda it: set_first(numpy.asarray(it))
    ),
    "__array_struct__": (lambda array: numpy.asarray(Interface(__array_struct__=array.__array_struct__)), set_first),
    "bound method": (lambda array: array.fill, lambda fill: fill(666)),
    "bound item": (lambda array: array.__setitem__, lambda set_item: set_item(..., 666)),
    "bound resize": (lambda array: array.resize, lambda resize: resize(2000, refcheck=False)),
    "bound state": (lambda array: array.__setstate__, lambda state: state((1, (1,), numpy.dtype("f8"), False, bytes(8)))),
    "variable": (lambda array: array, set_first),
}  # fmt: skip

def by_variable(out, make):
    array = make()
    out.post(array)
    return array


def by_keyword(out, make):
    array = make()
    out.post(array=array, tag=3)
    return array


def by_tuple(out, make):
    array = make()
    (lambda *arguments: out.post(*arguments))(array)
    return array


def by_pool(out, make):
    array = make()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(out.post, array).result(60)
    return array


def by_task(out, make):
    async def post():
        array = make()
        await out.post_async(array)
        return array

    return asyncio.run(post())


#: Ways to call post. One that has a variable returns it.
POSTS = {
    "variable": by_variable,
    "keyword": by_keyword,
    "tuple": by_tuple,
    "pool": by_pool,
    "task": by_task,
    "temporary": lambda out, make: out.post(make()),
    "temporary by keyword": lambda out, make: out.post(array=make()),
    "temporary tuple": lambda out, make: out.post(*(make(),)),
    "popped": lambda out, make: out.post([make()].pop()),
    "item": lambda out, make: [out.post(one) for one in [make()]][0],
    "partial": lambda out, make: functools.partial(out.post, make())(),
    "methodcaller": lambda out, make: operator.methodcaller("post", make())(out),
    "map": lambda out, make: list(map(out.post, [make()]))[0],
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("post", POSTS)
def test_nothing_else_writes_a_message(world, holder, post):
    make, write = HOLDERS[holder]
    name, kept = f"{holder} {post}", []

    def array():
        array = world.zeros(1000)
        kept.append(make(array))
        return array

    def check(array):
        try:
            write(kept[0])
        except (ValueError, IndexError, RuntimeError):
            pass
        assert len(array) == 1000 and (array == 0).all()

    with world.mailbox(name) as inbox, world.postbox(name) as out:
        try:
            posted = POSTS[post](out, array)
        except udeck.ArrayInUse:
            # The array was recognised as a view, which is a right answer, too.
            return
        if posted is not None:
            with pytest.raises(udeck.ArrayPosted):
                posted.sum()
        check(inbox.retrieve())
        # The message's memory may now belong to another message.
        check(world.zeros(1000))


def test_one_variable_is_no_reason_for_a_copy(world, ends):
    inbox, out = ends

    def copied(post):
        before = world.stats()["bytes_copied"]
        post()
        assert (inbox.retrieve() == 0).all()
        return world.stats()["bytes_copied"] - before

    def local():
        array = world.zeros(1000)
        array.sum()
        array.fill(0)
        array[3:].copy()
        numpy.add(array, 0, out=array)
        memoryview(array).release()
        out.post(array, 5, timeout=3)

    def task():
        async def posts():
            array = world.zeros(1000)
            await out.post_async(array, tag=3)

        asyncio.run(posts())

    def pop():
        arrays = [world.zeros(1000)]
        out.post(arrays.pop())
        assert not arrays

    def parameter():
        (lambda array: out.post(array))(world.zeros(1000))

    def closure():
        array = world.zeros(1000)
        (lambda: out.post(array))()

    posts = [local, task, pop, closure]
    if sys.version_info >= (3, 11):
        # In earlier versions the caller of a function holds its arguments, too, until it returns.
        posts.append(parameter)
    for post in posts:
        assert copied(post) == 0, post
    module = "array = world.zeros(1000)\nout.post(array)"
    assert copied(lambda: exec(module, {"world": world, "out": out})) == 0


@pytest.mark.parametrize("held", [False, True])
def test_an_array_is_marked_before_its_post_waits(world, held):
    name, failed = f"marked {held}", []
    with world.mailbox(name, queue=0) as inbox, world.postbox(name) as out:
        posted = 0
        with pytest.raises(udeck.Deadline):
            while True:
                out.post(numpy.zeros(1000), timeout=0)
                posted += 1
        array = world.zeros(1000)
        kept = memoryview(array) if held else None
        with pytest.raises(udeck.Deadline):
            out.post(array, timeout=0)
        assert array.sum() == 0 and array.shape == (1000,), "it was not posted"
        array[0] = 5

        def post():
            try:
                out.post(array, timeout=60)
            except udeck.Error as error:
                failed.append(error)

        poster, end = threading.Thread(target=post, daemon=True), time.monotonic() + 60
        poster.start()
        while isinstance(array, numpy.ndarray):
            assert time.monotonic() < end, "the array is not marked while its post waits"
            time.sleep(0.001)
        for use in [lambda: numpy.asarray(array), lambda: memoryview(array), lambda: array[1:], lambda: out.post(array)]:
            with pytest.raises(udeck.ArrayPosted):
                use()
        if held:
            kept[0] = 666
        for _ in range(posted):
            inbox.retrieve()
        assert inbox.retrieve(timeout=60)[0] == 5
        poster.join(60)
        assert not failed and not poster.is_alive()


def test_memory_with_views_is_not_posted(world, ends):
    inbox, out = ends
    array = world.zeros(1000)
    part = array[10:]
    with pytest.raises(udeck.ArrayInUse, match="1 more array") as raised:
        out.post(array)
    assert raised.value.mailbox == inbox.name
    out.post(part)  # The part is copied.
    assert len(inbox.retrieve()) == 990
    del part
    out.post(array.reshape(10, 100).copy())
    assert inbox.retrieve().shape == (10, 100)
    out.post(array)
    assert inbox.retrieve().shape == (1000,)


def test_a_reshaped_array_moves_whole(world, ends):
    inbox, out = ends
    array = world.zeros(1200).reshape(3, 4, 100)
    copied = world.stats()["bytes_copied"]
    out.post(array)
    assert world.stats()["bytes_copied"] == copied
    assert inbox.retrieve().shape == (3, 4, 100)


def test_objects_with_buffers_beside(world):
    big = numpy.arange(100_000)
    with world.mailbox("objects", objects=True) as inbox, world.postbox("objects") as out:
        out.post_object({"big": big, "text": "x", "none": None, "more": [numpy.ones(3)] * 2})
        got = inbox.retrieve()
        assert (got["big"] == big).all() and got["text"] == "x" and got["more"][1][2] == 1
        # The objects are those of any pickle: writeable ones stay writeable, and are shared with nobody.
        got["big"].sort()
        got["big"][0] = got["more"][0][0] = 7
        assert got["more"][1][0] == 7 and big[0] == 0
        out.post_object([numpy.broadcast_to(big, big.shape), numpy.zeros(0)])
        fixed, none = inbox.retrieve()
        assert not fixed.flags.writeable and (fixed == big).all() and len(none) == 0
        out.post(big)
        assert (inbox.retrieve() == big).all()


def test_objects_with_views_lie_in_the_message(world):
    big = numpy.arange(100_000)
    with world.mailbox("views", objects=True, views=True) as inbox, world.postbox("views") as out:
        out.post_object({"big": big})
        got = inbox.retrieve()["big"]
        assert not got.flags.writeable and (got == big).all()
    with world.mailboxes("views", objects=True, views=True), pytest.raises(ValueError, match="objects=True"):
        world.mailbox("arrays", views=True)


def test_a_mailbox_of_arrays_refuses_pickles(ends):
    inbox, out = ends

    class Bomb:
        def __reduce__(self):
            return (os.abort, ())

    out.post_object(1)
    with pytest.raises(udeck.WrongType, match="objects=True") as raised:
        inbox.retrieve()
    assert (raised.value.rank, raised.value.mailbox) == (0, inbox.name)


def test_retrieving_into_an_array(ends):
    inbox, out = ends
    to = numpy.zeros(10)
    out.post(numpy.arange(4.0))
    assert inbox.retrieve_into(to) == 4 and list(to[:5]) == [0, 1, 2, 3, 0]
    out.post(numpy.arange(11.0))
    with pytest.raises(udeck.TooSmall, match="11 elements"):
        inbox.retrieve_into(to)
    with pytest.raises(udeck.WrongType, match="float64"):
        inbox.retrieve_into(numpy.zeros(20, dtype="f4"))
    assert len(inbox.retrieve()) == 11
    with pytest.raises(ValueError, match="read only"):
        out.post(to)
        inbox.retrieve_into(inbox.retrieve())


def test_what_does_not_fit_keeps_its_place(ends):
    inbox, out = ends
    small = numpy.zeros(1)
    for tag in [1, 2]:
        out.post(numpy.full(3, 1.0 * tag), tag=tag)
    for tag in [2, 1, 2]:
        with pytest.raises(udeck.TooSmall):
            inbox.retrieve_into(small, tag=tag)
    with pytest.raises(udeck.WrongType, match="float64"):
        inbox.retrieve_into(numpy.zeros(9, dtype=int), tag=2)
    assert [inbox.try_retrieve().tag for _ in range(2)] == [1, 2] and inbox.try_retrieve() is None


def test_no_message_is_lost_between_threads(ends):
    inbox, out = ends
    got, posted = [], 500
    over = threading.Event()

    def take():
        try:
            while len(got) < posted:
                got.append(int(inbox.retrieve(timeout=60)[0]))
        finally:
            over.set()

    def squeeze():
        while not over.is_set():
            try:
                inbox.retrieve_into(numpy.zeros(1), timeout=0)
            except udeck.Error:
                pass

    threads = [threading.Thread(target=one, daemon=True) for one in [take, squeeze, squeeze]]
    for thread in threads:
        thread.start()
    for n in range(posted):
        out.post(numpy.full(3, n))
    for thread in threads:
        thread.join(90)
    assert got == list(range(posted))


def test_source_and_tag_choose(ends):
    inbox, out = ends
    for tag in [1, 2, 3]:
        out.post(numpy.full(1, tag), tag=tag)
    assert inbox.retrieve(tag=2)[0] == 2 and inbox.retrieve(source=0)[0] == 1
    assert inbox.try_retrieve(tag=9) is None and inbox.try_retrieve().tag == 3


def test_one_of_several_mailboxes_has_a_message(world, ends):
    inbox, out = ends
    with world.mailbox("other") as other, world.postbox("other") as to_other:
        with pytest.raises(udeck.Deadline, match="other"):
            udeck.select([inbox, other], timeout=0.1)
        to_other.post(numpy.full(1, 1))
        assert udeck.select([inbox, inbox, other]) is other and other.try_retrieve().value[0] == 1
        for _ in range(2):
            out.post(numpy.zeros(3))
            to_other.post(numpy.zeros(3))
        # The two mailboxes take turns.
        order = [udeck.select([inbox, other]) for _ in range(4)]
        assert order == [inbox, other] * 2 or order == [other, inbox] * 2
        for box in order:
            box.retrieve(timeout=0)
        # A message that does not fit stays the next one, here too.
        out.post(numpy.zeros(3))
        with pytest.raises(udeck.TooSmall):
            inbox.retrieve_into(numpy.zeros(1))
        assert udeck.select([other, inbox], timeout=0) is inbox and len(inbox.retrieve()) == 3
        waiter = threading.Timer(0.3, lambda: to_other.post(numpy.zeros(1)))
        waiter.start()
        assert udeck.select((other, inbox), timeout=30) is other
        waiter.join()
        other.close()
        with pytest.raises(udeck.Closed, match="other"):
            udeck.select([inbox, other])
    with pytest.raises(ValueError, match="no mailbox"):
        udeck.select([])


def test_threads_that_select_do_not_wait_for_each_other_for_ever(world, ends):
    inbox, out = ends
    got = []

    def take(boxes):
        for _ in range(20):
            message = None
            while not message:
                try:
                    message = udeck.select(boxes, timeout=30).try_retrieve()
                except udeck.Busy:  # The other thread polls that mailbox just now.
                    pass
            got.append(message.tag)

    with world.mailbox("second") as second, world.postbox("second") as to_second:
        takers = [threading.Thread(target=take, args=(boxes,)) for boxes in ([inbox, second], [second, inbox])]
        for taker in takers:
            taker.start()
        for n in range(20):
            out.post(numpy.zeros(1), tag=n)
            to_second.post(numpy.zeros(1), tag=n + 20)
        for taker in takers:
            taker.join(60)
    assert sorted(got) == list(range(40))


def test_deadlines_name_what_was_waited_for(world, ends):
    with pytest.raises(udeck.Deadline, match="retrieving") as raised:
        ends[0].retrieve(timeout=0.25)
    assert isinstance(raised.value, TimeoutError) and raised.value.mailbox == ends[0].name
    with pytest.raises(ValueError, match="timeout"):
        ends[0].retrieve(timeout=-1)
    with pytest.raises((udeck.NoSuchMailbox, udeck.NobodyLeft)) as raised:
        world.postbox("none of that name", timeout=0.1)
    assert raised.value.mailbox == "none of that name"


def test_names_are_taken_once(world, ends):
    with pytest.raises(udeck.NameTaken) as raised:
        world.mailbox(ends[0].name)
    assert raised.value.rank == 0


def test_a_closed_end_says_so(world):
    inbox, out = world.mailbox("closed"), world.postbox("closed")
    inbox.close()
    with pytest.raises(udeck.Closed):
        inbox.retrieve()
    with pytest.raises(udeck.MailboxGone):
        out.flush()
        out.post(numpy.zeros(1))
        out.flush()
    out.close()
    with pytest.raises(udeck.Closed):
        out.post(numpy.zeros(1))


def test_other_threads_run_while_one_waits(ends):
    inbox, out = ends
    counted = 0
    waiter = threading.Thread(target=inbox.retrieve)
    waiter.start()
    # A wait that held the interpreter's lock would keep this loop from running, and the message from arriving.
    for _ in range(1000):
        counted += 1
    out.post(numpy.zeros(1))
    waiter.join(30)
    assert counted == 1000 and not waiter.is_alive()


def test_two_threads_retrieve_one_after_another(ends):
    inbox, out = ends
    got = []
    waiters = [threading.Thread(target=lambda: got.append(int(inbox.retrieve()[0]))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    for n in range(4):
        out.post(numpy.full(1, n))
    for waiter in waiters:
        waiter.join(30)
    assert sorted(got) == [0, 1, 2, 3]


class Waiting(threading.Thread):
    """A thread that waits in a call, longer than any test, and the outcome of the call."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.result = call, None
        self.start()
        time.sleep(0.2)  # After this time the thread usually waits; an earlier test covers less, and does not fail.

    def run(self):
        try:
            self.result = self.call()
        except udeck.Error as error:
            self.result = type(error)

    def ends(self):
        self.join(60)
        return self.result


def test_a_thread_that_waits_for_a_tag_keeps_nobody_from_another(ends):
    inbox, out = ends
    waiting = Waiting(lambda: inbox.retrieve_message(tag=2, timeout=600).tag)
    assert inbox.try_retrieve(tag=1) is None
    out.post(numpy.zeros(1), tag=1)
    assert inbox.retrieve_message(tag=1, timeout=60).tag == 1
    out.post(numpy.full(1, 7), tag=3)
    room = numpy.zeros(1, dtype=int)
    assert inbox.retrieve_into(room, tag=3, timeout=60) == 1 and room[0] == 7
    out.post(numpy.zeros(1), tag=4)
    assert udeck.select([inbox], timeout=60) is inbox and inbox.try_retrieve(tag=4).tag == 4
    assert waiting.is_alive()
    out.post(numpy.zeros(1), tag=2)
    assert waiting.ends() == 2


@pytest.mark.parametrize("short", [
    lambda inbox: inbox.retrieve(tag=1, timeout=0.1), lambda inbox: inbox.retrieve(timeout=0.1),
    lambda inbox: inbox.retrieve_into(numpy.zeros(1), timeout=0.1), lambda inbox: udeck.select([inbox], timeout=0.1),
])
def test_each_thread_has_its_own_deadline(ends, short):
    inbox, out = ends
    waiting = [Waiting(lambda: inbox.retrieve_message(tag=2, timeout=600).tag) for _ in range(2)]
    for _ in range(3):
        with pytest.raises(udeck.Deadline, match="to post"):
            short(inbox)
    assert all(thread.is_alive() for thread in waiting)
    for _ in waiting:
        out.post(numpy.zeros(1), tag=2)
    assert [thread.ends() for thread in waiting] == [2, 2]


def test_threads_share_a_mailbox_and_lose_nothing(ends):
    inbox, out = ends
    each, tags = 100, [1, 2, 3, None, None]
    got = []

    def take(tag):
        while True:
            try:
                message = inbox.retrieve_message(tag=tag, timeout=60)
            except udeck.Closed:
                return
            got.append((message.tag, int(message.value[0])))

    takers = [threading.Thread(target=take, args=(tag,), daemon=True) for tag in tags]
    for taker in takers:
        taker.start()
    for n in range(each):
        for tag in [1, 2, 3, 4]:
            out.post(numpy.full(1, n), tag=tag)
    out.flush()
    until = time.monotonic() + 60
    while len(got) < 4 * each and time.monotonic() < until:
        time.sleep(0.01)
    inbox.close()
    for taker in takers:
        taker.join(60)
    assert sorted(got) == sorted((tag, n) for tag in [1, 2, 3, 4] for n in range(each))


def test_a_mailbox_is_closed_beside_threads_that_wait_at_it(world):
    inbox = world.mailbox("closed beside")
    waiting = [Waiting(lambda tag=tag: inbox.retrieve(tag=tag, timeout=600)) for tag in [1, 2, None]]
    waiting.append(Waiting(lambda: udeck.select([inbox], timeout=600)))
    inbox.close()
    assert [thread.ends() for thread in waiting] == [udeck.Closed] * 4


def test_tasks_retrieve_and_post(world, ends):
    inbox, out = ends

    async def produce():
        for n in range(5):
            array = world.zeros(1000)
            array[0] = n
            await out.post_async(array)
            await asyncio.sleep(0)

    async def consume():
        seen = []
        async for value in inbox:
            seen.append(int(value[0]))
            if len(seen) == 5:
                return seen

    async def both():
        return (await asyncio.gather(consume(), produce()))[0]

    assert asyncio.run(asyncio.wait_for(both(), 30)) == [0, 1, 2, 3, 4]


def test_a_cancelled_task_loses_nothing(ends):
    inbox, out = ends

    async def cancelled():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(inbox.retrieve_async(), 0.05)
        out.post(numpy.full(1, 3))
        return await asyncio.wait_for(inbox.retrieve_async(), 30)

    assert asyncio.run(cancelled())[0] == 3
    out.post(numpy.full(1, 4))
    assert inbox.retrieve()[0] == 4


#: Wrong arguments, and the beginning of each error.
ARGUMENTS = {
    "out.post(array, tag=-1)": (ValueError, "tag=-1:"),
    "out.post(array, tag=2**32)": (ValueError, "tag=4294967296:"),
    "out.post_object(1, tag='x')": (TypeError, "tag='x':"),
    "out.post(array, timeout='x')": (TypeError, "timeout='x':"),
    "out.post([1])": (TypeError, "list is no array"),
    "inbox.retrieve(source=-1)": (udeck.NoSuchRank, "source=-1:"),
    "inbox.retrieve(source=2**70)": (udeck.NoSuchRank, "source="),
    "inbox.try_retrieve(tag=-1)": (ValueError, "tag=-1:"),
    "inbox.expect(-1)": (udeck.NoSuchRank, "ranks: rank=-1:"),
    "inbox.expect('x')": (TypeError, "ranks: rank='x':"),
    "world.postbox_of('m', -1)": (udeck.NoSuchRank, "rank=-1:"),
    "world.postbox(b'm')": (TypeError, "name=b'm':"),
    "world.mailbox('m', queue=-1)": (ValueError, "queue=-1:"),
    "world.group([7])": (udeck.NoSuchRank, "ranks: there is no rank 7"),
    "world.group([0, 0])": (ValueError, "making group"),
    "world.group('x')": (TypeError, "ranks='x': a list of ranks"),
    "world.group(0)": (TypeError, "ranks=0: a list of ranks"),
    "world.empty('x')": (TypeError, "shape='x':"),
    "world.empty(2**70)": (ValueError, "shape="),
    "world.abort(code=256)": (ValueError, "code=256:"),
    "udeck.select('x')": (TypeError, "mailboxes='x': a list of mailboxes"),
    "udeck.select([inbox, 1])": (TypeError, "mailboxes:"),
    "group.broadcast(array, root=9)": (ValueError, "root=9: the group has 1 member(s), numbered from 0"),
    "group.broadcast(array, root=-1)": (ValueError, "root=-1:"),
    "group.allreduce(array, op='mean')": (ValueError, "op='mean':"),
    "group.allreduce({})": (TypeError, "array={}: a numpy array, a list of numbers"),
    "group.allreduce((1, 2))": (TypeError, "array=(1, 2): a numpy array, a list of numbers"),
    "group.allreduce([2**70])": (TypeError, "array: numpy makes an array of objects of this list"),
    "group.allreduce([[1], [2, 3]])": (ValueError, "array: numpy makes no array of this list"),
    "group.allreduce(array, op=2)": (TypeError, "op=2: one of sum, product,"),
    "group.broadcast(3.5)": (TypeError, "array=3.5: a numpy array, a list of numbers"),
    "group.allgather({'a': 1})": (TypeError, "array={'a': 1}: an array, a list of numbers"),
    "group.allgather(array, out=array[:])": (ValueError, "out and array overlap"),
    "group.allgather(array, out=numpy.zeros(3, 'i4'))": (TypeError, "out has elements of int32, and array of float64"),
    "group.scatter(None, array)": (TypeError, "array=None: the root passes the array"),
    "group.gather(array, root=1)": (ValueError, "root=1: the group has 1 member(s)"),
    "group.reduce(array, root=1)": (ValueError, "root=1: the group has 1 member(s)"),
    "group.bcast_object(1, root=1)": (ValueError, "root=1: the group has 1 member(s)"),
    "group.gatherv({})": (TypeError, "array={}: an array, a list of numbers"),
    "group.scatterv([array] * 2)": (ValueError, "arrays has 2 item(s): 1 member(s) need one each"),
    "group.alltoall_object(3)": (TypeError, "values=3: a list with an item for each member"),
    "group.allreduce_object(1, op='mean')": (ValueError, "op='mean':"),
    "group.split('x')": (TypeError, "colour='x':"),
    "group.split(0, key=2**63)": (ValueError, "key=9223372036854775808:"),
    "group.neighbours('x', [])": (TypeError, "to='x': a list of pairs"),
    "group.neighbours([], [array])": (TypeError, "from_: a list of pairs"),
    "group.scatter(numpy.zeros(4), array)": (ValueError, "array has 4 elements, and out has 3:"),
    "group.allgather(array, out=numpy.zeros(4))": (ValueError, "out has 4 elements, and array has 3:"),
    "group.alltoall(array, out=numpy.zeros(5))": (ValueError, "array has 3 elements, and out has 5:"),
    "group.reduce_scatter(numpy.zeros(4), array)": (ValueError, "array has 4 elements, and out has 3:"),
}


@pytest.mark.parametrize("call", ARGUMENTS)
def test_an_error_names_the_argument(world, ends, call):
    inbox, out = ends
    names = {"world": world, "inbox": inbox, "out": out, "array": numpy.zeros(3), "group": world.all()}
    kind, words = ARGUMENTS[call]
    with pytest.raises(kind) as caught:
        eval(call, {**globals(), **names})
    assert str(caught.value).startswith(words) and not isinstance(caught.value, OverflowError)


class OwnThreadOnly(asyncio.SelectorEventLoop):
    """A loop that records which other threads have called it."""

    def __init__(self):
        super().__init__()
        self.strangers = set()
        self.thread = threading.get_ident()

    def call_soon_threadsafe(self, *arguments, **options):
        if threading.get_ident() != self.thread:
            self.strangers.add(threading.get_ident())
        return super().call_soon_threadsafe(*arguments, **options)


def test_no_thread_of_the_library_runs_python(ends):
    inbox, out = ends
    loop = OwnThreadOnly()

    async def waits():
        waiting = asyncio.ensure_future(inbox.retrieve_async())
        await asyncio.sleep(0)
        out.post(numpy.full(1, 5))
        return await waiting

    try:
        assert loop.run_until_complete(asyncio.wait_for(waits(), 30))[0] == 5
    finally:
        loop.close()
    assert not loop.strangers


def test_a_closed_loop_leaves_no_descriptor(ends):
    inbox, out = ends

    async def waits():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(inbox.retrieve_async(), 0.01)

    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    asyncio.run(waits())
    before = descriptors()
    for _ in range(3):
        asyncio.run(waits())
    assert descriptors() <= before


def test_busy_is_raised_by_the_await(ends):
    inbox, out = ends

    async def retrieves():
        both = asyncio.gather(inbox.retrieve_async(), inbox.retrieve_async(), return_exceptions=True)
        await asyncio.sleep(0)
        out.post(numpy.full(1, 6))
        return await asyncio.wait_for(both, 30)

    got, refused = asyncio.run(retrieves())
    assert got[0] == 6 and isinstance(refused, udeck.Busy)
    # A call that is never awaited does not take the mailbox.
    inbox.retrieve_async().close()
    out.post(numpy.full(1, 7))
    assert inbox.retrieve()[0] == 7


def test_a_task_posts_before_its_first_await(ends):
    inbox, out = ends

    async def posts():
        array = numpy.full(3, 1)
        posting = out.post_async(array, tag=4)
        array[:] = 2
        message = inbox.retrieve_message(timeout=0)
        await posting
        refused = out.post_async(object())
        with pytest.raises(TypeError, match="post_object"):
            await refused
        return message

    message = asyncio.run(posts())
    assert message.value[0] == 1 and message.tag == 4


def test_a_forked_child_can_use_nothing(world, ends):
    inbox, out = ends
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = []
        for call in [lambda: out.post(numpy.zeros(1)), lambda: inbox.retrieve(timeout=1), lambda: world.barrier(),
                     lambda: world.mailbox("child"), lambda: world.empty(100_000)]:
            try:
                call()
                words.append("it worked")
            except udeck.Error as error:
                words.append(str(error))
        os.write(writer, pickle.dumps(words))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as words:
        words = pickle.loads(words.read())
    os.waitpid(child, 0)
    assert len(words) == 5 and all("was forked" in one and "exec" in one for one in words if one != words[2]), words


def test_groups_of_one(world):
    group = world.all()
    array = numpy.arange(3.0)
    group.allreduce(array)
    assert list(array) == [0, 1, 2] and group.allgather(array).shape == (1, 3)
    with pytest.raises(ValueError, match="read only"):
        array.flags.writeable = False
        group.allreduce(array)
    with pytest.raises(TypeError, match="no xor"):
        group.allreduce(numpy.zeros(2), op="xor")
    with pytest.raises(TypeError, match="written into"):
        group.allreduce(range(3))
    memory = bytearray(16)
    group.allreduce(memory)
    with pytest.raises(ValueError, match="read only"):
        group.allreduce(bytes(16))
    with pytest.raises(ValueError, match="op="):
        group.allreduce(numpy.zeros(2), op="mean")


def test_pickled_errors_are_ordinary_exceptions():
    error = udeck.PeerLost("text")
    assert str(error) == "text" and error.rank is None and isinstance(error, udeck.Error)


@pytest.mark.parametrize("sent, kept", [("q", "l"), ("l", "q"), ("Q", "L")])
def test_equal_types_of_other_numbers_fit(ends, sent, kept):
    inbox, out = ends
    out.post(numpy.asarray(array.array(sent, [1, 2, 3])))
    room = numpy.asarray(array.array(kept, [0, 0, 0]))
    assert inbox.retrieve_into(room) == 3 and list(room) == [1, 2, 3]


def test_an_array_that_awaits_a_message_is_not_posted(world, ends):
    inbox, out = ends
    room = world.empty(2000)
    base = room.base
    free, end = sys.getrefcount(base), time.monotonic() + 60
    thread = threading.Thread(target=lambda: inbox.retrieve_into(room), daemon=True)
    thread.start()
    while sys.getrefcount(base) == free:
        assert time.monotonic() < end, "retrieve_into holds no view of its array"
        time.sleep(0.001)
    del base
    with pytest.raises(udeck.ArrayInUse):
        out.post(room)
    out.post(numpy.ones(2000))
    thread.join(60)
    assert room.sum() == 2000
