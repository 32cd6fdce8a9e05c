"""The small guarded suites that mutants are judged on: each file here is a test file, copied into a project of its own.

A suite sizes its cases by `perfguard.device`: tiny ones on a CPU, where each takes a second at most, real ones on a
GPU, where they are timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# One confirmation instead of three, each of which is a process of seconds, where times are simulated. What their number
# does to false alarms and power is shown in tests/judge.
ONCE = {"confirmations": 1}

# Of `[tool.perfguard]`, over the corpus' own: device "auto" on a GPU and "cpu" elsewhere, no targets to compile for.
SETTINGS: dict[str, Mapping[str, Any]] = {
    "cross": {"targets": ["sm_90", "gfx942"]},
    "limits": {"targets": ["gfx942"]},
    "naive": {"device": "fake", "case_seconds": 0.1, **ONCE},
    "parts": {"case_seconds": 0.2},
    "simulated": {"device": "fake", "case_seconds": 0.1, **ONCE},
    "timed": {"case_seconds": 0.2, "sessions": 6},  # a recording leaves out one that lies far off; five judge
    "tuned": {"targets": ["sm_90"]},
}
# The same on a GPU, over those above. One session: no time is judged, and counts need no more.
ON_A_GPU: dict[str, Mapping[str, Any]] = {
    "cross": {"targets": ["sm_90"]},
    "tuned": {"sessions": 1},
}
