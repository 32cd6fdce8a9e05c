"""Answers, in a base's process, whether the base has the faults that a later commit shows on other inputs."""

from __future__ import annotations

from collections.abc import Sequence

from perfguard.model.call import Call
from perfguard.model.records import Doubt


def ask(call: Call, doubts: Sequence[Doubt]) -> list[Doubt]:
    """Try exactly what `doubts` tried, on the base's call, and judge it by the same rule.

    Returns:
        The doubts that can be tried here. `problem` is empty where the result is right.
    """
    raise NotImplementedError
