"""Tasks of asyncio that post and retrieve, in one rank."""

import asyncio
import gc
import os
import threading

import numpy
import pytest

import udeck


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
