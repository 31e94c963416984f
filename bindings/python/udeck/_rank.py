"""A rank of `run_local`, started by deckrun."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path

import udeck

from ._local import _load_main, _pickler


def _main(folder: Path) -> None:
    # The launcher sets the rank before the world exists, so an error in between is reported, too.
    file = folder / os.environ["DECK_RANK"]
    try:
        _load_main(pickle.loads((folder / "main").read_bytes()))
        function, args = pickle.loads((folder / "job").read_bytes())
        world = udeck.init()
        value = _pickler().dumps((False, function(world, *args)))
    except BaseException:
        file.write_bytes(pickle.dumps((True, traceback.format_exc())))
        raise
    file.write_bytes(value)
    try:
        world.finish()
    except udeck.Closed:
        # The function has already finished the world.
        pass


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
