"""What others would have said of the same cases: a `perfguard` fixture that asks them, and notes their answers.

close       torch.testing.assert_close of outputs and gradients against the reference, at tolerances that are common
            for bf16: rtol 0.016, atol 0.01
benchmark   pytest-benchmark of the forward call, up to its end on the device, which judges by itself:
            --benchmark-compare-fail=median:5%
do_bench    triton.testing.do_bench's median of the forward call, ms; a GPU only
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

TOLERANCE = {"rtol": 0.016, "atol": 0.01}
NOTED = Path("rivals.jsonl")
GPU = torch.cuda.is_available()


class Rivals:
    """Stands where perfguard's fixture does."""

    device = torch.device("cuda" if GPU else "cpu")

    def __init__(self, name: str, benchmark: Any) -> None:
        self.name = name
        self.benchmark = benchmark

    def unsupported(self, reason: str) -> None:
        pytest.skip(reason)

    def __call__(
        self, fn: Callable[..., Any], *args: Any, reference: Callable[..., Any], kwargs: Any = None, **_: Any
    ) -> None:
        def call() -> Any:
            return fn(*args, **(kwargs or {}))

        def call_and_wait() -> None:
            call()
            if GPU:
                torch.cuda.synchronize()

        noted = {"test": self.name, "close": close(call, lambda: reference(*args, **(kwargs or {})), fn, args)}
        if GPU:
            from triton.testing import do_bench

            noted["do_bench"] = do_bench(call, return_mode="median")
        with NOTED.open("a") as file:
            file.write(json.dumps(noted) + "\n")
        self.benchmark(call_and_wait)


def close(call: Callable[[], Any], reference: Callable[[], Any], fn: Any, args: Any) -> str:
    """The first line of what assert_close says; empty where it is content."""
    leaves = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    leaves += list(fn.parameters()) if isinstance(fn, nn.Module) else []
    try:
        got, want = results(call, leaves), results(reference, leaves)
        torch.testing.assert_close(got, want, equal_nan=True, **TOLERANCE)
    except Exception as error:  # whatever it is, such a test fails
        return (str(error).splitlines() or [type(error).__name__])[0]
    return ""


def results(call: Callable[[], Any], leaves: list[Any]) -> list[Any]:
    """Outputs and gradients; fp8 as float32, of which there is a comparison."""
    outputs = [leaf for leaf in pytree.tree_leaves(call()) if isinstance(leaf, torch.Tensor)]
    generator = torch.Generator(Rivals.device).manual_seed(1)
    heads = [output for output in outputs if output.requires_grad]
    grads = [torch.randn(head.shape, generator=generator, device=head.device, dtype=head.dtype) for head in heads]
    found = torch.autograd.grad(heads, leaves, grads, allow_unused=True) if heads and leaves else ()
    tensors = [*(output.detach() for output in outputs), *(each for each in found if each is not None)]
    return [tensor.float() if tensor.dtype.itemsize == 1 else tensor for tensor in tensors]


@pytest.fixture
def perfguard(request: pytest.FixtureRequest, benchmark: Any) -> Rivals:
    torch.manual_seed(sum(request.node.name.encode()))
    return Rivals(request.node.name, benchmark)
