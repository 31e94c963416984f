"""Retrieving and posting in tasks of asyncio, between ranks."""

import pytest


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_tasks_choose_by_source_and_tag(job, transport):
    done = job(
        3,
        """
        import asyncio

        async def posts(out):
            for tag in (1, 2):
                await out.post_object_async({"rank": world.rank, "grid": numpy.full(50_000, tag)}, tag=tag)
            try:
                out.post_object_async(lambda: 0)
            except Exception as error:
                assert "pickle" in str(error)
            else:
                raise AssertionError("a function without a name was pickled")

        async def retrieves(inbox):
            second = await inbox.retrieve_message_async(source=2, tag=2)
            assert (second.source, second.tag, second.value["rank"]) == (2, 2, 2) and (second.value["grid"] == 2).all()
            assert second.value["grid"].flags.writeable
            # A cancelled task loses no message, those that it has set aside among them.
            try:
                await asyncio.wait_for(inbox.retrieve_async(tag=9), 0.05)
            except asyncio.TimeoutError:
                pass
            assert (await inbox.retrieve_async(1, 2))["rank"] == 1
            rest = [await inbox.retrieve_message_async(tag=1) for _ in range(2)]
            assert sorted(message.source for message in rest) == [1, 2]

        with udeck.init() as world:
            if world.rank == 0:
                asyncio.run(asyncio.wait_for(retrieves(world.mailbox("box", objects=True)), 60))
                print("done")
            else:
                asyncio.run(asyncio.wait_for(posts(world.postbox("box")), 60))
            world.barrier()
        """,
        DECK_TRANSPORT=transport,
    )
    assert done.code == 0 and done.out == "done\n", done


def test_a_task_posts_an_object_when_there_is_memory(job):
    done = job(
        2,
        """
        import asyncio

        async def posts(out):
            for number in range(20):
                await out.post_object_async(numpy.full(100_000, number))

        with udeck.init() as world:
            if world.rank == 0:
                inbox = world.mailbox("box", objects=True)
                assert [int(inbox.retrieve()[-1]) for _ in range(20)] == list(range(20))
                print("done")
            else:
                asyncio.run(asyncio.wait_for(posts(world.postbox("box")), 60))
            world.barrier()
        """,
        DECK_ARENA="2M",
    )
    assert done.code == 0 and done.out == "done\n", done
