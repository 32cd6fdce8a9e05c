"""RMSNorm and rotary positions under guard, forward and backward: one test an operator, one case a shape."""

from __future__ import annotations

from typing import Any

import pytest

from kernels import operators
from kernels.operators import reference, shapes
from kernels.operators.shapes import RopeShape, RowsShape
from tests.kernels.operator_work import norm_and_codes_work, norm_work, rope_work
from tests.kernels.paths import Candidates, cases, other_rows

pytestmark = pytest.mark.usefixtures("on_path")


@cases(shapes.RMS_NORM, shapes.RMS_NORM_CPU, shapes.RMS_NORM_SMALL)
def test_rms_norm(perfguard: Any, candidates: Candidates, shape: RowsShape, path: str) -> None:
    inputs = shape.weighted(perfguard.device)
    perfguard(
        operators.rms_norm,
        *inputs,
        reference=reference.rms_norm,
        work=norm_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.rms_norm, *inputs),
        walk=other_rows(shape, lambda s: s.weighted(perfguard.device)),
    )


@cases(shapes.NORM_AND_CODES, shapes.RMS_NORM_CPU, shapes.RMS_NORM_SMALL)
@pytest.mark.parametrize("scaling", ["rowwise", "1x128"])
def test_rms_norm_quantize(perfguard: Any, candidates: Candidates, shape: RowsShape, path: str, scaling: str) -> None:
    inputs, how = shape.weighted(perfguard.device), {"scaling": scaling}
    perfguard(
        operators.rms_norm_quantize,
        *inputs,
        reference=reference.rms_norm_quantize,
        kwargs=how,
        work=norm_and_codes_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.rms_norm_quantize, *inputs, **how),
        walk=other_rows(shape, lambda s: s.weighted(perfguard.device)),
    )


@cases(shapes.ROPE, shapes.ROPE_CPU, shapes.ROPE_SMALL)
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "halves"])
def test_rope(perfguard: Any, candidates: Candidates, shape: RopeShape, path: str, interleaved: bool) -> None:
    inputs, how = shape.inputs(perfguard.device), {"interleaved": interleaved}
    perfguard(
        operators.rope,
        *inputs,
        reference=reference.rope,
        kwargs=how,
        work=rope_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.rope, *inputs, **how),
        walk=other_rows(shape, lambda s: s.inputs(perfguard.device)),
    )
