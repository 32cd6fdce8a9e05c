"""The quantisers under guard: one test a quantiser, one case a shape.

On a GPU the shapes of the contract are checked and timed. On a CPU moderate ones run and are timed through the
eager path, and small ones run through the interpreter, which is never timed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from kernels import fp8
from kernels.fp8 import shapes
from kernels.fp8.shapes import DualShape, GroupedShape, MatrixShape, WeightShape
from perfguard import Work, offsets
from tests.kernels.paths import Candidates, cases, every_second, other_rows

MATRICES = cases(shapes.MATRICES, shapes.MATRICES_CPU, shapes.MATRICES_SMALL)
GROUPED = cases(shapes.GROUPED, shapes.GROUPED_CPU, shapes.GROUPED_SMALL)
DUALS = cases(shapes.DUALS, shapes.DUALS_CPU, shapes.DUALS_SMALL)
WEIGHTS = cases(shapes.WEIGHTS, shapes.WEIGHTS_CPU, shapes.WEIGHTS_SMALL)
BLOCKS = cases(shapes.MATRICES, shapes.MATRICES_CPU, shapes.BLOCKS_SMALL)


pytestmark = pytest.mark.usefixtures("on_path")


# For each bf16 element, scales left out: 2 bytes read, and 1 written or, where codes along both axes come of it, 2.
ONCE_WRITTEN, TWICE_WRITTEN = 3, 4


def drawn(shape: Any, device: Any) -> tuple[Tensor, ...]:
    return shape.inputs(device)  # type: ignore[no-any-return]


def transposed(shape: GroupedShape, device: Any) -> tuple[Tensor, Tensor]:
    """grad_out transposed: a view, the layout that training has."""
    x, offs = shape.inputs(device)
    return x.t(), offs


def guard(
    perfguard: Any,
    candidates: Candidates,
    quantise: Callable[..., Any],
    shape: Any,
    path: str,
    inputs: Callable[[Any, Any], tuple[Tensor, ...]] = drawn,
    bytes_each: int = ONCE_WRITTEN,
) -> None:
    """A quantiser against the reference of its name; one that takes tokens also on other numbers of them."""
    given = inputs(shape, perfguard.device)
    if hasattr(shape, "groups"):
        offsets(given[-1], shape.rows)
    perfguard(
        quantise,
        *given,
        reference=getattr(fp8.reference, quantise.__name__),
        work=Work(bytes=bytes_each * shape.elements),
        timed=path != "interpreter",
        configurations=candidates(quantise, *given),
        walk=other_rows(shape, lambda s: inputs(s, perfguard.device)) if hasattr(shape, "rows") else (),
    )


@MATRICES
def test_quantize_rowwise(perfguard: Any, candidates: Candidates, shape: MatrixShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_rowwise, shape, path)


@GROUPED
def test_quantize_rowwise_per_group(perfguard: Any, candidates: Candidates, shape: GroupedShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_rowwise_per_group, shape, path, inputs=transposed)


@GROUPED
def test_quantize_colwise_per_group(perfguard: Any, candidates: Candidates, shape: GroupedShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_colwise_per_group, shape, path)


@DUALS
def test_quantize_colwise_per_group_dual(perfguard: Any, candidates: Candidates, shape: DualShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_colwise_per_group_dual, shape, path)


@WEIGHTS
def test_quantize_transpose_3d_atomic(perfguard: Any, candidates: Candidates, shape: WeightShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_transpose_3d_atomic, shape, path)


@WEIGHTS
def test_quantize_transpose_3d_reduction(perfguard: Any, candidates: Candidates, shape: WeightShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_transpose_3d_reduction, shape, path)


@WEIGHTS
def test_quantize_colwise_3d(perfguard: Any, candidates: Candidates, shape: WeightShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_colwise_3d, shape, path)


@GROUPED
def test_quantize_rowwise_colwise_per_group(
    perfguard: Any, candidates: Candidates, shape: GroupedShape, path: str
) -> None:
    guard(perfguard, candidates, fp8.quantize_rowwise_colwise_per_group, shape, path, bytes_each=TWICE_WRITTEN)


@WEIGHTS
def test_quantize_colwise_transpose_3d(perfguard: Any, candidates: Candidates, shape: WeightShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_colwise_transpose_3d, shape, path, bytes_each=TWICE_WRITTEN)


@BLOCKS
def test_quantize_1x128(perfguard: Any, candidates: Candidates, shape: MatrixShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_1x128, shape, path)


@cases(shapes.WEIGHTS, shapes.WEIGHTS_CPU, shapes.WEIGHT_BLOCKS_SMALL)
def test_quantize_128x128(perfguard: Any, candidates: Candidates, shape: WeightShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_128x128, shape, path)


@BLOCKS
def test_quantize_mx(perfguard: Any, candidates: Candidates, shape: MatrixShape, path: str) -> None:
    guard(perfguard, candidates, fp8.quantize_mx, shape, path)


class Typed(NamedTuple):
    """A quantiser, on a small shape of another dtype than the bf16 of all other cases, or with options."""

    quantiser: str
    shape: MatrixShape | GroupedShape | DualShape | WeightShape
    dtype: torch.dtype
    code: torch.dtype | None = None
    power_of_two: bool = False
    alignment: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        given = {"dtype": self.code, "power_of_two": self.power_of_two, "alignment": self.alignment}
        return {name: value for name, value in given.items() if value}

    def __str__(self) -> str:
        words = [self.quantiser, str(self.shape), *(str(each) for each in (self.dtype, self.code) if each)]
        words += ["power-of-two"] * self.power_of_two + ["padded"] * (self.alignment is not None)
        return "-".join(words).replace("torch.", "")


MATRIX, WEIGHT, WORDS = MatrixShape(9, 40), WeightShape(2, 20, 17), WeightShape(1, 16, 32)
WIDE = MatrixShape(2, 17000)
DUAL, SPLIT = DualShape(17, 24, 16, 3, "random"), GroupedShape(17, 24, 3, "random")
TYPED = [
    Typed("rowwise", MATRIX, torch.float32),
    Typed("rowwise", MATRIX, torch.float16),
    Typed("rowwise_per_group", SPLIT, torch.float32),
    Typed("colwise_per_group", SPLIT, torch.float32),
    Typed("colwise_per_group", SPLIT, torch.float16),
    Typed("colwise_per_group_dual", DUAL, torch.float32),
    Typed("transpose_3d_atomic", WEIGHT, torch.float32),
    Typed("transpose_3d_reduction", WEIGHT, torch.float32),
    Typed("transpose_3d_reduction", WEIGHT, torch.float16),
    Typed("colwise_3d", WEIGHT, torch.float32),
    Typed("rowwise_colwise_per_group", SPLIT, torch.float32),
    Typed("colwise_transpose_3d", WEIGHT, torch.float32),
    # Whole words in rows of whole vectors, which a chip reads by kernels of its own; other codes than those it knows.
    Typed("transpose_3d_reduction", WORDS, torch.float16, power_of_two=True),
    Typed("transpose_3d_reduction", WORDS, torch.bfloat16, torch.float8_e4m3fnuz),
    Typed("transpose_3d_reduction", WeightShape(1, 48, 24), torch.float16),  # rows that are no whole vectors
    Typed("colwise_per_group", GroupedShape(32, 32, 2), torch.float16, power_of_two=True),
    Typed("colwise_per_group", SPLIT, torch.bfloat16, alignment=16),
    # Rows longer than a program keeps, and than it takes at a time.
    Typed("rowwise", WIDE, torch.bfloat16),
    Typed("colwise_3d", WeightShape(1, 16, 70), torch.float16),
]


@cases((), (), TYPED)
def test_quantize_dtype(perfguard: Any, candidates: Candidates, shape: Typed, path: str) -> None:
    """Amax and scale are the bits of the input's own dtype: each has code of its own."""
    name = f"quantize_{shape.quantiser}"
    inputs = shape.shape.inputs(perfguard.device, shape.dtype)
    if len(inputs) > 1:
        ends = every_second(inputs[-1]) if shape.options else inputs[-1]
        inputs = (*inputs[:-1], offsets(ends, shape.shape.rows))
    perfguard(
        getattr(fp8, name),
        *inputs,
        reference=getattr(fp8.reference, name),
        kwargs=shape.options,
        timed=False,
        configurations=candidates(getattr(fp8, name), *inputs) if shape.shape == WIDE else (),
    )
