"""Several ranks from a notebook, as processes that deckrun starts."""

from __future__ import annotations

import importlib
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path
from typing import Any, TypeVar

from ._errors import RankFailed
from ._failure import Failure, restore
from ._folder import JobFolder

_R = TypeVar("_R")


def _pickler() -> Any:
    """Returns cloudpickle, which pickles functions of a notebook, if it is installed; otherwise pickle."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def _deckrun() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "deckrun"
    found = os.environ.get("DECKRUN") or (str(beside) if beside.exists() else shutil.which("deckrun"))
    if not found:
        raise FileNotFoundError("deckrun was not found beside Python or on PATH: set DECKRUN to its path")
    return found


#: Whether this process is a rank that is loading the program's own module.
_is_loading_main = False


def _main_module() -> dict[str, str]:
    """Returns where ranks find the program's own module, in multiprocessing's form. Empty: it is in no file."""
    return {key: value for key, value in spawn.get_preparation_data("udeck").items() if key.startswith("init_main")}


def _main_module_of(job: bytes) -> dict[str, str]:
    """Returns where ranks find the job's names from the program's own module."""
    if b"__main__" not in job and b"__mp_main__" not in job:
        return {}
    where = _main_module()
    if not where:
        raise TypeError("ranks cannot read definitions of an interactive session, which are in no file: install cloudpickle")
    return where


def _refuse_while_loading(call: str) -> None:
    """Refuses to start ranks in a rank that is loading the program: each of them would start ranks again."""
    if _is_loading_main:
        raise RuntimeError(
            f'{call} was called while a rank loads the script: put the call under `if __name__ == "__main__":`, or install cloudpickle'
        )


def _command(folder: Path, job: bytes, where: dict[str, str], n: int, *options: str) -> tuple[list[str], dict[str, str]]:
    """Writes the job into the folder, and returns deckrun's command for its `n` ranks, and their environment."""
    (folder / "job").write_bytes(job)
    (folder / "main").write_bytes(pickle.dumps(where))
    command = [_deckrun(), "-n", str(n), *options, "--", sys.executable, "-m", "udeck._rank", str(folder)]
    return command, {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _load_main(where: dict[str, str]) -> None:
    """Loads the program's module in a rank, under another name, so that it does not run everything again."""
    global _is_loading_main
    _is_loading_main = True
    try:
        spawn.prepare(where)
    finally:
        _is_loading_main = False


def run_local(n: int, function: Callable[..., _R], *args: Any, timeout: float | None = None) -> list[_R]:
    """Runs ``function(world, *args)`` in `n` new processes, each a rank, and returns their results, by rank.

    The function and its arguments are pickled: a function of a module or of a script or, if cloudpickle is installed, of a notebook. A
    script calls run_local() under ``if __name__ == "__main__":``, because the ranks load the script, too. Waits until all ranks have
    ended. `timeout`: seconds for the whole call; None: no limit.

    Raises the exception that a rank raised, in its own type. Its `__cause__` is a RankFailed with the rank's number (`rank`) and
    traceback. If several ranks fail, the first one's exception is raised (PeerLost, MailboxGone, NobodyLeft and RankFinished, which tell
    of other ranks, only if no rank raised another one), and the cause names the others. Raises RankFailed itself if
    the exception cannot be pickled, is no Exception (as sys.exit()), or if a rank ended without a result; TypeError if the function
    cannot be pickled; FileNotFoundError without deckrun; and subprocess.TimeoutExpired.
    """
    _refuse_while_loading("run_local()")
    pickler = _pickler()
    try:
        job = pickler.dumps((function, args))
        where = _main_module_of(job) if pickler is pickle else {}
    except Exception as error:
        raise TypeError(
            f"{function!r} cannot be pickled ({error}): put it into a module, or install cloudpickle"
        ) from error
    with JobFolder() as folder:
        command, environment = _command(folder.path, job, where, n)
        done = subprocess.run(
            command, env=environment, timeout=timeout, stdin=subprocess.DEVNULL, pass_fds=[folder.lock], check=False
        )
        files = [folder.path / str(rank) for rank in range(n)]
        ends: list[Any] = [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]
        failed = sorted(
            ((rank, end) for rank, end in enumerate(ends) if isinstance(end, Failure)),
            key=lambda one: (one[1].tells_of_another, one[1].caught_at),
        )
        if failed:
            # The first failure explains the others, which often come of it. A rank that leaves a `with` block by its exception is lost
            # to the others before the exception is caught, so theirs may be caught earlier.
            (rank, first), *others = failed
            raise restore(first, rank, n, others)
        if None in ends:
            silent = [rank for rank, end in enumerate(ends) if end is None]
            who = "rank" if len(silent) == 1 else "ranks"
            missing = RankFailed(
                f"{who} {', '.join(map(str, silent))} returned no result, of {n}; deckrun ended with {done.returncode}, and wrote why to "
                "stderr"
            )
            missing.rank = silent[0]
            raise missing
        return [end[0] for end in ends]
