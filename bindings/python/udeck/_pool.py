"""A pool of workers: an executor whose tasks run at other ranks."""

from __future__ import annotations

import atexit
import collections
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, TypeVar

from ._errors import NobodyLeft, PeerLost
from ._failure import Failure, restore
from ._started import StartedLink
from ._udeck import World
from ._workers import Event, Joined, Link, Lost, MailboxLink, Packed, Result, ThreadLink, pack, serve, unpack

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Self

    _P = ParamSpec("_P")
_T = TypeVar("_T")

#: Numbers of the pools of a job, which all ranks make in the same order.
_pools = itertools.count()


class _Task:
    """A call that was submitted and has no result yet."""

    def __init__(self, future: Future[Any], call: tuple[Any, ...]) -> None:
        self.future, self.call = future, call
        #: Number of workers that died while they ran it.
        self.losses = 0
        self.is_begun = False


def _run_chunk(function: Callable[..., _T], chunk: tuple[tuple[Any, ...], ...]) -> list[_T]:
    return [function(*args) for args in chunk]


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(repr(error))


class Pool(Executor):
    """An executor (concurrent.futures) whose tasks run at other ranks.

    Pool(world), made by all ranks of a job, makes the ranks other than 0 workers: there the `with` block serves until rank 0 has left
    its own one, and the pool is false. Rank 0 submits. In a job of one rank, a thread is the worker::

        with udeck.init() as world, udeck.Pool(world) as pool:
            if pool:
                print(sum(pool.map(math.factorial, range(100))))

    Pool(n) starts n workers by deckrun, as run_local() does, for a program that is no rank; Pool() one for each processor of this
    process. A script makes it under ``if __name__ == "__main__":``, because the workers load the script, too.

    Each worker has one task at a time. A task's exception comes in its own type; its `__cause__`, a RankFailed, has the worker's rank
    and traceback. If a worker dies (in a job: under ``deckrun --on-failure survive``), its task is given to another one, up to
    `retries` times for each task, and then fails with PeerLost, which names the rank. Without workers, all tasks fail with NobodyLeft.

    outstanding: number of tasks without a result from which submit() waits. initializer, initargs: a call that each worker makes
    first; a worker whose call fails is lost.
    """

    def __init__(
        self,
        where: World | int | None = None,
        *,
        retries: int = 0,
        outstanding: int = 65_536,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if retries < 0:
            raise ValueError(f"retries={retries}: wanted a number from 0 on")
        if outstanding < 1:
            raise ValueError(f"outstanding={outstanding}: wanted a number from 1 on")
        self._retries, self._most = retries, outstanding
        self._world = where if isinstance(where, World) else None
        self._initializer, self._initargs = initializer, initargs
        #: Guards what follows. A task's future is set without it, because callbacks of the program run then.
        self._changed = threading.Condition()
        self._pending: collections.deque[_Task] = collections.deque()
        self._running: dict[int, tuple[int, _Task]] = {}
        self._idle: list[int] = []
        self._gone: set[int] = set()
        self._over: collections.deque[tuple[_Task, int, Packed | Failure | Exception]] = collections.deque()
        self._numbers = itertools.count()
        self._open = 0
        self._is_closing = False
        self._broken: Exception | None = None
        self._link: Link | None = None
        if self._world is None:
            self._begin(self._started(where))
            return
        self._name = f"udeck-pool-{next(_pools)}"
        if self._world.size == 1:
            if initializer is not None:
                initializer(*initargs)
            self._begin(ThreadLink())
        elif self._world.rank == 0:
            self._begin(MailboxLink(self._world, self._name))

    def _started(self, n: object) -> StartedLink:
        if n is None:
            n = len(os.sched_getaffinity(0))
        if not isinstance(n, int):
            raise TypeError(f"Pool({n!r}): wanted a world, or a number of workers")
        if n < 1:
            raise ValueError(f"Pool({n}): wanted at least one worker")
        return StartedLink(n, self._initializer, self._initargs)

    def _begin(self, link: Link) -> None:
        self._link = link
        #: A fork of this process has the pool's variables, but neither its thread nor its workers.
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._attend, args=(link,), name="udeck-pool", daemon=True)
        self._thread.start()
        # A program may end without shutdown(): its tasks are done first, as those of other executors.
        atexit.register(self.shutdown)

    def __bool__(self) -> bool:
        """Whether tasks can be submitted here. False at a worker."""
        return self._link is not None

    def __enter__(self) -> Self:
        """Returns the pool; at a worker, serves before."""
        self.serve()
        return self

    def serve(self) -> None:
        """At a worker, runs tasks until rank 0 shuts the pool down; elsewhere, does nothing. `with` calls it.

        Raises PeerLost or RankFinished if rank 0 ends without shutdown(), and what `initializer` raises.
        """
        if self._link is None and self._world is not None and not self._is_closing:
            self._is_closing = True
            serve(self._world, self._name, self._initializer, self._initargs)

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Returns the future of ``fn(*args, **kwargs)`` at a worker. They are pickled when a worker is free, by cloudpickle if it is
        installed; an error of pickling is the future's.

        Waits while there are `outstanding` tasks without a result, but not in a callback of a future. Raises RuntimeError after
        shutdown() and at a worker, and NobodyLeft if all workers are lost.
        """
        task = _Task(Future(), (fn, args, kwargs))
        self._check_process()
        try:
            with self._changed:
                self._check()
                while self._open >= self._most and threading.current_thread() is not self._thread:
                    self._changed.wait()
                    self._check()
                self._open += 1
                task.future.add_done_callback(self._count)
                self._pending.append(task)
                self._give()
        finally:
            self._settle()
        return task.future

    def map(
        self,
        fn: Callable[..., _T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[_T]:
        """Returns an iterator over ``fn(*items)``, for the items of the iterables, in their order.

        chunksize: number of calls that travel as one task. buffersize: tasks that are submitted before the first result is taken, so
        that the iterables may be endless; None: all. timeout: seconds from this call on, after which the iterator raises TimeoutError.
        An error of a call ends the iterator. What has not begun then, or when the iterator is closed, is cancelled.
        """
        if chunksize < 1:
            raise ValueError(f"chunksize={chunksize}: wanted a number from 1 on")
        if buffersize is not None and buffersize < 1:
            raise ValueError(f"buffersize={buffersize}: wanted a number from 1 on, or None")
        end = None if timeout is None else time.monotonic() + timeout
        items = zip(*iterables)
        futures: collections.deque[Future[list[_T]]] = collections.deque()

        def submit_more() -> None:
            while buffersize is None or len(futures) < buffersize:
                chunk = tuple(itertools.islice(items, chunksize))
                if not chunk:
                    return
                futures.append(self.submit(_run_chunk, fn, chunk))

        def results() -> Iterator[_T]:
            try:
                while futures:
                    values = futures[0].result(None if end is None else max(0.0, end - time.monotonic()))
                    futures.popleft()
                    submit_more()
                    yield from values
            finally:
                for future in futures:
                    future.cancel()

        submit_more()
        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Dismisses the workers when all tasks are done. No task can be submitted any more. `with` calls it.

        wait: whether to wait until then; workers that have not come yet are waited for, too. cancel_futures: whether to cancel tasks
        that have not begun.
        """
        if self._link is None or self._process != os.getpid():
            return
        with self._changed:
            self._is_closing = True
            cancelled = list(self._pending) if cancel_futures else []
            if cancel_futures:
                self._pending.clear()
            self._give()
            self._changed.notify_all()
        for task in cancelled:
            # A task that waits to be tried again has begun.
            if task.future.cancel():
                task.future.set_running_or_notify_cancel()
            else:
                task.future.set_exception(PeerLost("the worker that had this task ended, and the pool was shut down"))
        self._settle()
        if self._thread.is_alive():
            self._link.wake()
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()
            atexit.unregister(self.shutdown)

    def __repr__(self) -> str:
        with self._changed:
            if self._link is None:
                return "Pool(worker)"
            return f"Pool({len(self._link.ranks) - len(self._gone)} workers, {self._open} tasks)"

    def _check_process(self) -> None:
        # Before the lock, which another thread may have held when the process was forked.
        if self._link is not None and self._process != os.getpid():
            raise RuntimeError("this process is a fork of the one that made the pool: make a pool of its own here")

    def _check(self) -> None:
        if self._link is None:
            raise RuntimeError("this rank is a worker of the pool: rank 0 submits, under `if pool:`")
        if self._broken is not None:
            raise NobodyLeft(f"the pool has no worker any more: {self._broken}")
        if self._is_closing:
            raise RuntimeError("the pool was shut down")

    def _count(self, _done: Future[Any]) -> None:
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    # The methods below are called with the lock, except where they say otherwise.

    def _give(self) -> None:
        """Gives tasks to idle workers, and dismisses workers when there is no more work."""
        assert self._link is not None
        while self._pending and self._idle:
            task = self._pending.popleft()
            if not task.is_begun and not task.future.set_running_or_notify_cancel():
                continue
            task.is_begun = True
            rank, number = self._idle.pop(0), next(self._numbers)
            self._running[number] = (rank, task)
            try:
                self._link.send(rank, number, pack(task.call))
            except BaseException as error:
                del self._running[number]
                self._idle.insert(0, rank)
                self._over.append((task, rank, _as_exception(error)))
                if self._must_raise(error):
                    raise
        if self._is_closing and not self._pending and not self._running:
            for rank in self._idle:
                self._link.dismiss(rank)
            self._gone.update(self._idle)
            self._idle.clear()

    def _handle(self, event: Event) -> None:
        if isinstance(event, Joined):
            self._idle.append(event.rank)
        elif isinstance(event, Result):
            # A lost worker's task may have been given to another one.
            _, task = self._running.pop(event.number, (0, None))
            if task is not None:
                self._over.append((task, event.rank, event.outcome))
                self._idle.append(event.rank)
        else:
            self._lose(event)

    def _lose(self, lost: Lost) -> None:
        self._gone.add(lost.rank)
        if lost.rank in self._idle:
            self._idle.remove(lost.rank)
        for number, (rank, task) in list(self._running.items()):
            if rank != lost.rank:
                continue
            del self._running[number]
            task.losses += 1
            if task.losses <= self._retries:
                self._pending.appendleft(task)
                continue
            error = PeerLost(
                f"rank {rank}, a worker of the pool, ended while it had this task: {lost.why}; the task was given to {task.losses} "
                f"worker(s), and retries={self._retries}"
            )
            error.rank = rank
            self._over.append((task, rank, error))
        if not self._is_closing and len(self._gone) == len(self._workers()):
            self._broken = NobodyLeft(f"the last worker of the pool, rank {lost.rank}, {lost.why}")

    def _workers(self) -> range:
        assert self._link is not None
        return self._link.ranks

    def _fail_all(self, error: Exception) -> None:
        for task in (*(task for _, task in self._running.values()), *self._pending):
            if task.is_begun or task.future.set_running_or_notify_cancel():
                self._over.append((task, 0, error))
        self._running.clear()
        self._pending.clear()

    def _attend(self, link: Link) -> None:
        """The pool's thread: receives from the workers until all of them are dismissed or lost. Called without the lock."""
        try:
            while True:
                with self._changed:
                    if len(self._gone) == len(link.ranks):
                        break
                events = link.receive()
                with self._changed:
                    for event in events:
                        self._handle(event)
                    self._give()
                self._settle()
        except BaseException as error:
            with self._changed:
                self._broken = _as_exception(error)
        with self._changed:
            if self._broken is None and self._pending:
                self._broken = NobodyLeft("all workers of the pool are lost")
            if self._broken is not None:
                self._idle.clear()
                self._fail_all(self._broken)
            self._changed.notify_all()
        self._settle()
        link.close()

    def _must_raise(self, error: BaseException) -> bool:
        """Whether an error of pickling is the program's, beside the task's: a ctrl-C, but not in the pool's own thread."""
        return not isinstance(error, Exception) and threading.current_thread() is not self._thread

    def _settle(self) -> None:
        """Sets the futures of tasks that are over. Called without the lock."""
        while True:
            try:
                task, rank, end = self._over.popleft()
            except IndexError:
                return
            value: Any = None
            problem: BaseException | None = None
            error: BaseException | None = end if isinstance(end, Exception) else None
            if isinstance(end, Failure):
                error = restore(end, rank, 0 if self._link is None else self._link.ranks.stop)
            elif isinstance(end, Packed):
                try:
                    value = unpack(end)
                except BaseException as raised:
                    problem, error = raised, _as_exception(raised)
            # The future keeps the result; the task drops its arguments.
            task.call = ()
            if error is not None:
                task.future.set_exception(error)
            else:
                task.future.set_result(value)
            if problem is not None and self._must_raise(problem):
                raise problem
