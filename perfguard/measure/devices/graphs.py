"""Captures of work on a GPU as torch's graphs. A failed capture restores the previous state."""

from __future__ import annotations

import collections
import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from perfguard._compat.torch_internals import leave_pool

# Only this thread's unsafe calls end a capture, not those of others, such as a thread that reads clocks.
_ERRORS = "thread_local"


class NotCapturable(Exception):
    """A capture failed; the message is that of the call or of torch."""


def capture(calls: Sequence[Callable[[], object]], keep: int, backend: Any, index: int) -> Any:
    """A torch graph of the work of all `calls`; the current stream must be a side stream.

    Args:
        keep: number of results that stay allocated while the next calls run.
        backend: `torch.cuda`, also of a ROCm build.
        index: of the device.

    Raises:
        NotCapturable: a call raised, used an operation that cannot be captured, or put no work on this stream.
    """
    scratch = torch.zeros(1, device=torch.device("cuda", index))
    try:
        graph, problem = _captured(calls, keep, backend, index)
    except Exception as error:  # candidates raise various errors when they may not synchronise
        # Random generators assume a running capture, and refuse to work, until one has ended well. If even this one
        # fails, the device is lost and its next use reports so.
        with contextlib.suppress(Exception):
            _captured([scratch.zero_], 1, backend, index)
        raise NotCapturable(_first_line(error)) from error
    if problem:
        raise NotCapturable(problem)
    return graph


def _captured(calls: Sequence[Callable[[], object]], keep: int, backend: Any, index: int) -> tuple[Any, str]:
    """The graph, and the problem that torch warned of when the capture ended."""
    graph, pool = backend.CUDAGraph(), backend.graph_pool_handle()
    kept: collections.deque[object] = collections.deque(maxlen=keep)
    graph.capture_begin(pool=pool, capture_error_mode=_ERRORS)
    try:
        for call in calls:
            kept.append(call())
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is more useful than that of the broken capture
            graph.capture_end()
        leave_pool(index, pool)
        raise
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            graph.capture_end()
    except Exception:
        leave_pool(index, pool)
        raise
    empty = any("graph is empty" in str(warning.message).lower() for warning in caught)
    return graph, "the call puts no work on the current stream" if empty else ""


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
