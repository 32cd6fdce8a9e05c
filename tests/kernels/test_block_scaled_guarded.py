"""Products with block scales under guard, forward and backward, and rows that are permuted and padded.

On a GPU the shapes are those of DeepSeek-V3 over eight ranks and of Qwen3-30B, checked and timed. On a CPU moderate
ones run and are timed through the reference's path, and small ones run through the interpreter, which is never timed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import block_scaled
from kernels.grouped.shapes import ProductShape
from perfguard import Work, offsets
from tests.kernels.paths import GPU, Candidates, cases, launch_nothing, open_path

REAL = (
    ProductShape(32, 32768, 7168, 2048),  # DeepSeek-V3, experts over eight ranks
    ProductShape(128, 32768, 2048, 768),  # Qwen3-30B
    ProductShape(128, 32768, 2048, 768, "random"),  # every group padded for wgrad
    ProductShape(32, 32768, 7168, 2048, "hot"),  # one expert holds nearly everything
)
MODERATE = (
    ProductShape(4, 256, 192, 128),  # the plain case
    ProductShape(8, 256, 192, 128, "random"),  # borders at odd rows
    ProductShape(8, 256, 128, 192, "hot"),  # skewed
    ProductShape(8, 250, 120, 100, "one-expert"),  # seven empty groups, widths that are no multiple of 16
)
# More than a block of columns, and of rows, with a tail; borders at odd rows.
SMALL = (ProductShape(3, 20, 144, 24, "random"), ProductShape(2, 150, 16, 136, "random"))


@pytest.fixture(autouse=True)
def on_path(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open the way that the case takes, and make sure that it is taken."""
    open_path(path, monkeypatch)
    assert block_scaled.path(GPU or "cpu") == path
    if path == "eager":
        launch_nothing(monkeypatch)


def guard(perfguard: Any, candidates: Candidates, shape: ProductShape, path: str, **options: Any) -> None:
    a, b_t, offs = shape.inputs(perfguard.device)
    perfguard(
        block_scaled.grouped_mm,
        a,
        b_t,
        offsets(offs, len(a)),
        kwargs=options,
        reference=block_scaled.reference.grouped_mm,
        work=Work(flop=shape.flop, backward_flop=2 * shape.flop),
        timed=path != "interpreter",
        configurations=candidates(block_scaled.grouped_mm, a, b_t, offs, **options),
    )


@cases(REAL, MODERATE, SMALL)
def test_block_scaled_mm(perfguard: Any, candidates: Candidates, shape: ProductShape, path: str) -> None:
    guard(perfguard, candidates, shape, path)


@cases(REAL[:2], MODERATE, SMALL)
def test_mxfp8_mm(perfguard: Any, candidates: Candidates, shape: ProductShape, path: str) -> None:
    guard(perfguard, candidates, shape, path, scaling="mx")


@cases(REAL[:3], MODERATE, SMALL)
def test_permuted_and_padded(perfguard: Any, shape: ProductShape, path: str) -> None:
    """From two ranks, which have half of each expert's rows, for blocks of 32; there and back."""
    x, _, offs = shape.inputs(perfguard.device)

    def counted(offs: Tensor) -> Tensor:
        counts_E = torch.diff(offs, prepend=offs.new_zeros(1))
        return torch.stack((counts_E // 2, counts_E - counts_E // 2))

    def there_and_back(x: Tensor, offs: Tensor) -> tuple[Tensor, Tensor]:
        padded = block_scaled.permute_and_pad(x, counted(offs), 32)
        return padded.rows, block_scaled.unpermute(padded.rows * 2, padded)

    def truth(x: Tensor, offs: Tensor) -> tuple[Tensor, Tensor]:
        counts = counted(offs).tolist()
        pieces = x[: sum(map(sum, counts))].split([count for rank in counts for count in rank])
        groups: list[Tensor] = []
        for first, second in zip(pieces[: len(offs)], pieces[len(offs) :], strict=True):
            groups += first, second, x.new_zeros(-(len(first) + len(second)) % 32, x.shape[1])
        rows = torch.cat(groups)
        behind = (len(x) + 31 * len(offs) + 31) // 32 * 32 - len(rows)
        unused = torch.zeros_like(x[sum(map(sum, counts)) :])
        return torch.cat((rows, x.new_zeros(behind, x.shape[1]))), torch.cat((*pieces, unused)) * 2

    perfguard(
        there_and_back,
        x,
        offsets(offs, len(x)),
        reference=truth,
        work=Work(bytes=4 * x.numel(), backward_bytes=4 * x.numel()),
        timed=path != "interpreter",
    )
