"""udeck beside mpi4py, multiprocessing.Queue and multiprocessing.shared_memory, in one run: a table in Markdown, in microseconds.

    python compare.py [--mpiexec PATH] [--times 2]

All run in this interpreter, in turn, `--times` times; a cell has the lowest and the highest median. What is not installed has no column.
The last one is numpy.copyto in one process: who copies needs at least that. mpi4py wants an MPI: `pip install mpi4py mpich` brings one. Let
nothing else run meanwhile, or the figures mean nothing. Half a minute for each time.
"""

import argparse
import importlib.metadata
import importlib.util
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PROGRAM = Path(__file__).with_name("pingpong.py")
COLUMNS = ["udeck", "world.empty, moved", "mpi4py", "Queue", "shared_memory", "one copy"]


def beside(name):
    """A program of this environment, or of the system."""
    own = Path(sysconfig.get_path("scripts")) / name
    return str(own) if own.exists() else shutil.which(name)


def lines(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
    for line in done.stdout.splitlines():
        kind, size, time = line.rsplit(",", 2)
        yield kind, int(size), float(time)


def measure(commands):
    """Times by loop, bytes and column."""
    times = {}
    for way, command in commands.items():
        for kind, size, time in lines([*command, sys.executable, PROGRAM, way]):
            column = {"queue": "Queue", "copy": "one copy"}.get(way, way)
            if "moved" in kind:
                kind, column = "pingpong", "world.empty, moved"
            times.setdefault((kind, size), {}).setdefault(column, []).append(time)
    return times


def words(times):
    def said(time):
        return f"{time:,.0f}" if time >= 100 else f"{time:.3g}"

    low, high = said(min(times)), said(max(times))
    return low if low == high else f"{low} to {high}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mpiexec", default=beside("mpiexec"), help="how mpi4py's ranks are started (Hydra's)")
    parser.add_argument("--times", type=int, default=2, help="how often all is measured")
    options = parser.parse_args()
    commands = {"udeck": [beside("deckrun"), "-n", "2", "--"]}
    if importlib.util.find_spec("mpi4py") and options.mpiexec:
        commands["mpi4py"] = [options.mpiexec, "-bind-to", "core", "-n", "2"]
    commands |= {"queue": [], "shared_memory": [], "copy": []}
    times = {}
    for nth in range(options.times):
        print(f"{nth + 1} of {options.times}", file=sys.stderr)
        for row, cells in measure(commands).items():
            for column, found in cells.items():
                times.setdefault(row, {}).setdefault(column, []).extend(found)
    columns = [column for column in COLUMNS if any(column in cells for cells in times.values())]
    versions = [f"CPython {platform.python_version()}"]
    for name in ("numpy", "udeck", "mpi4py", "mpich"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    print(", ".join(versions))
    print("| |" + "".join(f" {column} |" for column in columns))
    print("|---|" + "---:|" * len(columns))
    for (kind, size), cells in sorted(times.items(), key=lambda row: (row[0][0] != "pingpong", row[0][1])):
        label = f"{kind}, {size:,} B"
        print(f"| {label} |" + "".join(f" {words(cells[column]) if column in cells else ''} |" for column in columns))


if __name__ == "__main__":
    main()
