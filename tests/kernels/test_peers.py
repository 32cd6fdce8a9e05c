"""`python -m benchmarks.peers`: every contest runs at tiny shapes here, rivals agree, and a wrong one is not timed."""

from __future__ import annotations

import re
from unittest import mock

import pytest
import torch

import tests.kernels.paths  # noqa: F401  (defines the kernels before anything else imports them)
from benchmarks.peers import contest
from benchmarks.peers.__main__ import SUITES
from benchmarks.peers.contest import Contest, hold

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def briefly() -> object:
    with mock.patch.multiple(contest, LEAST_ROUNDS=2, WARM_CALLS=1):
        yield


@pytest.mark.parametrize(
    "suite",
    [
        # Half a minute. The step holds contests of the same layer and the same rivals.
        pytest.param(each, marks=[pytest.mark.nightly] if each == "moe" else [])
        for each in SUITES
    ],
)
def test_runs_at_tiny_shapes(suite: str) -> None:
    torch._dynamo.reset()
    contests = list(SUITES[suite](CPU, True))
    assert len({(one.job, one.shape, *one.rivals) for one in contests}) == len(contests)
    for one in contests:
        results = hold(one, CPU, None, 0.0)
        assert [result.rival for result in results] == list(one.rivals)
        assert results[0].times == 1.0


def test_a_wrong_rival_is_named_and_not_timed() -> None:
    right, wrong = torch.ones(8), torch.full((8,), 1.5)
    rivals = {"ours": lambda: [right], "theirs": lambda: [wrong]}
    message = "sum 8: result 0 of theirs is off from that of ours by 0.5 of its norm, 0.02 is allowed"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        hold(Contest("sum", "8", rivals), CPU, None, 0.0)
