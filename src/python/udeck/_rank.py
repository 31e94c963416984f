"""A rank of `run_local`: what deckrun starts."""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path

import udeck

from ._local import _pickler


def _main(folder: str) -> None:
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
