"""Tensors of torch and JAX on the CPU: which are shared, and which are copied. Without a framework its tests are skipped."""

import numpy
import pytest


SIZE = 100_000


@pytest.fixture
def ends(world, request):
    with world.mailbox(request.node.name, objects=True) as inbox, world.postbox(request.node.name) as out:
        yield inbox, out


@pytest.fixture
def received(ends):
    inbox, out = ends
    out.post(numpy.arange(SIZE, dtype="f4"))
    return inbox.retrieve()


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason="jax is not installed")


def test_torch_takes_received_arrays_without_a_copy(torch, ends, received):
    for take in [torch.from_dlpack, torch.as_tensor]:
        assert take(received).data_ptr() == received.ctypes.data
    tensor = torch.from_dlpack(received)
    del received
    # The tensor keeps the message, whose memory is not written again.
    inbox, out = ends
    for _ in range(5):
        out.post(numpy.zeros(SIZE, dtype="f4"))
        inbox.retrieve()
    assert torch.equal(tensor, torch.arange(SIZE, dtype=torch.float32))


def test_torch_fills_message_memory(torch, world, ends):
    inbox, out = ends
    array = world.empty(SIZE, dtype="f4")
    tensor = torch.from_dlpack(array)
    assert tensor.data_ptr() == array.ctypes.data
    torch.add(torch.ones(SIZE), 1, out=tensor)
    del tensor
    copied = world.stats()["bytes_copied"]
    out.post(array)
    assert world.stats()["bytes_copied"] == copied and (inbox.retrieve() == 2).all()


def test_torch_tensors_are_posted_and_written(torch, world, ends):
    inbox, out = ends
    for tensor in [torch.arange(6.0).reshape(2, 3).T, torch.tensor(3.0), torch.ones(5, dtype=torch.complex64), torch.empty((0, 3))]:
        out.post(tensor)
        got = inbox.retrieve()
        assert got.shape == tuple(tensor.shape) and torch.equal(torch.tensor(got), tensor)
    out.post_object({"weights": torch.arange(5.0)})
    assert torch.equal(inbox.retrieve()["weights"], torch.arange(5.0))
    room = torch.zeros(5)
    out.post(numpy.full(5, 7, dtype="f4"))
    assert inbox.retrieve_into(room) == 5 and (room == 7).all()
    world.all().allreduce(room)
    world.all().broadcast(room)
    for tensor in [torch.ones(5, requires_grad=True), torch.ones(5, dtype=torch.bfloat16)]:
        with pytest.raises(TypeError, match="detach"):
            out.post(tensor)
    out.post(torch.ones(5, dtype=torch.bfloat16).view(torch.int16))
    assert (torch.tensor(inbox.retrieve()).view(torch.bfloat16) == 1).all()


def test_jax_takes_received_arrays_without_a_copy(jax, ends, received):
    array = jax.device_put(received, jax.devices("cpu")[0], may_alias=True)
    assert array.unsafe_buffer_pointer() == received.ctypes.data
    del received
    inbox, out = ends
    for _ in range(5):
        out.post(numpy.zeros(SIZE, dtype="f4"))
        inbox.retrieve()
    assert (numpy.asarray(array) == numpy.arange(SIZE)).all()


def test_jax_arrays_are_posted(jax, ends):
    inbox, out = ends
    out.post(jax.numpy.arange(1000.0))
    assert (inbox.retrieve() == numpy.arange(1000)).all()
    out.post_object({"weights": jax.numpy.arange(5.0)})
    assert list(inbox.retrieve()["weights"]) == [0, 1, 2, 3, 4]
    with pytest.raises(TypeError, match="bfloat16"):
        out.post(jax.numpy.ones(5, dtype="bfloat16"))
