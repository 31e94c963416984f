"""Mailboxes and postboxes: what a retrieve chooses, objects, ends, and errors that name the argument."""

import os
import pickle
import threading

import numpy
import pytest

import udeck


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
