"""What tiles use of the sectors that they touch, by how their addresses grow; and the change that it alone tells."""

from __future__ import annotations

import torch

from perfguard.model.records import Word
from tests.measure.metrics.binaries import Reader, changed

X = torch.randn(4, 64)
# Tiles of 4 rows by 32 columns of float32: a row is four whole sectors.
WAYS = {
    "rows": ("r[:, None] * stride + c[None, :]", 32.0),
    "columns": ("r[:, None] + c[None, :] * stride", 16.0),  # runs of 4 values, half a sector
    "one row down a column": ("0 * r[:, None] + c[None, :] * stride", 4.0),
    "every second": ("r[:, None] * stride + 2 * c[None, :]", 16.0),
    "reversed": ("r[:, None] * stride + 31 - c[None, :]", 32.0),
    "transposed": ("tl.trans(c[:, None] + r[None, :] * stride)", 32.0),
    "clamped": ("r[:, None] * stride + tl.minimum(c, n)[None, :]", 32.0),
    # Rows that an index names are near along their columns; the index itself, four values, is half a sector.
    "gathered": ("tl.load(index + r)[:, None] * stride + c[None, :]", round(32 * (512 + 16) / (512 + 32), 1)),
    "wrapped rows": ("(r % n)[:, None] * stride + c[None, :]", 32.0),
    "hinted": ("r[:, None] * stride + tl.max_contiguous(c % n, 32)[None, :]", 32.0),
    "hidden": ("r[:, None] * stride + (c % n)[None, :]", None),
}
HEAD = """
import torch
import triton
import triton.language as tl


@triton.jit
def store_kernel(out, index, n, stride, WAY: tl.constexpr):
    r, c = tl.arange(0, 4), tl.arange(0, 32)
"""
TAIL = """
    tl.store(out + at, 1.0)


@triton.jit
def sum_kernel(x, out, n, stride):
    r, c = tl.arange(0, 4), tl.arange(0, 32)
    total = tl.zeros((4, 32), tl.float32)
    at = x + r[:, None] * stride + c[None, :]
    for _ in range(0, n, 32):
        total += tl.load(at)
        at += 32
    tl.store(out + c, tl.sum(total, 0))


def call(x, way="rows"):
    out = torch.empty_like(x)
    if x.device.type == "cpu":
        return out.fill_(1.0)
    index = torch.zeros(4, dtype=torch.int32, device=x.device)
    store_kernel[(1,)](out, index, 32, x.stride(0), way)
    sum_kernel[(1,)](x, out, x.shape[1], x.stride(0))
    return out
"""
SOURCE = HEAD + "".join(f"    if WAY == {way!r}:\n        at = {at}\n" for way, (at, _) in WAYS.items()) + TAIL


def test_what_is_used_follows_from_how_addresses_grow(reader: Reader) -> None:
    ways = list(WAYS)
    readings = reader.read(SOURCE, X, targets=("sm_90", "gfx942"), configurations=[{"way": way} for way in ways])
    for target in ("sm_90", "gfx942"):
        found = readings[f"{target}.sector_bytes"].value
        assert isinstance(found, dict)
        assert found.pop("sum_kernel") == 32.0  # the pointers are carried by a loop
        number = {"store_kernel": 0} | {f"store_kernel@{number}": number for number in range(1, len(ways))}
        assert found == {name: WAYS[ways[each]][1] for name, each in number.items() if WAYS[ways[each]][1] is not None}


def test_rows_read_by_columns_are_told_by_it_alone(reader: Reader) -> None:
    """A warp reads what it did, as wide as it did: each value from a sector of its own."""
    mutant = SOURCE.replace('way="rows"', 'way="one row down a column"')
    verdicts = changed(reader.read(SOURCE, X, targets=("gfx942",)), reader.read(mutant, X, targets=("gfx942",)))
    assert verdicts["gfx942.sector_bytes"].word is Word.CHANGED
    assert verdicts["gfx942.sector_bytes"].reason == "gfx942.sector_bytes store_kernel 32 B -> 4 B (-87.5 %)"
