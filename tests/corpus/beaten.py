"""Of section 1.1: slower than the plain way from the first day on, so that no baseline tells."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.checkouts import ROOT
from benchmarks.planting import Append, Change, Edit, Expect, Mutant

SUITE = "test_naive.py"


def not_there(root: Path) -> None:
    """No run came before, and at the base nobody guards anything."""
    shutil.rmtree(root / "baselines")
    next(root.glob("test_*.py")).unlink()


def added(suite: str) -> Change:
    """The test file, as new as what it guards."""

    def change(root: Path) -> None:
        shutil.copy(ROOT / "tests" / "corpus" / "suites" / f"{suite}.py", root / f"test_{suite}.py")

    return change


MUTANTS = [
    Mutant(
        name="a launch for each group, from the first run on",
        classes=("K15",),
        imitates="TE#2939: twice as slow as the loop that it replaces",
        suite="naive",
        apply=(added("naive"), Edit(SUITE, "GROUPS, LAUNCHES = 8, 1", "GROUPS, LAUNCHES = 8, 16")),
        given=(not_there,),
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
        apply=(added("naive"), Edit(SUITE, "DEFAULT_US, TUNED_US = 50.0, 45.0", "DEFAULT_US, TUNED_US = 50.0, 58.1")),
        given=(not_there,),
        shown={
            "S": Expect(
                "SLOWER", "beside_rival_us", cases=("tuned/forward",), says=("than its rival",), effect=58.1 / 50
            )
        },
    ),
    Mutant(
        name="event: slower than its rival at the base already",
        classes=("K37",),
        imitates="helion#1640",
        suite="naive",
        apply=(),
        given=(Edit(SUITE, "DEFAULT_US, TUNED_US = 50.0, 45.0", "DEFAULT_US, TUNED_US = 50.0, 58.1"),),
        shown={"S": Expect("UNCHANGED", "beside_rival_us", cases=("tuned/forward",), says=("the working tree is ",))},
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
            added("parts"),
        ),
        given=(not_there,),
        shown=dict.fromkeys(
            ("C", "G"), Expect("SLOWER", "beside_rival_us", cases=("rows/forward",), says=("than its rival",))
        ),
    ),
]
