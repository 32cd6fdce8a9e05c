"""The limit on a case: what is over it is told with its step, what is within it is left alone."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from perfguard.check.correctness import check
from perfguard.model.call import Call
from perfguard.session import watchdog
from perfguard.session.watchdog import describe_step, watched

ROOT = Path(__file__).parents[2]


def test_what_is_over_the_limit_is_told_once() -> None:
    said: list[str] = []
    over = threading.Event()

    def expired(step: str) -> None:
        said.append(step)
        over.set()

    with watched(0.0005, expired):
        assert over.wait(30)
    assert len(said) == 1
    assert said[0].startswith("the test's own code, at test_watchdog.py:")
    assert said[0].endswith("in test_what_is_over_the_limit_is_told_once")


def test_what_ends_in_time_is_left_alone() -> None:
    def expired(step: str) -> None:
        raise AssertionError(step)

    before = threading.active_count()
    for _ in range(3):
        with watched(1.0, expired):
            pass
    with pytest.raises(ZeroDivisionError), watched(1.0, expired):
        raise ZeroDivisionError
    for thread in threading.enumerate():
        if thread.name == "perfguard: watch":
            thread.join(30)
    assert threading.active_count() <= before


def test_what_takes_long_is_seen_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_FIRST_SECONDS", 0.0)
    looks: list[tuple[str, float]] = []
    enough = threading.Event()

    def seen(step: str, seconds: float) -> None:
        looks.append((step, seconds))
        if len(looks) == 3:
            enough.set()

    with watched(math.inf, lambda step: None, 0.001, seen):
        assert enough.wait(30)
    assert looks[0][0].startswith("the test's own code, at test_watchdog.py:")
    assert looks == sorted(looks, key=lambda look: look[1])
    seen_inside = len(looks)
    watchers = [each for each in threading.enumerate() if each.name == "perfguard: watch"]
    for each in watchers:
        each.join(30)
    assert len(looks) == seen_inside


def test_the_step_is_read_from_the_stack() -> None:
    steps: list[str] = []

    def candidate(x):  # type: ignore[no-untyped-def]
        steps.append(describe_step(sys._getframe()))
        return 2 * x

    import torch

    check(Call(candidate, (torch.ones(2),), lambda x: 2 * x))
    assert set(steps) == {f"the numerics check, at test_watchdog.py:{steps[0].split(':')[1].split()[0]} in candidate"}
    assert describe_step(None) == "the test's own code"


def test_children_and_theirs_are_stopped() -> None:
    grandchild = "import time; time.sleep(600)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    code = f"""
        import subprocess, sys, time
        from perfguard.session.watchdog import _descendants, stop_children
        import os
        child = subprocess.Popen([sys.executable, "-c", {child!r}])
        while len(_descendants(os.getpid())) < 2:
            time.sleep(0.01)
        stop_children()
        print(child.wait())
        while _descendants(os.getpid()):
            time.sleep(0.01)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "-9\n"
