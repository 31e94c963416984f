"""Jobs of several ranks, by the deckrun that the wheel has brought."""

import os
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

import udeck

ROOT = Path(__file__).resolve().parents[3]
#: Seconds after which a hanging job is ended.
PATIENCE = 120
#: Beginning of each program. A rank prints a line in one write, because lines of several ranks would mix otherwise.
PROLOGUE = """import numpy, os, signal, sys, time, threading
import udeck
# A shell makes programs in the background ignore SIGINT, and Python keeps that.
signal.signal(signal.SIGINT, signal.default_int_handler)
def print(*words, **_): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


class Job:
    """Outcome of a job."""

    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def __repr__(self):
        return f"exit code {self.code}\nstdout:\n{self.out}\nstderr:\n{self.err}"


def start(n, command, options=(), **environment):
    deckrun = Path(sysconfig.get_path("scripts")) / "deckrun"
    environment = {**os.environ, "DECK_DEADLINE": "60", **environment}
    done = subprocess.run(
        [deckrun, "-n", str(n), *options, "--", sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return Job(done)


@pytest.fixture
def job(tmp_path):
    """Runs the text of a program as a job of `n` ranks."""

    def run(n, text, options=(), **environment):
        program = tmp_path / "program.py"
        program.write_text(PROLOGUE + textwrap.dedent(text))
        return start(n, [program], options, **environment)

    return run


@pytest.fixture
def example():
    def run(n, name, *arguments, **environment):
        return start(n, [ROOT / "examples/python" / name, *arguments], **environment)

    return run


@pytest.fixture(scope="session")
def world():
    # The process ends with the tests: a rank joins its job only once.
    return udeck.init()


@pytest.fixture
def ends(world, request):
    """A mailbox of the test's own, and a postbox to it."""
    name = request.node.name
    with world.mailbox(name) as inbox, world.postbox(name) as out:
        yield inbox, out
