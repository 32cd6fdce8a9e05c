"""What is planted: other fingerprints at the same speed, and a worse configuration of each family of kernels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from benchmarks.planting import Edit

FP8, PRODUCTS = "kernels/fp8/configs.py", "kernels/fp8/launch_products.py"
GROUPED, MOE, OPERATORS = (f"kernels/{room}/configs.py" for room in ("grouped", "moe", "operators"))

# A variable that libraries of another vendor read, at its default: nothing runs otherwise, and every fingerprint moves.
_OTHER_CODE = '''\
"""Planted by benchmarks.pairs: the device seems to run other code, which is as fast."""

import pytest

CHANGED = {changed!r}


@pytest.fixture(autouse=True)
def other_code(request, monkeypatch):
    if CHANGED is None or request.node.nodeid in CHANGED:
        monkeypatch.setenv("SYCL_CACHE_PERSISTENT", "0")
'''


def plant_other_code(folder: Path, nodeids: Collection[str] | None = None) -> None:
    """Move the fingerprints of these tests, or of all, so that their times are in question."""
    changed = None if nodeids is None else sorted(nodeids)
    (folder / "conftest.py").write_text(_OTHER_CODE.format(changed=changed), encoding="utf-8")


@dataclass(frozen=True)
class Family:
    """A worse configuration of one family on Hopper: an edit of its table, the cases to run, what is known of it."""

    suite: str
    cases: str  # for -k; empty: all
    edit: Edit
    known: str


_FIRST_SUMS = "whole, parts = ((8, 16, 64, 2, None), (8, 32, 64, 4, None))"
FAMILIES = {
    "rows": Family(
        "quantize",
        "test_quantize_rowwise and not group",
        Edit(
            FP8,
            "    return (\n        RowsConfig(rows=1, block=head,",
            "    return (\n        RowsConfig(rows=1, block=block // 2, whole=False, warps=warps),\n"
            "        RowsConfig(rows=1, block=head,",
        ),
        "each row is read twice: 10 to 49 % on an H200",
    ),
    "ring": Family(
        "quantize",
        "transpose_3d",
        Edit(FP8, "RingConfig(held=7)", "RingConfig(held=11)"),
        "chunks of 11 tiles for 7: 1 to 5 % on an H200 where a weight has 5,120 or 8,192 rows",
    ),
    "groups": Family(
        "grouped_mm",
        "",
        Edit(GROUPED, "depth=32, warps=4, stages=6, specialised", "depth=64, warps=4, stages=3, specialised"),
        "steps of 64 rows: 2 to 8 % backward on an H200",
    ),
    "fp8": Family(
        "fp8_grouped_mm",
        "",
        Edit(
            PRODUCTS,
            "    Config(height=128, width=256, depth=128, warps=4, stages=4, specialised=True),\n"
            "    Config(height=256, width=128, depth=128, warps=4, stages=4, specialised=True),\n",
            "    Config(height=256, width=128, depth=128, warps=4, stages=4, specialised=True),\n"
            "    Config(height=128, width=256, depth=128, warps=4, stages=4, specialised=True),\n",
        ),
        "the other tile first: 10 % forward and 13 % dgrad at the wide shape on an H200, the narrow one may be faster",
    ),
    "dots": Family(
        "moe",
        "test_moe_collect or test_moe_spread or test_moe_rows",
        Edit(MOE, "sizes = ((256, 1), (512, 2), (1024, 4), (2048, 8))", "sizes = ((1024, 4), (512, 2), (256, 1))"),
        "four warps a token for one: 9 % on an H200 at widths up to 2048",
    ),
    "sums": Family(
        "operators",
        "test_indexed_bias_add",
        Edit(OPERATORS, _FIRST_SUMS, "whole, parts = ((8, 32, 64, 4, None), (8, 16, 64, 2, None))"),
        "tiles of 32 rows for 16: 14 % backward on an H200, faster where one group has all rows",
    ),
    "tiles": Family(
        "operators",
        "test_silu_mul or test_clamped_swiglu",
        Edit(OPERATORS, "TileConfig(1, size, max(1, min(8, size // 512)))", "TileConfig(1, size, 1)"),
        "one warp a tile: nothing is known",
    ),
}
