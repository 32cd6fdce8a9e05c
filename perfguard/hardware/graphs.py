"""Capturing work on a GPU: torch's graphs, with everything put back where a capture fails."""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Only this thread's unsafe calls end a capture: others, such as one that reads clocks, do not touch it.
_ERRORS = "thread_local"


class NotCapturable(Exception):
    """Why a capture failed, in the words of whoever refused."""


def capture(calls: Sequence[Callable[[], object]], keep: int, backend: Any, index: int) -> Any:
    """A torch graph of the work of all `calls`; the current stream must be a side stream.

    Args:
        keep: how many results stay allocated while the next calls run.
        backend: `torch.cuda`, also of a ROCm build.
        index: of the device.

    Raises:
        NotCapturable: a call raised, did what cannot be captured, or put no work on this stream.
    """
    scratch = torch.zeros(1, device=torch.device("cuda", index))
    try:
        graph, problem = _captured(calls, keep, backend, index)
    except Exception as error:  # whatever a candidate raises when it is told that it may not synchronise
        # Random generators believe that a capture still runs, and refuse to work, until one has ended well. Where
        # not even this can be captured the device is lost, and says so at its next use.
        with contextlib.suppress(Exception):
            _captured([scratch.zero_], 1, backend, index)
        raise NotCapturable(_first_line(error)) from error
    if problem:
        raise NotCapturable(problem)
    return graph


def _captured(calls: Sequence[Callable[[], object]], keep: int, backend: Any, index: int) -> tuple[Any, str]:
    """The graph, and what torch warned of when it was ended."""
    graph, pool = backend.CUDAGraph(), backend.graph_pool_handle()
    kept: collections.deque[object] = collections.deque(maxlen=keep)
    graph.capture_begin(pool=pool, capture_error_mode=_ERRORS)
    try:
        for call in calls:
            kept.append(call())
    except BaseException:
        with contextlib.suppress(Exception):  # the first error tells more than that of the broken capture
            graph.capture_end()
        _leave_pool(index, pool)
        raise
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            graph.capture_end()
    except Exception:
        _leave_pool(index, pool)
        raise
    empty = any("graph is empty" in str(warning.message).lower() for warning in caught)
    return graph, "the call puts no work on the current stream" if empty else ""


def _leave_pool(index: int, pool: Any) -> None:
    """A capture that ends in an error leaves the allocator in its pool; torch has no public word for leaving it."""
    with contextlib.suppress(Exception):  # raises where torch has left the pool, and then torch releases it too
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
