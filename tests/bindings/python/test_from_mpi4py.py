"""Programs of mpi4py beside those of udeck: as short, and with the same results."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import PATIENCE, ROOT, start

FOLDER = ROOT / "examples/python/from_mpi4py"
NAMES = ["conjugate_gradient", "heat2d", "nbody_ring", "pi", "sample_sort", "task_farm", "word_count"]


def test_each_program_has_its_counterpart():
    expected = {f"{name}_{library}.py" for name in NAMES for library in ["mpi4py", "udeck"]}
    assert {path.name for path in FOLDER.glob("*.py")} == expected


def lines(name):
    return sum(bool(line.strip()) for line in (FOLDER / name).read_text().splitlines())


@pytest.mark.parametrize("name", NAMES)
def test_programs_have_as_few_lines(name):
    ours, theirs = lines(f"{name}_udeck.py"), lines(f"{name}_mpi4py.py")
    assert ours <= 1.1 * theirs, f"{ours} lines with udeck, {theirs} with mpi4py"


#: Beginnings of what the programs print on three ranks.
RESULTS = {
    "conjugate_gradient": "240 unknowns in",
    "heat2d": "(72, 64) cells, mean",
    "nbody_ring": "180 bodies, energy",
    "pi": "pi is 3.1415926536",
    "sample_sort": "150000 keys, in order: True, sum",
    "task_farm": "300 tasks, the longest from 231: 127 steps",
    "word_count": "5995 words, the longest line has 45 letters",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_program_runs(name):
    done = start(3, [FOLDER / f"{name}_udeck.py"])
    assert done.code == 0 and done.out.startswith(RESULTS[name]), done


def mpiexec():
    """The launcher of mpi4py's MPI library."""
    beside = Path(sysconfig.get_path("scripts")) / "mpiexec"
    if importlib.util.find_spec("mpi4py") is None or not beside.exists():
        pytest.skip("mpi4py and a launcher of its MPI library are not installed (pip install mpi4py mpich)")
    return beside


# Two ranks: mpich's ranks spin while they wait, and few machines of tests have more than two processors.
@pytest.mark.parametrize("name", NAMES)
def test_both_programs_have_one_result(name):
    done = subprocess.run(
        [mpiexec(), "-n", "2", sys.executable, FOLDER / f"{name}_mpi4py.py"],
        env={**os.environ, "HYDRA_LAUNCHER": "fork"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours = start(2, [FOLDER / f"{name}_udeck.py"])
    assert ours.code == 0 and ours.out == done.stdout, (ours, done.stdout)
