"""The binding under valgrind: nothing of udeck reads or writes memory that is not there, or that nobody has written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: Valgrind takes a hundred times as long, on a machine that is busy besides.
PATIENCE = 900


def blocks(log):
    """The errors of a log: kind, and the stacks below."""
    block = []
    for line in log.splitlines():
        words = re.sub(r"^==\d+== ?", "", line)
        if words.startswith(("--", "Warning: set address range perms")):
            continue
        if words.strip():
            block.append(words)
        elif block:
            yield "\n".join(block)
            block = []


def test_valgrind_finds_nothing_of_udeck(tmp_path):
    if not shutil.which("valgrind"):
        pytest.skip("no valgrind (Debian: valgrind)")
    log = tmp_path / "log"
    # Each object is a block of its own, so that what lies beside it is not another one's.
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "DECK_DEADLINE": "600", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        ["valgrind", "--leak-check=no", "--num-callers=40", f"--log-file={log}", sys.executable]
        + [Path(__file__).with_name("memory.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0 and "good" in done.stderr, done.stderr + log.read_text()[-4000:]
    # The interpreter and numpy have some of their own; what udeck is part of is an error.
    ours = [block for block in blocks(log.read_text()) if re.search(r"\n +(at|by) 0x.*udeck", block)]
    assert not ours, "\n\n".join(ours)
