"""Section 1.4, K38: what happens to a guard itself. Each has a word of its own, and none is green in silence."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.planting import Append, Change, Edit, Expect, Mutant, Rewrite

CPU = "baselines/cpu/test_moe.yaml"
WHOLE = r"(?s)\A.+\Z"
FULL = """
import errno
import os

import perfguard.store.report_file


def full(path, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


perfguard.store.report_file.write_atomically = full
"""


def removed(root: Path) -> None:
    shutil.rmtree(root / "baselines")


def hygiene(
    name: str,
    seen: str,
    change: Change | tuple[Change, ...],
    expect: Expect,
    *arguments: str,
    given: tuple[Change, ...] = (),
) -> Mutant:
    changes = change if isinstance(change, tuple) else (change,)
    return Mutant(f"guard: {name}", ("K38",), seen, "moe", changes, {"C": expect}, arguments, given)


def nothing(root: Path) -> None:
    """The arguments alone are the mutant."""


def renamed(root: Path) -> None:
    (root / "test_moe.py").rename(root / "test_experts.py")


MUTANTS = [
    hygiene(
        "a renamed case", "TileOPs#1984", Edit("test_moe.py", "def test_spread(", "def test_spread_rows("),
        Expect("NEW", cases=("spread_rows/*",)),
    ),
    hygiene(
        "a renamed file",
        "torchao#4090",
        renamed,
        Expect("NEW", cases=("*",)),
    ),
    hygiene(
        "a set-up that raises", "TileOPs#1928: set-up errors counted as passed",
        Edit("test_moe.py", "    dispatch = plan(ids, each.experts)", "    dispatch = plan(ids, None)"),
        Expect("BROKEN", cases=("spread/*",), says=("call raised TypeError",)),
    ),
    hygiene(
        "a missing baseline", "aiter: a loader that returns nothing", removed,
        Expect("NEW", cases=("*",)),
    ),
    hygiene(
        # An uncommitted setting would have the base asked, which guards without a record.
        "a missing baseline, strict", "aiter", removed, Expect("NEW", cases=("*",), status=13),
        given=(Append("pyproject.toml", "strict = true"),),
    ),
    hygiene(
        "an empty baseline", "aiter", Rewrite(CPU, WHOLE, ""), Expect("", says=("cpu/test_moe.yaml",), status=4),
    ),
    hygiene(
        "a truncated baseline", "aiter", Rewrite(CPU, WHOLE, lambda found: found[0][: len(found[0]) // 2]),
        Expect("", says=("cpu/test_moe.yaml",), status=4),
    ),
    hygiene(
        "a foreign baseline", "aiter", Edit(CPU, "hardware: cpu", "hardware: nvidia-h200"),
        Expect("", says=("cpu/test_moe.yaml", "nvidia-h200"), status=4),
    ),
    hygiene(
        "a baseline from the future", "aiter", Edit(CPU, "schema: 3", "schema: 99"),
        Expect("", says=("cpu/test_moe.yaml", "schema 99"), status=4),
    ),
    hygiene(
        "a skip on half the cases", "torchao#4090: a file stopped running, unnoticed",
        (
            Edit("test_moe.py", '@pytest.mark.parametrize("count", [32, 64])',
                 '@pytest.mark.skip\n@pytest.mark.parametrize("count", [32, 64])'),
            Append("pyproject.toml", "strict = true"),
        ),
        Expect("UNRESOLVED", cases=("layer[*]/*",), says=("has a baseline, but its test was skipped",), status=13),
    ),
    hygiene(
        "-k selects nothing", "torchao#4090", nothing, Expect("", says=("4 deselected",), status=5), "-k", "nobody"
    ),
    hygiene(
        "a device that is not there", "tritonbench", nothing, Expect("", says=("cuda",), status=4),
        "--perfguard-device=cuda:7",
    ),
    hygiene(
        "a disk that is full", "TileOPs#1953: a traceback hidden by || warning", Append("conftest.py", FULL),
        Expect("", says=("the report cannot be written (No space left on device); make room",), status=4),
    ),
    hygiene(
        "a kernel that hangs", "tritonbench: any exception reads as inaccurate",
        (
            Edit(
                "kernels/moe/dispatch.py",
                "        return spread_rows(x_TD, weights_TK, inverse_TK)\n\n    @staticmethod",
                "        import time\n\n        time.sleep(600 * (weights_TK is None))\n"
                "        return spread_rows(x_TD, weights_TK, inverse_TK)\n\n    @staticmethod",
            ),
            Append("pyproject.toml", "case_minutes = 0.1"),
        ),
        Expect("BROKEN", cases=("spread/forward",), says=("took longer than 0.1 minutes, in the numerics check",)),
    ),
]  # fmt: skip
