"""Types and docstrings, as editors and type checkers see them."""

import importlib.util
import inspect
import subprocess
import sys

import pytest
from conftest import ROOT

import udeck

#: The type checker, which the harness installs where it can.
needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy could not be installed")
EXAMPLES = sorted([*(ROOT / "examples/python").glob("*.py"), *(ROOT / "examples/python").glob("from_mpi4py/*_udeck.py")])


def run(module, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def strict(cache, *files):
    # matplotlib is used if it is installed, but the tests do not need it.
    return run("mypy", "--strict", "--ignore-missing-imports", "--cache-dir", cache, *files)


@needs_mypy
def test_examples_are_typed(cache):
    assert len(EXAMPLES) >= 4
    code, said = strict(cache, *EXAMPLES)
    assert code == 0, said


#: Lines that the checker reports.
LINES = {
    "world.postbox(3)": 'Argument 1 to "postbox"',
    "world.all().allreduce(array, op='mean')": 'Argument "op" to "allreduce"',
    "sums.post({})": 'Argument 1 to "post"',
    "reveal_type(world.mailbox('a').retrieve())": "ndarray",
    "reveal_type(world.mailbox('a', objects=True).retrieve())": '"Any"',
    "reveal_type(world.empty(3, dtype=numpy.complex128))": "complex",
    "reveal_type(world.empty((3, 4)))": "float64",
    "reveal_type(world.mailbox('a').retrieve_async())": "Coroutine[Any, Any, numpy.ndarray",
    "reveal_type(world.mailbox('a').retrieve_message_async(tag=3))": "Coroutine[Any, Any, udeck._udeck.Message[numpy.ndarray",
    "reveal_type(sums.post_object_async({}))": "Coroutine[Any, Any, None]",
    "reveal_type(world.shared('a', 3).array)": "ndarray",
    "reveal_type(sums.post_async(array))": "Coroutine[Any, Any, None]",
    "reveal_type(udeck.run_local(2, len, ()))": '"list[int]"',
    "reveal_type(udeck.Pool(2).submit(len, ()).result())": '"int"',
    "udeck.Pool(world).submit(len, 3)": 'Argument 2 to "submit"',
    "reveal_type(list(udeck.Pool(world).map(len, [()])))": '"list[int]"',
    "reveal_type(udeck.PeerLost().rank)": '"int | None"',
}


@needs_mypy
def test_the_checker_sees_types(cache, tmp_path):
    program = tmp_path / "program.py"
    start = ["import numpy, udeck", "world = udeck.init()", "sums = world.postbox('sums')", "array = numpy.zeros(1)"]
    program.write_text("\n".join([*start, *LINES]))
    _, said = strict(cache, program)
    for number, (line, complaint) in enumerate(LINES.items(), len(start) + 1):
        words = [one for one in said.splitlines() if f":{number}:" in one]
        assert any(complaint in one for one in words), (line, said)


@needs_mypy
def test_stubs_and_module_agree(tmp_path):
    # Types of caches, and classes that are made by loops and specifications.
    allowed = tmp_path / "allowed"
    allowed.write_text(r"udeck\._helpers\.(dtype_of|_text)|udeck\._array\..*|udeck\._udeck\.ArrayLayout" + "\n")
    code, said = run("mypy.stubtest", "udeck", "--allowlist", allowed)
    assert code == 0, said


def public():
    """Every public object, by its name."""
    yield "udeck", udeck
    for name in udeck.__all__:
        thing = getattr(udeck, name)
        if name == "__version__":
            continue
        yield name, thing
        if inspect.isclass(thing) and not issubclass(thing, BaseException):
            for member, value in vars(thing).items():
                if not member.startswith("_"):
                    yield f"{name}.{member}", value


@pytest.mark.parametrize(("name", "thing"), [pytest.param(*one, id=one[0]) for one in public()])
def test_everything_public_has_a_docstring(name, thing):
    text = thing.__doc__
    assert text and len(text) > 15, f"{name}: {text!r}"
