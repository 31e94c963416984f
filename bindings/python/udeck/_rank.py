"""A rank of `run_local`, started by deckrun."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import udeck

from ._failure import capture
from ._local import _load_main, _pickler


def _write(file: Path, end: bytes) -> None:
    """Writes how the rank ended. A rank that dies meanwhile leaves no half of a file."""
    new = file.with_suffix(".new")
    new.write_bytes(end)
    new.replace(file)


def _main(folder: Path) -> None:
    # The launcher sets the rank before the world exists, so an error in between is reported, too.
    file = folder / os.environ["DECK_RANK"]
    try:
        _load_main(pickle.loads((folder / "main").read_bytes()))
        function, args = pickle.loads((folder / "job").read_bytes())
        world = udeck.init()
        value = _pickler().dumps((function(world, *args),))
    except BaseException as error:
        _write(file, pickle.dumps(capture(error, _pickler())))
        raise
    _write(file, value)
    try:
        world.finish()
    except udeck.Closed:
        # The function has already finished the world.
        pass


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
