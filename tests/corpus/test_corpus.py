"""Every mutant is caught: the right word, the metric that names the cause, its cases alone, words that help."""

from __future__ import annotations

import pytest
import torch

from benchmarks.planting import Grade, Mutant, Place, weigh
from tests.corpus.catalogue import DAILY, shown
from tests.corpus.project import Corpus
from tests.corpus.suites import SETTINGS

SHOWN = [
    pytest.param(
        mutant, place, id=f"{mutant.name}-{place}", marks=[] if mutant.name in DAILY else [pytest.mark.nightly]
    )
    for mutant, place in shown()
]


@pytest.mark.parametrize(("mutant", "place"), SHOWN)
def test_a_mutant_is_caught(corpus: Corpus, mutant: Mutant, place: Place, pytestconfig: pytest.Config) -> None:
    if (place == "G") != torch.cuda.is_available():
        pytest.skip("needs a GPU" if place == "G" else "is shown without a GPU")
    # By day only the suite that asks for it has anything run beside its calls. What derived inputs find of mutants that
    # given ones show, and whom they accuse of what is slower, is asked every night: it takes as long again.
    beside = not pytestconfig.getoption("--daily") or SETTINGS.get(mutant.suite, {}).get("extra_seconds", 0) > 0
    with corpus.project(mutant.suite, mutant.apply, mutant.given, beside=beside) as project:
        ran = project.run(*mutant.arguments)
    weighed = weigh(mutant.shown[place], ran)
    if place in mutant.open:
        assert weighed.grade is not Grade.CAUGHT, f"is caught by now: take it off the open ones ({mutant.open[place]})"
        assert weighed.moved, "nothing that is read differs: nothing shows that the mutant was run"
    else:
        assert weighed.grade is Grade.CAUGHT, "\n".join([*weighed.problems, "", *weighed.told, "", ran.output[-3000:]])
