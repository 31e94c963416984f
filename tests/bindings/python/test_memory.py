"""The binding under valgrind: udeck neither accesses memory that does not exist, nor reads memory that was not written."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Time limit in seconds: valgrind takes a hundred times as long, on a busy machine.
PATIENCE = 900


def blocks(log):
    """Errors of a log: the kind of each, and the stacks below."""
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


def run(program, log, before=(), **more):
    """Runs a program of this folder under valgrind; %p in the name of the log is a process's number."""
    # Each object is a block of its own, so that the memory beside it belongs to no other.
    environment = {
        **os.environ,
        "PYTHONMALLOC": "malloc",
        "OPENBLAS_NUM_THREADS": "1",
        "DECK_DEADLINE": "600",
        "DECK_SETUP_TIMEOUT": "300",
        **more,
    }
    return subprocess.run(
        [*before, "valgrind", "--leak-check=no", "--num-callers=40", f"--log-file={log}"]
        + [f"--suppressions={HERE / 'valgrind.supp'}", sys.executable, HERE / program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def check(logs):
    """The interpreter and numpy have errors of their own; only those with udeck in the stack count."""
    text = "\n\n".join(log.read_text() for log in logs)
    assert "ERROR SUMMARY" in text, text[-4000:]
    ours = [block for block in blocks(text) if re.search(r"\n +(at|by) 0x.*udeck", block)]
    assert not ours, "\n\n".join(ours)


@pytest.fixture(autouse=True)
def valgrind():
    if not shutil.which("valgrind"):
        pytest.skip("no valgrind (Debian: valgrind)")


def test_valgrind_finds_nothing_of_udeck_in_one_rank(tmp_path):
    log = tmp_path / "log"
    done = run("memory.py", log)
    assert done.returncode == 0 and "good" in done.stderr, done.stderr + log.read_text()[-4000:]
    check([log])


#: Transport and number of ranks of each job. Each rank costs twenty seconds of a processor, most of them in the interpreter and in
#: numpy: with UDECK_VALGRIND=all there are more jobs.
JOBS = [("shm", 2), ("tcp", 2), ("shm", 3)]


@pytest.mark.parametrize(("transport", "ranks"), JOBS if os.environ.get("UDECK_VALGRIND") == "all" else JOBS[:1])
def test_valgrind_finds_nothing_of_udeck_in_a_job(tmp_path, transport, ranks):
    """One of the ranks is killed at the end."""
    deckrun = Path(sysconfig.get_path("scripts")) / "deckrun"
    before = [deckrun, "-n", str(ranks), "--on-failure", "continue", "--"]
    done = run("memory_job.py", tmp_path / "log.%p", before, DECK_TRANSPORT=transport)
    logs = sorted(tmp_path.glob("log.*"))
    assert done.stderr.count("good") == ranks - 1 and len(logs) == ranks, done.stdout + done.stderr
    check(logs)
