"""A compiled backward pass, repeated over one forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._functorch.config

from perfguard._compat.torch_compiler import forget_compiled
from perfguard.measure.compiled.settings import settings
from perfguard.measure.replay import backward, copies
from perfguard.model.call import Call


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (((x @ w).sin().exp() @ w).relu()).sum(0)


@pytest.mark.parametrize("dynamic", [False, True])  # with sizes unknown, backward is compiled when it first runs
def test_gradients_are_the_same_each_time(dynamic: bool) -> None:
    forget_compiled()
    before = settings()
    inputs: tuple[Any, ...] = tuple(torch.randn(8, 8, requires_grad=True) for _ in range(2))
    compiled = torch.compile(product, backend="aot_eager", dynamic=dynamic)
    run = backward(Call(compiled, inputs, product))
    wanted: Any = backward(Call(product, inputs, product))()
    several = copies(Call(compiled, inputs, product), "backward")(2)
    for each in (run, run, *several, *several):
        for got, want in zip(each(), wanted, strict=True):  # type: ignore[call-overload]
            assert torch.allclose(got, want, rtol=1e-4, atol=1e-4)
    assert settings() == before
    assert torch._functorch.config.donated_buffer


def test_what_was_compiled_before_has_to_be_forgotten() -> None:
    """As the runner does between the passes of a case."""
    forget_compiled()
    x = torch.randn(8, 8, requires_grad=True)
    compiled = torch.compile(product, backend="aot_eager")
    call = Call(compiled, (x, x), product)
    compiled(x, x)
    forget_compiled()
    run = backward(call)
    first: Any = run()
    assert torch.equal(first[0], run()[0])  # type: ignore[index]
