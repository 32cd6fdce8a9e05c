"""The small guarded suites that mutants are judged on: each file here is a test file, copied into a project of its own.

A suite sizes its cases by `perfguard.device`: tiny ones on a CPU, where each takes a second at most, real ones on a
GPU, where they are timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of `[tool.perfguard]`, over the corpus' own. Inputs are derived for real kernels alone. One session: times are new
# there, so what is remembered of them does not matter; or on a CPU, whose times no record judges.
SETTINGS: dict[str, Mapping[str, Any]] = {
    "cross": {"targets": ["sm_90"]},
    "limits": {"targets": ["gfx942"]},
    "naive": {"device": "fake", "case_seconds": 0.1, "sessions": 1, "extra_seconds": 0},
    "parts": {"case_seconds": 0.2, "sessions": 1},
    "ranks": {"case_minutes": 0.5},  # a hang is one sooner
    "simulated": {"device": "fake", "case_seconds": 0.1, "extra_seconds": 0},
    "timed": {"case_seconds": 0.2, "sessions": 1},
    "tuned": {"targets": ["sm_90"]},
}
# The same on a GPU, over those above.
ON_A_GPU: dict[str, Mapping[str, Any]] = {
    "timed": {"sessions": 6},  # a recording leaves out one that lies far off; five judge
    "tuned": {"sessions": 1},  # no time is judged, and counts need no more
}
