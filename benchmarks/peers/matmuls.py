"""Grouped matmuls: ours in float8 and in bf16, against torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.peers.contest import Call, Contest
from kernels import fp8, grouped
from kernels.fp8.grouped_shapes import MATMUL_A, MATMUL_B, MatmulShape
from kernels.grouped.configs import Form, candidates
from kernels.hardware import arch_of

SHAPES = (MATMUL_A, MATMUL_B)
SMOKE = (MatmulShape(2, 32, 16, 48),)
FP8_NOISE = 0.1  # a matmul of fp8 operands has 28 dB, which is 0.04 of the norm
Matmul = Callable[[Tensor, Tensor, Tensor], Tensor]


def torch_bf16(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    return torch._grouped_mm(a, b, offs=offs)


def trained(matmul: Matmul, a: Tensor, w: Tensor, offs: Tensor, grad: Tensor) -> list[Tensor]:
    """Forward and backward: (out, gradient of a, gradient of w)."""
    out = matmul(a, w.mT, offs)
    return [out.detach(), *torch.autograd.grad(out, (a, w), grad)]


def fp8_contests(device: torch.device, smoke: bool) -> Iterator[Contest]:
    for shape in SMOKE if smoke else SHAPES:
        a, w, offs = shape.inputs(device)
        with torch.no_grad():
            w *= shape.inner**-0.5
        grad = torch.randn(shape.rows, shape.outer, device=device, dtype=a.dtype)
        matmuls: dict[str, Matmul] = {
            "fp8, weights kept": partial(fp8.grouped_mm, keep_fp8_weights=True),
            "fp8": fp8.grouped_mm,
            "torch._grouped_mm bf16": torch_bf16,
        }
        rivals: dict[str, Call] = {name: partial(trained, matmul, a, w, offs, grad) for name, matmul in matmuls.items()}
        yield Contest("fp8 forward + backward", str(shape), rivals, FP8_NOISE, flop=3 * shape.flop)
        rivals = {name: partial(_forward, matmul, a, w, offs) for name, matmul in matmuls.items()}
        yield Contest("fp8 forward, training", str(shape), rivals, FP8_NOISE, flop=shape.flop)


def _forward(matmul: Matmul, a: Tensor, w: Tensor, offs: Tensor) -> list[Tensor]:
    return [matmul(a, w.mT, offs).detach()]


def bf16_contests(device: torch.device, smoke: bool) -> Iterator[Contest]:
    for shape in SMOKE if smoke else SHAPES:
        a, w, offs = (tensor.detach() for tensor in shape.inputs(device))
        grad = torch.randn(shape.rows, shape.outer, device=device, dtype=a.dtype)
        products: dict[str, tuple[Form, int, Tensor, Tensor]] = {
            "forward": ("rows", shape.outer, a, w.mT),
            "dgrad": ("rows", shape.inner, grad, w),
            "wgrad": ("groups", shape.inner, grad.t(), a),
        }
        for name, (form, outer, left, right) in products.items():
            rivals: dict[str, Call] = {"torch._grouped_mm": partial(_product, torch_bf16, left, right, offs)}
            if device.type == "cuda":  # without a GPU there is the loop alone
                for number in range(len(candidates(arch_of(device), form, 2, outer, True))):
                    ours = partial(grouped.grouped_mm, impl="triton", candidate=number)
                    rivals[f"ours, candidate {number}"] = partial(_product, ours, left, right, offs)
            loop = partial(grouped.grouped_mm, impl="loop")
            rivals["loop"] = partial(_product, loop, left, right, offs)
            yield Contest(f"bf16 {name}", str(shape), rivals, flop=shape.flop)


def _product(matmul: Matmul, left: Tensor, right: Tensor, offs: Tensor) -> list[Tensor]:
    return [matmul(left, right, offs)]
