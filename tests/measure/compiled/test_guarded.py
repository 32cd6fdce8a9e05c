"""The fixture with compiled candidates: what it is given, what it forgets, and what is wrong only when compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from perfguard import UsageError
from perfguard.check.correctness import check
from perfguard.measure.devices.cpu import CpuDevice
from perfguard.measure.replay import steps
from perfguard.model.call import Call
from perfguard.model.records import Case
from perfguard.pytest_plugin.fixture import Guarded

CASE = Case("suite", "case", "forward")


def guarded() -> Guarded:
    return Guarded(CASE, CpuDevice(), None)


@pytest.mark.parametrize("walk", [3, torch.ones(2), iter(())])
def test_a_walk_is_a_list(walk: Any) -> None:
    with pytest.raises(UsageError, match=r"perfguard\(walk=…\): is a .*; give a list with one entry for each step"):
        guarded()(torch.sin, torch.ones(2), reference=torch.sin, walk=walk)


def test_tests_before_do_not_use_up_the_limit_of_compilations() -> None:
    compiled = torch.compile(lambda x, n: x * n, backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(recompile_limit=2, automatic_dynamic_shapes=False):
        for first in (0, 2, 4):  # a test each
            guarded()
            for n in (first, first + 1):
                compiled(torch.ones(2), n)


def test_what_a_step_sets_on_the_module_is_put_back() -> None:
    """Else the case would be timed under the last step's load."""
    module: Any = torch.nn.BatchNorm1d(4)
    x = torch.randn(8, 4)

    def prepare() -> tuple[torch.Tensor]:
        module.running_mean.fill_(7.0)
        return (x,)

    first, second = steps(Call(module.eval(), (x,), module, walk=(prepare,)))
    for _ in range(2):
        first()
        assert not module.running_mean.any()
        second()
        assert bool((module.running_mean == 7.0).all())


def test_wrong_only_when_compiled() -> None:
    """K49, torchtitan #2196: the error of the compiled call stands beside eager's."""

    def rotated(x: torch.Tensor) -> torch.Tensor:
        wide = x.float().sin()
        if torch.compiler.is_compiling():
            wide = wide.to(torch.float8_e4m3fn).float()  # a round trip that eager does not make
        return (wide * 2).to(x.dtype)

    x = torch.randn(32, 64).bfloat16()
    compiled = torch.compile(rotated, backend="eager")
    assert check(Call(rotated, (x,), rotated)).wrong == []
    found = check(Call(compiled, (x,), rotated))
    assert len(found.wrong) == 1
    (accuracy,) = found.forward
    assert accuracy.error_ratio is not None
    assert accuracy.error_ratio > 10
