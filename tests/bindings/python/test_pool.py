"""Pools: executors whose tasks run at other ranks."""

import operator
import os
import select
import subprocess
import sys
import tempfile

import numpy
import pytest
from conftest import PATIENCE

import udeck

#: What programs of several ranks need: tasks that wait for a file, with a limit that only ends a hang.
TASKS = """
import concurrent.futures, itertools, math, operator
from pathlib import Path
def square(number): return number * number
def overwrite(array):
    array[:] = 7
    return array
def refuse(number): raise LookupError("no", number)
def die_once(path):
    # The first worker that has the task dies.
    if not os.path.exists(path):
        Path(path).touch()
        os._exit(7)
    return "done by another one"
def after(path):
    for _ in range(12000):
        if os.path.exists(path):
            return "after"
        time.sleep(0.01)
    raise SystemExit("nobody made " + path)
"""


@pytest.mark.parametrize(("ranks", "transport"), [(1, "shm"), (3, "shm"), (3, "tcp")])
def test_a_job_has_a_pool(job, ranks, transport):
    done = job(
        ranks,
        TASKS
        + """
with udeck.init() as world:
    for _ in range(2):
        with udeck.Pool(world) as pool:
            if pool:
                assert list(pool.map(square, range(50))) == [n * n for n in range(50)]
                assert list(pool.map(operator.add, range(50), range(1, 40), chunksize=7)) == list(range(1, 79, 2))
                arrays = [pool.submit(numpy.multiply, numpy.full(40000, n), 2) for n in range(9)]
                for n, future in enumerate(arrays):
                    array = future.result()
                    assert (array == 2 * n).all() and array.flags.writeable
                # A task has memory of its own, and the program has that of the result.
                zeros = numpy.zeros(40000)
                assert (pool.submit(overwrite, zeros).result() == 7).all() and not zeros.any()
                try:
                    pool.submit(refuse, 3).result()
                except LookupError as error:
                    cause = error.__cause__
                    assert error.args == ("no", 3) and isinstance(cause, udeck.RankFailed) and "in refuse" in str(cause)
                    assert 0 <= cause.rank < world.size and f"rank {cause.rank} of {world.size} raised" in str(cause)
                assert isinstance(pool.submit(lambda: 1).exception(), Exception)
                assert isinstance(pool.submit(sys.exit, 3).exception(), udeck.RankFailed)
                assert list(itertools.islice(pool.map(square, itertools.count(), buffersize=3), 5)) == [0, 1, 4, 9, 16]
            else:
                try:
                    pool.submit(square, 3)
                except RuntimeError as error:
                    assert "rank 0 submits" in str(error)
        print("left", world.rank)
""",
        DECK_TRANSPORT=transport,
    )
    assert done.code == 0 and sorted(done.out.splitlines()) == sorted(f"left {rank}" for rank in range(ranks) for _ in range(2)), done


@pytest.mark.parametrize("retries", [0, 1])
def test_a_task_of_a_dead_worker_fails_or_is_given_to_another(job, tmp_path, retries):
    done = job(
        3,
        TASKS
        + f"""
with udeck.init() as world, udeck.Pool(world, retries={retries}) as pool:
    if pool:
        dies = pool.submit(die_once, {str(tmp_path / "died")!r})
        others = list(pool.map(square, range(20)))
        assert others == [n * n for n in range(20)]
        error = dies.exception()
        print(dies.result() if error is None else f"{{type(error).__name__}} of rank {{error.rank}}: {{error}}")
""",
        ["--on-failure", "continue"],
    )
    wanted = "done by another one" if retries else "PeerLost of rank "
    assert wanted in done.out and (retries or "code 7" in done.out), done


def test_without_workers_every_task_fails(job):
    done = job(
        3,
        TASKS
        + """
with udeck.init() as world, udeck.Pool(world, retries=9) as pool:
    if pool:
        error = pool.submit(os._exit, 7).exception()
        assert isinstance(error, (udeck.PeerLost, udeck.NobodyLeft)), error
        try:
            pool.submit(square, 3)
        except udeck.NobodyLeft as error:
            print(error)
""",
        ["--on-failure", "continue"],
    )
    assert "no worker any more" in done.out and "code 7" in done.out, done


