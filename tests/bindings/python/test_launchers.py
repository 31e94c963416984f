"""Python's ranks under the launchers of clusters. The tests' own Slurm is that of `tests/jobs/tests/engines`."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import PATIENCE, ROOT

RANKS = 4
LAUNCHERS = {
    "slurm_pmi2": ["srun", "-N", "2", "--mpi=pmi2"],
    "slurm_pmix": ["srun", "-N", "2", "--mpi=pmix"],
    "hydra": ["mpiexec.hydra"],
    "openmpi": ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"],
}
#: Folders with daemons, which only root searches.
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"


def require(*programs):
    for program in programs:
        if not shutil.which(program, path=PATH):
            pytest.skip(f"no {program}")


@pytest.fixture(scope="module")
def slurm():
    """Value for SLURM_CONF."""
    require("srun", "sinfo", "slurmctld", "slurmd", "munged", "setsid")
    if os.geteuid() != 0:
        pytest.skip("slurmd needs root")
    script = ROOT / "tests/jobs/engines/slurm.sh"
    for _ in range(3):  # A port may be taken between its choice and its use.
        started = subprocess.Popen(
            ["setsid", "--fork", "bash", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = started.stdout.readline()
        if line.startswith("ready "):
            yield line.split(maxsplit=1)[1].strip()
            started.stdin.close()
            # The script ends when nothing is left.
            started.stdout.read()
            started.wait()
            return
        line += started.stdout.read()
    pytest.fail(f"Slurm does not start: {line}")


@pytest.fixture(params=LAUNCHERS)
def launched(request):
    """Runs an example under the launcher."""
    words, environment = LAUNCHERS[request.param], {**os.environ, "DECK_DEADLINE": "60"}
    require(words[0])
    if words[0] == "srun":
        environment["SLURM_CONF"] = request.getfixturevalue("slurm")

    def run(name, *arguments):
        return subprocess.run(
            [*words, "-n", str(RANKS), sys.executable, ROOT / "examples/python" / name, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    return run


def test_ring(launched):
    done = launched("ring.py")
    rounds = [line for line in done.stdout.splitlines() if line.startswith("round ")]
    assert done.returncode == 0 and rounds == [f"round {n}: {RANKS} ranks have had the token" for n in (1, 2, 3)], done


def test_pi(launched):
    done = launched("pi.py", "100000")
    assert done.returncode == 0 and done.stdout.count("pi is 3.14159265") == 1, done
    assert f"on {RANKS} ranks" in done.stdout, done


@pytest.mark.parametrize("first", ["mpi4py.MPI", "udeck"])
@pytest.mark.parametrize("last", ["mpi4py.MPI", "udeck"])
def test_mpi_in_the_same_process(tmp_path, first, last):
    """Hydra has one connection for a process: MPI ends it with a goodbye, whichever library was first."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed (UDECK_PYTHON_MORE=mpi4py,mpich)")
    mpiexec = shutil.which("mpiexec", path=os.path.dirname(sys.executable) + ":" + PATH)
    if not mpiexec:
        pytest.skip("no mpiexec")
    program = tmp_path / "program.py"
    program.write_text(f"""
import importlib, os
udeck = importlib.import_module("udeck")
def start(name):
    if name == "udeck":
        globals()["world"] = udeck.init()
    else:
        globals()["MPI"] = importlib.import_module(name)
start({first!r})
start({({"udeck", "mpi4py.MPI"} - {first}).pop()!r})
world.barrier()
MPI.COMM_WORLD.Barrier()
both = (world.rank, world.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
for name in {[one for one in ("udeck", "mpi4py.MPI") if one != last] + [last]!r}:
    world.finish() if name == "udeck" else MPI.Finalize()
os.write(1, f"{{both}}\\n".encode())
""")
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, program],
        env={**os.environ, "DECK_DEADLINE": "60"}, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, check=False,
    )
    assert done.returncode == 0 and done.stdout.split() == ["True", "True"], (done.returncode, done.stdout, done.stderr)
