"""The samples of the documents: each is a whole program, and runs unchanged."""

import re

import pytest
from conftest import ROOT, start

import udeck

PAGES = ["docs/python.md", "docs/from-mpi4py.md", "README.md"]


def samples():
    for page in PAGES:
        found = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
        assert found, f"{page} has no sample"
        for nth, text in enumerate(found, 1):
            yield pytest.param(text, id=f"{page}-{nth}")
    text = udeck.__doc__.split("\n\n", 1)[1]
    yield pytest.param(re.search(r"(?:^    .*\n|^\n)+", text, re.MULTILINE).group(0).replace("\n    ", "\n")[4:], id="udeck.__doc__")


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("text", list(samples()))
def test_a_sample_runs(tmp_path, text, ranks):
    if "run_local" in text and ranks > 1:
        pytest.skip("it starts its ranks itself")
    program = tmp_path / "sample.py"
    program.write_text(text)
    done = start(ranks, [program])
    assert done.code == 0, done
