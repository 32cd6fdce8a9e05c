"""RMSNorm and rotary positions under guard, forward and backward: one test an operator, one case a shape."""

from __future__ import annotations

from typing import Any

import pytest

from kernels import operators
from kernels.operators import reference, shapes
from kernels.operators.shapes import NormShape, RopeShape
from tests.kernels.operator_work import norm_work, rope_work
from tests.kernels.paths import GPU, Candidates, cases, launch_nothing, open_path, other_rows


@pytest.fixture(autouse=True)
def on_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the way that the case takes, and make sure that it is taken."""
    open_path(path, monkeypatch)
    assert operators.path(GPU or "cpu") == path
    if path == "eager":
        launch_nothing(monkeypatch)


@cases(shapes.RMS_NORM, shapes.RMS_NORM_CPU, shapes.RMS_NORM_SMALL)
def test_rms_norm(perfguard: Any, candidates: Candidates, shape: NormShape, path: str) -> None:
    inputs = shape.inputs(perfguard.device)
    perfguard(
        operators.rms_norm,
        *inputs,
        reference=reference.rms_norm,
        work=norm_work(shape),
        timed=path != "interpreter",
        configurations=candidates(operators.rms_norm, *inputs),
        walk=other_rows(shape, lambda s: s.inputs(perfguard.device)),
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
