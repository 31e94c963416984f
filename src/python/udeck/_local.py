"""Several ranks from a notebook: processes that deckrun starts."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path


def _pickler():
    """cloudpickle, which takes functions of a notebook, if it is installed."""
    try:
        import cloudpickle
    except ImportError:
        return pickle
    return cloudpickle


def _deckrun() -> str:
    beside = Path(sysconfig.get_path("scripts")) / "deckrun"
    found = os.environ.get("DECKRUN") or (str(beside) if beside.exists() else shutil.which("deckrun"))
    if not found:
        raise FileNotFoundError("deckrun was not found beside Python or on PATH: set DECKRUN to its path")
    return found


def run_local(n: int, function, *args, timeout: float | None = None) -> list:
    """Runs ``function(world, *args)`` in `n` new processes, each a rank, and returns what they returned, by rank.

    The function and its arguments are pickled: a function of a module, or with cloudpickle installed one of a notebook. If a rank
    raises, so does this, in the words of the rank. `timeout`: seconds for all of it; None: no limit.
    """
    try:
        job = _pickler().dumps((function, args))
    except Exception as error:
        raise TypeError(
            f"{function!r} cannot be pickled ({error}): put it into a module, or install cloudpickle"
        ) from error
    with tempfile.TemporaryDirectory(prefix="udeck-") as folder:
        (Path(folder) / "job").write_bytes(job)
        command = [_deckrun(), "-n", str(n), "--", sys.executable, "-m", "udeck._local", folder]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        done = subprocess.run(command, env=environment, timeout=timeout, stdin=subprocess.DEVNULL, check=False)
        results = []
        for rank in range(n):
            file = Path(folder) / str(rank)
            if not file.exists():
                raise RuntimeError(f"rank {rank} of {n} returned nothing; deckrun ended with {done.returncode}")
            failed, value = pickle.loads(file.read_bytes())
            if failed:
                raise RuntimeError(f"rank {rank} of {n}: {value}")
            results.append(value)
        return results


def _main(folder: str) -> None:
    import traceback

    import udeck

    function, args = pickle.loads((Path(folder) / "job").read_bytes())
    world = udeck.init()
    file = Path(folder) / str(world.rank)
    try:
        value = (False, function(world, *args))
    except BaseException:
        file.write_bytes(pickle.dumps((True, traceback.format_exc())))
        raise
    file.write_bytes(_pickler().dumps(value))
    try:
        world.finish()
    except udeck.Closed:
        # The function has done so.
        pass


if __name__ == "__main__":
    _main(sys.argv[1])
