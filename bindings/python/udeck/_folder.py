"""Folders of the jobs that this process starts, in the folder for temporary files.

A lock says that a folder is in use: this process, deckrun and the ranks hold it until they end, however they end. So a job that starts
later removes what killed ones have left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Beginning of the folders' names. Each folder of such a name was locked right after it was made.
_PREFIX = "udeck-job-"
#: Upper bound of the folders that one call removes.
_MOST = 100


class JobFolder:
    """A locked folder that only this user can open. The end of its `with` block removes it.

    Nothing else does: the end of a fork of this process leaves it.
    """

    def __init__(self) -> None:
        _remove_left(Path(tempfile.gettempdir()))
        self.path, self.lock = _make()

    def __enter__(self) -> JobFolder:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.lock)


def _make() -> tuple[Path, int]:
    """Makes a folder, and returns the descriptor that holds its lock, for deckrun and the ranks to inherit."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Another process may have taken the folder for a left one before it was locked.
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            # A file system without locks leaves folders where they are.
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists():
                return path, lock
            os.close(lock)


def _remove_left(parent: Path) -> None:
    """Removes this user's folders that no process holds any more."""
    for path in list(parent.glob(f"{_PREFIX}*"))[:_MOST]:
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def bind(door: socket.socket, path: Path) -> None:
    """Binds a socket to a path of any length."""
    with _short(path) as short:
        door.bind(short)


def connect(path: Path) -> socket.socket:
    """Connects to the socket at a path of any length."""
    end = socket.socket(socket.AF_UNIX)
    with _short(path) as short:
        end.connect(short)
    return end


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Another path of the same file. The address of a socket has 107 bytes at most, which a folder for temporary files may exceed."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
