"""Quantisers that read an operand once, every candidate, against the two quantisers of which each reads it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.peers.contest import Call, Contest
from kernels import fp8
from kernels.fp8.configs import MAX_CANDIDATES
from kernels.fp8.shapes import GROUPED_A, GROUPED_B, WEIGHT_A, WEIGHT_B, GroupedShape, WeightShape

TOKENS = (GROUPED_A, GroupedShape(16640, 8192, 16), GROUPED_B, GroupedShape(32768, 1408, 64))  # a and grad_out
WEIGHTS = (WEIGHT_A, WEIGHT_B)
BYTES = 4  # of a bf16 element read once and written twice


def contests(device: torch.device, smoke: bool) -> Iterator[Contest]:
    for tokens in (GroupedShape(64, 48, 4),) if smoke else TOKENS:
        x, offs = tokens.inputs(device)
        once = partial(fp8.quantize_rowwise_colwise_per_group, x, offs, power_of_two=True, alignment=16)

        def apart(x: torch.Tensor = x, offs: torch.Tensor = offs) -> list[torch.Tensor]:
            rows = fp8.quantize_rowwise(x, power_of_two=True)
            return [*rows, *fp8.quantize_colwise_per_group(x, offs, power_of_two=True, alignment=16)]

        rivals = {**_candidates(once), "rows, then columns": apart}
        yield Contest("quantise tokens", str(tokens), rivals, tolerance=0.0, bytes=BYTES * tokens.elements)
    for weight in (WeightShape(2, 48, 32),) if smoke else WEIGHTS:
        (w,) = weight.inputs(device)
        once = partial(fp8.quantize_colwise_transpose_3d, w, power_of_two=True)

        def both(w: torch.Tensor = w) -> list[torch.Tensor]:
            columns = fp8.quantize_colwise_3d(w, power_of_two=True)
            return [*columns, *fp8.quantize_transpose_3d_atomic(w, power_of_two=True)]

        rivals = {**_candidates(once), "columns, then transposed": both}
        yield Contest("quantise weights", str(weight), rivals, tolerance=0.0, bytes=BYTES * weight.elements)


def _candidates(once: partial[tuple[torch.Tensor, ...]]) -> dict[str, Call]:
    rivals: dict[str, Call] = {}
    for number in range(MAX_CANDIDATES):
        try:
            once(candidate=number)
        except ValueError:  # the end of the table
            break
        rivals[f"once, candidate {number}"] = partial(once, candidate=number)
    return rivals
