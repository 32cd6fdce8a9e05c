"""The products of plan.json under guard, in a project of their own: `python -m benchmarks.pairs` makes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from powered import WIDTH, product

PLAN = Path(__file__).with_name("plan.json")
PRODUCTS = json.loads(PLAN.read_text(encoding="utf-8")) if PLAN.exists() else []


@pytest.mark.parametrize("planned", PRODUCTS, ids=lambda planned: planned["name"])
def test_powered(perfguard: Any, planned: dict[str, Any]) -> None:
    percent = planned["percent"]  # no input of the call: else it would be another one
    x = torch.randn(WIDTH, dtype=torch.bfloat16, device=perfguard.device)
    perfguard(lambda x: product(x, percent), x, reference=lambda x: x)
