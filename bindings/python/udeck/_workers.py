"""Workers of a pool: how they serve, and how rank 0 reaches them."""

from __future__ import annotations

import collections
import contextlib
import pickle
import queue
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Union

from . import _errors as errors
from ._failure import Failure, capture
from ._local import _pickler
from ._udeck import Message, Postbox, World

#: Seconds between two looks at the ranks that have ended; the mailbox reports most of them at once.
_LOOK = 1.0


class Packed(NamedTuple):
    """A pickled value, with its long buffers beside the pickle."""

    pickled: bytes
    buffers: list[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        # A received buffer may be a memoryview, which has no pickle of its own.
        return Packed, (self.pickled, [pickle.PickleBuffer(buffer) for buffer in self.buffers])


def pack(value: object) -> Packed:
    buffers: list[Any] = []
    return Packed(_pickler().dumps(value, protocol=5, buffer_callback=buffers.append), buffers)


def unpack(packed: Packed) -> Any:
    return pickle.loads(packed.pickled, buffers=packed.buffers)


def _copied(packed: Packed) -> Packed:
    """Copies the buffers, so that what is unpacked shares no memory with what was packed."""
    raws = [pickle.PickleBuffer(buffer).raw() for buffer in packed.buffers]
    return Packed(packed.pickled, [bytes(raw) if raw.readonly else bytearray(raw) for raw in raws])


class Joined(NamedTuple):
    """A worker is ready for its first task."""

    rank: int


class Result(NamedTuple):
    """A task has ended."""

    rank: int
    #: The task's number.
    number: int
    outcome: Packed | Failure


class Lost(NamedTuple):
    """A worker will do nothing more."""

    rank: int
    why: str


Event = Union[Joined, Result, Lost]


class Link(Protocol):
    """Connection of a pool to its workers. One thread receives, others send."""

    #: Ranks of all workers.
    ranks: range

    def send(self, rank: int, number: int, task: Packed) -> None:
        """Gives a task to an idle worker. A failure comes as an event."""

    def dismiss(self, rank: int) -> None:
        """Tells an idle worker that no more tasks come."""

    def receive(self) -> list[Event]:
        """Waits for news. The list is empty after wake(), and now and then."""

    def wake(self) -> None:
        """Ends the wait in receive()."""

    def close(self) -> None:
        """Ends the link, whose workers are dismissed or lost. The receiving thread calls it."""


def run(task: Packed) -> Packed | Failure:
    """Runs a task, and returns its result or its exception."""
    try:
        function, args, options = unpack(task)
        return pack(function(*args, **options))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return capture(error, _pickler())


def serve(world: World, name: str, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    """Runs tasks at a worker until it is dismissed. Raises PeerLost or RankFinished if rank 0 ends before."""
    with world.mailboxes(name, objects=True) as tasks:
        tasks.expect(0)
        with _connect(world, name) as results:
            try:
                if initializer is not None:
                    initializer(*initargs)
                results.post_object(Joined(world.rank))
                while _serve_one(world.rank, tasks, results):
                    pass
            except BaseException as error:
                # This process may live on. If rank 0 has ended, nobody has to know.
                with contextlib.suppress(errors.Error):
                    results.post_object(Lost(world.rank, f"left the pool: {capture(error).text}"))
                raise


def _connect(world: World, name: str) -> Postbox:
    """Connects to the pool of rank 0, which may work for a long time before it makes the pool."""
    while True:
        try:
            return world.postbox(name)
        except errors.NoSuchMailbox:
            if any(rank == 0 for rank, _ in world.exited_ranks()):
                raise


def _serve_one(rank: int, tasks: Any, results: Postbox) -> bool:
    """Runs the next task. False: this worker was dismissed."""
    try:
        task = tasks.retrieve(source=0)
    except errors.Deadline:
        # Rank 0 had no task for DECK_DEADLINE.
        return True
    if task is None:
        return False
    number, packed = task
    outcome = run(packed)
    try:
        results.post_object(Result(rank, number, outcome))
    except (errors.TooLarge, errors.NoMemory) as error:
        results.post_object(Result(rank, number, capture(error)))
    return True


class MailboxLink:
    """Workers that are ranks of this job, and this is rank 0."""

    def __init__(self, world: World, name: str) -> None:
        self.ranks = range(1, world.size)
        self._world, self._name = world, name
        self._inbox = world.mailbox(name, objects=True)
        self._inbox.expect(*self.ranks)
        #: This rank's own connection to the inbox, which ends its waits.
        self._own = world.postbox(name)
        self._postboxes: dict[int, Postbox] = {}
        #: Events of posts that failed.
        self._found: collections.deque[Event] = collections.deque()
        self._left: set[int] = set()

    def _post(self, rank: int, content: object) -> Event | None:
        try:
            self._postboxes[rank].post_object(content)
            return None
        except (errors.PeerLost, errors.RankFinished, errors.MailboxGone, errors.Undelivered) as error:
            return Lost(rank, str(error))

    def send(self, rank: int, number: int, task: Packed) -> None:
        try:
            found = self._post(rank, (number, task))
        except Exception as error:
            found = Result(rank, number, capture(error))
        if found is not None:
            self._found.append(found)
            self.wake()

    def dismiss(self, rank: int) -> None:
        self._left.add(rank)
        # The program may have finished the world before.
        with contextlib.suppress(errors.Closed):
            self._post(rank, None)

    def wake(self) -> None:
        with contextlib.suppress(errors.Closed):
            self._own.post_object(None)

    def receive(self) -> list[Event]:
        message: Message[Any] | None = None
        try:
            message = self._inbox.retrieve_message(timeout=_LOOK)
        except (errors.Deadline, errors.PeerLost, errors.RankFinished, errors.NobodyLeft):
            pass
        events = self._understand(message)
        if message is None:
            events += self._ended()
        while self._found:
            events.append(self._found.popleft())
        return events

    def _understand(self, message: Message[Any] | None) -> list[Event]:
        if message is None or message.value is None:
            return []
        event: Event = message.value
        if isinstance(event, Joined):
            try:
                self._postboxes[event.rank] = self._world.postbox_of(self._name, event.rank)
            except errors.Error as error:
                return self._lose(event.rank, str(error))
        if isinstance(event, Lost):
            return self._lose(event.rank, event.why)
        return [event]

    def _ended(self) -> list[Event]:
        """Returns what is left of ranks that have ended: first their last messages, then their loss."""
        ended = self._world.exited_ranks()
        events: list[Event] = []
        while any(rank not in self._left and rank in self.ranks for rank, _ in ended):
            try:
                message = self._inbox.try_retrieve()
            except errors.PeerLost:
                # Each loss is raised once, and the rank may have ended after the look above.
                ended = self._world.exited_ranks()
                continue
            except (errors.RankFinished, errors.NobodyLeft):
                break
            if message is None:
                break
            events += self._understand(message)
        for rank, how in ended:
            events += self._lose(rank, "finished its part in the job" if how is None else how)
        return events

    def _lose(self, rank: int, why: str) -> list[Event]:
        if rank in self._left or rank not in self.ranks:
            return []
        self._left.add(rank)
        return [Lost(rank, why)]

    def close(self) -> None:
        for postbox in (*self._postboxes.values(), self._own):
            postbox.close()
        self._inbox.close()


class ThreadLink:
    """One worker, a thread: the pool of a job that has one rank."""

    ranks = range(1)

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[int, Packed] | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._events.put(Joined(0))
        threading.Thread(target=self._serve, name="udeck-pool-worker", daemon=True).start()

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            number, packed = task
            try:
                outcome = run(packed)
                if isinstance(outcome, Packed):
                    outcome = _copied(outcome)
            except (KeyboardInterrupt, Exception) as error:
                outcome = capture(error)
            self._events.put(Result(0, number, outcome))

    def send(self, _rank: int, number: int, task: Packed) -> None:
        self._tasks.put((number, _copied(task)))

    def dismiss(self, _rank: int) -> None:
        self._tasks.put(None)

    def receive(self) -> list[Event]:
        event = self._events.get()
        return [] if event is None else [event]

    def wake(self) -> None:
        self._events.put(None)

    def close(self) -> None:
        pass
