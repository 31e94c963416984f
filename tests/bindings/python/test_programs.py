"""Programs that the wheel installs beside Python."""

import csv
import subprocess
import sysconfig
from pathlib import Path

import pytest
from conftest import PATIENCE

import udeck


def run(program, *options):
    path = Path(sysconfig.get_path("scripts")) / program
    return subprocess.run([path, *options], capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("program", ["deckrun", "deckperf"])
def test_a_program_has_the_packages_version(program):
    done = run(program, "--version")
    assert done.returncode == 0 and done.stdout.split() == [program, udeck.__version__], done


def test_deckperf_measures_two_ranks():
    done = run(
        "deckperf", "latency", "--protocol", "copy", "--sizes", "8", "--time", "0.1", "--no-pin", "--format", "csv"
    )
    assert done.returncode == 0, done
    header, *rows = csv.reader(line for line in done.stdout.splitlines() if not line.startswith("#"))
    assert rows and all(len(row) == len(header) for row in rows), done.stdout
