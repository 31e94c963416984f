"""Ranks that `run_local` starts from a program."""

import fcntl
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile

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


def continuing(monkeypatch, tmp_path):
    """Makes run_local's deckrun leave the other ranks alone: it would end them, and they would say nothing."""
    launcher = tmp_path / "deckrun"
    launcher.write_text(f'#!/bin/sh\nexec {sysconfig.get_path("scripts")}/deckrun --on-failure continue "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setenv("DECKRUN", str(launcher))


def test_run_local_raises_the_first_of_several_failures(monkeypatch, tmp_path):
    continuing(monkeypatch, tmp_path)
    with pytest.raises(Refused) as caught:
        udeck.run_local(3, fails, "refused", timeout=60)
    lines = sorted(str(caught.value.__cause__).splitlines()[-2:])
    assert [line.split(":")[0] for line in lines] == ["rank 0 failed, too", "rank 2 failed, too"], lines
    assert all("PeerLost" in line for line in lines), lines


def loses_its_peer(world):
    inbox = world.mailboxes("failures")
    inbox.expect(0)
    # The other rank's end of the pipe stays open until its process has ended.
    pipe = os.open(os.environ["UDECK_TEST_PIPE"], os.O_WRONLY if world.rank == 1 else os.O_RDONLY)
    if world.rank == 1:
        inbox.retrieve()
    try:
        raise Refused("no way", 7)
    finally:
        world.finish()
        # The exception leaves this function only when the other rank has failed by it.
        os.read(pipe, 1)


def test_run_local_raises_the_cause_before_what_came_of_it(monkeypatch, tmp_path):
    continuing(monkeypatch, tmp_path)
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("UDECK_TEST_PIPE", str(tmp_path / "pipe"))
    with pytest.raises(Refused) as caught:
        udeck.run_local(2, loses_its_peer, timeout=60)
    assert caught.value.__cause__.rank == 0
    last = str(caught.value.__cause__).splitlines()[-1]
    assert last.startswith("rank 1 failed, too: ") and "NobodyLeft" in last, last


@pytest.mark.parametrize("how", ["unreadable", "exit"])
def test_run_local_names_the_rank_of_what_cannot_be_raised_here(how):
    with pytest.raises(udeck.RankFailed, match="rank 1 of 2 raised(.|\n)*no way") as caught:
        udeck.run_local(2, fails, how, timeout=60)
    assert caught.value.rank == 1 and isinstance(caught.value, RuntimeError)


KILLED = """
import os, sys, time, udeck
def waits(world, pipe):
    # Until the process ends.
    os.write(os.open(pipe, os.O_WRONLY), str(os.getpid()).encode())
    time.sleep(600)
if __name__ == "__main__":
    udeck.run_local(1, waits, sys.argv[1])
"""


def left_folders(parent):
    return [path for path in parent.iterdir() if path.name.startswith("udeck-")]


def test_run_local_removes_what_a_killed_call_has_left(monkeypatch, tmp_path):
    script, pipe, temporary = tmp_path / "script.py", tmp_path / "pipe", tmp_path / "temporary"
    script.write_text(KILLED)
    os.mkfifo(pipe)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = subprocess.Popen([sys.executable, script, pipe])
    with open(pipe, "rb", buffering=0) as reads:
        rank = int(reads.read(99))
        # The job is still there without the program, and so is its folder.
        program.kill()
        program.wait()
        assert udeck.run_local(1, abs_of_rank, timeout=60) == [0]
        left = left_folders(temporary)
        os.kill(rank, signal.SIGKILL)
        assert reads.read(1) == b""
    assert len(left) == 1
    # deckrun ends after its last rank, and holds the folder until then.
    lock = os.open(left[0], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.close(lock)
    assert udeck.run_local(1, abs_of_rank, timeout=60) == [0]
    assert left_folders(temporary) == []


def abs_of_rank(world):
    return abs(world.rank)


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