def test_workers_notice_the_end_of_rank_0(job):
    done = job(
        2,
        """
        with udeck.init() as world:
            try:
                with udeck.Pool(world) as pool:
                    if pool:
                        pool.submit(abs, 3).result()
                        os._exit(7)
            except udeck.PeerLost as error:
                print("lost", error.rank)
        """,
        ["--on-failure", "continue"],
    )
    assert done.out == "lost 0\n", done


def test_what_waits_can_be_cancelled_and_is_bounded(job, tmp_path):
    go = str(tmp_path / "go")
    done = job(
        2,
        TASKS
        + f"""
import concurrent.futures, queue
with udeck.init() as world:
    with udeck.Pool(world, outstanding=3) as pool:
        if pool:
            first, second, third = (pool.submit(after, {go!r}) for _ in range(3))
            # The only worker has the first one, or will have it.
            while not first.running():
                time.sleep(0.01)
            assert second.cancel() and not first.cancel()
            results = pool.map(after, [{go!r}], timeout=0.01)
            try:
                next(results)
            except concurrent.futures.TimeoutError:
                print("timeout")
            Path({go!r}).touch()
            assert first.result() == third.result() == "after" and second.cancelled()
            futures = []
            for n in range(30):
                futures.append(pool.submit(square, n))
                assert sum(not future.done() for future in futures) <= 3
            # A callback never waits.
            more = queue.SimpleQueue()
            for n in range(30):
                pool.submit(square, n).add_done_callback(lambda _: more.put(pool.submit(square, 7)))
            assert all(more.get(timeout=100).result() == 49 for _ in range(30))
            print("done")
""",
    )
    assert done.code == 0 and done.out == "timeout\ndone\n", done


def test_shutdown_cancels_what_waits(job, tmp_path):
    go = str(tmp_path / "go")
    done = job(
        2,
        TASKS
        + f"""
with udeck.init() as world, udeck.Pool(world, initializer=Path.touch, initargs=(Path({go!r} + str(world.rank)),)) as pool:
    if pool:
        first, second = pool.submit(after, {go!r}), pool.submit(square, 3)
        while not first.running():
            time.sleep(0.01)
        waits = threading.Thread(target=concurrent.futures.wait, args=([second],))
        waits.start()
        pool.shutdown(wait=False, cancel_futures=True)
        # A wait that has begun ends by the cancellation, and so does a later one.
        waits.join(60)
        assert not waits.is_alive() and concurrent.futures.wait([second], 60).done
        Path({go!r}).touch()
        pool.shutdown()
        assert first.result() == "after" and second.cancelled()
        try:
            pool.submit(square, 3)
        except RuntimeError as error:
            print(error)
        assert not os.path.exists({go!r} + "0") and os.path.exists({go!r} + "1")
""",
    )
    assert done.code == 0 and done.out == "the pool was shut down\n", done


def test_a_program_starts_workers():
    with udeck.Pool(2, retries=1) as pool:
        assert list(pool.map(operator.neg, range(30), chunksize=4)) == [-n for n in range(30)]
        array = pool.submit(numpy.sqrt, numpy.full(100_000, 4.0)).result()
        assert (array == 2).all() and array.flags.writeable
        # A buffer that is read only.
        assert pool.submit(numpy.frombuffer, b"12345678").result().tobytes() == b"12345678"
        with pytest.raises(ZeroDivisionError) as caught:
            pool.submit(operator.truediv, 1, 0).result()
        assert caught.value.__cause__.rank in (1, 2)
        # It kills a worker, is tried again, and kills the other one.
        assert "code 7" in str(pool.submit(os._exit, 7).exception())
        with pytest.raises(udeck.NobodyLeft, match="code 7"):
            pool.submit(abs, 3)


def test_a_pool_outlives_its_world(job):
    done = job(
        2,
        """
        with udeck.init() as world:
            with udeck.Pool(world) as pool:
                if pool:
                    assert pool.submit(abs, -3).result() == 3
                    world.finish()
                    try:
                        pool.submit(abs, -3).result()
                    except (udeck.Closed, udeck.NobodyLeft) as error:
                        print("refused")
                    pool.shutdown()
                    print("shut down")
                    os._exit(0)
        """,
    )
    assert done.out.splitlines() == ["refused", "shut down"], done


