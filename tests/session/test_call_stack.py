"""Calls find room for their frames, at every depth of the stack."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from functools import partial

import pytest

from perfguard.session.call_stack import with_room

CALLS, DEPTHS = 500, 700


def nothing() -> None:
    pass


def page_faults_of_calls() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        nothing()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def deeper(depth: int, call: Callable[[], int]) -> int:
    return deeper(depth - 1, call) if depth else call()


def most_faults(within: Callable[[Callable[[], int]], int]) -> int:
    return max(within(partial(deeper, depth, page_faults_of_calls)) for depth in range(DEPTHS))


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="CPython's stack of frames")
def test_no_depth_of_the_stack_makes_calls_take_memory() -> None:
    assert most_faults(lambda call: call()) >= CALLS
    assert most_faults(with_room(lambda call: call())) < CALLS // 2


def test_arguments_results_and_the_name_are_those_of_the_function() -> None:
    @with_room
    def total(first: int, *, second: int) -> int:
        return first + second

    assert total(1, second=2) == 3
    assert total.__name__ == "total"
