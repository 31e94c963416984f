"""Ranks that `run_local` starts from a program."""

import os
import subprocess
import sys
import sysconfig

import numpy
import pytest
from conftest import PATIENCE

import udeck


def rank_and_sum(world, array):
    mine = array * (world.rank + 1)
    world.all().allreduce(mine)
    return world.rank, mine


class Refused(Exception):
    """An exception of a program."""


class Unreadable(Exception):
    """An exception whose pickle cannot be read: its constructor wants more than its text."""

    def __init__(self, text, more):
        super().__init__(text)


def fails(world, how):
    inbox = world.mailboxes("failures")
    if world.rank == 1:
        if how == "refused":
            raise Refused("no way", 7)
        if how == "unreadable":
            raise Unreadable("no way", 7)
        if how == "exit":
            sys.exit("no way")
    inbox.expect(1)
    inbox.retrieve()


def test_run_local_returns_what_the_ranks_did(monkeypatch):
    results = udeck.run_local(3, rank_and_sum, numpy.ones(4), timeout=60)
    assert [rank for rank, _ in results] == [0, 1, 2] and all((array == 6).all() for _, array in results)
    # The test behaves as if cloudpickle were not installed.
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match="cloudpickle"):
        udeck.run_local(2, lambda world: (yield), timeout=60)


def test_run_local_raises_the_ranks_own_exception():
    with pytest.raises(Refused) as caught:
        udeck.run_local(2, fails, "refused", timeout=60)
    cause = caught.value.__cause__
    assert caught.value.args == ("no way", 7)
    assert isinstance(cause, udeck.RankFailed) and cause.rank == 1
    text = str(cause)
    assert text.startswith("rank 1 of 2 raised") and 'raise Refused("no way", 7)' in text and "line " in text, text


def test_run_local_raises_the_first_of_several_failures(monkeypatch, tmp_path):
    # deckrun would end the other ranks, and they would say nothing.
    launcher = tmp_path / "deckrun"
    launcher.write_text(f'#!/bin/sh\nexec {sysconfig.get_path("scripts")}/deckrun --on-failure continue "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("DECKRUN", str(launcher))
    with pytest.raises(Refused) as caught:
        udeck.run_local(3, fails, "refused", timeout=60)
    lines = sorted(str(caught.value.__cause__).splitlines()[-2:])
    assert [line.split(":")[0] for line in lines] == ["rank 0 failed later", "rank 2 failed later"], lines
    assert all("PeerLost" in line for line in lines), lines


@pytest.mark.parametrize("how", ["unreadable", "exit"])
def test_run_local_names_the_rank_of_what_cannot_be_raised_here(how):
    with pytest.raises(udeck.RankFailed, match="rank 1 of 2 raised(.|\n)*no way") as caught:
        udeck.run_local(2, fails, how, timeout=60)
    assert caught.value.rank == 1 and isinstance(caught.value, RuntimeError)


def ends_at_once(_world):
    os._exit(3)


def test_run_local_names_a_rank_without_a_result():
    with pytest.raises(udeck.Error) as caught:
        udeck.run_local(1, ends_at_once, timeout=60)
    assert caught.value.rank == 0 and "rank 0 returned no result" in str(caught.value), caught.value


SCRIPT = """
import sys
import udeck

class Found:
    def __init__(self, rank):
        self.rank = rank

def find(world, most):
    return Found(min(world.rank, most))

def main():
    print([found.rank for found in udeck.run_local(3, find, 1, timeout=60)])
"""


def run_script(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_run_local_runs_what_a_script_defines(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + 'if __name__ == "__main__":\n    main()\n')
    done = run_script(script)
    assert done.returncode == 0 and done.stdout == "[0, 1, 1]\n", done
    # Each rank would start ranks of its own.
    script.write_text(SCRIPT + "main()\n")
    done = run_script(script)
    assert done.returncode != 0 and 'under `if __name__ == "__main__":`' in done.stderr, done
    # Ranks need a file.
    done = run_script("-c", SCRIPT + "main()\n")
    assert done.returncode != 0 and "install cloudpickle" in done.stderr.splitlines()[-1], done
