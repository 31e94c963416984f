"""Workers that a pool starts itself: a job of deckrun's, whose rank 0 passes messages on."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ._errors import RankFailed
from ._folder import JobFolder, bind, connect
from ._local import _command, _main_module, _pickler, _refuse_while_loading
from ._udeck import World
from ._workers import Event, MailboxLink, Packed, serve

#: Seconds between two looks whether deckrun has ended, while the job starts.
_LOOK = 0.2
#: Seconds that deckrun has for its end once all workers were dismissed.
_PATIENCE = 30.0
#: The same for a job without its rank 0: workers may have long tasks.
_SHORT = 2.0
_NAME = "udeck-pool"


def _play(world: World, path: str, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    """The part of a rank in a pool's job: a worker serves, and rank 0 passes on what comes by the socket at `path`."""
    if world.rank > 0:
        serve(world, _NAME, initializer, initargs)
        return
    link = MailboxLink(world, _NAME)
    wire = _Wire(connect(Path(path)))
    over = threading.Event()

    def pass_on() -> None:
        try:
            while (order := next_order()) is not None:
                rank, number, task = order
                if rank is None:
                    link.wake()
                elif number is None:
                    link.dismiss(rank)
                else:
                    link.send(rank, number, task)
        finally:
            over.set()
            link.wake()

    def next_order() -> Any:
        try:
            return wire.receive()
        except (EOFError, OSError):
            # A program that was killed has left its folder.
            shutil.rmtree(Path(path).parent, ignore_errors=True)
            # Under `--on-failure continue` the end of this rank alone would leave the workers to their tasks.
            world.abort(1, "the program that started the pool has ended")

    thread = threading.Thread(target=pass_on, name="udeck-pool-orders", daemon=True)
    thread.start()
    while not over.is_set():
        events = link.receive()
        try:
            wire.send(events)
        except OSError:
            # The thread finds the end of the program, too.
            break
    thread.join()
    link.close()


class _Wire:
    """One end of a socket that carries pickles. One thread receives; the caller orders its sends."""

    def __init__(self, end: socket.socket) -> None:
        self._connection = Connection(end.detach())

    def send(self, content: object) -> None:
        # Only this protocol takes the tasks' buffers.
        self._connection.send_bytes(pickle.dumps(content, protocol=5))

    def receive(self) -> Any:
        return pickle.loads(self._connection.recv_bytes())

    def close(self) -> None:
        self._connection.close()


class StartedLink:
    """Workers of a job that this process starts. This process is no rank of it."""

    def __init__(self, n: int, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
        _refuse_while_loading("Pool()")
        self.ranks = range(1, n + 1)
        self._wire: _Wire | None = None
        self._sending = threading.Lock()
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(JobFolder())
            self.folder = folder.path
            # Only this user can open the folder, so nobody else connects.
            self._door = stack.enter_context(socket.socket(socket.AF_UNIX))
            bind(self._door, self.folder / "pool")
            self._door.listen(1)
            self._door.settimeout(_LOOK)
            pickler = _pickler()
            try:
                job = pickler.dumps((_play, (str(self.folder / "pool"), initializer, initargs)))
            except Exception as error:
                raise TypeError(f"{initializer!r} or its arguments cannot be pickled ({error})") from error
            where = _main_module() if pickler is pickle else {}
            command, environment = _command(self.folder, job, where, n + 1, "--on-failure", "continue")
            self._deckrun = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[folder.lock])
            self._stack = stack.pop_all()

    def _started(self) -> _Wire:
        """Waits until the job's rank 0 has connected. The receiving thread calls it before any other does."""
        while self._wire is None:
            if self._deckrun.poll() is not None:
                raise self._ended()
            with contextlib.suppress(TimeoutError, socket.timeout):
                self._wire = _Wire(self._door.accept()[0])
        return self._wire

    def _ended(self) -> RankFailed:
        code = self._end(_SHORT)
        return RankFailed(f"the job of the pool's workers has ended: deckrun ended with {code}, and wrote why to stderr")

    def _end(self, patience: float) -> int:
        """Waits until the job has ended, and ends it after so many seconds. Returns deckrun's exit code."""
        for end in (self._deckrun.terminate, self._deckrun.kill):
            try:
                return self._deckrun.wait(patience)
            except subprocess.TimeoutExpired:
                end()
        return self._deckrun.wait()

    def _order(self, rank: int | None, number: int | None, task: Packed | None) -> None:
        # If the job has ended, the receiving thread says so.
        with self._sending, contextlib.suppress(OSError):
            if self._wire is not None:
                self._wire.send((rank, number, task))

    def send(self, rank: int, number: int, task: Packed) -> None:
        self._order(rank, number, task)

    def dismiss(self, rank: int) -> None:
        self._order(rank, None, None)

    def receive(self) -> list[Event]:
        wire = self._started()
        try:
            events: list[Event] = wire.receive()
        except (EOFError, OSError):
            raise self._ended() from None
        return events

    def wake(self) -> None:
        self._order(None, None, None)

    def close(self) -> None:
        with self._sending, contextlib.suppress(OSError):
            if self._wire is not None:
                self._wire.send(None)
        self._end(_PATIENCE)
        with self._sending:
            if self._wire is not None:
                self._wire.close()
                self._wire = None
        self._stack.close()
