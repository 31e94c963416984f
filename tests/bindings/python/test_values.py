"""Types and shapes of posted and retrieved values, in one rank."""

import array
import asyncio
import importlib.util

import numpy
import pytest
from numpy.ma import mrecords



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


@pytest.mark.parametrize("sent, kept", [("q", "l"), ("l", "q"), ("Q", "L")])
def test_equal_types_of_other_numbers_fit(ends, sent, kept):
    inbox, out = ends
    out.post(numpy.asarray(array.array(sent, [1, 2, 3])))
    room = numpy.asarray(array.array(kept, [0, 0, 0]))
    assert inbox.retrieve_into(room) == 3 and list(room) == [1, 2, 3]
