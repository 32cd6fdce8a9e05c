"""A call's inputs walked twice with empty compiler caches: what is compiled at first, and what anew the second time."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from perfguard.compiling.trace import Frame, Trace, traced


@dataclass(frozen=True)
class Walked:
    """What the compiler did on a walk.

    Attributes:
        first: the first lap: everything is compiled.
        second: the second: nothing should be.
        kernels: that inductor generated on the first lap; None where it was not the backend.
        library_calls: to kernels that inductor did not generate (matmuls, custom operators); None likewise.
        planned_bytes: that these kernels and calls read and write, as inductor planned them; None likewise.
    """

    first: Trace
    second: Trace
    kernels: int | None = None
    library_calls: int | None = None
    planned_bytes: int | None = None

    @property
    def recompiled(self) -> list[Frame]:
        """On both laps; on the second, whatever is compiled at all."""
        return self.first.recompiled + self.second.frames


def forget_compiled() -> None:
    """Reset torch's compiler as a fresh process has it; nothing where it was never loaded. Disk caches stay."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def cached_graphs() -> tuple[int, int]:
    """How many graphs inductor took from its cache in this process, and how many it could not."""
    from torch._dynamo.utils import counters

    found = counters["inductor"]
    return found["fxgraph_cache_hit"], found["fxgraph_cache_miss"] + found["fxgraph_cache_bypass"]


def walk(steps: Sequence[Callable[[], object]], *, go_on: bool = True) -> Walked | None:
    """Take the steps once, and once again; None where the first one compiles nothing.

    torch's compiler is reset before, and after. Disk caches of graphs are passed over on the first lap, since what
    comes from them is not counted; compiled C++ and Triton kernels are taken from theirs.

    Args:
        go_on: take the first step once more in the end, so that the process goes on as if it had seen that alone.

    Raises:
        Exception: whatever a step raises, with a note on which.
    """
    forget_compiled()
    with traced() as first, _inductor_counted() as counts:
        _take(steps[:1], 0)
        if not first.frames:
            return None
        _take(steps[1:], 1)
    with traced() as second:
        _take(steps, 0, " again")
    forget_compiled()
    if go_on:
        _take(steps[:1], 0, " after a reset")
    return Walked(first, second, **(counts if any(counts.values()) else {}))


def _take(steps: Sequence[Callable[[], object]], first: int, how: str = "") -> None:
    for number, step in enumerate(steps, first):
        try:
            step()
        except Exception as error:
            what = f"step {number} of the walk" if number else "the case's own inputs"
            error.add_note(f"perfguard: raised while {what} ran{how} under the compiler")
            raise


@contextlib.contextmanager
def _inductor_counted() -> Iterator[dict[str, int]]:
    """Within, inductor generates code for every graph; afterwards, what it generated. Nothing where it was not loaded:
    then no call has used it."""
    counts: dict[str, int] = {}
    compile_fx = sys.modules.get("torch._inductor.compile_fx")
    if compile_fx is None:
        yield counts
        return
    import torch._functorch.config
    import torch._inductor.config
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    names = {"kernels": "generated_kernel_count", "planned_bytes": "num_bytes_accessed"}
    before = {name: getattr(metrics, attribute) for name, attribute in names.items()}
    calls = counters["inductor"]["extern_calls"]
    with (
        torch._inductor.config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False),
        _heard(getattr(compile_fx, "inductor_metrics_log", None)),
        _bytes_alone(),
    ):
        yield counts
    counts |= {name: getattr(metrics, attribute) - before[name] for name, attribute in names.items()}
    counts["library_calls"] = counters["inductor"]["extern_calls"] - calls


@contextlib.contextmanager
def _heard(logger: object) -> Iterator[None]:
    """Inductor adds up planned bytes only while its metrics are logged: let them be, to nobody."""
    if not isinstance(logger, logging.Logger):
        yield
        return
    level, propagate, silent = logger.level, logger.propagate, logging.NullHandler()
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)
        logger.propagate = propagate
        logger.setLevel(level)


def _bytes_alone() -> contextlib.AbstractContextManager[object]:
    """With the bytes inductor estimates times, which nobody reads. On a GPU it cannot for sizes that it does not know
    (torch 2.11), and the candidate's compilation would fail with it."""
    from torch._inductor.graph import GraphLowering

    def count_bytes(graph: Any) -> tuple[int, list[Any], list[Any]]:
        return sum(node.get_read_write_buffers_sizes() for node in graph.scheduler.nodes), [], []

    return mock.patch.object(GraphLowering, "count_bytes", count_bytes)
