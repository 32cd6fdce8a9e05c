"""A sample of mutants through the guard itself, as a user's pull request would bring them: each is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from benchmarks.mutation.judging import Workplace
from benchmarks.planting import Expect, Grade, Listed, listed, planted_in, weigh
from tests.nursery import Nursery

ROOT = Path(__file__).parents[2]
KNOWN = listed(ROOT / "benchmarks" / "mutation" / "known.toml")


def guarded_by(mutant: Listed) -> str:
    return f"tests/kernels/test_{mutant.owed['test'].replace('::', '_guarded.py::')}"


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, interpreting: Nursery) -> Workplace:
    """A clone of HEAD; what the checkout has compiled is found again."""
    made = Workplace(tmp_path_factory.mktemp("known"), ROOT / ".perfguard" / "cache", "known")
    if not torch.cuda.is_available():  # what is compiled for a GPU that is there starts its driver, which dies in forks
        made.python = interpreting.python
    return made


@pytest.mark.nightly  # a run each; with every change one of each class of the corpus is judged
@pytest.mark.parametrize("mutant", KNOWN, ids=[each.what for each in KNOWN])
def test_a_known_mutant_is_noticed(workplace: Workplace, mutant: Listed) -> None:
    ran = workplace.planted(mutant.edit, [guarded_by(mutant)])
    weighed = weigh(Expect(mutant.owed["word"], cases=(), also=("*",), beside=("*",)), ran)
    assert weighed.grade is Grade.CAUGHT, "\n".join([*weighed.problems, *weighed.told])


def test_the_sample_has_every_package_and_finds_its_lines(tmp_path: Path) -> None:
    assert len(KNOWN) >= 20
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for mutant in KNOWN:
        with planted_in(tmp_path, mutant.edit):
            pass
    assert {mutant.edit.file.split("/")[1] for mutant in KNOWN} == {"fp8", "grouped", "layers", "moe", "operators"}


@pytest.mark.nightly
def test_sound_code_passes(workplace: Workplace) -> None:
    assert workplace.run(sorted({*map(guarded_by, KNOWN)}), 10).status == 0
