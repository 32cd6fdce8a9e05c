"""A sample of mutants through the guard itself, as a user's pull request would bring them: each is noticed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

from benchmarks.mutation.judging import Workplace
from tests.nursery import Nursery

ROOT = Path(__file__).parents[2]
KNOWN = tomllib.loads((ROOT / "benchmarks" / "mutation" / "known.toml").read_text())["mutant"]


def package_of(mutant: dict[str, str]) -> str:
    return mutant["file"].partition("/")[0]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, interpreting: Nursery) -> Workplace:
    """A clone of HEAD; what the checkout has compiled is found again."""
    made = Workplace(tmp_path_factory.mktemp("known"), ROOT / ".perfguard" / "cache", "known")
    if not torch.cuda.is_available():  # what is compiled for a GPU that is there starts its driver, which dies in forks
        made.python = interpreting.python
    return made


@pytest.mark.nightly  # a run each; with every change one of each class of the corpus is judged
@pytest.mark.parametrize("mutant", KNOWN, ids=[each["what"] for each in KNOWN])
def test_a_known_mutant_is_noticed(workplace: Workplace, mutant: dict[str, str]) -> None:
    file = f"kernels/{mutant['file']}"
    suite, _, test = mutant["test"].partition("::")
    source = (ROOT / file).read_text()
    tests = [f"tests/kernels/test_{suite}_guarded.py::{test}"]
    word, metric, says = workplace.noticed(file, source.replace(mutant["before"], mutant["after"]), tests)
    assert word == mutant["word"], f"{word} {metric} {says}"


def test_the_sample_has_every_package_and_finds_its_lines() -> None:
    assert len(KNOWN) >= 20
    for mutant in KNOWN:
        file = f"kernels/{mutant['file']}"
        assert (ROOT / file).read_text().count(mutant["before"]) == 1, f"{file}: {mutant['what']}: not there once"
    assert {package_of(mutant) for mutant in KNOWN} == {"fp8", "grouped", "layers", "moe", "operators"}


@pytest.mark.nightly
def test_sound_code_passes(workplace: Workplace) -> None:
    tests = sorted({f"tests/kernels/test_{mutant['test'].replace('::', '_guarded.py::')}" for mutant in KNOWN})
    assert workplace.run(tests, 600)[0] == 0
