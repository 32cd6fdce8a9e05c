"""Every configuration has to be right, not only the one that is chosen today."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from perfguard.check.all_configs import check_given
from perfguard.check.hard_inputs.search import HardResult, run_hard
from perfguard.model.call import HARD_KINDS, Call, Hard


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


SECONDS = 60.0  # enough for all configurations


def beside(call: Call, seconds: float = SECONDS) -> HardResult:
    """What is found of other configurations."""
    given = check_given(call)
    assert not given.checked.wrong
    return run_hard(call, seconds, others=given.others, check_seconds=given.seconds)


def problems_of(call: Call, seconds: float = SECONDS) -> list[str]:
    return [doubt.problem for doubt in beside(call, seconds).doubts]


CALL = Call(twice, (torch.randn(8, 16),), doubled, configurations=[{"candidate": 0}, {"candidate": 1}], hard=None)


def test_a_configuration_that_is_wrong_is_named() -> None:
    assert not problems_of(replace(CALL, configurations=[{"candidate": 0}]))
    (problem,) = problems_of(CALL)
    assert problem.startswith("configuration 1 (candidate=1): ")
    (late,) = problems_of(replace(CALL, configurations=lambda: [{"candidate": 1}]))
    assert late.startswith("configuration 0 (candidate=1): ")


def test_gradients_of_every_configuration_are_checked() -> None:
    def fn(x: torch.Tensor, candidate: int = 0) -> Any:
        return Twice.apply(x, candidate)

    call = replace(CALL, fn=fn, args=(torch.randn(8, 16, requires_grad=True),))
    problems = problems_of(call)
    assert problems
    assert all(problem.startswith("configuration 1 (candidate=1): ") and "grad" in problem for problem in problems)


def test_nothing_runs_beside_a_call_without_a_budget_unless_all_configurations_are_asked_for() -> None:
    call = replace(CALL, hard=Hard())
    nothing = beside(call, 0)
    assert (nothing.ran, nothing.waiting, nothing.doubts, nothing.reached) == ({}, {}, [], None)
    everything = beside(replace(call, every=True), 0)
    assert everything.ran == {"configurations": 2}
    (doubt,) = everything.doubts
    assert doubt.name == "candidate=1"


def test_a_configuration_that_raises_is_named(tmp_path: Path) -> None:
    def fn(x: torch.Tensor, candidate: int = 0) -> torch.Tensor:
        if candidate:
            raise ValueError("no such candidate")
        return x * 2.0

    with pytest.raises(ValueError, match="no such candidate") as caught:
        problems_of(replace(CALL, fn=fn))
    assert "perfguard: raised in configuration 1 (candidate=1)" in caught.value.__notes__


class OutOfResources(Exception):
    """As Triton names it."""


def test_a_configuration_that_does_not_fit_is_named_and_not_wrong() -> None:
    def fn(x: torch.Tensor, candidate: int = 0) -> torch.Tensor:
        if candidate == 1:
            raise OutOfResources("out of resource: shared memory, Required: 262144, Hardware limit: 232448")
        return x * (3.0 if candidate == 2 else 2.0)

    call = replace(CALL, fn=fn, configurations=[{"candidate": number} for number in range(3)])
    found = beside(call)
    (note,) = found.notes
    assert note.startswith("configuration 1 (candidate=1) does not fit this device: out of resource: shared memory")
    (doubt,) = found.doubts  # the others are checked all the same
    assert doubt.problem.startswith("configuration 2 (candidate=2): ")
    assert found.ran == {"configurations": 2}


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


def test_other_configurations_of_an_autotuned_kernel_are_checked(tmp_path: Path) -> None:
    """A tuner that chose the right one of two; its launches are torch's, as no kernel can run here."""
    pytest.importorskip("triton")
    from tests.measure.metrics.binaries import load

    call = replace(CALL, fn=load(tmp_path, TUNED), configurations=())
    (other,) = check_given(call).others  # the chosen one is the given call
    assert other.title.startswith("configuration 1 (")
    (problem,) = problems_of(call)
    assert problem.startswith("configuration 1 (kernel in F: 3, ")


SIZED = """
import torch
import triton

TUNED = []


def bench(run, **_):
    TUNED.append(run)
    return [1.0]


@triton.autotune(
    configs=[triton.Config({"F": 2}), triton.Config({"F": 3})],
    key=["width"],
    do_bench=bench,
    prune_configs_by={"early_config_prune": lambda configs, args, **_: configs[args["width"] == 1 :]},
)
@triton.jit
def kernel(x, out, width, F: triton.language.constexpr):
    pass


class Launcher:
    def run(self, x, out, width, F, **_):
        torch.mul(x, F, out=out)


kernel.fn = Launcher()


def call(x):
    out = torch.empty_like(x)
    kernel[(1,)](x, out, x.shape[1])
    return out
"""


def test_derived_sizes_run_in_the_chosen_configuration_unless_it_is_pruned_and_tune_nothing(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from tests.measure.metrics.binaries import load

    fn = load(tmp_path, SIZED)
    sizes = Hard(without=[kind for kind in HARD_KINDS if kind != "sizes"], reason="-")
    call = replace(CALL, fn=fn, configurations=(), hard=sizes)
    check_given(call)
    tuned: list[Any] = fn.__globals__["TUNED"]
    number = len(tuned)
    assert number == 2
    found = run_hard(call, SECONDS)
    assert "dim 1 cut to 1)" in found.problem  # where only the other configuration is left
    assert len(tuned) == number
