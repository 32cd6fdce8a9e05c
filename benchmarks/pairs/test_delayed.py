"""The delays of plan.json under guard, in a project of their own: `python -m benchmarks.pairs` makes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from delayed import chain, expected, numbers

PLAN = Path(__file__).with_name("plan.json")
DELAYS = json.loads(PLAN.read_text(encoding="utf-8")) if PLAN.exists() else []


@pytest.mark.parametrize("delay", DELAYS, ids=lambda delay: delay["name"])
def test_delayed(perfguard: Any, delay: dict[str, Any]) -> None:
    links = delay["links"]  # no input of the call: else it would be another one
    x = numbers(perfguard.device)
    perfguard(lambda x: chain(x, links), x, reference=lambda x: expected(x, links), cache="warm")
