"""The grouped product under guard: one case a shape and implementation, forward and backward.

On a GPU the shapes of the contract are checked and timed, as `auto` runs them and through our own kernel. On a CPU
moderate ones run and are timed through the loop, and small ones run through the interpreter, which is never timed.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch

from kernels import grouped
from kernels.fp8.shapes import Split
from kernels.grouped import configs, library, shapes
from kernels.grouped.configs import Impl
from kernels.grouped.shapes import ProductShape
from perfguard import Hard, Work, offsets
from tests.kernels.paths import GPU, REAL, Candidates, cases, every_second, launch_nothing, open_path


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
    if path == "loop":
        launch_nothing(monkeypatch)
    inputs, product = shape.inputs(perfguard.device), partial(grouped.grouped_mm, impl=impl)
    offsets(inputs[-1], shape.rows)
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


@pytest.mark.parametrize(
    "shape", [] if GPU else [ProductShape(3, 50, 24, 40, "random")], ids=lambda s: f"{s}-interpreted"
)
def test_grouped_mm_by_descriptors(perfguard: Any, shape: ProductShape, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's other configuration, which reads whole tiles through descriptors, and the rest of a group by
    masked loads: 16 rows at a time, of groups that are no multiple of it."""
    open_path("interpreter", monkeypatch)
    assert configs.candidates("cpu", "groups", 2, shape.outer, True)[1].descriptors
    inputs = shape.inputs(perfguard.device)
    offsets(inputs[-1], shape.rows)
    product = partial(grouped.grouped_mm, impl="triton", candidate=1)
    perfguard(product, *inputs, reference=grouped.reference.grouped_mm, timed=False)


@cases([], [], shapes.SMALL[2:])
def test_grouped_mm_by_ends_with_gaps(
    perfguard: Any, shape: ProductShape, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second number of a buffer is an end: a kernel that steps by one reads what lies between."""
    open_path(path, monkeypatch)
    *operands, offs = shape.inputs(perfguard.device)
    perfguard(
        partial(grouped.grouped_mm, impl="triton"),
        *operands,
        offsets(every_second(offs), shape.rows),
        reference=grouped.reference.grouped_mm,
        timed=False,
    )


# PyTorch's own product loops on a CPU, and only what is done around it is ours: copies, and zeros that it does not
# write, by torch's operators and by kernels. Groups of no row at both ends, and rows of no group.
RAGGED = Split("ragged", (0, 5, 0, 18, 0), unused=3)
AROUND = cases((), [RAGGED], [RAGGED])


def open_around(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_path(path, monkeypatch)
    if path == "eager":
        launch_nothing(monkeypatch)


def refuse_what_a_gpu_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's product take what its GPU kernel takes: dense ends, sizes and strides of whole 16 bytes."""
    library_takes_all = torch._grouped_mm

    def strict(a: torch.Tensor, b: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
        jagged = b.ndim == 2  # along the contraction, whose ends stand anywhere
        for name, x, sizes in (("a", a, a.shape[:1] if jagged else a.shape[1:]), ("b", b, b.shape[1:])):
            unit = 16 // x.element_size()
            steps = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1 and stride != 1]
            if x.data_ptr() % 16 or any(number % unit for number in (*sizes, *steps)):
                raise AssertionError(f"{name}: {tuple(x.shape)} with strides {x.stride()} is not on 16 bytes")
        assert offs.is_contiguous(), "offs: is not dense"
        return library_takes_all(a, b, offs=offs)

    monkeypatch.setattr(torch, "_grouped_mm", strict)


@AROUND
def test_grouped_mm_of_the_library(perfguard: Any, shape: Split, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 and 20 columns one is on 16 bytes and one is not, forward and backward."""
    open_around(path, monkeypatch)
    refuse_what_a_gpu_refuses(monkeypatch)
    a = torch.randn(shape.rows, 24, device=perfguard.device, dtype=torch.bfloat16, requires_grad=True)
    stored = torch.randn(shape.groups, 20, 24, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(
        partial(grouped.grouped_mm, impl="torch"),
        a,
        stored.mT.requires_grad_(),
        offsets(every_second(shape.offs(perfguard.device)), shape.rows),
        reference=grouped.reference.grouped_mm,
        timed=False,
    )


IN_PLACE = Hard(without=["layouts"], reason="what is cleared is contiguous memory that the product has just written")


@AROUND
def test_grouped_mm_clear_rows(perfguard: Any, shape: Split, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_around(path, monkeypatch)

    def cleared(out: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        library.clear_rows(out, offs)
        return out

    def true(out: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        out[int(offs[-1]) :] = 0
        return out

    out = torch.randn(shape.rows, 3100, device=perfguard.device, dtype=torch.bfloat16)  # over two programs' blocks
    offs = offsets(every_second(shape.offs(perfguard.device)), shape.rows)
    perfguard(cleared, out, offs, reference=true, mutates=(0,), hard=IN_PLACE, timed=False)


@AROUND
def test_grouped_mm_clear_groups(perfguard: Any, shape: Split, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_around(path, monkeypatch)

    def cleared(out: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        library.clear_groups(out, offs)
        return out

    def true(out: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        for group, (start, end) in enumerate(pairwise([0, *offs.tolist()])):
            if start == end:
                out[group] = 0
        return out

    out = torch.randn(shape.groups, 90, 100, device=perfguard.device, dtype=torch.bfloat16)  # over two programs' blocks
    offs = offsets(every_second(shape.offs(perfguard.device)), shape.rows)
    perfguard(cleared, out, offs, reference=true, mutates=(0,), hard=IN_PLACE, timed=False)
