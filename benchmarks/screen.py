"""Where the seconds of a screen go: a plugin for pytest that times the phases of guarded cases and prints a table.

    pytest --perfguard -p benchmarks.screen [--also MODULE:NAME …] tests/kernels/test_quantize_guarded.py

`check` is all of the numerics; the others are metrics, by their files in `perfguard/measure/metrics`. What a phase left
to do on the device is waited for and counts as its own. `cases` is how many were checked or had a reading, or else were
asked for one. Seconds are of the wall; run it twice, since the first compiles.
`--also perfguard.check.correctness:_Check._beside` adds a line for any function, whose seconds are within those of its
phase.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from benchmarks.rows import markdown
from perfguard.check import all_configs
from perfguard.measure.metrics import all_metrics


@dataclass
class Phase:
    """What was spent in one function: calls, those of them that returned something, seconds."""

    name: str
    timed: bool = False
    calls: int = 0
    fruitful: int = 0
    seconds: float = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, its calls counted and timed."""

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            answer = None
            try:
                answer = function(*args, **kwargs)
                return answer
            finally:
                if torch.accelerator.is_available():
                    torch.accelerator.synchronize()
                self.seconds += time.perf_counter() - started
                self.calls += 1
                self.fruitful += bool(answer)

        return counted


def follow(also: Sequence[str]) -> list[Phase]:
    """Count the phases of every case from here on, and the functions in `also`."""
    phases = [Phase("check")]
    all_configs.check_given = phases[0].around(all_configs.check_given)
    for metric in all_metrics():
        phases.append(Phase(metric.__name__.rpartition(".")[2], metric.TIMED))  # type: ignore[attr-defined]
        metric.read = phases[-1].around(metric.read)  # type: ignore[method-assign]
    for place in also:
        module, _, path = place.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, name = path.split(".")
        for each in outer:
            owner = getattr(owner, each)
        phases.append(Phase(place))
        setattr(owner, name, phases[-1].around(getattr(owner, name)))
    return phases


def table(phases: Sequence[Phase]) -> list[str]:
    """A line for each phase, and one for all times, by cases that have an output contract: all that ran."""
    rows: list[tuple[object, ...]] = []
    timed = Phase("all that is timed")
    for phase in phases:
        if phase.timed:
            timed.seconds += phase.seconds
        if phase.calls:
            cases = phase.fruitful or phase.calls
            each = 1e3 * phase.seconds / cases
            rows.append((phase.name, cases, f"{phase.seconds:.2f}", f"{each:.0f}"))
    cases = next(phase.fruitful for phase in phases if phase.name == "contract")
    rows.append((timed.name, cases, f"{timed.seconds:.2f}", f"{1e3 * timed.seconds / max(1, cases):.0f}"))
    return markdown(["phase", "cases", "s", "ms of one"], rows)


_PHASES = pytest.StashKey[list[Phase]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--also", action="append", default=[], metavar="MODULE:NAME", help="another function to time")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_PHASES] = follow(config.option.also)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in table(config.stash[_PHASES]):
        terminalreporter.write_line(line)
