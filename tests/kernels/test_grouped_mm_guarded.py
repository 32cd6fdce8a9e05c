"""The grouped product under guard: one case a shape and implementation, forward and backward.

On a GPU the shapes of the contract are checked and timed, as `auto` runs them and through our own kernel. On a CPU
moderate ones run and are timed through the loop, and small ones run through the interpreter, which is never timed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from kernels import grouped
from kernels.grouped import shapes
from kernels.grouped.configs import Impl
from kernels.grouped.shapes import ProductShape
from perfguard import Work, offsets
from tests.kernels.paths import GPU, REAL, Candidates, open_path


def _cases() -> list[Any]:
    """(shape, implementation, the path it takes; None where the machine's probe decides)."""
    if GPU:
        chosen = shapes.REAL if REAL else (*reversed(shapes.SMALL), *shapes.MODERATE)
        ours = [pytest.param(s, "triton", "triton", id=f"{s}-triton") for s in chosen]
        return ours + [pytest.param(s, "auto", None, id=str(s)) for s in chosen]
    # The aligned one first: it has most candidates.
    small = [pytest.param(s, "triton", "interpreter", id=f"{s}-interpreted") for s in reversed(shapes.SMALL)]
    return small + [pytest.param(s, "auto", "loop", id=str(s)) for s in shapes.MODERATE]


@pytest.mark.parametrize(("shape", "impl", "path"), _cases())
def test_grouped_mm(
    perfguard: Any,
    candidates: Candidates,
    shape: ProductShape,
    impl: Impl,
    path: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    open_path(path, monkeypatch)
    taken = grouped.path(perfguard.device, groups=shape.experts, impl=impl)
    assert path in (None, taken)
    inputs, product = shape.inputs(perfguard.device), partial(grouped.grouped_mm, impl=impl)
    offsets(inputs[-1])
    perfguard(
        product,
        *inputs,
        reference=grouped.reference.grouped_mm,
        work=Work(
            flop=shape.flop,
            bytes=shape.bytes,
            backward_flop=2 * shape.flop,
            backward_bytes=shape.backward_bytes,
        ),
        timed=path != "interpreter",
        configurations=candidates(product, *inputs) if impl == "triton" else (),  # others have none
    )
