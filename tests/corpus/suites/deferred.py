"""A grouped linear layer whose weight gradients are put off, chunk by chunk, into float32 as wide training has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.operators import GroupedLinear, WeightGradStore, reference

SIZES = torch.tensor([12, 20], dtype=torch.int32).cumsum(0).int()


def step(layer: Any, x: torch.Tensor, grads: torch.Tensor, store: WeightGradStore | None) -> dict[str, torch.Tensor]:
    """All chunks forward and backward, then all gradients; what `weight.grad` is after some of them."""
    offs = SIZES.to(x.device)
    layer.weight.grad = torch.zeros_like(layer.weight, dtype=torch.float32)
    for chunk, grad in zip(x, grads, strict=True):
        if store is None:
            layer(chunk, offs).backward(grad)
            continue
        with store:
            layer(chunk, offs).backward(grad)
        store.flush()
    seen = {}
    if store is not None:
        for number in range(len(x)):
            store.pop()
            if number in (0, 1, len(x) - 1):
                seen[f"weight.grad after chunk {number}"] = layer.weight.grad.clone()
    return seen


def truth(x: torch.Tensor, grads: torch.Tensor, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    total = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
    seen = {}
    for number, (chunk, grad) in enumerate(zip(x, grads, strict=True)):
        leaf = weight.detach().clone().requires_grad_()
        with torch.enable_grad():
            (one,) = torch.autograd.grad(reference.grouped_linear(chunk, leaf, SIZES.to(x.device)), leaf, grad)
        total = total + one
        if number in (0, 1, len(x) - 1):
            seen[f"weight.grad after chunk {number}"] = total
    return seen


@pytest.mark.parametrize("chunks", [2, 32])
def test_step(perfguard: Any, chunks: int) -> None:
    """The first chunk's gradient is 64 times the others': a sum that is rounded to bf16 each time loses those."""
    store = WeightGradStore()
    layer = GroupedLinear(2, 24, 40, store=store, device=perfguard.device, dtype=torch.bfloat16)
    layer.weight.grad_dtype = torch.float32
    weight = layer.weight.detach()
    x = torch.randn(chunks, 32, 24, device=perfguard.device, dtype=torch.bfloat16)
    grads = torch.randn(chunks, 32, 40, device=perfguard.device, dtype=torch.bfloat16)
    grads[0] *= 64

    def deferred(x: torch.Tensor, grads: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.enable_grad():
            return step(layer, x, grads, store)

    perfguard(deferred, x, grads, reference=lambda x, grads: truth(x, grads, weight.to(x.dtype)), timed=False)


def test_direct(perfguard: Any) -> None:
    """The same layer where nothing is put off."""
    layer = GroupedLinear(2, 24, 40, device=perfguard.device, dtype=torch.bfloat16)
    x = torch.randn(32, 24, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    offs = SIZES.to(x.device)
    perfguard(
        layer, x, offs, reference=lambda x, offs: reference.grouped_linear(x, layer.weight, offs), groups=offs,
        timed=False,
    )  # fmt: skip
