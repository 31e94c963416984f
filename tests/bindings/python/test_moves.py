"""Memory of arrays: what is moved into a message, what is copied, and what a received array keeps."""

import asyncio
import concurrent.futures
import ctypes
import functools
import gc
import operator
import pickle
import sys
import threading
import time

import numpy
import pytest

import udeck


def test_copies_are_counted(world, ends):
    def copied(post, value=None):
        before = world.stats()["bytes_copied"]
        post(world.zeros(1000) if value is None else value)
        return world.stats()["bytes_copied"] - before

    assert copied(ends[1].post) == 0 and 8000 <= copied(ends[1].post, numpy.zeros(1000)) < 8100
    assert 8000 <= copied(ends[1].post_object, numpy.zeros(1000)) < 8500 and 8 <= copied(ends[1].post, numpy.zeros(1)) < 100


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
