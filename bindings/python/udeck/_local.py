"""Several ranks from a notebook, as processes that deckrun starts."""

from __future__ import annotations

import importlib
import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from multiprocessing import spawn
from pathlib import Path
from typing import Any, TypeVar

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


def _main_module(job: bytes) -> dict[str, str]:
    """Returns where ranks find the job's names from the program's own module, in multiprocessing's form."""
    if b"__main__" not in job and b"__mp_main__" not in job:
        return {}
    where = {key: value for key, value in spawn.get_preparation_data("udeck").items() if key.startswith("init_main")}
    if not where:
        raise TypeError("ranks cannot read definitions of an interactive session, which are in no file: install cloudpickle")
    return where


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

    Raises RuntimeError with a rank's traceback if the rank raises; TypeError if the function cannot be pickled; FileNotFoundError without
    deckrun; and subprocess.TimeoutExpired.
    """
    if _is_loading_main:
        raise RuntimeError(
            'run_local() was called while a rank loads the script: put the call under `if __name__ == "__main__":`, or install cloudpickle'
        )
    pickler = _pickler()
    try:
        job = pickler.dumps((function, args))
        where = _main_module(job) if pickler is pickle else {}
    except Exception as error:
        raise TypeError(
            f"{function!r} cannot be pickled ({error}): put it into a module, or install cloudpickle"
        ) from error
    with tempfile.TemporaryDirectory(prefix="udeck-") as folder:
        (Path(folder) / "job").write_bytes(job)
        (Path(folder) / "main").write_bytes(pickle.dumps(where))
        command = [_deckrun(), "-n", str(n), "--", sys.executable, "-m", "udeck._rank", folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(command, env=environment, timeout=timeout, stdin=subprocess.DEVNULL, check=False)
        files = [Path(folder) / str(rank) for rank in range(n)]
        ends = [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]
        # The first failure explains why the others returned nothing.
        for rank, end in enumerate(ends):
            if end and end[0]:
                raise RuntimeError(f"rank {rank} of {n}: {end[1]}")
        values = [end[1] for end in ends if end]
        if len(values) < n:
            rank = ends.index(None)
            raise RuntimeError(f"rank {rank} of {n} returned nothing; deckrun ended with {done.returncode}")
        return values
