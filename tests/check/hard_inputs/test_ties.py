"""Operators that choose among equal elements, with their choice turned round."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from perfguard.check.hard_inputs.nearby import LastOfEqual
from perfguard.check.hard_inputs.search import run_hard
from perfguard.model.call import Call

CHOICES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "topk": lambda x: x.topk(2).indices,
    "topk of rows": lambda x: x.topk(2, dim=0).indices,
    "argmax": lambda x: x.argmax(-1),
    "argmax kept": lambda x: x.argmax(dim=0, keepdim=True),
    "argmax of all": torch.argmax,
    "argmax of all kept": lambda x: x.argmax(keepdim=True),
    "argmin of all": torch.argmin,
    "max": lambda x: x.max(-1).indices,
    "min": lambda x: x.min(0).indices,
    "argsort": lambda x: x.argsort(-1, descending=True),
    "stable sort": lambda x: x.sort(stable=True, dim=0).indices,
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_differs_where_elements_are_equal_and_nowhere_else(name: str) -> None:
    choose = CHOICES[name]
    apart = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    with LastOfEqual():
        assert torch.equal(choose(apart), usual := choose(apart))
        tied = choose(torch.ones(4, 6))
    assert torch.equal(usual, choose(apart))
    assert tied.shape == usual.shape
    assert not torch.equal(tied, choose(torch.ones(4, 6)))


def test_values_and_gradients_stay() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0, 2.0]], requires_grad=True)
    with LastOfEqual():
        values, indices = x.topk(1)
        (gradient,) = torch.autograd.grad(values.sum(), x)
    assert values.item() == 3
    assert indices.item() == 2
    assert gradient.tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_a_router_whose_scores_are_saturated_may_choose_any_of_them(scale: float) -> None:
    def reference(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.topk(torch.sigmoid(x @ w), 2)  # type: ignore[return-value]

    def other(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.sigmoid(x @ w).flip(-1).topk(2)
        return found.values, w.shape[1] - 1 - found.indices

    generator = torch.Generator().manual_seed(1)
    x, w = torch.randn(16, 32, generator=generator) * scale, torch.randn(32, 8, generator=generator)
    found = run_hard(Call(other, (x, w), lambda x, w: tuple(reference(x, w))), 60.0)
    assert found.problem == ""
    assert found.ran > 0


def test_a_wrong_choice_is_found_still() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.nan_to_num(0.0).topk(2).indices.clamp(max=len(x[0]) - 2)

    x = torch.tensor([[3.0, 2.0, 1.0, 0.0], [1.0, 4.0, 3.0, 0.0]])
    assert run_hard(Call(wrong, (x,), lambda x: x.topk(2).indices), 60.0).problem
