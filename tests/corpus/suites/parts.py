"""Quantising rows at once, beside a loop over parts of them."""

from __future__ import annotations

from typing import Any

import torch

from kernels import fp8

PART = 64


def by_parts(x: torch.Tensor) -> Any:
    codes, scales = zip(*(fp8.reference.quantize_rowwise(part) for part in x.split(PART)), strict=True)
    return torch.cat([each.view(torch.uint8) for each in codes]).view(codes[0].dtype), torch.cat(scales)


def test_rows(perfguard: Any) -> None:
    x = torch.randn(256, 512, device=perfguard.device, dtype=torch.bfloat16)
    perfguard(fp8.quantize_rowwise, x, reference=fp8.reference.quantize_rowwise, rival=by_parts)
