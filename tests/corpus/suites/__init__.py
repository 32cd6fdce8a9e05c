"""The small guarded suites that mutants are judged on: each file here is a test file, copied into a project of its own.

A suite sizes its cases by `perfguard.device`: tiny ones on a CPU, where each takes a second at most, real ones on a
GPU, where they are timed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of `[tool.perfguard]`, over the corpus' own. Inputs are derived for real kernels alone.
SETTINGS: dict[str, Mapping[str, Any]] = {
    "choices": {"extra_seconds": 3},  # one of three configurations is wrong: all are tried in one run
    "cross": {"targets": ["sm_90"]},
    "limits": {"targets": ["gfx942"]},
    "naive": {"device": "fake", "case_seconds": 0.1, "extra_seconds": 0},
    "parts": {"case_seconds": 0.2},
    "ranks": {"case_minutes": 0.5},  # a hang is one sooner
    "simulated": {"device": "fake", "case_seconds": 0.1, "extra_seconds": 0},
    "timed": {"case_seconds": 0.2},
    "tuned": {"targets": ["sm_90"]},
}
# How often the clean suite is recorded: five sessions screen even where one of them lies far off. Elsewhere times are
# new, or those of a CPU, which no record judges.
RECORDINGS = {"simulated": 5}
RECORDINGS_ON_A_GPU = {**RECORDINGS, "timed": 5}
