"""Compile the layer's own kernels for an architecture that need not be here, and say what came out.

    python -m tests.kernels.moe_targets sm_90 gfx942 [all]

A process of its own, because the tests define the kernels as interpreted functions. Launches are caught as in
`operator_targets`: candidate 0, or all of them. Prints one JSON object for each compiled kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.moe import rows, weighted_gate
from tests.kernels.operator_targets import Launch, caught, report

# Model width, expert width, choices of a token: of real layers, and what needs the most registers.
SIZES = ((2048, 768, 8), (2048, 1408, 6), (2880, 2880, 4), (5120, 8192, 1))


def calls(
    dim: int, hidden: int, top_k: int, tokens: int = 64, device: str = "cpu"
) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Every way that the layer launches its kernels, what is optional there and not there: functions and inputs."""
    count = tokens * top_k
    x = torch.randn(tokens, dim, device=device).bfloat16()
    y, plus = torch.randn(2, count, dim, device=device).bfloat16()
    q, gate, up = torch.randn(3, count, hidden, device=device).bfloat16()
    weights = torch.rand(tokens, top_k, device=device)
    inverse = torch.randperm(count, device=device).view(tokens, top_k)

    def sum_of_two(y: Tensor, plus: Tensor, inverse: Tensor, candidate: int | None) -> Tensor:
        return rows.sum_rows(y, None, inverse, plus_MD=plus, candidate=candidate)

    def sum_of_two_and_dot(
        y: Tensor, plus: Tensor, weights: Tensor, inverse: Tensor, x: Tensor, candidate: int | None
    ) -> tuple[Tensor, Tensor]:
        return rows.sum_rows_and_dot(y, weights, inverse, x, plus_MD=plus, candidate=candidate)

    return {
        "spread": (rows.spread_rows, (x, None, inverse)),
        "spread float32": (rows.spread_rows, (x.float(), None, inverse, torch.bfloat16)),
        "spread weighted": (rows.spread_rows, (x, weights, inverse)),
        "spread and dot": (rows.spread_rows_and_dot, (x, weights, inverse, y)),
        "sum": (rows.sum_rows, (y, weights, inverse)),
        "sum of two": (sum_of_two, (y, plus, inverse)),
        "sum of two and dot": (sum_of_two_and_dot, (y, plus, weights, inverse, x)),
        "weighted gate": (weighted_gate.weighted_gate_backward, (q, gate, up, weights, inverse)),
    }


def launches_of(arch: str, candidate: int | None) -> list[tuple[str, Launch]]:
    found = []
    for sizes in SIZES:
        for name, (function, arguments) in calls(*sizes).items():
            with caught(arch, rows, weighted_gate) as launches:
                function(*arguments, candidate=candidate)
            assert len(launches) == 1, f"{name}: {len(launches)} launches; each is to be one"
            found += [(f"{name} {'x'.join(map(str, sizes))}", launch) for launch in launches]
    return found


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name != "all":
            report(name, "all" in sys.argv[2:], launches_of)
