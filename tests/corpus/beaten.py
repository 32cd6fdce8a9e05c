"""Of section 1.1: slower than the plain way from the first day on, so that no baseline tells."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.corpus.mutant import Append, Edit, Expect, Mutant

SUITE = "test_naive.py"


def as_new(root: Path) -> None:
    """No run came before."""
    shutil.rmtree(root / "baselines")


MUTANTS = [
    Mutant(
        name="a launch for each group, from the first run on",
        classes=("K15",),
        imitates="TE#2939: twice as slow as the loop that it replaces",
        suite="naive",
        apply=(Edit(SUITE, "GROUPS, LAUNCHES = 8, 1", "GROUPS, LAUNCHES = 8, 16"), as_new),
        shown={
            "S": Expect(
                "SLOWER",
                "beside_rival_us",
                cases=("grouped/forward",),
                says=("than its rival", "16 launches, its rival 8"),
                effect=(48 + 16 * 4) / 64,
            )
        },
    ),
    Mutant(
        name="a tuned configuration at 0.86 of the default's speed",
        classes=("K15",),
        imitates="helion#1640 (tuned at 0.86x of untuned)",
        suite="naive",
        apply=(Edit(SUITE, "DEFAULT_US, TUNED_US = 50.0, 45.0", "DEFAULT_US, TUNED_US = 50.0, 58.1"), as_new),
        shown={
            "S": Expect(
                "SLOWER", "beside_rival_us", cases=("tuned/forward",), says=("than its rival",), effect=58.1 / 50
            )
        },
    ),
    Mutant(
        name="a call for each row, from the first run on",
        classes=("K15",),
        imitates="TE#2939, FI#3948: slower than the naive way",
        suite="parts",
        apply=(
            Append(
                "kernels/fp8/__init__.py",
                """
_at_once = quantize_rowwise


def quantize_rowwise(x, **options):
    import torch

    codes, scales = zip(*(_at_once(row, **options) for row in x.split(1)))
    return torch.cat([each.view(torch.uint8) for each in codes]).view(codes[0].dtype), torch.cat(scales)
""",
            ),
            as_new,
        ),
        shown=dict.fromkeys(
            ("C", "G"), Expect("SLOWER", "beside_rival_us", cases=("rows/forward",), says=("than its rival",))
        ),
    ),
]
