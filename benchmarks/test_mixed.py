"""Cases of every kind from 3 µs to 10 ms: short, long, host-bound, compiled, not capturable, forward and backward.

Not a test of anything: what `python -m benchmarks.selfcheck` is asked about on a GPU, for docs/selfcheck.md.

    python -m benchmarks.selfcheck --sessions 15 -- benchmarks/test_mixed.py
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from kernels import fp8, grouped, operators
from kernels.fp8.shapes import GROUPED, MATRICES, WEIGHTS
from kernels.grouped.shapes import REAL as PRODUCTS
from kernels.moe import reference as moe_reference
from kernels.moe.shapes import LAYERS, LayerShape
from kernels.operators.shapes import CROSS_ENTROPY, SILU_MUL
from tests.kernels.paths import GPU

pytestmark = pytest.mark.skipif(GPU is None, reason="needs a GPU: these shapes are a GPU's")


def bf16(perfguard: Any, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=perfguard.device, dtype=torch.bfloat16)


def test_add(perfguard: Any) -> None:
    x = bf16(perfguard, 4096)
    perfguard(torch.add, x, x.flip(0), reference=torch.add)


@pytest.mark.parametrize("shape", [MATRICES[4], MATRICES[0]], ids=str)
def test_quantize_rowwise(perfguard: Any, shape: Any) -> None:
    inputs = shape.inputs(perfguard.device)
    perfguard(fp8.quantize_rowwise, *inputs, reference=fp8.reference.quantize_rowwise)


def test_quantize_colwise_per_group(perfguard: Any) -> None:
    inputs = GROUPED[1].inputs(perfguard.device)
    perfguard(fp8.quantize_colwise_per_group, *inputs, reference=fp8.reference.quantize_colwise_per_group)


def test_quantize_transpose_3d(perfguard: Any) -> None:
    inputs = WEIGHTS[0].inputs(perfguard.device)
    perfguard(fp8.quantize_transpose_3d_reduction, *inputs, reference=fp8.reference.quantize_transpose_3d_reduction)


def test_silu_mul(perfguard: Any) -> None:
    perfguard(operators.silu_mul, *SILU_MUL[-1].pair(perfguard.device), reference=operators.reference.silu_mul)


def test_grouped_mm(perfguard: Any) -> None:
    product = functools.partial(grouped.grouped_mm, impl="triton")
    perfguard(product, *PRODUCTS[2].inputs(perfguard.device), reference=grouped.reference.grouped_mm)


def test_cross_entropy(perfguard: Any) -> None:
    logits, target = CROSS_ENTROPY[0].inputs(perfguard.device)
    perfguard(operators.cross_entropy, logits, target, reference=operators.reference.cross_entropy)


@pytest.mark.parametrize("size", [8192, 16384])
def test_matmul(perfguard: Any, size: int) -> None:
    perfguard(torch.mm, bf16(perfguard, size, size), bf16(perfguard, size, size), reference=torch.mm)


def gated_norm(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    normed = torch.nn.functional.rms_norm(x, x.shape[-1:])
    return torch.nn.functional.silu(normed @ gate) * (normed @ up)


def test_compiled(perfguard: Any) -> None:
    x = bf16(perfguard, 8192, 2048)
    gate, up = (bf16(perfguard, 2048, 1408) / 45 for _ in range(2))
    inputs = [tensor.requires_grad_() for tensor in (x, gate, up)]
    perfguard(torch.compile(gated_norm, fullgraph=True), *inputs, reference=gated_norm)


def many_small(x: torch.Tensor) -> torch.Tensor:
    for _ in range(30):
        x = (x * 0.5 + 1).tanh()
    return x


def test_many_small_launches(perfguard: Any) -> None:
    x = torch.randn(4096, device=perfguard.device, requires_grad=True)
    perfguard(many_small, x, reference=many_small)


def waits(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum().item() > 1e9 else x + 1


def test_waits_for_the_device(perfguard: Any) -> None:
    perfguard(waits, torch.rand(1 << 20, device=perfguard.device), reference=waits)


@pytest.mark.parametrize("shape", [LAYERS[0], LayerShape("qwen3-30b-a3b", 64)], ids=str)
def test_moe_layer(perfguard: Any, shape: LayerShape) -> None:
    layer = shape.layer(perfguard.device)
    layer.eval()
    x = shape.inputs(perfguard.device).requires_grad_()
    perfguard(layer, x, reference=functools.partial(moe_reference.moe, layer))