class Interrupt:
    """An object whose pickling or unpickling ends by something that is no Exception."""

    def __init__(self, at_once):
        self.at_once = at_once

    def __reduce__(self):
        if self.at_once:
            raise KeyboardInterrupt
        return sys.exit, (3,)


def make_interrupt():
    return Interrupt(False)


def test_errors_that_are_no_exceptions_are_the_tasks():
    with udeck.Pool(1) as pool:
        assert pool.submit(abs, -3).result() == 3
        # The worker is idle, so this thread pickles.
        with pytest.raises(KeyboardInterrupt):
            pool.submit(abs, Interrupt(True))
        assert "SystemExit" in str(pool.submit(make_interrupt).exception(PATIENCE))
        assert pool.submit(abs, -4).result(PATIENCE) == 4


FORKS = """
import os, sys, udeck
if __name__ == "__main__":
    with udeck.Pool(1) as pool:
        assert pool.submit(abs, -3).result() == 3
        child = os.fork()
        if child == 0:
            try:
                pool.submit(abs, -3)
            except RuntimeError as error:
                sys.exit("refused" if "fork" in str(error) else repr(error))
        assert os.waitpid(child, 0)[1] == 256
        print(pool.submit(abs, -4).result())
"""


def test_a_fork_leaves_the_workers_to_its_parent(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORKS)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "refused\n"), done


KILLED = """
import os, signal, sys, time, udeck
def last(path, folder):
    # Until the job ends.
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, folder.encode())
    time.sleep(600)
if __name__ == "__main__":
    pool = udeck.Pool(1)
    pool.submit(last, sys.argv[1], str(pool._link.folder))
    time.sleep(600)
"""


def test_workers_end_with_a_program_that_is_killed(tmp_path):
    script, pipe = tmp_path / "script.py", tmp_path / "pipe"
    script.write_text(KILLED)
    os.mkfifo(pipe)
    program = subprocess.Popen([sys.executable, script, pipe])
    reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert select.select([reads], [], [], PATIENCE)[0]
        folder = os.read(reads, 4096)
        assert os.path.isdir(folder), folder
        program.kill()
        # The worker's end closes its end of the pipe.
        assert select.select([reads], [], [], PATIENCE)[0] and os.read(reads, 9) == b""
        assert not os.path.exists(folder)
    finally:
        program.kill()
        program.wait()
        os.close(reads)


def test_started_workers_make_their_first_call():
    with udeck.Pool(1, initializer=operator.truediv, initargs=(1, 0)) as pool:
        with pytest.raises(udeck.NobodyLeft, match="ZeroDivisionError"):
            pool.submit(abs, 3).result()
    with udeck.Pool(1, initializer=sys.setrecursionlimit, initargs=(4321,)) as pool:
        assert pool.submit(sys.getrecursionlimit).result() == 4321


def test_a_long_path_of_temporary_files_serves(monkeypatch, tmp_path):
    # The address of a socket has 107 bytes at most.
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with udeck.Pool(1) as pool:
        assert pool.submit(abs, -3).result() == 3
    assert not list(folder.iterdir())


def test_a_job_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setenv("DECKRUN", "/bin/false")
    with udeck.Pool(1) as pool:
        # The pool may have noticed before or after the submission.
        with pytest.raises((udeck.RankFailed, udeck.NobodyLeft), match="deckrun ended with 1"):
            pool.submit(abs, 3).result()


SCRIPT = """
import udeck
def square(number):
    return number * number
if __name__ == "__main__":
    pool = udeck.Pool(2)
    for future in [pool.submit(square, n) for n in range(3)]:
        future.add_done_callback(lambda future: print(future.result()))
"""


def test_the_end_of_a_script_waits_for_its_tasks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0 and sorted(done.stdout.split()) == ["0", "1", "4"], done
    script.write_text(SCRIPT.replace('if __name__ == "__main__":', "if True:"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert 'under `if __name__ == "__main__":`' in done.stderr, done


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"where": "four"}, TypeError),
        ({"where": 0}, ValueError),
        ({"where": 2, "retries": -1}, ValueError),
        ({"where": 2, "outstanding": 0}, ValueError),
    ],
)
def test_wrong_arguments_are_refused(options, error):
    with pytest.raises(error, match=str(next(reversed(options.values())))):
        udeck.Pool(**options)
