"""Every configuration has to be right, not only the one that is chosen today."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from perfguard.check import all_configs
from perfguard.check.all_configs import check_configurations
from perfguard.model.call import Call


def twice(x: torch.Tensor, candidate: int = 0) -> torch.Tensor:
    return x * (3.0 if candidate == 1 else 2.0)


class Twice(torch.autograd.Function):
    """Right forward; candidate 1 gives a gradient that is not."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, candidate: int) -> torch.Tensor:
        ctx.factor = 3.0 if candidate == 1 else 2.0
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * ctx.factor, None


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


CALL = Call(twice, (torch.randn(8, 16),), doubled, configurations=[{"candidate": 0}, {"candidate": 1}])


def test_a_configuration_that_is_wrong_is_named() -> None:
    assert not check_configurations(replace(CALL, configurations=[{"candidate": 0}])).wrong
    (problem,) = check_configurations(CALL).wrong
    assert problem.startswith("configuration 1 (candidate=1): ")
    (late,) = check_configurations(replace(CALL, configurations=lambda: [{"candidate": 1}])).wrong
    assert late.startswith("configuration 0 (candidate=1): ")


def test_gradients_of_every_configuration_are_checked() -> None:
    def fn(x: torch.Tensor, candidate: int = 0) -> Any:
        return Twice.apply(x, candidate)

    call = replace(CALL, fn=fn, args=(torch.randn(8, 16, requires_grad=True),))
    problems = check_configurations(call).wrong
    assert problems
    assert all(problem.startswith("configuration 1 (candidate=1): ") and "grad" in problem for problem in problems)


def test_what_is_not_cheap_is_left_out_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_configs, "CHEAP_SECONDS", 0.0)
    checked = check_configurations(CALL)
    assert not checked.wrong
    (note,) = checked.notes
    assert note.startswith("2 configurations not checked")
    assert note.endswith("--perfguard-all-configs")
    assert check_configurations(replace(CALL, every=True)).wrong


def test_a_configuration_that_raises_is_named(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, candidate: int = 0) -> torch.Tensor:
        if candidate:
            raise ValueError("no such candidate")
        return x * 2.0

    with pytest.raises(ValueError, match="no such candidate") as caught:
        check_configurations(replace(CALL, fn=fn))
    assert "perfguard: raised in configuration 1 (candidate=1)" in caught.value.__notes__


class OutOfResources(Exception):
    """As Triton names it."""


def test_a_configuration_that_does_not_fit_is_named_and_not_wrong() -> None:
    def fn(x: torch.Tensor, candidate: int = 0) -> torch.Tensor:
        if candidate == 1:
            raise OutOfResources("out of resource: shared memory, Required: 262144, Hardware limit: 232448")
        return x * (3.0 if candidate == 2 else 2.0)

    call = replace(CALL, fn=fn, configurations=[{"candidate": number} for number in range(3)])
    checked = check_configurations(call)
    (note,) = checked.notes
    assert note.startswith("configuration 1 (candidate=1) does not fit this device: out of resource: shared memory")
    (problem,) = checked.wrong  # those behind it are checked all the same
    assert problem.startswith("configuration 2 (candidate=2): ")


TUNED = """
import torch
import triton


@triton.autotune(configs=[triton.Config({"F": 2}), triton.Config({"F": 3})], key=[], do_bench=lambda *_, **__: [1.0])
@triton.jit
def kernel(x, out, F: triton.language.constexpr):
    pass


class Launcher:
    def run(self, x, out, F, **_):
        torch.mul(x, F, out=out)


kernel.fn = Launcher()


def call(x):
    out = torch.empty_like(x)
    kernel[(1,)](x, out)
    return out
"""


def test_every_configuration_of_an_autotuned_kernel_is_checked(tmp_path: Path) -> None:
    """A tuner that chose the right one of two; its launches are torch's, as no kernel can run here."""
    pytest.importorskip("triton")
    from tests.measure.metrics.binaries import load

    problems = check_configurations(replace(CALL, fn=load(tmp_path, TUNED), configurations=())).wrong
    (problem,) = problems
    assert problem.startswith("configuration 1 (kernel in F: 3, ")
