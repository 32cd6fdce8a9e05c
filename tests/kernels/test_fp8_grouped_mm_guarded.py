"""The float8 grouped matmul under guard: forward and backward, one case a shape.

On a GPU the shapes of the contract are checked and timed. On a CPU moderate ones run and are timed through the eager
quantisers and the emulated matmul, and small ones run through the interpreted quantisers, which are never timed. Our
own products, which a CPU has no reason to take, are asked for by name there.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from kernels import fp8
from kernels.fp8 import scaled
from kernels.fp8.grouped_shapes import MATMULS, MATMULS_CPU, MATMULS_SMALL, MatmulShape
from kernels.fp8.shapes import Split
from perfguard import Work, offsets
from tests.kernels.paths import GPU, cases, launch_nothing, open_path

CASES = cases(MATMULS, MATMULS_CPU, MATMULS_SMALL)
# Groups of no row at both ends, of less and of more than a tile, and rows of no group; by the interpreter's tiles.
RAGGED = Split("ragged", (0, 5, 0, 18, 0), unused=3)
PRODUCTS = cases((), (), [RAGGED])
FEWER = cases(MATMULS, MATMULS_CPU[:2])  # on a CPU, where all that differs is when the weight is quantised


@pytest.fixture(autouse=True)
def on_path(path: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the way that the case takes, and make sure that it is taken."""
    open_path(path, monkeypatch)
    assert fp8.path(GPU or "cpu") == path
    if path == "eager" and request.function is not test_fp8_product_of_ours:
        launch_nothing(monkeypatch)


def matmul(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return fp8.grouped_mm(a, w.mT, offs)


def matmul_keeping_weights(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return fp8.grouped_mm(a, w.mT, offs, keep_fp8_weights=True)


def truth(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    return fp8.reference.grouped_mm(a, w.mT, offs)


@CASES
def test_fp8_grouped_mm(perfguard: Any, shape: MatmulShape, path: str) -> None:
    a, w, offs = shape.inputs(perfguard.device)
    perfguard(
        matmul,
        a,
        w,
        offsets(offs, len(a)),
        reference=truth,
        work=Work(flop=shape.flop, backward_flop=2 * shape.flop),
        timed=path != "interpreter",
    )


@FEWER
def test_fp8_grouped_mm_keeping_weights(perfguard: Any, shape: MatmulShape, path: str) -> None:
    """The targets are with `keep_fp8_weights`: backward then quantises no weight."""
    a, w, offs = shape.inputs(perfguard.device)
    perfguard(
        matmul_keeping_weights,
        a,
        w,
        offsets(offs, len(a)),
        reference=truth,
        work=Work(flop=shape.flop, backward_flop=2 * shape.flop),
        timed=path != "interpreter",
    )


def drawn(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).to(torch.float8_e4m3fn)


def inverses(*shape: int, device: torch.device) -> torch.Tensor:
    """Powers of two, as the quantisers write them; every other one of a buffer that has gaps."""
    return torch.exp2(torch.randint(-3, 4, (*shape, 2), device=device).float())[..., 0]


@pytest.mark.parametrize(("shape", "path"), [] if GPU else [pytest.param(RAGGED, "eager", id="ragged-interpreted")])
def test_fp8_product_of_ours(perfguard: Any, shape: Split, path: str) -> None:
    """Widths that are filled up to multiples of 16, forward and both gradients. What is asked for by name is
    interpreted; the quantisers, which the interpreter would need half a minute for, are torch's operators."""
    a = torch.randn(shape.rows, 17, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(shape.groups, 40, 17, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)

    def ours(a: torch.Tensor, w: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        return fp8.grouped_mm(a, w.mT, offs, fast_accum=False, backend="triton")

    perfguard(ours, a, w, offsets(shape.offs(perfguard.device), shape.rows), reference=truth, timed=False)


@PRODUCTS
def test_fp8_product_of_rows(perfguard: Any, shape: Split, path: str) -> None:
    rows, groups, device = shape.rows, shape.groups, perfguard.device

    def product(
        a: torch.Tensor, a_inverse: torch.Tensor, b: torch.Tensor, b_inverse: torch.Tensor, offs: torch.Tensor
    ) -> torch.Tensor:
        return scaled.matmul_2d3d(a, a_inverse, b, b_inverse, offs, True, "triton")

    def true(
        a: torch.Tensor, a_inverse: torch.Tensor, b: torch.Tensor, b_inverse: torch.Tensor, offs: torch.Tensor
    ) -> torch.Tensor:
        out = a_inverse.new_zeros((len(a), b.shape[2]))
        for group, (start, end) in enumerate(pairwise([0, *offs.tolist()])):
            sums = a[start:end].to(out.dtype) @ b[group].to(out.dtype)
            out[start:end] = sums * a_inverse[start:end] * b_inverse[group]
        return out.to(torch.bfloat16)

    perfguard(
        product,
        drawn(rows, 40, device=device),
        inverses(rows, 1, device=device),
        drawn(groups, 72, 40, device=device).mT,
        inverses(groups, 72, device=device),
        offsets(shape.offs(device), rows),
        reference=true,
        timed=False,
    )


@PRODUCTS
def test_fp8_product_of_groups(perfguard: Any, shape: Split, path: str) -> None:
    """Groups of 0, 16 and 48 columns: none, half a step of the contraction, and one and a half."""
    product_of_groups(perfguard, shape.groups, 40, 72)


@cases((), (), [128])
def test_fp8_product_of_groups_as_they_are(perfguard: Any, shape: int, path: str) -> None:
    """No width is filled up, so that nothing is copied on the way: not what lies in strides, nor scales with gaps. As
    many columns as a chip's narrower tile has."""
    product_of_groups(perfguard, RAGGED.groups, 48, shape)


def product_of_groups(perfguard: Any, groups: int, height: int, width: int) -> None:
    device = perfguard.device
    ends = torch.tensor([0, 16, 16, 64, 64], dtype=torch.int32, device=device)

    def product(
        a: torch.Tensor, a_inverse: torch.Tensor, b: torch.Tensor, b_inverse: torch.Tensor, offs: torch.Tensor
    ) -> torch.Tensor:
        return scaled.matmul_2d2d(a, a_inverse, b, b_inverse, offs, True, "triton")

    def true(
        a: torch.Tensor, a_inverse: torch.Tensor, b: torch.Tensor, b_inverse: torch.Tensor, offs: torch.Tensor
    ) -> torch.Tensor:
        assert a.shape[1] % 16 == 0, "of multiples of 16 only"
        by_group, by_other = (each.view(len(offs), -1) for each in (a_inverse, b_inverse))
        out = a_inverse.new_zeros((len(offs), len(a), b.shape[1]))
        for group, (start, end) in enumerate(pairwise([0, *offs.tolist()])):
            if start < end:
                sums = a[:, start:end].to(out.dtype) @ b[start:end].to(out.dtype)
                out[group] = sums * by_group[group, :, None] * by_other[group]
        return out.to(torch.bfloat16)

    perfguard(
        product,
        drawn(height, 80, device=device),
        inverses(groups * height, device=device),
        drawn(width, 80, device=device).t(),
        inverses(groups * width, device=device),
        offsets(ends, 80),
        reference=true,
        timed=False,
    )
