"""What a test does not mention is judged by the base alone: the reference may take more than is meant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from perfguard import Hard
from perfguard.check.ask import ask
from perfguard.check.correctness import check
from perfguard.check.hard_inputs.derivation import UNMENTIONED
from perfguard.check.hard_inputs.search import run_hard, wrong_of
from perfguard.model.call import HARD_KINDS, Call
from tests.check.hard_inputs.operators import normal

EVERYTHING = 60.0
ONLY = Hard(without=[each for each in HARD_KINDS if each != UNMENTIONED], reason="-")
# Gradients by further inputs need free values, and infinities need that they are tried at all.
WITH_VALUES, WITH_INFINITIES = (
    Hard(without=[each for each in ONLY.without if each != kind], reason="-") for kind in ("values", "non-finite")
)


class Gained(torch.autograd.Function):
    """Rows times a gain, whose gradient may be missing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gain: torch.Tensor, broken: bool) -> torch.Tensor:
        ctx.save_for_backward(x, gain)
        ctx.broken = broken
        return x * gain

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        x, gain = ctx.saved_tensors
        return g * gain, None if ctx.broken else (g * x).sum(0), None


def gained(x: torch.Tensor, gain: torch.Tensor, broken: bool) -> torch.Tensor:
    return Gained.apply(x, gain, broken)  # type: ignore[no-any-return, no-untyped-call]


def centred(x: torch.Tensor, broken: bool) -> torch.Tensor:
    """Matrices less the mean of each."""
    return x - (x.mean((0, 1)) if broken and x.ndim > 2 else x.mean((-2, -1), keepdim=True))


def chosen(x: torch.Tensor, index: torch.Tensor, broken: bool) -> torch.Tensor:
    return x[index] * (1 if broken else (index >= 0)[:, None])


def by_comparison(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return sum((x[at] * (index == at)[:, None] for at in range(len(x))), torch.zeros(len(index), x.shape[1]))


def merged(a: torch.Tensor, b: torch.Tensor, logs_a: torch.Tensor, logs_b: torch.Tensor, broken: bool) -> torch.Tensor:
    """Two results weighted by logarithms, of which both are -inf where there is nothing."""
    top = logs_a.maximum(logs_b)
    top = top if broken else top.masked_fill(top == -torch.inf, 0)
    one, other = ((each - top).exp() for each in (logs_a, logs_b))
    total = one + other
    return (a * one[:, None] + b * other[:, None]) / total.where(total > 0, 1)[:, None]


def merged_by_softmax(a: torch.Tensor, b: torch.Tensor, *logs: torch.Tensor) -> torch.Tensor:
    both = torch.stack(logs)
    weights = both.softmax(0).masked_fill((both == -torch.inf).all(0), 0)
    return a * weights[0][:, None] + b * weights[1][:, None]


def scaled(x: torch.Tensor, scale: torch.Tensor | None = None, broken: bool = False) -> torch.Tensor:
    return x if scale is None else x * (scale if broken else scale[:, None])


def plain(*shape: int, seed: int = 0) -> torch.Tensor:
    return normal(*shape, seed=seed, grad=False)


INDEX = torch.tensor([3, 0, 2, 2, 1, 0, 3, 1])
CASES: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], str, Hard]] = [
    (gained, torch.mul, (normal(8, 12, seed=0), plain(12)), "argument 1 (trained): gradient of", WITH_VALUES),
    (centred, partial(centred, broken=False), (plain(6, 8),), "argument 0 (leading dim grown to 2)", ONLY),
    (chosen, by_comparison, (plain(4, 8), INDEX), "argument 1 (every third -1)", ONLY),
    (scaled, scaled, (plain(8, 8),), "options (scale=tensor(8))", ONLY),
    (
        merged,
        merged_by_softmax,
        (plain(6, 8), plain(6, 8, seed=1), plain(6), plain(6, seed=1)),
        "argument 2 (-inf at first) and argument 3 (-inf at first)",
        WITH_INFINITIES,
    ),
]


@pytest.mark.parametrize(("fn", "reference", "args", "words", "hard"), CASES, ids=[fn.__name__ for fn, *_ in CASES])
def test_a_fault_is_one_where_the_base_is_right(
    fn: Callable[..., Any], reference: Callable[..., Any], args: tuple[Any, ...], words: str, hard: Hard
) -> None:
    wrong, right = (Call(partial(fn, broken=broken), args, reference, hard=hard) for broken in (True, False))
    assert check(wrong).wrong == check(right).wrong == []
    found = run_hard(wrong, EVERYTHING)
    (doubt,) = found.doubts
    assert words in doubt.problem
    assert doubt.unmentioned
    assert found.problem == ""
    assert wrong_of(wrong, EVERYTHING) == []  # where nobody asks a base
    assert [answer.problem for answer in ask(right, found.doubts)] == [""]
    assert words in ask(wrong, found.doubts)[0].problem
    assert run_hard(right, EVERYTHING).doubts == []


def test_ids_that_count_from_the_end_stand_for_somebody() -> None:
    def first_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x[index.clamp(min=0)]

    call = Call(first_rows, (plain(4, 8), INDEX), lambda x, index: x[index], hard=ONLY)
    assert check(call).wrong == []
    assert run_hard(call, EVERYTHING).doubts == []


def test_a_fault_that_needs_no_base_is_found_behind_one_that_does() -> None:
    def half_centred(x: torch.Tensor) -> torch.Tensor:
        return centred(x, broken=True) * (1 if bool(x.any()) else torch.nan)

    found = run_hard(Call(half_centred, (plain(6, 8),), CASES[1][1], hard=WITH_VALUES), EVERYTHING)
    assert [doubt.unmentioned for doubt in found.doubts] == [True, False]
    assert "NaN" in found.problem
